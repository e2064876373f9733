// What cached blocks are worth above their price, and the one that is worth least, in one pass over them:
// `values[i] = returns[i] - risk_aversion * risks[i] - price * costs[i]` (Token-PD, KDD 2025 workshop on inference
// optimization).
//
// `least`, which the caller has set to all ones, gets `ordered(values[i]) << 32 | i` of the smallest value, of equals that
// with the smallest index. A value that is no number never wins; all ones are left if there is nothing else. Whoever
// pops several launches once and sorts `values`; whoever needs one victim reads eight bytes.
//
// Each product is fused with its subtraction, so that values are the same to the last bit wherever they are computed, and with
// them the order. Arrays are 16-byte aligned.
//
// Launch: any one-dimensional grid, blockDim.x a multiple of 32 and at most 256.

// Floats as integers of the same order.
__device__ __forceinline__ unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value);
  return bits ^ (bits >> 31 ? 0xFFFFFFFFu : 0x80000000u);
}

// The value of a block; the smaller of `least` and its key.
__device__ __forceinline__ float price_one(float worth, float risk, float cost, float risk_aversion, float price,
                                           unsigned index, unsigned long long& least) {
  // Adding zero makes one zero of two, which are equal and must not be told apart by their bits.
  const float value = fmaf(-price, cost, fmaf(-risk_aversion, risk, worth)) + 0.0f;
  const unsigned long long key = (unsigned long long)ordered(value) << 32 | index;
  if (value == value && key < least) least = key;
  return value;
}

extern "C" __global__ void __launch_bounds__(256)
    kvtide_block_price(const float* __restrict__ returns, const float* __restrict__ risks,
                       const float* __restrict__ costs, float risk_aversion, float price, unsigned count,
                       float* __restrict__ values, unsigned long long* __restrict__ least) {
  __shared__ unsigned long long warp_leasts[8];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  unsigned long long best = 0xFFFFFFFFFFFFFFFFull;
  const unsigned vectors = count / 4;
  for (unsigned i = first; i < vectors; i += step) {
    const float4 worth = reinterpret_cast<const float4*>(returns)[i];
    const float4 risk = reinterpret_cast<const float4*>(risks)[i];
    const float4 cost = reinterpret_cast<const float4*>(costs)[i];
    float4 value;
    value.x = price_one(worth.x, risk.x, cost.x, risk_aversion, price, 4 * i, best);
    value.y = price_one(worth.y, risk.y, cost.y, risk_aversion, price, 4 * i + 1, best);
    value.z = price_one(worth.z, risk.z, cost.z, risk_aversion, price, 4 * i + 2, best);
    value.w = price_one(worth.w, risk.w, cost.w, risk_aversion, price, 4 * i + 3, best);
    reinterpret_cast<float4*>(values)[i] = value;
  }
  for (unsigned i = vectors * 4 + first; i < count; i += step) {
    values[i] = price_one(returns[i], risks[i], costs[i], risk_aversion, price, i, best);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const unsigned long long other = __shfl_xor_sync(0xFFFFFFFFu, best, offset);
    if (other < best) best = other;
  }
  if (lane == 0) warp_leasts[warp] = best;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (unsigned i = 1; i < blockDim.x / 32; ++i) best = warp_leasts[i] < best ? warp_leasts[i] : best;
    // The smallest of all CTAs whatever their order.
    atomicMin(least, best);
  }
}
