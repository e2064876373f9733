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
use super::config_refused::{KNOWN, UNGATED, is_set, quoted, refuse_what_is_not_simulated};
use super::quantization::{is_by_blocks, precision, quantises_kv};
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
        let text =
            std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8 from byte {} on", error.valid_up_to()))?;
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
        refuse_what_is_not_simulated(kind, text)?;
        Ok(Config { top, text, kind })
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
        value
            .as_array()
            .map(|list| Some(list.as_slice()))
            .ok_or_else(|| format!("{key} is {}: expected a list", quoted(value)))
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
        let kv_heads =
            match self.count(&["num_key_value_heads"], HEADS)?.or_else(|| self.default("num_key_value_heads")) {
                Some(kv_heads) if heads.is_multiple_of(kv_heads) => kv_heads,
                Some(kv_heads) => {
                    return Err(format!(
                        "num_key_value_heads is {kv_heads}: {heads} heads cannot be shared among them equally"
                    ));
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
            by_blocks: is_by_blocks(self.top, self.text),
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
        let kind =
            scaling.get("rope_type").or_else(|| scaling.get("type")).and_then(Value::as_str).unwrap_or("default");
        let factor = match scaling.get("factor").filter(|value| !value.is_null()) {
            None => return Ok(length),
            Some(value) => value.as_f64().filter(|factor| (1.0..=1e4).contains(factor)).ok_or_else(|| {
                format!("factor of rope_scaling is {}: expected a number from 1 to 10000", quoted(value))
            })?,
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
        if quantises_kv(self.top, self.text) {
            notes.push(
                "quantization_config has keys and values quantised: --set kv_cache_dtype=fp8 does so here".to_owned(),
            );
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
            _ => {
                return Err(format!(
                    "layer_types has {}: full_attention and sliding_attention are simulated",
                    quoted(kind)
                ));
            }
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
