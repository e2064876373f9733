// Adds a sub-layer's output to the residual stream and normalises it for the next one (Zhang, Sennrich: Root mean
// square layer normalization, NeurIPS 2019).
//
// `residual += delta` (unless `delta` is null), `out = residual / sqrt(mean(residual^2) + epsilon) * weight`, for rows
// `[tokens][width]`, `weight[width]`. The norm is that of the residual as stored, after rounding. `width` is a multiple
// of 8, all pointers are 16-byte aligned.
//
// Launch: any grid (x over tokens), blockDim.x a multiple of 32 and at most 512.
template <class Element>
__device__ __forceinline__ void rms_norm(unsigned short* __restrict__ residual,
                                         const unsigned short* __restrict__ delta,
                                         const unsigned short* __restrict__ weight, unsigned short* __restrict__ out,
                                         unsigned tokens, unsigned width, float epsilon, float* warp_sums) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, vectors = width / 8;
  for (unsigned token = blockIdx.x; token < tokens; token += gridDim.x) {
    const unsigned long long row = (unsigned long long)token * vectors;
    uint4* stream = reinterpret_cast<uint4*>(residual) + row;
    float squares = 0.0f;
    for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
      float values[8];
      widen8<Element>(stream[i], values);
      if (delta != nullptr) {
        float added[8];
        widen8<Element>(reinterpret_cast<const uint4*>(delta)[row + i], added);
#pragma unroll
        for (int j = 0; j < 8; ++j) values[j] += added[j];
        const uint4 stored = narrow8<Element>(values);
        stream[i] = stored;
        widen8<Element>(stored, values);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += values[j] * values[j];
    }
    for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xFFFFFFFFu, squares, offset);
    if (lane == 0) warp_sums[warp] = squares;
    __syncthreads();
    float total = 0.0f;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) total += warp_sums[i];
    const float factor = rsqrtf(total / (float)width + epsilon);
    // Each thread reads back what it wrote itself.
    for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
      float values[8], weights[8];
      widen8<Element>(stream[i], values);
      widen8<Element>(reinterpret_cast<const uint4*>(weight)[i], weights);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] *= factor * weights[j];
      reinterpret_cast<uint4*>(out)[row + i] = narrow8<Element>(values);
    }
    // Before the next row's sums are written over these.
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(512)
    kvtide_rms_norm_bf16(unsigned short* residual, const unsigned short* delta, const unsigned short* weight,
                         unsigned short* out, unsigned tokens, unsigned width, float epsilon) {
  __shared__ float warp_sums[32];
  rms_norm<Bf16>(residual, delta, weight, out, tokens, width, epsilon, warp_sums);
}

extern "C" __global__ void __launch_bounds__(512)
    kvtide_rms_norm_fp16(unsigned short* residual, const unsigned short* delta, const unsigned short* weight,
                         unsigned short* out, unsigned tokens, unsigned width, float epsilon) {
  __shared__ float warp_sums[32];
  rms_norm<Fp16>(residual, delta, weight, out, tokens, width, epsilon, warp_sums);
}
