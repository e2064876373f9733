//! A policy that was trained elsewhere, made a checkpoint like our own: [`Imported::read`] reads and checks everything,
//! [`Imported::save`] writes it.
//!
//! A multilayer perceptron comes as safetensors, under the names that stable-baselines3, cleanrl and `RLlib` give ([`Layout`]) or
//! under any others, or as an ONNX graph. A manifest ([`ImportManifest`]) says the rest: which features its inputs are, which heads
//! its outputs, by what observations were standardised, and the experiment it was trained in. Only the actor is taken: nobody asks
//! a policy that is not trained any further what it expects. Nothing is believed before it was checked, and whatever does not fit
//! is refused by the name of the tensor, with the shape that is there and the shape that must be.

mod error;
mod layer;
mod layout;
mod manifest;
mod network;
mod normalise;
mod onnx;
mod tensors;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::{Arena, ServingArena};
use kvtide_runtime::{ActionProfile, Head};

pub use error::ImportError;
pub use layout::Layout;
pub use manifest::{HashValue, ImportManifest, Normalise, NormaliseBy, Numbers};

use error::Place;
use layer::LayerTensors;
use network::Interface;
use tensors::TensorFile;

use crate::agent::Activation;
use crate::agent::normalise::Moments;
use crate::checkpoint::{self, ImportedPolicy, Origin};
use crate::experiment::{Experiment, ExperimentError};
use crate::train::{self, Listener, TrainError};
use crate::world::World;

/// Longest name and framework, bytes: they are copied into tables.
const MAX_TEXT: usize = 200;

/// A policy that was read, and what it was trained by.
#[derive(Debug, Clone)]
pub struct Imported {
    policy: ImportedPolicy,
    experiment: Experiment,
    /// The first of the experiment's worlds.
    world: World,
    heads: Vec<Head>,
    inputs: usize,
}

/// What of a file is the policy.
struct Actor {
    layers: Vec<LayerTensors>,
    file: TensorFile,
    activation: Option<Activation>,
}

impl Imported {
    /// Reads what the manifest at `path` names, and checks that it is a policy over kvtide's observation and action.
    ///
    /// # Errors
    /// Any [`ImportError`] but those of writing.
    pub fn read(path: &Path) -> Result<Imported, ImportError> {
        let place = Place(path);
        let manifest = ImportManifest::load(path)?;
        for (field, text) in [("name", &manifest.name), ("framework", &manifest.framework)] {
            if let Some(text) = text.as_ref().filter(|text| text.is_empty() || text.len() > MAX_TEXT) {
                return Err(place.refuse(format!("{field} has {} bytes, must have 1 to {MAX_TEXT}", text.len())));
            }
        }
        let (inputs, heads) = (manifest.inputs(&place)?, manifest.heads(&place)?);
        let experiment = experiment(&place, &manifest)?;
        let world = experiment.world.world().map_err(ExperimentError::from)?;
        let bytes = tensors::read(&manifest.weights)?;
        let actor = actor(&place, &manifest, &bytes)?;
        let default = experiment.world.engine.default_action();
        let path = manifest.weights.as_path();
        let heads = match heads {
            Some(heads) => vec![heads],
            None => possible_heads(&experiment, &world)?,
        };
        let (weights, heads) = Interface { path, inputs: &inputs, heads: &heads, default }.weights(&actor.layers)?;
        let moments = normalise::moments(&place, &manifest, &actor.file, &inputs)?;
        let origin = Origin {
            framework: manifest.framework.clone().unwrap_or_else(|| framework(&manifest).to_owned()),
            file: path.file_name().map(|name| name.to_string_lossy().into_owned()),
            blake3: Some(blake3::hash(&bytes).to_string()),
            activation: activation(&place, &manifest, &actor)?,
        };
        let policy = ImportedPolicy { origin, weights, moments, decisions: manifest.decisions, seed: manifest.seed };
        Ok(Imported { policy, experiment, world, heads, inputs: inputs.len() })
    }

    /// The experiment it was trained in.
    pub fn experiment(&self) -> &Experiment {
        &self.experiment
    }

    /// The files that were read beside the manifest.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub fn files(manifest: &Path) -> Result<[PathBuf; 2], ImportError> {
        let ImportManifest { weights, experiment, .. } = ImportManifest::load(manifest)?;
        Ok([weights, experiment])
    }

    /// The policy itself.
    pub fn policy(&self) -> &ImportedPolicy {
        &self.policy
    }

    /// What it is, in a line: what a person checks before believing it.
    pub fn summary(&self) -> String {
        let ImportedPolicy { origin, weights, moments, .. } = &self.policy;
        let hidden = &weights.architecture().hidden;
        let network = match hidden.as_slice() {
            [] => "linear".to_owned(),
            hidden => format!("hidden layers {hidden:?}, {}", origin.activation.name()),
        };
        let normalised = match moments {
            None => "as they are",
            Some(Moments { form: None, .. }) => "standardised, clipped to ±10",
            Some(Moments { .. }) => "standardised in its framework's way",
        };
        let heads: Vec<&str> = self.heads.iter().map(|head| head.name()).collect();
        format!(
            "{} ({}): {} features {normalised}; {network}; outputs for {}",
            origin.framework,
            origin.file.as_deref().unwrap_or("no file"),
            self.inputs,
            heads.join(", ")
        )
    }

    /// Heads its profile decides and it has no outputs for: they stay as the engine has them.
    pub fn left_to_engine(&self) -> Vec<&'static str> {
        let missing = self.experiment.profile().heads().iter().filter(|head| !self.heads.contains(head));
        missing.map(|head| head.name()).collect()
    }

    /// Looks for the watermark that tables made of it fall back to, as training does before it starts, unless the experiment has
    /// one. `None` if interrupted.
    ///
    /// # Errors
    /// The experiment cannot be played.
    pub fn with_fallback(self, listener: &dyn Listener, stop: &AtomicBool) -> Result<Option<Imported>, ImportError> {
        let experiment = train::with_fallback(self.experiment.clone(), &self.world, listener, stop)?;
        Ok(experiment.map(|experiment| Imported { experiment, ..self }))
    }

    /// Writes the checkpoint at `out`, replacing the one there.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, out: &Path) -> Result<(), ImportError> {
        let provenance = train::provenance(&self.experiment, &self.world)?;
        Ok(checkpoint::save_imported(out, &self.policy, &provenance)?)
    }
}

fn framework(manifest: &ImportManifest) -> &'static str {
    manifest.layout.map_or("a framework nobody names", Layout::framework)
}

fn experiment(place: &Place<'_>, manifest: &ImportManifest) -> Result<Experiment, ImportError> {
    let mut experiment = Experiment::load(&manifest.experiment)?;
    if let Some(name) = &manifest.name {
        experiment.name.clone_from(name);
    }
    if let Some(profile) = &manifest.profile {
        let known = ActionProfile::from_name(profile);
        known
            .ok_or_else(|| place.refuse(format!("profile is {profile:?}: expected watermark, core, full or cache")))?;
        experiment.profile.clone_from(profile);
    }
    Ok(experiment)
}

/// The heads a network's outputs may be of where nobody says: those of which its worlds leave a choice, which is what an environment
/// asks for, those of its profile, or all. Each has all that those before it have, so no two are of one width.
fn possible_heads(experiment: &Experiment, world: &World) -> Result<Vec<Vec<Head>>, ImportError> {
    let arena = ServingArena::new(&experiment.env_config(world)?).map_err(TrainError::from)?;
    let words = arena.choices();
    let open = Head::ALL.into_iter().filter(|head| words[*head as usize].count_ones() > 1).collect();
    let mut possible: Vec<Vec<Head>> = vec![open, experiment.profile().heads().to_vec(), Head::ALL.to_vec()];
    possible.retain(|heads| !heads.is_empty());
    possible.dedup();
    Ok(possible)
}

/// The actor's layers, by whatever names they have.
fn actor(place: &Place<'_>, manifest: &ImportManifest, bytes: &[u8]) -> Result<Actor, ImportError> {
    let path = manifest.weights.as_path();
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx")) {
        let chain = onnx::chain(bytes, manifest.output.as_deref()).map_err(|what| Place(path).refuse(what))?;
        return Ok(Actor { layers: chain.layers, file: TensorFile::empty(path), activation: chain.activation });
    }
    let file = TensorFile::parse(path, bytes)?;
    let layers = match (&manifest.tensors, manifest.layout) {
        (Some(names), _) => named(place, names, &file)?,
        (None, Some(layout)) => layout.layers(&Place(path), &file)?,
        (None, None) => {
            return Err(place.refuse(
                "it names no layout: sb3, cleanrl or rllib; or, of any other, the actor's layers, tensors = [[\"WEIGHT\", \
                 \"BIAS\"], …]"
                    .to_owned(),
            ));
        }
    };
    Ok(Actor { layers, file, activation: None })
}

fn named(place: &Place<'_>, names: &[Vec<String>], file: &TensorFile) -> Result<Vec<LayerTensors>, ImportError> {
    let layer = |names: &Vec<String>| match names.as_slice() {
        [weight] => Ok(LayerTensors { weight: (weight.clone(), file.get(weight, "[outputs, inputs]")?), bias: None }),
        [weight, bias] => Ok(LayerTensors {
            weight: (weight.clone(), file.get(weight, "[outputs, inputs]")?),
            bias: Some((bias.clone(), file.get(bias, "[outputs]")?)),
        }),
        other => Err(place.refuse(format!("tensors: a layer is a weight and a bias, not {other:?}"))),
    };
    names.iter().map(layer).collect()
}

/// What is between the layers: as the graph has it, or somebody says, or the layout's framework does.
fn activation(place: &Place<'_>, manifest: &ImportManifest, actor: &Actor) -> Result<Activation, ImportError> {
    let usual = actor.activation.or(manifest.layout.map(Layout::activation));
    match (manifest.activation, actor.activation) {
        (Some(told), Some(found)) if told != found => {
            let (told, found) = (told.name(), found.name());
            Err(place.refuse(format!("activation is {told:?}, and the graph has {found}")))
        }
        (Some(told), _) => Ok(told),
        (None, _) if actor.layers.len() == 1 => Ok(Activation::default()),
        (None, _) => usual.ok_or_else(|| {
            place.refuse("it does not say what is between layers: activation = \"tanh\" or \"relu\"".to_owned())
        }),
    }
}
