// Attention of one query token a sequence over keys and values in pool blocks, in one pass over each (Dao et al.:
// FlashAttention, 2022), long sequences in pieces that a second kernel merges (flash-decoding).
//
// A decode step reads every key and value once and does little else, so everything serves the memory: each warp has a
// pipeline of its own of asynchronous copies, one 16-token block a stage, and takes every fourth block of the item; no
// barrier spans warps before the end. With 4 warps, 96 KiB of stages and two CTAs a multiprocessor, 128 KiB are under
// way at any time.
//
// The product is computed transposed, tokens (or dimensions) by heads: 16 x 8 tiles then waste nothing on a group of 8
// query heads, and half on one of 4. Scores are in units of log2.
//
// Item: query row `row`, block table at `tables + table`, tokens `begin..end` of the sequence, `begin` a multiple of 16.
// If `partial` is 0xFFFFFFFF the result goes to `out` row `row`; otherwise the accumulator before normalisation goes to
// `partial[(partial * heads + head) * head_dim ..]` and (maximum, sum) to `partial_state[partial * heads + head]`. An
// item without tokens gives zeros. Rows of `query` and `out` are `[heads][head_dim]`, their strides multiples of 2; the
// pool is 16-byte aligned, its stride and offsets multiples of 8 elements.
//
// Launch: grid (items * kv_heads * heads of a group in eights), 128 threads, 98304 bytes of dynamic shared memory. Eights
// vary fastest, which read the same, then KV heads, which lie side by side in a block: what is read at one time is
// together in memory.

struct DecodeItem {
  unsigned row, table, begin, end, partial;
};

constexpr unsigned kNoPartial = 0xFFFFFFFFu;
constexpr int kWarps = 4;
// Query heads that one CTA serves: the columns of a tile.
constexpr int kHeads = 8;

// Stages of one warp's pipeline: 24 KiB of keys and values.
template <int kHeadDim>
constexpr int kStages = 384 / kHeadDim;

// What a warp leaves for the others at the end, in place of its stages. Rows are padded so that the lanes of a warp
// write to different banks.
template <int kHeadDim>
struct WarpResult {
  float values[kHeads][kHeadDim + 4];
  float maximum[kHeads];
  float sum[kHeads];
};

template <class Element, int kHeadDim>
__device__ __forceinline__ void paged_decode(const unsigned short* __restrict__ query, unsigned long long query_stride,
                                             const unsigned short* __restrict__ pool, unsigned long long block_stride,
                                             unsigned long long key_offset, unsigned long long value_offset,
                                             const unsigned* __restrict__ tables, const DecodeItem* __restrict__ items,
                                             float* __restrict__ partial, float2* __restrict__ partial_state,
                                             unsigned short* __restrict__ out, unsigned long long out_stride,
                                             unsigned kv_heads, unsigned group, float scale) {
  constexpr int kVectors = kHeadDim / 8, kPiece = kBlockSize * kVectors, kDepth = kStages<kHeadDim>;
  constexpr int kSteps = kHeadDim / 16;
  const unsigned eights = (group + kHeads - 1) / kHeads, eighth = blockIdx.x % eights;
  const DecodeItem item = items[blockIdx.x / eights / kv_heads];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, pair = lane % 4 * 2;
  const unsigned kv_head = blockIdx.x / eights % kv_heads, heads = kv_heads * group;
  const unsigned first_head = kv_head * group + eighth * kHeads;
  const unsigned heads_here = min(group - eighth * kHeads, (unsigned)kHeads);
  uint4* stages = dynamic_shared() + warp * (kDepth * 2 * kPiece);

  const unsigned first_block = item.begin / kBlockSize;
  const unsigned blocks = item.end > item.begin ? (item.end + kBlockSize - 1) / kBlockSize - first_block : 0;
  // This warp's blocks are `warp + i * kWarps` of the item.
  const unsigned mine = blocks > warp ? (blocks - warp + kWarps - 1) / kWarps : 0;
  const unsigned* table = tables + item.table + first_block + warp;
  const auto block_at = [&](unsigned i) { return i < mine ? __ldg(table + i * kWarps) : 0u; };
  const auto valid_at = [&](unsigned i) { return item.end - (first_block + warp + i * kWarps) * kBlockSize; };
  const unsigned long long head_offset = (unsigned long long)kv_head * kBlockSize * kHeadDim;

  // Starts the copy of the warp's block `i`. Rows behind the end become zeros: whatever lies there, 0 * V must be 0.
  const auto start = [&](unsigned i, unsigned block) {
    if (i < mine) {
      uint4* stage = stages + i % kDepth * (2 * kPiece);
      const unsigned short* from = pool + block * block_stride + head_offset;
      const unsigned valid = valid_at(i);
#pragma unroll
      for (int v = 0; v < kPiece / 32; ++v) {
        const unsigned vector = lane + 32 * v, at = swizzled<kVectors>(vector / kVectors, vector % kVectors);
        const bool present = vector / kVectors < valid;
        cp_async16(stage + at, from + key_offset + vector * 8, present);
        cp_async16(stage + kPiece + at, from + value_offset + vector * 8, present);
      }
    }
    // Also when empty: waiting counts groups.
    cp_async_commit();
  };

  unsigned ahead[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) ahead[i] = block_at(i);
#pragma unroll
  for (int i = 0; i < kDepth - 1; ++i) start(i, ahead[i]);
  unsigned next_block = ahead[kDepth - 1];

  // Query heads are the columns of B: lane's column is head `row`.
  unsigned q[kSteps][2];
  const unsigned short* query_head = query + item.row * query_stride + (first_head + row) * (unsigned long long)kHeadDim;
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    q[k][0] = row < heads_here ? load_pair(query_head + 16 * k + pair) : 0;
    q[k][1] = row < heads_here ? load_pair(query_head + 16 * k + 8 + pair) : 0;
  }

  // Of heads `pair` and `pair + 1`; the sums are of this lane's tokens until the end.
  float maximum[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.0f, 0.0f};
  // values[m][c]: dimension `16 m + row` (+ 8 for c >= 2) of head `pair` (+ 1 for odd c).
  float values[kSteps][4] = {};
  const float scale_log2 = scale * kLog2E;

  for (unsigned i = 0; i < mine; ++i) {
    cp_async_wait<kDepth - 2>();
    // The block has arrived for all lanes, and all are done with the stage that is filled next.
    __syncwarp();
    start(i + kDepth - 1, next_block);
    next_block = block_at(i + kDepth);
    const uint4* keys = stages + i % kDepth * (2 * kPiece);
    const uint4* block_values = keys + kPiece;

    // Scores, token by head; two chains of products rather than one.
    float scores[4] = {}, odd_scores[4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      unsigned a[4];
      ldmatrix4(a, keys + swizzled<kVectors>(lane % 16, 2 * k + lane / 16));
      mma(Element{}, k % 2 == 0 ? scores : odd_scores, a, q[k][0], q[k][1]);
    }
    const unsigned valid = valid_at(i);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const unsigned token = row + c / 2 * 8;
      scores[c] = token < valid ? (scores[c] + odd_scores[c]) * scale_log2 : minus_infinity();
    }

    // The first token of a block is always valid, so the maximum is a number from here on.
    float decay[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = fmaxf(scores[h], scores[h + 2]);
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 4));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 8));
      largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, 16));
      largest = fmaxf(largest, maximum[h]);
      decay[h] = exp2_fast(maximum[h] - largest);
      maximum[h] = largest;
      scores[h] = exp2_fast(scores[h] - largest);
      scores[h + 2] = exp2_fast(scores[h + 2] - largest);
      sum[h] = sum[h] * decay[h] + scores[h] + scores[h + 2];
    }
    // Weights as B: tokens along k, heads along n.
    const unsigned b0 = movmatrix_transposed(Element::pack(scores[0], scores[1]));
    const unsigned b1 = movmatrix_transposed(Element::pack(scores[2], scores[3]));
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) values[m][c] *= decay[c % 2];
      unsigned a[4];
      ldmatrix4_transposed(a, block_values + swizzled<kVectors>(lane % 8 + lane / 16 * 8, 2 * m + lane / 8 % 2));
      mma(Element{}, values[m], a, b0, b1);
    }
  }

  // Only empty groups are left; the stages are free.
  cp_async_wait<0>();
  __syncwarp();
  WarpResult<kHeadDim>* result = reinterpret_cast<WarpResult<kHeadDim>*>(stages);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 4);
    sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 8);
    sum[h] += __shfl_xor_sync(0xFFFFFFFFu, sum[h], 16);
    if (row == 0) {
      result->maximum[pair + h] = maximum[h];
      result->sum[pair + h] = sum[h];
    }
  }
#pragma unroll
  for (int m = 0; m < kSteps; ++m) {
#pragma unroll
    for (int c = 0; c < 4; ++c) result->values[pair + c % 2][16 * m + row + c / 2 * 8] = values[m][c];
  }
  __syncthreads();

  const auto result_of = [&](int w) {
    return reinterpret_cast<const WarpResult<kHeadDim>*>(dynamic_shared() + w * (kDepth * 2 * kPiece));
  };
  for (unsigned step = threadIdx.x; step < heads_here * (kHeadDim / 2); step += kWarps * 32) {
    const unsigned head = step / (kHeadDim / 2), column = step % (kHeadDim / 2) * 2;
    float largest = minus_infinity();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, result_of(w)->maximum[head]);
    float total = 0.0f, low = 0.0f, high = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      // A warp without blocks has neither maximum nor weight.
      const float theirs = result_of(w)->maximum[head];
      const float weight = theirs == minus_infinity() ? 0.0f : exp2_fast(theirs - largest);
      total += weight * result_of(w)->sum[head];
      low += weight * result_of(w)->values[head][column];
      high += weight * result_of(w)->values[head][column + 1];
    }
    if (item.partial == kNoPartial) {
      const float factor = total > 0.0f ? 1.0f / total : 0.0f;
      unsigned short* to = out + item.row * out_stride + (first_head + head) * (unsigned long long)kHeadDim + column;
      *reinterpret_cast<unsigned*>(to) = Element::pack(low * factor, high * factor);
    } else {
      const unsigned long long at = (unsigned long long)item.partial * heads + first_head + head;
      *reinterpret_cast<float2*>(partial + at * kHeadDim + column) = make_float2(low, high);
      if (column == 0) partial_state[at] = make_float2(largest, total);
    }
  }
}

// One result from the pieces `first .. first + count` of a token's sequence. A thread has four columns of every
// `slices`th piece; what the slices have found is then put together in the same way as the pieces themselves.
//
// Launch: grid (items, heads), blockDim.x a multiple of head_dim / 4 and at most 256. `head_dim` is a multiple of 4, and
// so is the stride of `out`.
struct MergeItem {
  unsigned row, first, count;
};

// Weighted sums of values and of weights, relative to a maximum.
struct Merged {
  float maximum, sum;
  float4 values;

  __device__ __forceinline__ void add(float their_maximum, float their_sum, const float4& theirs) {
    const float largest = fmaxf(maximum, their_maximum);
    // What has seen nothing has neither maximum nor weight.
    const float origin = largest == minus_infinity() ? 0.0f : largest;
    const float decay = exp2_fast(maximum - origin), weight = exp2_fast(their_maximum - origin);
    maximum = largest;
    sum = sum * decay + their_sum * weight;
    values.x = values.x * decay + theirs.x * weight;
    values.y = values.y * decay + theirs.y * weight;
    values.z = values.z * decay + theirs.z * weight;
    values.w = values.w * decay + theirs.w * weight;
  }
};

template <class Element>
__device__ __forceinline__ void paged_merge(const float* __restrict__ partial,
                                            const float2* __restrict__ partial_state,
                                            const MergeItem* __restrict__ items, unsigned short* __restrict__ out,
                                            unsigned long long out_stride, unsigned heads, unsigned head_dim) {
  constexpr int kInFlight = 4;
  __shared__ float4 slice_values[256];
  __shared__ float2 slice_states[256];
  const MergeItem item = items[blockIdx.x];
  const unsigned head = blockIdx.y, vectors = head_dim / 4, slices = blockDim.x / vectors;
  const unsigned vector = threadIdx.x % vectors;
  Merged merged = {minus_infinity(), 0.0f, make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
  for (unsigned start = threadIdx.x / vectors; start < item.count; start += kInFlight * slices) {
    float2 states[kInFlight];
    float4 values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      // Behind the end the last piece, without weight.
      const unsigned piece = start + i * slices, present = min(piece, item.count - 1);
      const unsigned long long at = (unsigned long long)(item.first + present) * heads + head;
      states[i] = partial_state[at];
      if (piece != present) states[i] = make_float2(minus_infinity(), 0.0f);
      values[i] = reinterpret_cast<const float4*>(partial)[at * vectors + vector];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) merged.add(states[i].x, states[i].y, values[i]);
  }
  slice_values[threadIdx.x] = merged.values;
  slice_states[threadIdx.x] = make_float2(merged.maximum, merged.sum);
  __syncthreads();
  if (threadIdx.x >= vectors) return;
  for (unsigned slice = 1; slice < slices; ++slice) {
    const float2 state = slice_states[slice * vectors + vector];
    merged.add(state.x, state.y, slice_values[slice * vectors + vector]);
  }
  const float factor = merged.sum > 0.0f ? 1.0f / merged.sum : 0.0f;
  *reinterpret_cast<uint2*>(out + item.row * out_stride + (unsigned long long)head * head_dim + vector * 4) =
      make_uint2(Element::pack(merged.values.x * factor, merged.values.y * factor),
                 Element::pack(merged.values.z * factor, merged.values.w * factor));
}

#define KVTIDE_PAGED_DECODE(name, element, head_dim)                                                                   \
  extern "C" __global__ void __launch_bounds__(128, 2)                                                                 \
      name(const unsigned short* query, unsigned long long query_stride, const unsigned short* pool,                  \
           unsigned long long block_stride, unsigned long long key_offset, unsigned long long value_offset,           \
           const unsigned* tables, const DecodeItem* items, float* partial, float2* partial_state,                    \
           unsigned short* out, unsigned long long out_stride, unsigned kv_heads, unsigned group, float scale) {      \
    paged_decode<element, head_dim>(query, query_stride, pool, block_stride, key_offset, value_offset, tables, items, \
                                    partial, partial_state, out, out_stride, kv_heads, group, scale);                 \
  }

KVTIDE_PAGED_DECODE(kvtide_paged_decode_bf16_64, Bf16, 64)
KVTIDE_PAGED_DECODE(kvtide_paged_decode_bf16_128, Bf16, 128)
KVTIDE_PAGED_DECODE(kvtide_paged_decode_fp16_64, Fp16, 64)
KVTIDE_PAGED_DECODE(kvtide_paged_decode_fp16_128, Fp16, 128)

// Four CTAs a multiprocessor, so that the compiler takes the registers that loads in flight need.
extern "C" __global__ void __launch_bounds__(256, 4)
    kvtide_paged_merge_bf16(const float* partial, const float2* partial_state, const MergeItem* items,
                            unsigned short* out, unsigned long long out_stride, unsigned heads, unsigned head_dim) {
  paged_merge<Bf16>(partial, partial_state, items, out, out_stride, heads, head_dim);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    kvtide_paged_merge_fp16(const float* partial, const float2* partial_state, const MergeItem* items,
                            unsigned short* out, unsigned long long out_stride, unsigned heads, unsigned head_dim) {
  paged_merge<Fp16>(partial, partial_state, items, out, out_stride, heads, head_dim);
}
