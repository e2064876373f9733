// Copies whole KV blocks between two pools through a mapping: swap-out, swap-in, copy-on-write.
//
// `pairs[i] = (source block, destination block)`; both pools are `vectors_per_block` 16-byte vectors a block, 16-byte
// aligned. Source and destination blocks of one launch must not overlap. A pool may be device memory or pinned host
// memory mapped into the device's address space.
//
// Launch: any one-dimensional grid, a one-dimensional block of at most 256 threads.
//
// Each thread has four loads in flight before its first store, so that a few CTAs keep a PCIe link busy.
extern "C" __global__ void __launch_bounds__(256)
    kvtide_block_copy(const uint4* __restrict__ source, uint4* __restrict__ destination,
                      const uint2* __restrict__ pairs, unsigned pair_count, unsigned long long vectors_per_block) {
  constexpr int kInFlight = 4;
  // A chunk is what one CTA moves in one step, always of a single pair.
  const unsigned long long chunk = (unsigned long long)blockDim.x * kInFlight;
  const unsigned long long chunks_per_pair = (vectors_per_block + chunk - 1) / chunk;
  const unsigned long long chunks = chunks_per_pair * pair_count;
  for (unsigned long long step = blockIdx.x; step < chunks; step += gridDim.x) {
    const unsigned long long index = step / chunks_per_pair;
    const uint2 pair = pairs[index];
    const uint4* from = source + pair.x * vectors_per_block;
    uint4* to = destination + pair.y * vectors_per_block;
    const unsigned long long first = (step - index * chunks_per_pair) * chunk + threadIdx.x;
    if (first + (kInFlight - 1) * (unsigned long long)blockDim.x < vectors_per_block) {
      uint4 held[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) held[i] = from[first + i * (unsigned long long)blockDim.x];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) to[first + i * (unsigned long long)blockDim.x] = held[i];
    } else {
      for (unsigned long long vector = first; vector < vectors_per_block; vector += blockDim.x) to[vector] = from[vector];
    }
  }
}
