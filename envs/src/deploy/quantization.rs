//! What `quantization_config` of a `config.json` says of the weights.

use serde_json::{Map, Value};

use super::structure::Precision;

/// The precision of the weights of a model that has routed experts or not.
pub(super) fn precision(
    top: &Map<String, Value>,
    text: &Map<String, Value>,
    has_experts: bool,
) -> Result<Precision, String> {
    let Some(value) = quantised(top, text) else { return Ok(Precision::Bf16) };
    let Value::Object(config) = value else { return Err("quantization_config is no object".to_owned()) };
    let said = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let bits = config.get("bits").and_then(Value::as_u64);
    let method = said("quant_method").to_lowercase();
    let is_on = |key: &str| config.get(key).and_then(Value::as_bool) == Some(true);
    let whole = match (method.as_str(), bits) {
        ("fp8" | "fbgemm_fp8", _) => Precision::Fp8,
        ("awq" | "gptq" | "awq_marlin" | "gptq_marlin" | "auto-round", Some(4)) => Precision::Int4,
        ("gptq" | "gptq_marlin" | "auto-round", Some(8)) => Precision::Int8,
        ("mxfp4", _) => Precision::ExpertsMxfp4,
        ("bitsandbytes", _) if is_on("load_in_4bit") => Precision::Int4,
        ("bitsandbytes", _) if is_on("load_in_8bit") => Precision::Int8,
        ("modelopt", _) if said("quant_algo").eq_ignore_ascii_case("fp8") => Precision::Fp8,
        ("compressed-tensors", _) => compressed(config)?,
        _ => {
            let what = [method.as_str(), said("quant_algo")].join(" ");
            let bits = bits.map_or_else(String::new, |bits| format!(" in {bits} bits"));
            return Err(format!(
                "quantization_config has quant_method {:?}{bits}: fp8, awq, gptq, bitsandbytes, compressed-tensors, modelopt's fp8 \
                 and mxfp4 are simulated; --env with the unquantised config.json and --set weight_dtype=… may do",
                what.trim()
            ));
        }
    };
    match whole {
        Precision::ExpertsMxfp4 if !has_experts => {
            Err("quantization_config is mxfp4, which is of experts: there are none".into())
        }
        Precision::Int4 if has_experts && leaves_attention(config) => Ok(Precision::ExpertsInt4),
        whole => Ok(whole),
    }
}

fn quantised<'a>(top: &'a Map<String, Value>, text: &'a Map<String, Value>) -> Option<&'a Value> {
    let keys = ["quantization_config", "compression_config"];
    keys.iter().find_map(|key| text.get(*key).or_else(|| top.get(*key)).filter(|value| !value.is_null()))
}

/// Whether each block of weights has a scale of its own.
pub(super) fn is_by_blocks(top: &Map<String, Value>, text: &Map<String, Value>) -> bool {
    let Some(config) = quantised(top, text) else { return false };
    let is_block = |group: &Value| group["weights"]["strategy"] == "block";
    let groups = config.get("config_groups").and_then(Value::as_object);
    config.get("weight_block_size").is_some_and(|size| !size.is_null())
        || groups.is_some_and(|groups| groups.values().any(is_block))
}

/// Whether keys and values are quantised as well, which is a setting here as it is in vLLM.
pub(super) fn quantises_kv(top: &Map<String, Value>, text: &Map<String, Value>) -> bool {
    let is_set =
        |key: &str| quantised(top, text).and_then(|config| config.get(key)).is_some_and(|value| !value.is_null());
    is_set("kv_cache_scheme") || is_set("kv_cache_quant_algo")
}

/// Of groups of modules, which must all be quantised alike.
fn compressed(config: &Map<String, Value>) -> Result<Precision, String> {
    let groups =
        config.get("config_groups").and_then(Value::as_object).ok_or("quantization_config has no config_groups")?;
    let mut found = None;
    for (name, group) in groups {
        let weights = &group["weights"];
        let bits = weights["num_bits"].as_u64();
        let precision = match (weights["type"].as_str(), bits) {
            (Some("float"), Some(8)) => Precision::Fp8,
            (Some("int"), Some(8)) => Precision::Int8,
            (Some("int"), Some(4)) => Precision::Int4,
            (kind, bits) => {
                return Err(format!(
                    "quantization_config: {name} has weights of {} in {} bits: float in 8, int in 8 and int in 4 are simulated",
                    kind.unwrap_or("no type"),
                    bits.map_or_else(|| "no".to_owned(), |bits| bits.to_string()),
                ));
            }
        };
        if found.is_some_and(|other| other != precision) {
            return Err("quantization_config has groups of different weights: one precision is simulated".to_owned());
        }
        found = Some(precision);
    }
    found.ok_or_else(|| "quantization_config has no config_groups".to_owned())
}

/// Whether attention is among what is left as it was.
fn leaves_attention(config: &Map<String, Value>) -> bool {
    let lists = ["ignore", "modules_to_not_convert"].iter().filter_map(|key| config.get(*key)?.as_array());
    let mut modules = lists.flatten().filter_map(Value::as_str);
    modules.any(|module| module.contains("self_attn"))
}
