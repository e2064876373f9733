// Writes the keys and values of new tokens into their slots of one layer of a KV pool.
//
// `key` and `value` are rows `[token][kv_head][head_dim]` of 2-byte elements, `row_stride` elements apart; token `t`
// goes to slot `slots[t] = block * block_size + offset`, that is to
// `pool + block * block_stride + key_offset (or value_offset) + (kv_head * block_size + offset) * head_dim`.
// `head_dim`, `row_stride`, `block_stride` and the offsets are multiples of 8 elements (16 bytes).
//
// Launch: any grid (x over tokens), a one-dimensional block of at most 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    kvtide_kv_scatter(const unsigned short* __restrict__ key, const unsigned short* __restrict__ value,
                      unsigned long long row_stride, unsigned short* __restrict__ pool,
                      const unsigned* __restrict__ slots, unsigned tokens, unsigned kv_heads, unsigned head_dim,
                      unsigned block_size, unsigned long long block_stride, unsigned long long key_offset,
                      unsigned long long value_offset) {
  const unsigned vectors = kv_heads * head_dim / 8;
  for (unsigned token = blockIdx.x; token < tokens; token += gridDim.x) {
    const unsigned slot = slots[token];
    unsigned short* block = pool + (slot / block_size) * block_stride;
    for (unsigned step = threadIdx.x; step < 2 * vectors; step += blockDim.x) {
      const bool is_key = step < vectors;
      const unsigned element = (is_key ? step : step - vectors) * 8;
      const unsigned head = element / head_dim, column = element % head_dim;
      const unsigned short* from = (is_key ? key : value) + token * row_stride + element;
      unsigned short* to = block + (is_key ? key_offset : value_offset) +
                           ((unsigned long long)head * block_size + slot % block_size) * head_dim + column;
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    }
  }
}
