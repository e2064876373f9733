//! Models out of a Hugging Face `config.json`.
//!
//! What decides memory and arithmetic is read; what would change either and is not understood is refused by its name. Everything
//! else (activations, rotary bases, tokens, training) is passed over.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Model;
use super::architecture::{Architecture, ExpertWidths, LatentWidths};
use super::quantization::precision;
use super::structure::{Latent, Window};

/// Largest file read, bytes: lists of modules that are not quantised make some of them long.
const MAX_BYTES: u64 = 16 << 20;
/// Most layers, heads and experts, widest layer, largest vocabulary, longest sequence.
const LAYERS: u32 = 1024;
const HEADS: u32 = 4096;
const EXPERTS: u32 = 1 << 16;
const WIDTH: u32 = 1 << 20;
const VOCABULARY: u32 = 1 << 26;
const LENGTH: u32 = 1 << 26;

/// A `config.json` that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct ModelFileError {
    /// The file.
    pub path: PathBuf,
    /// The key, its value, and what would do.
    pub reason: String,
}

/// What stands in it, or why it will not do.
type Reading<T> = Result<T, String>;

/// Types whose every key that matters is understood here. Others are read all the same, and said to be.
const KNOWN: [&str; 46] = [
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
const UNGATED: [&str; 6] = ["arcee", "gpt_neox", "nemotron", "phi", "starcoder2", "apertus"];
/// Types that are no decoders with attention in every layer, or whose layers share keys and values.
const REFUSED_TYPES: [&str; 24] = [
    "bamba", "bart", "falcon_h1", "falcon_mamba", "gemma3n", "gemma3n_text", "granitemoehybrid", "jamba", "kimi_linear", "lfm2",
    "lfm2_moe", "mamba", "mamba2", "minimax", "minimax_text_01", "mllama", "nemotron_h", "qwen3_next", "recurrent_gemma", "rwkv",
    "t5", "whisper", "zamba", "zamba2",
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

impl Model {
    /// The model of a `config.json`, by its path or its folder's.
    ///
    /// # Errors
    /// The file cannot be read, a key is missing or out of its range, or the model is of a kind that is not simulated.
    pub fn read(path: &Path) -> Result<Model, ModelFileError> {
        let path = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        let error = |reason: String| ModelFileError { path: path.clone(), reason };
        let mut bytes = Vec::new();
        let file = File::open(&path).map_err(|io| error(format!("cannot open: {io}{}", published(&path))))?;
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|io| error(format!("cannot read: {io}")))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(error(format!("longer than {MAX_BYTES} bytes")));
        }
        Model::parse(&name(&path), &bytes).map_err(error)
    }

    /// The model of the text of a `config.json`, under `name`.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Model, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8 from byte {} on", error.valid_up_to()))?;
        let value: Value = serde_json::from_str(text).map_err(|error| format!("not JSON: {error}"))?;
        let Value::Object(top) = &value else { return Err("no JSON object".to_owned()) };
        Ok(Model::of(name, &Config::of(top)?.architecture()?))
    }
}

/// For a path that is none: the built-in model that was published under it.
fn published(path: &Path) -> String {
    let name = path.file_name().and_then(|name| Model::published_as(&name.to_string_lossy()));
    name.map_or_else(String::new, |name| format!(" (known by name: {name})"))
}

/// What a model of this file is called: as its folder, if the file has the usual name.
fn name(path: &Path) -> String {
    let is_usual = path.file_name().is_some_and(|name| name == "config.json");
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let named = if is_usual { whole.parent().and_then(Path::file_name) } else { path.file_stem() };
    named.map_or_else(|| "config".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// A value as an error quotes it.
fn quoted(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 { format!("{}…", text.chars().take(60).collect::<String>()) } else { text }
}

/// Whether a key is set to something: not to `null`, `false`, 0 or nothing.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_on) => *is_on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(values) => !values.is_empty(),
    }
}

/// The keys of a `config.json`.
struct Config<'a> {
    top: &'a Map<String, Value>,
    /// Those of the language model, where there are others beside it; else the same.
    text: &'a Map<String, Value>,
    kind: &'a str,
}

impl<'a> Config<'a> {
    fn of(top: &'a Map<String, Value>) -> Reading<Config<'a>> {
        let nested = ["text_config", "llm_config", "language_config"].iter().find_map(|key| top.get(*key));
        let text = match nested {
            None | Some(Value::Null) => top,
            Some(Value::Object(text)) => text,
            Some(other) => return Err(format!("text_config is {}: expected an object", quoted(other))),
        };
        let kind = match text.get("model_type").or_else(|| top.get("model_type")) {
            Some(Value::String(kind)) => kind.as_str(),
            Some(other) => return Err(format!("model_type is {}: expected a name", quoted(other))),
            None => return Err("model_type is missing".to_owned()),
        };
        let config = Config { top, text, kind };
        config.refuse_what_is_not_simulated()?;
        Ok(config)
    }

    fn refuse_what_is_not_simulated(&self) -> Reading<()> {
        if REFUSED_TYPES.contains(&self.kind) {
            return Err(format!(
                "model_type is {:?}: only decoders with attention of their own in every layer are simulated",
                self.kind
            ));
        }
        for (key, value) in self.text.iter().filter(|(_, value)| is_set(value)) {
            let plain = key.to_lowercase();
            let is_refused =
                REFUSED_KEYS.contains(&plain.as_str()) || REFUSED_PARTS.iter().any(|part| plain.contains(part));
            let is_of_experts = plain.contains("expert") || plain.starts_with("moe");
            if is_refused || (is_of_experts && !EXPERT_KEYS.contains(&plain.as_str())) {
                return Err(format!("{key} is {}: what it does to memory and time is not simulated", quoted(value)));
            }
        }
        Ok(())
    }

    /// The first of `keys` that is there and not null, among those of the language model.
    fn find(&self, keys: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        let found = |key: &&'static str| Some((*key, self.text.get(*key).filter(|value| !value.is_null())?));
        keys.iter().find_map(found)
    }

    /// A whole number from 1 to `most`, if one of `keys` is there.
    fn count(&self, keys: &[&'static str], most: u32) -> Reading<Option<u32>> {
        self.find(keys).map(|(key, value)| whole(key, value, 1, most)).transpose()
    }

    /// The same, which must be there.
    fn needed(&self, key: &'static str, most: u32) -> Reading<u32> {
        self.count(&[key], most)?.or_else(|| self.default(key)).ok_or_else(|| format!("{key} is missing"))
    }

    /// A whole number from 0 on.
    fn zero_or(&self, keys: &[&'static str], most: u32) -> Reading<u32> {
        self.find(keys).map_or(Ok(0), |(key, value)| whole(key, value, 0, most))
    }

    fn flag(&self, key: &'static str) -> Reading<Option<bool>> {
        let Some((_, value)) = self.find(&[key]) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| format!("{key} is {}: expected true or false", quoted(value)))
    }

    fn list(&self, key: &'static str) -> Reading<Option<&'a [Value]>> {
        let Some((_, value)) = self.find(&[key]) else { return Ok(None) };
        value.as_array().map(|list| Some(list.as_slice())).ok_or_else(|| format!("{key} is {}: expected a list", quoted(value)))
    }

    fn is(&self, kinds: &[&str]) -> bool {
        kinds.contains(&self.kind)
    }

    /// What published files of Gemma 3 leave out: the defaults of its configuration's class.
    fn default(&self, key: &str) -> Option<u32> {
        let defaults = [
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("vocab_size", 262_208),
            ("max_position_embeddings", 131_072),
        ];
        let is_left_out = self.is(&["gemma3_text"]) && std::ptr::from_ref(self.text) != std::ptr::from_ref(self.top);
        defaults.into_iter().find(|(name, _)| is_left_out && *name == key).map(|(_, value)| value)
    }

    fn architecture(&self) -> Reading<Architecture> {
        let layers = self.needed("num_hidden_layers", LAYERS)?;
        let hidden = self.needed("hidden_size", WIDTH)?;
        let heads = self.needed("num_attention_heads", HEADS)?;
        let latent = self.latent()?;
        let kv_heads = match self.count(&["num_key_value_heads"], HEADS)?.or_else(|| self.default("num_key_value_heads")) {
            Some(kv_heads) if heads.is_multiple_of(kv_heads) => kv_heads,
            Some(kv_heads) => {
                return Err(format!("num_key_value_heads is {kv_heads}: {heads} heads cannot be shared among them equally"));
            }
            None => heads,
        };
        let length = self.length()?;
        let experts = self.experts(layers)?;
        let intermediate = match self.count(&["intermediate_size"], WIDTH)? {
            Some(width) => width,
            None if experts.is_some_and(|experts| experts.layers == layers) => 0,
            None => return Err("intermediate_size is missing".to_owned()),
        };
        Ok(Architecture {
            layers,
            hidden,
            heads,
            kv_heads,
            head_dim: self.head_dim(hidden, heads, latent.as_ref())?,
            intermediate,
            matrices: if self.is(&UNGATED) { 2 } else { 3 },
            vocabulary: self.needed("vocab_size", VOCABULARY)?,
            length,
            tied: self.is_tied()?,
            latent: latent.map(|(latent, _)| latent),
            window: self.window(layers, length)?,
            experts,
            precision: precision(self.top, self.text, experts.is_some())?,
            notes: self.notes(),
        })
    }

    fn head_dim(&self, hidden: u32, heads: u32, latent: Option<&(LatentWidths, u32)>) -> Reading<u32> {
        if let Some((_, key)) = latent {
            return Ok(*key);
        }
        match self.count(&["head_dim"], WIDTH)?.or_else(|| self.default("head_dim")) {
            Some(width) => Ok(width),
            None if hidden.is_multiple_of(heads) => Ok(hidden / heads),
            None => Err(format!("head_dim is missing, and hidden_size ({hidden}) is no multiple of {heads} heads")),
        }
    }

    /// Latent attention, and the width of a key under it.
    fn latent(&self) -> Reading<Option<(LatentWidths, u32)>> {
        let Some(rank) = self.count(&["kv_lora_rank"], WIDTH)? else { return Ok(None) };
        let rotary = self.needed("qk_rope_head_dim", WIDTH)?;
        let key = rotary + self.needed("qk_nope_head_dim", WIDTH)?;
        let value = self.needed("v_head_dim", WIDTH)?;
        let query_rank = self.count(&["q_lora_rank"], WIDTH)?;
        Ok(Some((LatentWidths { kv: Latent { rank, rotary, value }, query_rank }, key)))
    }

    fn is_tied(&self) -> Reading<bool> {
        let said = match self.flag("tie_word_embeddings")? {
            None => self.top.get("tie_word_embeddings").and_then(Value::as_bool),
            said => said,
        };
        Ok(said.unwrap_or_else(|| self.kind.starts_with("gemma") || self.kind.starts_with("cohere")))
    }

    /// The longest sequence, as vLLM derives it: rotary scaling that is turned on multiplies it.
    fn length(&self) -> Reading<u32> {
        let length = self.needed("max_position_embeddings", LENGTH)?;
        let scaling = self.find(&["rope_scaling", "rope_parameters"]).and_then(|(_, value)| value.as_object());
        let Some(scaling) = scaling else { return Ok(length) };
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str).unwrap_or("default");
        let factor = match scaling.get("factor").filter(|value| !value.is_null()) {
            None => return Ok(length),
            Some(value) => value
                .as_f64()
                .filter(|factor| (1.0..=1e4).contains(factor))
                .ok_or_else(|| format!("factor of rope_scaling is {}: expected a number from 1 to 10000", quoted(value)))?,
        };
        let from = match kind {
            "yarn" => match scaling.get("original_max_position_embeddings") {
                Some(value) => whole("original_max_position_embeddings", value, 1, LENGTH)?,
                None => length,
            },
            "linear" | "dynamic" if !self.kind.starts_with("gemma3") => length,
            _ => return Ok(length),
        };
        Ok((f64::from(from) * factor).min(f64::from(LENGTH)) as u32)
    }

    fn window(&self, layers: u32, length: u32) -> Reading<Option<Window>> {
        let sliding = self.sliding_layers(layers)?;
        if sliding == 0 {
            return Ok(None);
        }
        let tokens = self.needed("sliding_window", LENGTH)?;
        Ok((tokens < length).then_some(Window { tokens, layers: sliding }))
    }

    /// How many layers have a window.
    fn sliding_layers(&self, layers: u32) -> Reading<u32> {
        if let Some(types) = self.list("layer_types")? {
            return sliding_types(types, layers);
        }
        let window = self.count(&["sliding_window"], LENGTH)?;
        let says_no = self.flag("use_sliding_window")?.unwrap_or(!self.kind.starts_with("qwen"));
        if window.is_none() || !says_no {
            return Ok(0);
        }
        let by = |is_sliding: &dyn Fn(u32) -> bool| (0..layers).filter(|layer| is_sliding(*layer)).count() as u32;
        if self.kind.starts_with("qwen") {
            return Ok(layers - self.zero_or(&["max_window_layers"], u32::MAX)?.min(layers));
        }
        let pattern = match self.find(&["sliding_window_pattern"]) {
            None if self.is(&["gemma3", "gemma3_text"]) => 6,
            None if self.is(&["cohere2"]) => 4,
            None if self.is(&["gemma2", "gpt_oss"]) => 2,
            None => return Ok(layers),
            Some((key, value)) => whole(key, value, 1, LAYERS)?,
        };
        Ok(by(&|layer| !(layer + 1).is_multiple_of(pattern)))
    }

    fn experts(&self, layers: u32) -> Reading<Option<ExpertWidths>> {
        let keys = ["n_routed_experts", "num_local_experts", "num_experts"];
        let count = self.zero_or(&keys, EXPERTS)?;
        if count == 0 {
            return Ok(None);
        }
        let per_token = self.count(&["num_experts_per_tok", "num_experts_per_token", "experts_per_token"], EXPERTS)?;
        let per_token = per_token.ok_or("num_experts_per_tok is missing")?;
        if per_token > count {
            return Err(format!("num_experts_per_tok is {per_token}: there are {count} experts"));
        }
        let width = self.count(&["moe_intermediate_size", "intermediate_size"], WIDTH)?;
        let width = width.ok_or("moe_intermediate_size is missing")?;
        let shared = match self.zero_or(&["shared_expert_intermediate_size", "shared_intermediate_size"], WIDTH)? {
            0 => self.zero_or(&["n_shared_experts", "num_shared_experts"], EXPERTS)?.checked_mul(width),
            shared => Some(shared),
        };
        let shared = shared.filter(|shared| *shared <= WIDTH).ok_or("n_shared_experts is too large")?;
        let layers = self.expert_layers(layers)?;
        Ok((layers > 0).then_some(ExpertWidths { layers, count, per_token, width, shared }))
    }

    /// How many layers have experts.
    fn expert_layers(&self, layers: u32) -> Reading<u32> {
        if let Some(types) = self.list("mlp_layer_types")? {
            same_length("mlp_layer_types", types, layers)?;
            return Ok(types.iter().filter(|kind| kind.as_str() == Some("sparse")).count() as u32);
        }
        if let Some((_, Value::Array(flags))) = self.find(&["moe_layer_freq"]) {
            same_length("moe_layer_freq", flags, layers)?;
            return Ok(flags.iter().filter(|flag| is_set(flag)).count() as u32);
        }
        let first = self.zero_or(&["first_k_dense_replace"], LAYERS)?;
        let every = self.count(&["moe_layer_freq"], LAYERS)?.unwrap_or(1);
        let step = self.count(&["decoder_sparse_step", "interleave_moe_layer_step"], LAYERS)?.unwrap_or(1);
        let dense = self.list("mlp_only_layers")?.unwrap_or_default();
        let has_experts = |layer: &u32| {
            *layer >= first
                && layer.is_multiple_of(every)
                && (layer + 1).is_multiple_of(step)
                && !dense.iter().any(|index| index.as_u64() == Some(u64::from(*layer)))
        };
        Ok((0..layers).filter(has_experts).count() as u32)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !KNOWN.iter().any(|kind| self.kind == *kind || self.kind.strip_suffix("_text") == Some(kind)) {
            notes.push(format!(
                "model_type {:?} is not among those that were checked: its config.json is read as that of a decoder of Llama's kind",
                self.kind
            ));
        }
        for part in ["vision_config", "audio_config"] {
            if self.top.get(part).is_some_and(is_set) {
                notes.push(format!("weights of {part} are not counted"));
            }
        }
        notes
    }
}

/// How many of the layers' types are a window's.
fn sliding_types(types: &[Value], layers: u32) -> Reading<u32> {
    same_length("layer_types", types, layers)?;
    let mut sliding = 0;
    for kind in types {
        match kind.as_str() {
            Some("full_attention") => {}
            Some("sliding_attention") => sliding += 1,
            _ => return Err(format!("layer_types has {}: full_attention and sliding_attention are simulated", quoted(kind))),
        }
    }
    Ok(sliding)
}

fn same_length(key: &str, list: &[Value], layers: u32) -> Reading<()> {
    if list.len() == layers as usize {
        return Ok(());
    }
    Err(format!("{key} has {} entries: num_hidden_layers is {layers}", list.len()))
}

fn whole(key: &str, value: &Value, least: u32, most: u32) -> Reading<u32> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{key} is {}: expected a whole number from {least} to {most}", quoted(value)))
}
