// The gate of a SwiGLU feed-forward layer (Shazeer: GLU variants improve transformer, 2020).
//
// `out = gate * sigmoid(gate) * up`, with rows `gate_up = [gate(width) | up(width)]` and `out = [width]`. `width` is a
// multiple of 8, pointers are 16-byte aligned.
//
// Launch: any grid (x over the vectors of a row, y over tokens), a one-dimensional block of at most 256 threads.
template <class Element>
__device__ __forceinline__ void silu_mul(const unsigned short* __restrict__ gate_up, unsigned short* __restrict__ out,
                                         unsigned tokens, unsigned width) {
  const unsigned vectors = width / 8;
  for (unsigned token = blockIdx.y; token < tokens; token += gridDim.y) {
    const uint4* from = reinterpret_cast<const uint4*>(gate_up) + (unsigned long long)token * 2 * vectors;
    uint4* to = reinterpret_cast<uint4*>(out) + (unsigned long long)token * vectors;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < vectors; i += gridDim.x * blockDim.x) {
      float gate[8], up[8];
      widen8<Element>(from[i], gate);
      widen8<Element>(from[vectors + i], up);
#pragma unroll
      for (int j = 0; j < 8; ++j) gate[j] = gate[j] / (1.0f + expf(-gate[j])) * up[j];
      to[i] = narrow8<Element>(gate);
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    kvtide_silu_mul_bf16(const unsigned short* gate_up, unsigned short* out, unsigned tokens, unsigned width) {
  silu_mul<Bf16>(gate_up, out, tokens, width);
}

extern "C" __global__ void __launch_bounds__(256)
    kvtide_silu_mul_fp16(const unsigned short* gate_up, unsigned short* out, unsigned tokens, unsigned width) {
  silu_mul<Fp16>(gate_up, out, tokens, width);
}
