//! Transformer decoders, as far as memory and arithmetic depend on them.

use serde::{Deserialize, Serialize};

/// A dense decoder with grouped-query attention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Name as in `--env model@hardware`.
    pub name: String,
    /// Decoder layers.
    pub num_layers: u32,
    /// Query heads.
    pub num_heads: u32,
    /// Key/value heads.
    pub num_kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Width of the residual stream.
    pub hidden_size: u32,
    /// Weights read by every token: all but the input embedding and the output head.
    pub layer_params: f64,
    /// Weights of the output head, read by every sampled token; the input embedding has as many.
    pub head_params: f64,
    /// Whether embedding and head share their weights.
    pub tied_embeddings: bool,
    /// Bytes of a weight.
    pub weight_bytes: f64,
    /// Bytes of a key or value.
    pub kv_bytes: f64,
    /// Longest sequence the model was made for, in tokens.
    pub max_model_len: u32,
}

impl Model {
    /// Names of the built-in profiles.
    pub const NAMES: [&'static str; 4] = ["llama-3-8b", "qwen2.5-7b", "qwen2.5-0.5b", "llama-3-70b"];

    /// The built-in profile of that name, in bf16.
    ///
    /// Shapes are those of the published configurations (Llama 3.1 for the length; Qwen2.5 without rope scaling).
    pub fn named(name: &str) -> Option<Model> {
        // layers, heads, KV heads, head width, hidden, intermediate, vocabulary, length
        let (layers, heads, kv_heads, head_dim, hidden, intermediate, vocabulary, length) = match name {
            "llama-3-8b" => (32, 32, 8, 128, 4096, 14_336, 128_256, 131_072),
            "qwen2.5-7b" => (28, 28, 4, 128, 3584, 18_944, 152_064, 32_768),
            "qwen2.5-0.5b" => (24, 14, 2, 64, 896, 4864, 151_936, 32_768),
            "llama-3-70b" => (80, 64, 8, 128, 8192, 28_672, 128_256, 131_072),
            _ => return None,
        };
        let width = f64::from(hidden);
        let attention = width * f64::from(head_dim * (2 * heads + 2 * kv_heads));
        let mlp = 3.0 * width * f64::from(intermediate);
        Some(Model {
            name: name.to_owned(),
            num_layers: layers,
            num_heads: heads,
            num_kv_heads: kv_heads,
            head_dim,
            hidden_size: hidden,
            layer_params: f64::from(layers) * (attention + mlp),
            head_params: width * f64::from(vocabulary),
            tied_embeddings: name == "qwen2.5-0.5b",
            weight_bytes: 2.0,
            kv_bytes: 2.0,
            max_model_len: length,
        })
    }

    /// Keys and values of one token over all layers, bytes: `2 · layers · KV heads · head width · bytes`.
    pub fn kv_bytes_per_token(&self) -> f64 {
        2.0 * f64::from(self.num_layers * self.num_kv_heads * self.head_dim) * self.kv_bytes
    }

    /// Arithmetic of attention over all layers for a token and one it attends to, FLOP: `4 · layers · heads · head width`.
    pub fn attention_flops_per_pair(&self) -> f64 {
        4.0 * f64::from(self.num_layers * self.num_heads * self.head_dim)
    }

    /// All weights, bytes.
    pub fn total_weight_bytes(&self) -> f64 {
        let embeddings = if self.tied_embeddings { 1.0 } else { 2.0 };
        (self.layer_params + embeddings * self.head_params) * self.weight_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_8b_has_the_published_size() {
        let model = Model::named("llama-3-8b").unwrap();
        assert_eq!(model.kv_bytes_per_token(), 131_072.0);
        // 8.03 billion parameters.
        assert!((model.total_weight_bytes() / 2.0 / 8.03e9 - 1.0).abs() < 1e-3);
    }

    #[test]
    fn the_other_models_have_theirs() {
        let params = |name: &str| Model::named(name).unwrap().total_weight_bytes() / 2.0;
        assert!((params("qwen2.5-7b") / 7.62e9 - 1.0).abs() < 2e-3);
        assert!((params("qwen2.5-0.5b") / 0.494e9 - 1.0).abs() < 2e-3);
        assert!((params("llama-3-70b") / 70.6e9 - 1.0).abs() < 2e-3);
    }
}
