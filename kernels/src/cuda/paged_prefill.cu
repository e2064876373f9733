// Causal attention of a chunk of a prompt over keys and values in pool blocks (Dao: FlashAttention-2, 2023), on tensor
// cores.
//
// A CTA holds 128 rows of queries: row `r` is query head `r % group` of token `r / group`, so that all rows share one KV
// head. It walks over the sequence in tiles of 64 tokens; while it computes on one, the next arrives in the other of two
// stages. A warp has 32 rows, two tiles of A: each fragment of keys or values that it loads serves two products, without
// which shared memory would be busier than the tensor cores. Scores are in units of log2.
//
// Item: query rows `row .. row + tokens` are the tokens at positions `context .. context + tokens` of the sequence whose
// block table lies at `tables + table`; each attends to those of the positions `begin .. end` that are not behind its
// own, whose keys and values are in the pool already. `begin` is a multiple of 64, and so is `end` unless it is
// `context + tokens`; `tokens * group` is at most 128. If `partial` is 0xFFFFFFFF the result goes to `out` from row `row`
// on; otherwise what is described in paged_decode.cu goes to partial row `partial + i * stride` for token `i`. A token
// that sees nothing in `begin .. end` has weight 0 there.
//
// Rows of `query` and `out` are `[kv_heads * group][head_dim]`; `query` and the pool are 16-byte aligned, their strides
// and offsets multiples of 8 elements, the stride of `out` of 2. `scale` is positive.
//
// Launch: grid (items * kv_heads), the heads of an item side by side as they are in memory, 128 threads, 768 * head_dim
// bytes of dynamic shared memory.

struct PrefillItem {
  unsigned row, tokens, context, table, begin, end, partial, stride;
};

constexpr unsigned kNoPartial = 0xFFFFFFFFu;
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
// Tiles of A a warp.
constexpr int kRowTiles = 2;
constexpr int kRows = kWarps * kRowTiles * 16;
constexpr int kTile = 64;
constexpr int kTileBlocks = kTile / kBlockSize;

template <class Element, int kHeadDim>
__device__ __forceinline__ void paged_prefill(const unsigned short* __restrict__ query, unsigned long long query_stride,
                                              const unsigned short* __restrict__ pool, unsigned long long block_stride,
                                              unsigned long long key_offset, unsigned long long value_offset,
                                              const unsigned* __restrict__ tables,
                                              const PrefillItem* __restrict__ items, float* __restrict__ partial,
                                              float2* __restrict__ partial_state, unsigned short* __restrict__ out,
                                              unsigned long long out_stride, unsigned kv_heads, unsigned group,
                                              float scale) {
  constexpr int kVectors = kHeadDim / 8, kPiece = kTile * kVectors, kCopies = kPiece / kThreads;
  constexpr int kSteps = kHeadDim / 16;
  const PrefillItem item = items[blockIdx.x / kv_heads];
  if (item.tokens == 0) return;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, pair = lane % 4 * 2;
  const unsigned kv_head = blockIdx.x % kv_heads, rows = item.tokens * group;
  const unsigned first_tile = item.begin / kTile, tiles = (item.end + kTile - 1) / kTile;
  const unsigned* table = tables + item.table;
  uint4* stages = dynamic_shared();
  uint4* queries = stages + 4 * kPiece;

  // A piece, one block of one head, is contiguous: this thread copies its vectors `threadIdx.x + i * kThreads`. They are
  // whole groups of 8 rows apart, so that all have the same place in a swizzled row.
  constexpr int kPieceCopies = kCopies / kTileBlocks;
  static_assert(kThreads / kVectors % 8 == 0, "steps of whole groups of rows");
  const unsigned long long from_piece = (unsigned long long)kv_head * kBlockSize * kHeadDim + threadIdx.x * 8;
  const unsigned to_piece = swizzled<kVectors>(threadIdx.x / kVectors, threadIdx.x % kVectors);
  // Starts the copy of a tile. Rows behind the end become zeros: whatever lies there, 0 * V must be 0.
  const auto start = [&](unsigned tile) {
    if (tile < tiles) {
#pragma unroll
      for (int i = 0; i < kTileBlocks; ++i) {
        const unsigned index = tile * kTileBlocks + i;
        // A line of the table serves eight tiles: it is in the L1 nearly always.
        const unsigned block = index * kBlockSize < item.end ? __ldg(table + index) : 0;
        const unsigned short* from = pool + block * block_stride + from_piece;
        uint4* to = stages + tile % 2 * (2 * kPiece) + i * (kPiece / kTileBlocks) + to_piece;
#pragma unroll
        for (int j = 0; j < kPieceCopies; ++j) {
          const bool present = index * kBlockSize + threadIdx.x / kVectors + j * (kThreads / kVectors) < item.end;
          cp_async16(to + j * kThreads, from + key_offset + j * kThreads * 8, present);
          cp_async16(to + kPiece + j * kThreads, from + value_offset + j * kThreads * 8, present);
        }
      }
    }
    // Also when empty: waiting counts groups.
    cp_async_commit();
  };
#pragma unroll
  for (int v = 0; v < kRows * kVectors / kThreads; ++v) {
    const unsigned vector = threadIdx.x + kThreads * v, r = vector / kVectors, column = vector % kVectors;
    // Rows of padding are zeros.
    const unsigned token = min(r / group, item.tokens - 1);
    cp_async16(queries + swizzled<kVectors>(r, column),
               query + (unsigned long long)(item.row + token) * query_stride +
                   (unsigned long long)(kv_head * group + r % group) * kHeadDim + column * 8,
               r < rows);
  }
  // In one group with the queries.
  start(first_tile);

  // A lane has rows `row` and `row + 8` of each of its warp's tiles. Rows of padding repeat the last token's position.
  const unsigned first_row = warp * kRowTiles * 16;
  const auto position_of = [&](unsigned r) { return item.context + min(r / group, item.tokens - 1); };
  const unsigned warp_first = position_of(first_row);

  float maximum[kRowTiles][2], sum[kRowTiles][2];
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    maximum[m][0] = maximum[m][1] = minus_infinity();
    sum[m][0] = sum[m][1] = 0.0f;
  }
  // values[m][n][c]: row `row` (+ 8 for c >= 2) of tile `m`, dimension `8 n + pair` (+ 1 for odd c).
  float values[kRowTiles][2 * kSteps][4] = {};
  const float scale_log2 = scale * kLog2E;

  for (unsigned tile = first_tile; tile < tiles; ++tile) {
    start(tile + 1);
    cp_async_wait<1>();
    // The tile has arrived for all threads.
    __syncthreads();
    const uint4* keys = stages + tile % 2 * (2 * kPiece);
    const uint4* tile_values = keys + kPiece;

    // scores[m][n]: tokens `8 n ..` of the tile.
    float scores[kRowTiles][kTile / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      unsigned a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        ldmatrix4(a[m], queries + swizzled<kVectors>(first_row + 16 * m + lane % 16, 2 * k + lane / 16));
      }
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n) {
        unsigned b[4];
        ldmatrix4(b, keys + swizzled<kVectors>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(Element{}, scores[m][2 * n], a[m], b[0], b[1]);
          mma(Element{}, scores[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
    // Only the last tiles reach beyond the warp's first token.
    if (tile * kTile + kTile - 1 > warp_first) {
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const unsigned position = position_of(first_row + row + i * 8);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int c = i % 2 * 2; c < i % 2 * 2 + 2; ++c) {
            if (tile * kTile + 8 * n + pair + c % 2 > position) scores[i / 2][n][c] = minus_infinity();
          }
        }
      }
    }

#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = maximum[m][half];
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          largest = fmaxf(largest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 2));
        // A row that has seen nothing yet has no number to relate scores to: any gives weight 0.
        const float origin = largest == minus_infinity() ? 0.0f : largest;
        const float decay = exp2_fast((maximum[m][half] - origin) * scale_log2);
        const float shift = origin * scale_log2;
        maximum[m][half] = largest;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) {
            scores[m][n][c] = exp2_fast(scores[m][n][c] * scale_log2 - shift);
            added += scores[m][n][c];
          }
        }
        sum[m][half] = sum[m][half] * decay + added;
#pragma unroll
        for (int n = 0; n < 2 * kSteps; ++n) {
          values[m][n][2 * half] *= decay;
          values[m][n][2 * half + 1] *= decay;
        }
      }
    }

#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      // Two neighbouring tiles of C are one tile of A.
      unsigned a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float(&from)[4] = scores[m][2 * k + i / 2];
          a[m][i] = Element::pack(from[i % 2 * 2], from[i % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        unsigned b[4];
        ldmatrix4_transposed(b, tile_values + swizzled<kVectors>(16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          mma(Element{}, values[m][2 * n], a[m], b[0], b[1]);
          mma(Element{}, values[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
    // All are done with this stage before the next tile but one is copied into it.
    __syncthreads();
  }

#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i) {
    const int m = i / 2, half = i % 2;
    sum[m][half] += __shfl_xor_sync(0xFFFFFFFFu, sum[m][half], 1);
    sum[m][half] += __shfl_xor_sync(0xFFFFFFFFu, sum[m][half], 2);
    const unsigned r = first_row + row + i * 8;
    if (r >= rows) continue;
    const unsigned token = r / group, head = kv_head * group + r % group;
    if (item.partial == kNoPartial) {
      const float factor = sum[m][half] > 0.0f ? 1.0f / sum[m][half] : 0.0f;
      unsigned short* to =
          out + (item.row + token) * out_stride + (unsigned long long)head * kHeadDim + pair;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        *reinterpret_cast<unsigned*>(to + 8 * n) =
            Element::pack(values[m][n][2 * half] * factor, values[m][n][2 * half + 1] * factor);
      }
    } else {
      const unsigned long long partial_row = item.partial + (unsigned long long)token * item.stride;
      const unsigned long long at = partial_row * (kv_heads * group) + head;
      float* to = partial + at * kHeadDim + pair;
#pragma unroll
      for (int n = 0; n < 2 * kSteps; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(values[m][n][2 * half], values[m][n][2 * half + 1]);
      }
      if (pair == 0) partial_state[at] = make_float2(maximum[m][half] * scale_log2, sum[m][half]);
    }
  }
}

#define KVTIDE_PAGED_PREFILL(name, element, head_dim)                                                                  \
  extern "C" __global__ void __launch_bounds__(128, 2)                                                                 \
      name(const unsigned short* query, unsigned long long query_stride, const unsigned short* pool,                  \
           unsigned long long block_stride, unsigned long long key_offset, unsigned long long value_offset,           \
           const unsigned* tables, const PrefillItem* items, float* partial, float2* partial_state,                   \
           unsigned short* out, unsigned long long out_stride, unsigned kv_heads, unsigned group, float scale) {      \
    paged_prefill<element, head_dim>(query, query_stride, pool, block_stride, key_offset, value_offset, tables, items,\
                                     partial, partial_state, out, out_stride, kv_heads, group, scale);                \
  }

KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_bf16_64, Bf16, 64)
KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_bf16_128, Bf16, 128)
KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_fp16_64, Fp16, 64)
KVTIDE_PAGED_PREFILL(kvtide_paged_prefill_fp16_128, Fp16, 128)
