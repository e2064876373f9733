//! What makes a decoder other than dense, with grouped-query attention over all tokens, in 16 bits.

use serde::{Deserialize, Serialize};

/// What a model has that Llama 3 has not. Empty for such a model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Structure {
    /// Multi-head latent attention: one compressed vector a token for all heads.
    pub latent: Option<Latent>,
    /// Layers that attend to the last tokens only.
    pub window: Option<Window>,
    /// Routed experts.
    pub experts: Option<Experts>,
    /// What the weights are kept in.
    pub precision: Precision,
    /// What of the model is not counted or was not understood, in sentences.
    pub notes: Vec<String>,
}

/// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1). Every device of a tensor-parallel group keeps
/// the latents of all tokens, because every head reads all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latent {
    /// Width of the compressed keys and values, `kv_lora_rank`.
    pub rank: u32,
    /// Width of the part of a key that bears the position, shared by all heads, `qk_rope_head_dim`.
    pub rotary: u32,
    /// Width of a value of one head, `v_head_dim`.
    pub value: u32,
}

/// Widths of a decoder's matrices, as far as they do not stand elsewhere in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Widths {
    /// Of the feed-forward part of layers without experts.
    pub intermediate: u32,
    /// Matrices of the feed-forward part: three where it is gated, else two.
    pub matrices: u32,
    /// Tokens of the vocabulary.
    pub vocabulary: u32,
    /// Of one routed expert; 0 without any.
    pub expert: u32,
    /// Of all shared experts of a layer together; 0 without any.
    pub shared: u32,
    /// What queries of latent attention are compressed to; 0 where they are not.
    pub query_rank: u32,
    /// Whether weights in fp8 have a scale for each block of them, rather than for all.
    pub by_blocks: bool,
}

/// Layers with sliding-window attention; the others attend to all tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Tokens such a layer attends to, the newest included.
    pub tokens: u32,
    /// How many layers are so.
    pub layers: u32,
}

/// Routed experts. What all tokens share (router, shared experts, dense layers) counts among the layers' weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Layers that have them.
    pub layers: u32,
    /// Experts of a layer.
    pub count: u32,
    /// Experts of a layer that a token is routed to.
    pub per_token: u32,
    /// Weights of one expert.
    pub params: f64,
    /// Bytes of one of them.
    pub weight_bytes: f64,
}

impl Experts {
    /// Weights of so many experts in each layer.
    pub fn params_of(&self, experts: f64) -> f64 {
        f64::from(self.layers) * self.params * experts
    }

    /// Logarithm of the chance that a token passes over an expert.
    pub(crate) fn log_passed_over(&self) -> f64 {
        (-f64::from(self.per_token) / f64::from(self.count)).ln_1p()
    }

    /// Experts of a layer that at least one of `tokens` is routed to, on average: `count · (1 − (1 − per_token / count)^tokens)`.
    ///
    /// Tokens are taken to be routed independently and uniformly, which is what the load-balancing losses of training aim at.
    /// Real routing is skewed, so that this is the most that is read.
    pub fn distinct(&self, tokens: f64) -> f64 {
        f64::from(self.count) * -(self.log_passed_over() * tokens).exp_m1()
    }
}

impl Structure {
    pub(crate) fn is_dense_over_all_tokens(&self) -> bool {
        self.latent.is_none() && self.window.is_none() && self.experts.is_none()
    }
}

/// What weights are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// bfloat16 or float16.
    #[default]
    Bf16,
    /// Eight bits, multiplied as such where the accelerator can.
    Fp8,
    /// Eight bits, multiplied in 16.
    Int8,
    /// Four bits with a scale and a zero for each group of 128, multiplied in 16.
    Int4,
    /// The same of routed experts alone.
    ExpertsInt4,
    /// Routed experts in four bits with a scale of eight for each group of 32 (OCP Microscaling v1.0), the rest in 16 bits.
    ExpertsMxfp4,
}

impl Precision {
    /// Every precision, in the order of [`NAMES`](Precision::NAMES).
    pub const ALL: [Precision; 6] = [
        Precision::Bf16,
        Precision::Fp8,
        Precision::Int8,
        Precision::Int4,
        Precision::ExpertsInt4,
        Precision::ExpertsMxfp4,
    ];
    /// Their names.
    pub const NAMES: [&'static str; 6] = ["bf16", "fp8", "int8", "int4", "experts_int4", "mxfp4"];

    /// The name.
    pub fn name(self) -> &'static str {
        Precision::NAMES[self as usize]
    }

    /// The name it has in files.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Precision::ExpertsMxfp4 => "experts_mxfp4",
            precision => precision.name(),
        }
    }

    /// Bytes of a quantised weight, scales and zeros included.
    pub fn bytes(self) -> f64 {
        match self {
            Precision::Bf16 => 2.0,
            Precision::Fp8 | Precision::Int8 => 1.0,
            // Four bits, and 16 + 4 for each 128 weights.
            Precision::Int4 | Precision::ExpertsInt4 => (4.0 + 20.0 / 128.0) / 8.0,
            // Four bits, and eight for each 32 weights.
            Precision::ExpertsMxfp4 => (4.0 + 8.0 / 32.0) / 8.0,
        }
    }

    pub(crate) fn is_of_experts_only(self) -> bool {
        matches!(self, Precision::ExpertsInt4 | Precision::ExpertsMxfp4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_hit_by_a_step() {
        let experts = Experts { layers: 1, count: 128, per_token: 8, params: 1.0, weight_bytes: 2.0 };
        let near = |tokens: f64, expected: f64| {
            let distinct = experts.distinct(tokens);
            assert!((distinct - expected).abs() < 1e-9 * expected.max(1.0), "{tokens}: {distinct}");
        };
        near(0.0, 0.0);
        near(1.0, 8.0);
        near(2.0, 15.5);
        near(1e6, 128.0);
        let all = Experts { per_token: 128, ..experts };
        assert_eq!(all.distinct(1.0), 128.0);
    }

    #[test]
    fn names_are_of_what_they_name() {
        for (precision, name) in Precision::ALL.into_iter().zip(Precision::NAMES) {
            assert_eq!(precision.name(), name);
        }
    }
}
