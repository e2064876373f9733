//! What a block's contents come to, in 64 bits.

use super::KvShape;

/// Checksum of the first `tokens` slots of a block of [`KvShape::words_per_block`] words.
///
/// The sum, modulo 2^64, over all 16-byte vectors `v` of those slots of `(w0 + k0)(w1 + k1) + (w2 + k2)(w3 + k3)`, where
/// `w` are the vector's little-endian words, additions are modulo 2^32, and the keys follow from the vector's place in the
/// block. This is the hash NH (Black, Halevi, Krawczyk, Krovetz, Rogaway 1999, "UMAC", section 4) with computed keys:
/// two multiplications for 16 bytes, and a sum that can be taken in any order. It does not depend on where the block is,
/// so a block keeps it when it moves to another tier. The kernel `kvtide_block_checksum` computes the same.
///
/// # Panics
/// If `block` is not of that shape.
pub fn checksum(block: &[u32], tokens: u32, shape: &KvShape) -> u64 {
    assert_eq!(block.len(), shape.words_per_block(), "the block is of another shape");
    let row = shape.words_per_row() as usize;
    let plane = row * shape.block_size as usize;
    let counted = row * tokens.min(shape.block_size) as usize;
    let mut sum = 0_u64;
    for (plane_index, words) in block.chunks_exact(plane).enumerate() {
        let first = plane_index * plane / 4;
        for (vector, words) in (first..).zip(words[..counted].chunks_exact(4)) {
            sum = sum.wrapping_add(vector_sum(vector as u32, words));
        }
    }
    sum
}

fn vector_sum(vector: u32, words: &[u32]) -> u64 {
    let key = mix(vector);
    let keys = [key, key.wrapping_add(0xc2b2_ae3d), key ^ 0x27d4_eb2f, key.wrapping_add(0x1656_67b1)];
    let term = |at: usize| u64::from(words[at].wrapping_add(keys[at]));
    term(0).wrapping_mul(term(1)).wrapping_add(term(2).wrapping_mul(term(3)))
}

/// Spreads the index of a vector over 32 bits; the primes are those of xxHash (Collet 2012).
fn mix(vector: u32) -> u32 {
    let key = vector.wrapping_add(1).wrapping_mul(0x9e37_79b1);
    let key = (key ^ (key >> 15)).wrapping_mul(0x85eb_ca77);
    key ^ (key >> 13)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::*;
    use crate::seed;

    #[test]
    fn what_counts_changes_it_and_nothing_else_does() {
        let shape = KvShape { layers: 2, kv_heads: 3, block_size: 4, head_dim: 16 };
        let mut stream = seed::stream(1, "checksum", 0);
        let mut block: Vec<u32> = (0..shape.words_per_block()).map(|_| stream.next_u32()).collect();
        let before: Vec<u64> = (0..=4).map(|tokens| checksum(&block, tokens, &shape)).collect();
        assert_eq!(before[0], 0);
        for word in 0..block.len() {
            let slot = (word / 8 % 4) as u32;
            block[word] ^= 1 << (word % 32);
            for tokens in 0..=4 {
                let is_same = checksum(&block, tokens, &shape) == before[tokens as usize];
                assert_eq!(is_same, tokens <= slot, "word {word}, {tokens} tokens");
            }
            block[word] ^= 1 << (word % 32);
        }
        block.swap(0, 4);
        assert_ne!(checksum(&block, 4, &shape), before[4]);
    }
}
