// Copies whole KV blocks between two pools through a mapping, 16 bytes a thread and step.
//
// Launch: grid (chunks, pairs), any block size. `pairs[i] = (source block, destination block)`; pools are
// `words_per_block` 16-byte words a block. Source and destination blocks of one launch must not overlap. A pool may be
// device memory or pinned host memory mapped into the device's address space.
extern "C" __global__ void kvtide_block_copy(const uint4* __restrict__ source, uint4* __restrict__ destination,
                                             const uint2* __restrict__ pairs, unsigned long long words_per_block) {
  const uint2 pair = pairs[blockIdx.y];
  const uint4* from = source + pair.x * words_per_block;
  uint4* to = destination + pair.y * words_per_block;
  const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long word = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; word < words_per_block;
       word += stride) {
    to[word] = from[word];
  }
}
