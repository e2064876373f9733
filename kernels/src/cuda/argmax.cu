// Greedy sampling: the index of each row's largest logit, the smallest index of equals. A NaN never wins; a row of
// nothing else gives 0.
//
// Rows of `width` elements (any number), `row_stride` elements apart. Launch: any grid (x over rows), blockDim.x a
// multiple of 32 and at most 1024.
struct Best {
  float value;
  unsigned index;
};

__device__ __forceinline__ void keep_better(Best& best, float value, unsigned index) {
  if (value > best.value || (value == best.value && index < best.index)) {
    best.value = value;
    best.index = index;
  }
}

template <class Element>
__device__ __forceinline__ void argmax(const unsigned short* __restrict__ logits, unsigned long long row_stride,
                                       unsigned* __restrict__ ids, unsigned rows, unsigned width, Best* warp_bests) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned row = blockIdx.x; row < rows; row += gridDim.x) {
    const unsigned short* from = logits + row * row_stride;
    // Vectors where the row is aligned for them; the rest, or all of it, element by element.
    const unsigned vectors = (unsigned long long)from % 16 == 0 ? width / 8 : 0;
    Best best = {-__int_as_float(0x7F800000), 0xFFFFFFFFu};
    for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) {
      float values[8];
      widen8<Element>(reinterpret_cast<const uint4*>(from)[i], values);
#pragma unroll
      for (int j = 0; j < 8; ++j) keep_better(best, values[j], 8 * i + j);
    }
    for (unsigned i = vectors * 8 + threadIdx.x; i < width; i += blockDim.x) {
      keep_better(best, Element::widen(from[i]), i);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float value = __shfl_xor_sync(0xFFFFFFFFu, best.value, offset);
      const unsigned index = __shfl_xor_sync(0xFFFFFFFFu, best.index, offset);
      keep_better(best, value, index);
    }
    if (lane == 0) warp_bests[warp] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned i = 1; i < blockDim.x / 32; ++i) keep_better(best, warp_bests[i].value, warp_bests[i].index);
      ids[row] = best.index == 0xFFFFFFFFu ? 0 : best.index;
    }
    // Before the next row's bests are written over these.
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    kvtide_argmax_bf16(const unsigned short* logits, unsigned long long row_stride, unsigned* ids, unsigned rows,
                       unsigned width) {
  __shared__ Best warp_bests[32];
  argmax<Bf16>(logits, row_stride, ids, rows, width, warp_bests);
}

extern "C" __global__ void __launch_bounds__(1024)
    kvtide_argmax_fp16(const unsigned short* logits, unsigned long long row_stride, unsigned* ids, unsigned rows,
                       unsigned width) {
  __shared__ Best warp_bests[32];
  argmax<Fp16>(logits, row_stride, ids, rows, width, warp_bests);
}
