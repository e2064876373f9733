// Rows of an embedding table by token id: `out[t] = table[ids[t]]`, `width` 2-byte elements a row, a multiple of 8;
// pointers are 16-byte aligned.
//
// Launch: any grid (x over tokens), a one-dimensional block of at most 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    kvtide_embed(const unsigned short* __restrict__ table, const unsigned* __restrict__ ids,
                 unsigned short* __restrict__ out, unsigned tokens, unsigned width) {
  const unsigned vectors = width / 8;
  for (unsigned token = blockIdx.x; token < tokens; token += gridDim.x) {
    const uint4* from = reinterpret_cast<const uint4*>(table) + (unsigned long long)ids[token] * vectors;
    uint4* to = reinterpret_cast<uint4*>(out) + (unsigned long long)token * vectors;
    for (unsigned i = threadIdx.x; i < vectors; i += blockDim.x) to[i] = from[i];
  }
}
