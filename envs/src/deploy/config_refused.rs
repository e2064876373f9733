//! What of a `config.json` is not simulated, and is refused by its name.

use serde_json::{Map, Value};

/// Types whose every key that matters is understood here. Others are read all the same, and said to be.
pub(super) const KNOWN: [&str; 46] = [
    "arcee",
    "cohere",
    "cohere2",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "glm",
    "glm4",
    "glm4_moe",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "granitemoe",
    "internlm3",
    "kimi_k2",
    "llama",
    "minimax_m2",
    "ministral",
    "mistral",
    "mistral3",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_5_vl",
    "qwen2_moe",
    "qwen2_vl",
    "qwen3",
    "qwen3_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
];
/// Types whose feed-forward part is not gated: two matrices, not three.
pub(super) const UNGATED: [&str; 6] = ["arcee", "gpt_neox", "nemotron", "phi", "starcoder2", "apertus"];
/// Types that are no decoders with attention in every layer, or whose layers share keys and values.
const REFUSED_TYPES: [&str; 24] = [
    "bamba",
    "bart",
    "falcon_h1",
    "falcon_mamba",
    "gemma3n",
    "gemma3n_text",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "minimax",
    "minimax_text_01",
    "mllama",
    "nemotron_h",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "t5",
    "whisper",
    "zamba",
    "zamba2",
];
/// Keys that change memory or arithmetic in ways that are not simulated, where they are set.
const REFUSED_KEYS: [&str; 21] = [
    "add_cross_attention",
    "attention_chunk_size",
    "attn_layer_period",
    "attn_type_list",
    "block_types",
    "cross_attention_layers",
    "decoder_layers",
    "encoder_layers",
    "full_attention_interval",
    "hybrid_override_pattern",
    "index_topk",
    "is_encoder_decoder",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "lru_width",
    "num_decoder_layers",
    "num_encoder_layers",
    "num_kv_shared_layers",
    "conv_kernel",
    "state_size",
];
/// Parts of the names of others.
const REFUSED_PARTS: [&str; 5] = ["mamba", "ssm_", "rwkv", "linear_conv", "conv_l_cache"];
/// Keys about experts that are read, or change neither memory nor arithmetic.
const EXPERT_KEYS: [&str; 21] = [
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_intermediate_size",
    "n_shared_experts",
    "num_shared_experts",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "moe_layer_freq",
    "interleave_moe_layer_step",
    "num_expert_group",
    "moe_router_dtype",
    "moe_router_enable_expert_bias",
    "moe_router_activation_func",
    "moe_router_use_sigmoid",
    "moe_renormalize",
    "moe_router_topk_scaling_factor",
    "moe_aux_loss_coeff",
];

/// Refuses a model of a kind that is not simulated, and keys that are set and not understood.
pub(super) fn refuse_what_is_not_simulated(kind: &str, keys: &Map<String, Value>) -> Result<(), String> {
    let is_encoder = kind.contains("bert") || kind.contains("electra");
    if REFUSED_TYPES.contains(&kind) || is_encoder {
        return Err(format!(
            "model_type is {kind:?}: only decoders with attention of their own in every layer are simulated"
        ));
    }
    for (key, value) in keys.iter().filter(|(_, value)| is_set(value) && !is_attention_alone(value)) {
        let plain = key.to_lowercase();
        let is_refused =
            REFUSED_KEYS.contains(&plain.as_str()) || REFUSED_PARTS.iter().any(|part| plain.contains(part));
        let is_of_experts = plain.contains("expert") || plain.starts_with("moe");
        if is_refused || (is_of_experts && !EXPERT_KEYS.contains(&plain.as_str())) {
            let key: String = key.chars().take(60).flat_map(char::escape_debug).collect();
            return Err(format!("{key} is {}: what it does to memory and time is not simulated", quoted(value)));
        }
    }
    Ok(())
}

/// A value as an error quotes it.
pub(super) fn quoted(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 { format!("{}…", text.chars().take(60).collect::<String>()) } else { text }
}

/// Whether a key is set to something: not to `null`, `false`, 0 or nothing.
pub(super) fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_on) => *is_on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}

/// Whether a list of the layers' kinds says that all of them have attention, as MiniMax-M2's.
fn is_attention_alone(value: &Value) -> bool {
    let is_attention = |kind: &Value| kind == 1 || kind == "attention";
    value.as_array().is_some_and(|kinds| kinds.iter().all(is_attention))
}
