// Checksums of KV blocks as they lie in the pool: which bytes a block holds, without moving them.
//
// `blocks[i] = (block, valid tokens)`; `sums[i]`, which the caller has zeroed, gets the sum of NH (Black, Halevi,
// Krawczyk, Krovetz, Rogaway: UMAC, CRYPTO 1999) over all 16-byte vectors of the block whose token slot is
// valid. The keys come from the vector's index in its block, so that a swap of two rows shows. A vector's token slot is
// `(vector / vectors_per_row) % block_size`. `sums` is a plain sum: any order of additions gives the same bits.
//
// Launch: grid (chunks, blocks) of any size, blockDim.x a multiple of 32 and at most 256.
//
// Four CTAs a multiprocessor: told so, the compiler takes the registers that eight loads in flight need. With more CTAs in
// mind it sinks the loads to their uses.

__device__ __forceinline__ unsigned mix32(unsigned x) {
  x = (x + 1u) * 0x9E3779B1u;
  x ^= x >> 15;
  x *= 0x85EBCA77u;
  return x ^ (x >> 13);
}

__device__ __forceinline__ unsigned long long hash_vector(unsigned vector, const uint4& words) {
  const unsigned key = mix32(vector);
  return (unsigned long long)(words.x + key) * (words.y + (key + 0xC2B2AE3Du)) +
         (unsigned long long)(words.z + (key ^ 0x27D4EB2Fu)) * (words.w + (key + 0x165667B1u));
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvtide_block_checksum(const uint4* __restrict__ pool, const uint2* __restrict__ blocks, unsigned count,
                          unsigned vectors_per_block, unsigned vectors_per_row, unsigned block_size,
                          unsigned long long* __restrict__ sums) {
  constexpr int kInFlight = 8;
  __shared__ unsigned long long warp_sums[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned index = blockIdx.y; index < count; index += gridDim.y) {
    const uint2 block = blocks[index];
    const uint4* base = pool + (unsigned long long)block.x * vectors_per_block;
    unsigned long long sum = 0;
    const unsigned long long step = (unsigned long long)blockDim.x * kInFlight * gridDim.x;
    for (unsigned long long start = (unsigned long long)blockIdx.x * blockDim.x * kInFlight; start < vectors_per_block;
         start += step) {
      const unsigned long long first = start + threadIdx.x;
      const bool whole = start + (unsigned long long)blockDim.x * kInFlight <= vectors_per_block;
      if (whole && block.y >= block_size) {
        // The usual case: a full block, no division, all loads before the first use.
        uint4 held[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) held[i] = base[first + i * blockDim.x];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) sum += hash_vector((unsigned)first + i * blockDim.x, held[i]);
      } else {
        // Two divisions a vector: not worth the room that eight copies of them take.
#pragma unroll 1
        for (int i = 0; i < kInFlight; ++i) {
          const unsigned long long vector = first + i * blockDim.x;
          if (vector < vectors_per_block && ((unsigned)vector / vectors_per_row) % block_size < block.y) {
            sum += hash_vector((unsigned)vector, base[vector]);
          }
        }
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (lane == 0) warp_sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (unsigned i = 1; i < blockDim.x / 32; ++i) sum += warp_sums[i];
      atomicAdd(&sums[index], sum);
    }
    // Before the next block's sums are written over these.
    __syncthreads();
  }
}
