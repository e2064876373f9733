// Fills the KV rows of tokens with words that follow from a seed alone: what a simulated model writes, and what a
// check can predict without the model.
//
// Token `t` lies in slot `slots[t] = block * block_size + offset`. Its row in plane `p` (layer, K or V, head) gets the
// words `w[j] = low 32 bits of mix64(seeds[t] + (p * words_per_row + j) * 0x9E3779B97F4A7C15)`: splitmix64 (Steele, Lea,
// Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) at the position of the word.
//
// Launch: any grid (x over the words of a token, y over tokens), a one-dimensional block of at most 256 threads.

__device__ __forceinline__ unsigned mix64(unsigned long long x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return (unsigned)(x ^ (x >> 31));
}

extern "C" __global__ void __launch_bounds__(256)
    kvtide_kv_fill(unsigned* __restrict__ pool, const unsigned long long* __restrict__ seeds,
                   const unsigned* __restrict__ slots, unsigned tokens, unsigned planes, unsigned block_size,
                   unsigned words_per_row) {
  constexpr unsigned long long kGolden = 0x9E3779B97F4A7C15ull;
  // Whole vectors where rows are made of them, words otherwise.
  const unsigned width = words_per_row % 4 == 0 ? 4 : 1;
  const unsigned steps = planes * (words_per_row / width);
  for (unsigned token = blockIdx.y; token < tokens; token += gridDim.y) {
    const unsigned slot = slots[token], block = slot / block_size, offset = slot % block_size;
    const unsigned long long seed = seeds[token];
    for (unsigned step = blockIdx.x * blockDim.x + threadIdx.x; step < steps; step += gridDim.x * blockDim.x) {
      const unsigned word = step * width, plane = word / words_per_row, column = word % words_per_row;
      const unsigned long long row = ((unsigned long long)block * planes + plane) * block_size + offset;
      unsigned* to = pool + row * words_per_row + column;
      const unsigned long long state = seed + word * kGolden;
      if (width == 4) {
        *reinterpret_cast<uint4*>(to) =
            make_uint4(mix64(state), mix64(state + kGolden), mix64(state + 2 * kGolden), mix64(state + 3 * kGolden));
      } else {
        *to = mix64(state);
      }
    }
  }
}
