//! Transformer decoders, as far as memory and arithmetic depend on them.

use serde::{Deserialize, Serialize};

use super::architecture::Architecture;
use super::catalog::CATALOG;
use super::{Precision, Structure, Widths};

/// A decoder: what its weights and its keys and values weigh, and what a token costs.
///
/// Only matrices count. Vectors (norms, biases, attention sinks) are less than a thousandth of any of the models here.
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
    /// Weights read by every token: all but the input embedding, the output head and routed experts.
    pub layer_params: f64,
    /// Weights of the output head, read by every sampled token; the input embedding has as many.
    pub head_params: f64,
    /// Whether embedding and head share their weights.
    pub tied_embeddings: bool,
    /// Bytes of a weight of the layers; embedding and head are always of two, as engines keep them.
    pub weight_bytes: f64,
    /// Bytes of a key or value.
    pub kv_bytes: f64,
    /// Longest sequence the model was made for, in tokens.
    pub max_model_len: u32,
    /// What a dense decoder with grouped-query attention over all tokens, in 16 bits, does not have.
    #[serde(default)]
    pub structure: Structure,
    /// Widths of its matrices, by which measured kernels are looked up.
    #[serde(default)]
    pub widths: Widths,
}

/// Bytes of a weight of embedding and head, and of an activation between layers.
pub(crate) const UNQUANTISED_BYTES: f64 = 2.0;

impl Model {
    /// Names of the built-in models.
    pub const NAMES: [&'static str; CATALOG.len()] = {
        let mut names = [""; CATALOG.len()];
        let mut index = 0;
        while index < CATALOG.len() {
            names[index] = CATALOG[index].name;
            index += 1;
        }
        names
    };

    /// The built-in model of that name, or of one of its other names, in capitals or not, in the weights it was published in.
    pub fn named(name: &str) -> Option<Model> {
        let is_it = |known: &&'static str| known.eq_ignore_ascii_case(name);
        let entry = CATALOG.iter().find(|entry| is_it(&entry.name) || entry.also.iter().any(is_it))?;
        Some(Model::of(entry.name, &entry.architecture()))
    }

    /// The built-in model that was published under `id`, such as `meta-llama/Llama-3.1-8B-Instruct`, whoever published it.
    pub fn published_as(id: &str) -> Option<&'static str> {
        let id = id.rsplit('/').next().unwrap_or_default().to_lowercase();
        let id = id.trim_start_matches("meta-");
        // What follows the name may change the widths (`-distill-`, `-awq`, `-multimodal`): only what is known not to may stand.
        let is_same = |word: &str| {
            ["instruct", "it", "base", "chat", "hf", "v0.2", "v0.3"].contains(&word)
                || word.bytes().all(|byte| byte.is_ascii_digit())
                || (word == "v0.1" && id.starts_with("mixtral"))
        };
        let is_name = |name: &str| {
            let rest = id.strip_prefix(name);
            rest.is_some_and(|rest| {
                rest.is_empty() || rest.strip_prefix('-').is_some_and(|rest| rest.split('-').all(is_same))
            })
        };
        let longest = |entry: &super::catalog::Entry| {
            std::iter::once(&entry.name).chain(entry.also).filter(|name| is_name(name)).map(|name| name.len()).max()
        };
        let (_, name) = CATALOG.iter().filter_map(|entry| Some((longest(entry)?, entry.name))).max()?;
        Some(name)
    }

    pub(super) fn of(name: &str, shape: &Architecture) -> Model {
        let mut model = Model {
            name: name.to_owned(),
            num_layers: shape.layers,
            num_heads: shape.heads,
            num_kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            hidden_size: shape.hidden,
            layer_params: shape.layer_params(),
            head_params: f64::from(shape.hidden) * f64::from(shape.vocabulary),
            tied_embeddings: shape.tied,
            weight_bytes: UNQUANTISED_BYTES,
            kv_bytes: UNQUANTISED_BYTES,
            max_model_len: shape.length,
            structure: shape.structure(),
            widths: shape.widths(),
        };
        model.set_precision(shape.precision);
        model
    }

    /// Weights of another precision.
    pub(super) fn set_precision(&mut self, precision: Precision) {
        self.weight_bytes = if precision.is_of_experts_only() { UNQUANTISED_BYTES } else { precision.bytes() };
        if let Some(experts) = &mut self.structure.experts {
            experts.weight_bytes = precision.bytes();
        }
        self.structure.precision = precision;
    }

    /// Whether it is a dense decoder with grouped-query attention over all tokens, in 16 bits: what is computed on a device,
    /// and what measured kernels hold for.
    pub fn is_plain(&self) -> bool {
        self.weight_bytes == UNQUANTISED_BYTES && self.structure.is_dense_over_all_tokens()
    }

    /// Keys and values of one token over all layers, bytes: `2 · layers · KV heads · head width · bytes`, or with latent
    /// attention `layers · (rank + rotary width) · bytes`.
    pub fn kv_bytes_per_token(&self) -> f64 {
        let elements = match &self.structure.latent {
            Some(latent) => f64::from(latent.rank) + f64::from(latent.rotary),
            None => 2.0 * f64::from(self.num_kv_heads) * f64::from(self.head_dim),
        };
        f64::from(self.num_layers) * elements * self.kv_bytes
    }

    /// Arithmetic of attention of a prompt, over all layers, for a token and one it attends to, FLOP:
    /// `4 · layers · heads · head width`, or with latent attention `2 · layers · heads · (key width + value width)`.
    pub fn attention_flops_per_pair(&self) -> f64 {
        let width = match &self.structure.latent {
            Some(latent) => f64::from(self.head_dim) + f64::from(latent.value),
            None => 2.0 * f64::from(self.head_dim),
        };
        2.0 * f64::from(self.num_layers) * f64::from(self.num_heads) * width
    }

    /// The same of a token that is generated: latent attention then works on the latents themselves,
    /// `2 · layers · heads · (2 · rank + rotary width)`.
    pub fn decode_flops_per_pair(&self) -> f64 {
        match &self.structure.latent {
            Some(latent) => {
                let width = 2.0 * f64::from(latent.rank) + f64::from(latent.rotary);
                2.0 * f64::from(self.num_layers) * f64::from(self.num_heads) * width
            }
            None => self.attention_flops_per_pair(),
        }
    }

    /// Weights of embedding and head together.
    fn embedding_params(&self) -> f64 {
        if self.tied_embeddings { self.head_params } else { 2.0 * self.head_params }
    }

    /// Weights of all routed experts.
    fn expert_params(&self) -> f64 {
        self.structure.experts.as_ref().map_or(0.0, |experts| experts.params_of(f64::from(experts.count)))
    }

    /// Weights of the layers that one token is multiplied with.
    pub fn active_layer_params(&self) -> f64 {
        let experts = self.structure.experts.as_ref();
        self.layer_params + experts.map_or(0.0, |experts| experts.params_of(f64::from(experts.per_token)))
    }

    /// All weights.
    pub fn total_params(&self) -> f64 {
        self.layer_params + self.expert_params() + self.embedding_params()
    }

    /// Weights one generated token is multiplied with: the layers with the experts it is routed to, and the head.
    pub fn active_params(&self) -> f64 {
        self.active_layer_params() + self.head_params
    }

    /// All weights, bytes.
    pub fn total_weight_bytes(&self) -> f64 {
        let experts = self.structure.experts.as_ref().map_or(0.0, |experts| experts.weight_bytes);
        self.layer_params * self.weight_bytes
            + self.embedding_params() * UNQUANTISED_BYTES
            + self.expert_params() * experts
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
    fn every_model_has_the_published_size() {
        for entry in CATALOG {
            let model = Model::named(entry.name).unwrap();
            let (total, active) = entry.published;
            let off = model.total_params() / (total * 1e9) - 1.0;
            assert!(off.abs() < 0.01, "{}: {:.2} thousand millions", entry.name, model.total_params() * 1e-9);
            // What is active is published to two digits, and with or without embedding and head.
            let Some(active) = active else { continue };
            let [least, most] = [0.0, 2.0].map(|heads| model.active_layer_params() + heads * model.head_params);
            assert!((least * 0.97..=most * 1.03).contains(&(active * 1e9)), "{}: {least:e} {most:e}", entry.name);
        }
    }

    #[test]
    fn names_are_told_apart() {
        let mut names: Vec<&str> = CATALOG.iter().flat_map(|entry| [&[entry.name], entry.also].concat()).collect();
        names.sort_unstable();
        assert!(names.array_windows().all(|[one, other]| one != other));
        assert_eq!(Model::named("llama-3.3-70b"), Model::named("llama-3-70b"));
        assert_eq!(Model::published_as("meta-llama/Llama-3.1-8B-Instruct"), Some("llama-3-8b"));
        assert_eq!(Model::published_as("Qwen/Qwen3-30B-A3B-Instruct-2507"), Some("qwen3-30b-a3b"));
        assert_eq!(Model::published_as("microsoft/Phi-4-mini-instruct"), Some("phi-4-mini"));
        assert_eq!(Model::published_as("zai-org/GLM-4.5-Air"), Some("glm-4.5-air"));
        for other in [
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
            "Qwen/Qwen2.5-7B-Instruct-AWQ",
            "microsoft/Phi-4-multimodal-instruct",
            "mistralai/Mistral-7B-v0.1",
            "gpt2",
            "",
        ] {
            assert_eq!(Model::published_as(other), None, "{other}");
        }
    }

    #[test]
    fn latents_and_quantised_experts_weigh_what_was_published() {
        // DeepSeek-V3 keeps 576 elements a token and layer (DeepSeek-AI 2024, table 1 of V2 has 70.3 KB for its own).
        let deepseek = Model::named("deepseek-v3").unwrap();
        assert_eq!(deepseek.kv_bytes_per_token(), 61.0 * 576.0 * 2.0);
        // The files of gpt-oss weigh 12.8 and 60.8 GiB (model card, table 1).
        for (name, gib) in [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)] {
            let bytes = Model::named(name).unwrap().total_weight_bytes();
            assert!((bytes / f64::from(1 << 30) / gib - 1.0).abs() < 0.01, "{name}: {bytes:e}");
        }
    }
}
