//! Kernels that move or hash bytes: results are exact.

/// Where one layer's keys and values lie in a block-major pool, in elements.
///
/// A block is `[layers][2 (K, V)][kv_heads][block_size][head_dim]`, contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayer {
    /// From one block to the next.
    pub block_stride: usize,
    /// From a block's start to the layer's keys.
    pub key_offset: usize,
    /// From a block's start to the layer's values.
    pub value_offset: usize,
    /// Heads that have keys and values.
    pub kv_heads: usize,
    /// Elements of a head's row.
    pub head_dim: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

impl KvLayer {
    /// Layer `layer` of a pool of `layers` layers.
    pub fn new(layers: usize, layer: usize, kv_heads: usize, block_size: usize, head_dim: usize) -> Self {
        let piece = kv_heads * block_size * head_dim;
        Self {
            block_stride: layers * 2 * piece,
            key_offset: layer * 2 * piece,
            value_offset: (layer * 2 + 1) * piece,
            kv_heads,
            head_dim,
            block_size,
        }
    }

    /// First elements of the key row and of the value row of a slot (`block * block_size + offset`) in `kv_head`.
    pub fn rows(&self, slot: usize, kv_head: usize) -> (usize, usize) {
        let block = slot / self.block_size * self.block_stride;
        let row = (kv_head * self.block_size + slot % self.block_size) * self.head_dim;
        (block + self.key_offset + row, block + self.value_offset + row)
    }
}

/// Keys of the checksum from a vector's index.
pub fn mix32(x: u32) -> u32 {
    let mut x = x.wrapping_add(1).wrapping_mul(0x9E37_79B1);
    x ^= x >> 15;
    x = x.wrapping_mul(0x85EB_CA77);
    x ^ (x >> 13)
}

/// The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
pub fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Checksum of one block of `words` (four to a 16-byte vector), of its first `valid` token slots: the sum over their
/// vectors `v` of NH (UMAC, CRYPTO 1999), `(w0 + k0)(w1 + k1) + (w2 + k2)(w3 + k3)` with 32-bit sums and 64-bit
/// products, all wrapping, and keys from [`mix32`]`(v)`.
///
/// The token slot of a vector is `(v / vectors_per_row) % block_size`.
pub fn block_checksum(words: &[u32], valid: u32, vectors_per_row: u32, block_size: u32) -> u64 {
    let mut sum = 0_u64;
    for (vector, words) in words.chunks_exact(4).enumerate() {
        let vector = vector as u32;
        if vector / vectors_per_row % block_size >= valid {
            continue;
        }
        let key = mix32(vector);
        let keys = [key, key.wrapping_add(0xC2B2_AE3D), key ^ 0x27D4_EB2F, key.wrapping_add(0x1656_67B1)];
        let term = |i: usize| u64::from(words[i].wrapping_add(keys[i]));
        sum = sum.wrapping_add(term(0).wrapping_mul(term(1))).wrapping_add(term(2).wrapping_mul(term(3)));
    }
    sum
}

/// Fills the rows of tokens in all `planes` (layers x 2 x KV heads) of a pool of words: word `j` of plane `p` of token `t`
/// is the low half of [`mix64`]`(seeds[t] + (p * words_per_row + j) * 0x9E3779B97F4A7C15)`.
///
/// `slots[t] = block * block_size + offset`.
pub fn kv_fill(pool: &mut [u32], seeds: &[u64], slots: &[u32], planes: usize, block_size: usize, words_per_row: usize) {
    for (&seed, &slot) in seeds.iter().zip(slots) {
        let (block, offset) = (slot as usize / block_size, slot as usize % block_size);
        for plane in 0..planes {
            let row = ((block * planes + plane) * block_size + offset) * words_per_row;
            for (j, word) in pool[row..row + words_per_row].iter_mut().enumerate() {
                let index = (plane * words_per_row + j) as u64;
                *word = mix64(seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15))) as u32;
            }
        }
    }
}

/// Writes rows `[token][kv_head][head_dim]` of keys and values, `row_stride` elements apart, into their slots of a layer.
pub fn kv_scatter(pool: &mut [u16], layer: &KvLayer, key: &[u16], value: &[u16], row_stride: usize, slots: &[u32]) {
    let width = layer.head_dim;
    for (token, &slot) in slots.iter().enumerate() {
        for head in 0..layer.kv_heads {
            let from = token * row_stride + head * width;
            let (key_row, value_row) = layer.rows(slot as usize, head);
            pool[key_row..key_row + width].copy_from_slice(&key[from..from + width]);
            pool[value_row..value_row + width].copy_from_slice(&value[from..from + width]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KvLayer, block_checksum, mix64};

    #[test]
    fn splitmix64_gives_its_published_first_numbers() {
        // Seed 1234567, as in the generator's public test vectors.
        let numbers: Vec<u64> =
            (1..=3_u64).map(|i| mix64(1_234_567_u64.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15)))).collect();
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn a_checksum_sees_contents_order_and_valid_tokens_only() {
        // Two planes of two slots, one vector a row.
        let words: Vec<u32> = (0..16).map(|i| i * 7 + 3).collect();
        let whole = block_checksum(&words, 2, 1, 2);
        let mut swapped = words.clone();
        swapped.rotate_left(4);
        assert_ne!(block_checksum(&swapped, 2, 1, 2), whole);
        let mut stale = words.clone();
        stale[4..8].fill(99);
        stale[12..16].fill(99);
        assert_ne!(block_checksum(&stale, 2, 1, 2), whole);
        assert_eq!(block_checksum(&stale, 1, 1, 2), block_checksum(&words, 1, 1, 2));
        assert_eq!(block_checksum(&words, 0, 1, 2), 0);
    }

    #[test]
    fn rows_of_a_layer_lie_where_the_layout_says() {
        let layer = KvLayer::new(3, 1, 2, 16, 64);
        assert_eq!(layer.block_stride, 3 * 2 * 2 * 16 * 64);
        let (key, value) = layer.rows(2 * 16 + 5, 1);
        assert_eq!(key, 2 * layer.block_stride + ((2 * 2 + 1) * 16 + 5) * 64);
        assert_eq!(value - key, 2 * 16 * 64);
    }
}
