//! How the keys and values of a block lie in memory.

use super::MemoryError;
use crate::deploy::Model;

/// Shape of a block: `[layers, 2 (keys, values), kv_heads, block_size, head_dim]` elements of two bytes, contiguous.
///
/// Block first, because a block is what is swapped: one piece of memory, where an engine that keeps a pool a layer moves
/// `2 · layers` of them. Heads before slots, because attention reads one head at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder layers.
    pub layers: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Width of a head; a multiple of 8.
    pub head_dim: u32,
}

/// Bytes of a vector, what kernels move at once.
const VECTOR_BYTES: u32 = 16;
/// Smallest token: one layer, one head, one vector each of keys and values.
const LEAST_TOKEN_BYTES: u32 = 2 * VECTOR_BYTES;
/// Largest token of [`KvShape::small`].
const MOST_TOKEN_BYTES: u32 = 1 << 20;

impl KvShape {
    /// The shape of `model`'s blocks.
    ///
    /// # Errors
    /// Keys and values are not two bytes wide or compressed to latents, or a head is no multiple of 8.
    pub fn of(model: &Model, block_size: u32) -> Result<KvShape, MemoryError> {
        let has_latents = model.structure.latent.is_some();
        if model.kv_bytes != 2.0 || !model.head_dim.is_multiple_of(8) || has_latents {
            let wrong = format!(
                "{}: keys and values of 2 bytes, not compressed to latents, and heads of a multiple of 8 are supported",
                model.name
            );
            return Err(MemoryError::Unsupported(wrong));
        }
        let (layers, kv_heads, head_dim) = (model.num_layers, model.num_kv_heads, model.head_dim);
        Ok(KvShape { layers, kv_heads, block_size, head_dim })
    }

    /// One layer and one head, so wide that a token takes `token_bytes`: a multiple of 32 from 32 to 1,048,576. `None`
    /// otherwise.
    pub fn small(token_bytes: u32, block_size: u32) -> Option<KvShape> {
        let is_possible = (LEAST_TOKEN_BYTES..=MOST_TOKEN_BYTES).contains(&token_bytes)
            && token_bytes.is_multiple_of(LEAST_TOKEN_BYTES);
        is_possible.then_some(KvShape { layers: 1, kv_heads: 1, block_size, head_dim: token_bytes / 4 })
    }

    /// Planes of a block: every layer's keys and values, by head.
    pub fn planes(&self) -> u32 {
        self.layers * 2 * self.kv_heads
    }

    /// 32-bit words of a row: a token's keys or values of one head in one layer.
    pub fn words_per_row(&self) -> u32 {
        self.head_dim / 2
    }

    /// 32-bit words of a block.
    pub fn words_per_block(&self) -> usize {
        self.planes() as usize * self.block_size as usize * self.words_per_row() as usize
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.words_per_block() as u64 * 4
    }

    /// Elements of two bytes from the start of a block to the keys of `layer`; its values follow behind the keys of all
    /// heads.
    pub fn layer_offset(&self, layer: u32) -> u64 {
        u64::from(layer) * 2 * self.layer_elements()
    }

    /// Elements of the keys, or of the values, of one layer.
    pub fn layer_elements(&self) -> u64 {
        u64::from(self.kv_heads) * u64::from(self.block_size) * u64::from(self.head_dim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_of_llama_3_8b_is_two_mebibytes() {
        let shape = KvShape::of(&Model::named("llama-3-8b").unwrap(), 16).unwrap();
        assert_eq!(shape.block_bytes(), 2 << 20);
        assert_eq!(shape.layer_offset(32) * 2, shape.block_bytes());
    }

    #[test]
    fn a_small_token_has_the_bytes_asked_for() {
        for bytes in [32, 64, 1024] {
            assert_eq!(KvShape::small(bytes, 16).unwrap().block_bytes(), u64::from(bytes) * 16);
        }
        assert!([0, 16, 33, 2 << 20].iter().all(|&bytes| KvShape::small(bytes, 16).is_none()));
    }
}
