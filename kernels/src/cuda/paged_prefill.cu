// Causal attention of a chunk of a prompt over keys and values in pool blocks (Dao: FlashAttention-2, 2023), on tensor
// cores.
//
// A CTA holds 64 rows of queries, 16 a warp: row `r` is query head `r % group` of token `r / group`, so that all rows
// share one KV head. It walks over the sequence in tiles of 64 tokens; while it computes on one, the next arrives in the
// other of two stages. Scores are in units of log2.
//
// Item: query rows `row .. row + tokens` are the tokens at positions `context .. context + tokens` of the sequence whose
// block table lies at `tables + table`; each attends to positions up to its own, whose keys and values are in the pool
// already. `tokens * group` is at most 64. Rows of `query` and `out` are `[kv_heads * group][head_dim]`, their strides
// multiples of 2; the pool is 16-byte aligned, its stride and offsets multiples of 8 elements.
//
// Launch: grid (items, kv_heads), 128 threads, 512 * head_dim bytes of dynamic shared memory.

struct PrefillItem {
  unsigned row, tokens, context, table;
};

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kTile = 64;
constexpr int kTileBlocks = kTile / kBlockSize;

template <class Element, int kHeadDim>
__device__ __forceinline__ void paged_prefill(const unsigned short* __restrict__ query, unsigned long long query_stride,
                                              const unsigned short* __restrict__ pool, unsigned long long block_stride,
                                              unsigned long long key_offset, unsigned long long value_offset,
                                              const unsigned* __restrict__ tables,
                                              const PrefillItem* __restrict__ items, unsigned short* __restrict__ out,
                                              unsigned long long out_stride, unsigned kv_heads, unsigned group,
                                              float scale) {
  constexpr int kVectors = kHeadDim / 8, kPiece = kTile * kVectors, kCopies = kPiece / kThreads;
  constexpr int kSteps = kHeadDim / 16;
  const PrefillItem item = items[blockIdx.x];
  if (item.tokens == 0) return;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, pair = lane % 4 * 2;
  const unsigned kv_head = blockIdx.y, rows = item.tokens * group, end = item.context + item.tokens;
  const unsigned tiles = (end + kTile - 1) / kTile;
  const unsigned* table = tables + item.table;
  uint4* stages = dynamic_shared();

  // Starts the copy of a tile. Rows behind the end become zeros: whatever lies there, 0 * V must be 0.
  const auto start = [&](unsigned tile) {
    if (tile < tiles) {
      uint4* stage = stages + tile % 2 * (2 * kPiece);
#pragma unroll
      for (int v = 0; v < kCopies; ++v) {
        const unsigned vector = threadIdx.x + kThreads * v, token = vector / kVectors, column = vector % kVectors;
        const bool present = tile * kTile + token < end;
        // A line of the table serves eight tiles: it is in the L1 nearly always. The index is `token / kBlockSize`,
        // known to the compiler.
        const unsigned block = present ? __ldg(table + tile * kTileBlocks + v * kTileBlocks / kCopies) : 0;
        const unsigned short* from = pool + block * block_stride +
                                     ((unsigned long long)kv_head * kBlockSize + token % kBlockSize) * kHeadDim +
                                     column * 8;
        const unsigned at = swizzled<kVectors>(token, column);
        cp_async16(stage + at, from + key_offset, present);
        cp_async16(stage + kPiece + at, from + value_offset, present);
      }
    }
    // Also when empty: waiting counts groups.
    cp_async_commit();
  };
  start(0);

  // Of this lane's rows, `row` and `row + 8` of the warp. Rows of padding repeat the last token's position.
  unsigned position[2];
  unsigned q[kSteps][4];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const unsigned r = warp * 16 + row + half * 8, token = min(r / group, item.tokens - 1);
    position[half] = item.context + token;
    const unsigned short* from = query + (unsigned long long)(item.row + token) * query_stride +
                                 (unsigned long long)(kv_head * group + r % group) * kHeadDim + pair;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      q[k][half] = r < rows ? load_pair(from + 16 * k) : 0;
      q[k][half + 2] = r < rows ? load_pair(from + 16 * k + 8) : 0;
    }
  }
  const unsigned warp_first = item.context + min(warp * 16 / group, item.tokens - 1);

  float maximum[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.0f, 0.0f};
  // values[n][c]: row `row` (+ 8 for c >= 2), dimension `8 n + pair` (+ 1 for odd c).
  float values[2 * kSteps][4] = {};
  const float scale_log2 = scale * kLog2E;

  for (unsigned tile = 0; tile < tiles; ++tile) {
    start(tile + 1);
    cp_async_wait<1>();
    // The tile has arrived for all threads.
    __syncthreads();
    const uint4* keys = stages + tile % 2 * (2 * kPiece);
    const uint4* tile_values = keys + kPiece;

    // scores[n]: tokens `8 n ..` of the tile.
    float scores[kTile / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n) {
        unsigned b[4];
        ldmatrix4(b, keys + swizzled<kVectors>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        mma(Element{}, scores[2 * n], q[k], b[0], b[1]);
        mma(Element{}, scores[2 * n + 1], q[k], b[2], b[3]);
      }
    }
    // Only the last tiles reach beyond the warp's first token.
    if (tile * kTile + kTile - 1 > warp_first) {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (tile * kTile + 8 * n + pair + c % 2 > position[c / 2]) scores[n][c] = minus_infinity();
        }
      }
    }

    // Position 0 is in the first tile and visible to every row, so the maximum is a number from there on.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maximum[half];
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
        largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
      const float decay = exp2_fast((maximum[half] - largest) * scale_log2);
      const float shift = largest * scale_log2;
      maximum[half] = largest;
      float added = 0.0f;
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[n][c] = exp2_fast(scores[n][c] * scale_log2 - shift);
          added += scores[n][c];
        }
      }
      sum[half] = sum[half] * decay + added;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        values[n][2 * half] *= decay;
        values[n][2 * half + 1] *= decay;
      }
    }

#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      // Two neighbouring tiles of C are one tile of A.
      const unsigned a[4] = {Element::pack(scores[2 * k][0], scores[2 * k][1]),
                             Element::pack(scores[2 * k][2], scores[2 * k][3]),
                             Element::pack(scores[2 * k + 1][0], scores[2 * k + 1][1]),
                             Element::pack(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        unsigned b[4];
        ldmatrix4_transposed(b, tile_values + swizzled<kVectors>(16 * k + lane % 16, 2 * n + lane / 16));
        mma(Element{}, values[2 * n], a, b[0], b[1]);
        mma(Element{}, values[2 * n + 1], a, b[2], b[3]);
      }
    }
    // All are done with this stage before the next tile but one is copied into it.
    __syncthreads();
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] += __shfl_xor_sync(0xFFFFFFFFu, sum[half], 1);
    sum[half] += __shfl_xor_sync(0xFFFFFFFFu, sum[half], 2);
    const unsigned r = warp * 16 + row + half * 8;
    if (r >= rows) continue;
    const float factor = 1.0f / sum[half];
    unsigned short* to = out + (unsigned long long)(item.row + r / group) * out_stride +
                         (unsigned long long)(kv_head * group + r % group) * kHeadDim + pair;
#pragma unroll
    for (int n = 0; n < 2 * kSteps; ++n) {
      *reinterpret_cast<unsigned*>(to + 8 * n) =
          Element::pack(values[n][2 * half] * factor, values[n][2 * half + 1] * factor);
    }
  }
}

#define KVTIDE_PAGED_PREFILL(name, element, head_dim)                                                                  \
  extern "C" __global__ void __launch_bounds__(128, 3)                                                                   \
      name(const unsigned short* query, unsigned long long query_stride, const unsigned short* pool,                  \
           unsigned long long block_stride, unsigned long long key_offset, unsigned long long value_offset,           \
           const unsigned* tables, const PrefillItem* items, unsigned short* out, unsigned long long out_stride,      \
           unsigned kv_heads, unsigned group, float scale) {                                                          \
    paged_prefill<element, head_dim>(query, query_stride, pool, block_stride, key_offset, value_offset, tables, items,\
                                     out, out_stride, kv_heads, group, scale);                                        \
  }

KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_bf16_64, Bf16, 64)
KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_bf16_128, Bf16, 128)
KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_fp16_64, Fp16, 64)
KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_fp16_128, Fp16, 128)
