//! What its owner says of a policy that was trained elsewhere: a few lines of TOML or JSON.

use std::path::{Path, PathBuf};

use kvtide_runtime::observation::FEATURES;
use kvtide_runtime::{ACTION_SET_HASH, Head, NUM_FEATURES, SCHEMA_HASH, edition};
use serde::Deserialize;

use super::layout::Layout;
use super::tensors;
use super::{ImportError, Place};
use crate::agent::Activation;
use crate::agent::normalise::Spread;

/// A manifest. With one of the known layouts four lines of it are enough: `layout`, `weights`, `experiment` and `schema`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportManifest {
    /// Who left the tensors. `None` with `tensors`, and of an ONNX file, which needs no names.
    pub layout: Option<Layout>,
    /// The safetensors or ONNX file, relative to the manifest.
    pub weights: PathBuf,
    /// The experiment whose world it was trained in, relative to the manifest.
    pub experiment: PathBuf,
    /// What it is called; the experiment's name otherwise.
    pub name: Option<String>,
    /// What trained it, in words.
    pub framework: Option<String>,
    /// Heads it decides, as the experiment has it otherwise.
    pub profile: Option<String>,
    /// Heads its outputs are of, in their order. `None`: all of them, or those of the profile, whichever its width is.
    pub heads: Option<Vec<String>>,
    /// Hash of the observation it was trained on: `kvtide.SCHEMA_HASH`.
    pub schema: Option<HashValue>,
    /// Hash of the actions it was trained on: `kvtide.ACTION_SET_HASH`.
    pub actions: Option<HashValue>,
    /// Features its inputs are, in their order. `None`: all of the schema's.
    pub features: Option<Vec<String>>,
    /// What is between its layers.
    pub activation: Option<Activation>,
    /// By what observations were standardised; `false` where the file has moments that were not used.
    pub normalise: Option<Normalise>,
    /// The actor's layers in the order of the forward pass, each its weight and its bias.
    pub tensors: Option<Vec<Vec<String>>>,
    /// The output of an ONNX graph that is the logits.
    pub output: Option<String>,
    /// Decisions it was trained on.
    #[serde(default)]
    pub decisions: u64,
    /// The seed it was trained from.
    #[serde(default)]
    pub seed: u64,
}

/// A hash: a number, as Python has it, or sixteen hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum HashValue {
    /// As a number; those of TOML are too short for one.
    Number(u64),
    /// In hexadecimal.
    Digits(String),
}

impl HashValue {
    fn value(&self, place: &Place<'_>, field: &str) -> Result<u64, ImportError> {
        let text = match self {
            HashValue::Number(number) => return Ok(*number),
            HashValue::Digits(text) => text,
        };
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let parsed = u64::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'));
        parsed
            .ok_or_else(|| place.refuse(format!("{field} is {text:?}: expected a hash of sixteen hexadecimal digits")))
    }
}

/// Whether and by what observations were standardised.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Normalise {
    /// `false`: they were not.
    Switch(bool),
    /// By these.
    By(NormaliseBy),
}

/// By what observations were standardised.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormaliseBy {
    /// Mean of each input.
    pub mean: Numbers,
    /// Variance of each input.
    pub variance: Option<Numbers>,
    /// Standard deviation of each input, in place of the variance.
    pub deviation: Option<Numbers>,
    /// What is added before the division; as the layout's framework has it otherwise.
    pub epsilon: Option<f64>,
    /// To what that is added: `variance` or `deviation`.
    pub added_to: Option<Spread>,
    /// To what is clipped afterwards; 0 for not at all.
    pub clip: Option<f64>,
}

/// Numbers, or the tensor that holds them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Numbers {
    /// Name of a tensor.
    Tensor(String),
    /// As they are.
    Values(Vec<f64>),
}

impl ImportManifest {
    /// Reads a manifest, JSON if it begins as such and TOML otherwise; paths in it are relative to its folder.
    ///
    /// # Errors
    /// The file cannot be read, or says what nobody knows.
    pub fn load(path: &Path) -> Result<ImportManifest, ImportError> {
        let place = Place(path);
        let bytes = tensors::read(path)?;
        let text = String::from_utf8(bytes).map_err(|_| place.refuse("it is not UTF-8".to_owned()))?;
        let mut manifest: ImportManifest = if text.trim_start().starts_with('{') {
            serde_json::from_str(&text).map_err(|error| place.refuse(error.to_string()))?
        } else {
            toml::from_str(&text).map_err(|error: toml::de::Error| place.refuse(in_toml(&text, &error)))?
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        manifest.weights = folder.join(&manifest.weights);
        manifest.experiment = folder.join(&manifest.experiment);
        Ok(manifest)
    }

    /// Index of the feature that each input is.
    pub(super) fn inputs(&self, place: &Place<'_>) -> Result<Vec<usize>, ImportError> {
        let known = self.schema.as_ref().map(|hash| schema(place, hash)).transpose()?;
        match (&self.features, known) {
            (None, None) => Err(place.refuse(format!(
                "it says neither by which features the policy decides (features = [\"free_fraction\", …]) nor of which schema they \
                 are; this kvtide's, kvtide.SCHEMA_HASH, is schema = \"{SCHEMA_HASH:016x}\""
            ))),
            (None, Some(features)) => Ok((0..features).collect()),
            (Some(names), known) => {
                let most = known.unwrap_or(NUM_FEATURES);
                let mut inputs = Vec::new();
                for name in names {
                    let index = FEATURES[..most].iter().position(|feature| feature.name == name);
                    let index = index.ok_or_else(|| place.refuse(format!("features: there is no feature {name:?}")))?;
                    if inputs.contains(&index) {
                        return Err(place.refuse(format!("features: {name:?} is named twice")));
                    }
                    inputs.push(index);
                }
                Ok(inputs)
            }
        }
    }

    /// The heads its outputs are of, if it says so.
    pub(super) fn heads(&self, place: &Place<'_>) -> Result<Option<Vec<Head>>, ImportError> {
        let actions = self.actions.as_ref().map(|hash| hash.value(place, "actions")).transpose()?;
        if let Some(actions) = actions.filter(|actions| *actions != ACTION_SET_HASH) {
            return Err(place.refuse(format!(
                "actions is {actions:016x}, this kvtide's action set is {ACTION_SET_HASH:016x}: train again"
            )));
        }
        let Some(names) = &self.heads else { return Ok(None) };
        let mut heads: Vec<Head> = Vec::new();
        for name in names {
            let head = Head::ALL.into_iter().find(|head| head.name() == name || head.key() == name);
            let all = Head::ALL.map(Head::name).join(", ");
            let head =
                head.ok_or_else(|| place.refuse(format!("heads: there is no head {name:?}; there are {all}")))?;
            if heads.contains(&head) {
                return Err(place.refuse(format!("heads: {name:?} is named twice")));
            }
            heads.push(head);
        }
        if heads.is_empty() {
            return Err(place.refuse("heads: a policy decides at least one".to_owned()));
        }
        Ok(Some(heads))
    }
}

/// How many features that schema has; it is this one or a beginning of it.
fn schema(place: &Place<'_>, hash: &HashValue) -> Result<usize, ImportError> {
    let found = hash.value(place, "schema")?;
    let mut editions = edition::EDITIONS.iter();
    editions.find(|edition| edition.schema_hash == found).map(|edition| usize::from(edition.features)).ok_or_else(
        || {
            place.refuse(format!(
                "schema is {found:016x}, this kvtide's is {SCHEMA_HASH:016x}: train again on its observation"
            ))
        },
    )
}

/// The error with its line.
fn in_toml(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or(text));
    format!("line {}: {}", before.matches('\n').count() + 1, error.message())
}
