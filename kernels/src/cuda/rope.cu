// Rotary position embedding in place (Su et al.: RoFormer, 2021), in the half-split order of GPT-NeoX: element `i` of a
// head turns with element `i + head_dim / 2` by the angle `position * theta^(-2 i / head_dim)`.
//
// `qk` has rows `[heads][head_dim]`, `row_stride` elements apart; `positions[tokens]`. `head_dim` is even and at most
// 512.
//
// Launch: any grid (x over tokens), a one-dimensional block of at most 256 threads.
template <class Element>
__device__ __forceinline__ void rope(unsigned short* __restrict__ qk, unsigned long long row_stride,
                                     const unsigned* __restrict__ positions, unsigned tokens, unsigned heads,
                                     unsigned head_dim, float theta, float2* rotations) {
  const unsigned half = head_dim / 2;
  for (unsigned token = blockIdx.x; token < tokens; token += gridDim.x) {
    // One turn for all heads. The angle is f64: at position 100000 an f32 angle is off by a hundredth of a radian.
    for (unsigned i = threadIdx.x; i < half; i += blockDim.x) {
      const double turns = positions[token] * exp2(-2.0 * i / head_dim * log2((double)theta)) * 0.15915494309189533577;
      const float angle = (float)((turns - floor(turns)) * 6.28318530717958647693);
      sincosf(angle, &rotations[i].y, &rotations[i].x);
    }
    __syncthreads();
    unsigned short* row = qk + token * row_stride;
    for (unsigned step = threadIdx.x; step < heads * half; step += blockDim.x) {
      const unsigned i = step % half;
      unsigned short* low = row + step / half * head_dim + i;
      unsigned short* high = low + half;
      const float2 turn = rotations[i];
      const float x = Element::widen(*low), y = Element::widen(*high);
      *low = Element::narrow(x * turn.x - y * turn.y);
      *high = Element::narrow(y * turn.x + x * turn.y);
    }
    // Before the next token's turns are written over these.
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(256)
    kvtide_rope_bf16(unsigned short* qk, unsigned long long row_stride, const unsigned* positions, unsigned tokens,
                     unsigned heads, unsigned head_dim, float theta) {
  __shared__ float2 rotations[256];
  rope<Bf16>(qk, row_stride, positions, tokens, heads, head_dim, theta, rotations);
}

extern "C" __global__ void __launch_bounds__(256)
    kvtide_rope_fp16(unsigned short* qk, unsigned long long row_stride, const unsigned* positions, unsigned tokens,
                     unsigned heads, unsigned head_dim, float theta) {
  __shared__ float2 rotations[256];
  rope<Fp16>(qk, row_stride, positions, tokens, heads, head_dim, theta, rotations);
}
