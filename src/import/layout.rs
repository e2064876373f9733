//! What frameworks call the tensors of a policy.

use serde::{Deserialize, Serialize};

use super::layer::LayerTensors;
use super::tensors::TensorFile;
use super::{ImportError, Place};
use crate::agent::Activation;
use crate::agent::normalise::{Form, Spread};

/// Who left the tensors, with the names they have there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// stable-baselines3 and sb3-contrib: the state of an `MlpPolicy`.
    Sb3,
    /// cleanrl: an `Agent` with `actor` and `critic`, each a `Sequential`.
    Cleanrl,
    /// `RLlib`'s module of its newer interface, with an encoder of its own for the actor or one for both.
    Rllib,
}

/// How a layout names the layers of the actor, and what else it leaves.
struct Names {
    framework: &'static str,
    /// Layers in the order of the forward pass: `prefix` is followed by numbers that grow, unless it is the whole name.
    actor: &'static [Layers],
    /// Beginnings of the names of what is no part of the actor.
    beside: &'static [&'static str],
    form: Form,
}

/// One layer or several.
enum Layers {
    /// `prefix.weight`.
    One(&'static str),
    /// `prefix.0.weight`, `prefix.2.weight`, …; as many as there are, and none is right where another prefix has them.
    Numbered(&'static str),
}

/// As `VecNormalize` and Gymnasium's wrappers leave them, whatever the layout.
pub(super) const MEAN: &str = "obs_rms.mean";
/// See [`MEAN`].
pub(super) const VARIANCE: &str = "obs_rms.var";
/// Beginnings of the names of running moments.
const MOMENTS: [&str; 2] = ["obs_rms.", "ret_rms."];

/// `RLlib`'s filter: a tiny number is added to the deviation.
const MEAN_STD_FILTER: Form = Form { epsilon: 1e-6, added_to: Spread::Deviation, clip: Some(10.0) };

impl Layout {
    /// Every layout, with its name in files.
    pub const ALL: [(Layout, &'static str); 3] =
        [(Layout::Sb3, "sb3"), (Layout::Cleanrl, "cleanrl"), (Layout::Rllib, "rllib")];

    fn names(self) -> Names {
        match self {
            Layout::Sb3 => Names {
                framework: "stable-baselines3",
                actor: &[
                    Layers::Numbered("mlp_extractor.shared_net"),
                    Layers::Numbered("mlp_extractor.policy_net"),
                    Layers::One("action_net"),
                ],
                beside: &["mlp_extractor.value_net.", "value_net."],
                form: Form::OURS,
            },
            Layout::Cleanrl => Names {
                framework: "cleanrl",
                actor: &[Layers::Numbered("actor")],
                beside: &["critic."],
                form: Form::OURS,
            },
            Layout::Rllib => Names {
                framework: "rllib",
                actor: &[
                    Layers::Numbered("encoder.encoder.net.mlp"),
                    Layers::Numbered("encoder.actor_encoder.net.mlp"),
                    Layers::Numbered("pi.net.mlp"),
                ],
                // The bound of a spread that only continuous actions have stands in every module of its policies.
                beside: &["encoder.critic_encoder.", "vf.", "pi.log_std_clip_param_const"],
                form: MEAN_STD_FILTER,
            },
        }
    }

    /// What left it, in a word.
    pub fn framework(self) -> &'static str {
        self.names().framework
    }

    /// What is between layers where nobody says otherwise: the three of them have tanh.
    pub fn activation(self) -> Activation {
        Activation::Tanh
    }

    /// How observations are standardised there.
    pub fn form(self) -> Form {
        self.names().form
    }

    /// The actor's layers in the order of the forward pass.
    ///
    /// # Errors
    /// One is missing, or something is there that a network of this kind does not have.
    pub(super) fn layers(self, place: &Place<'_>, file: &TensorFile) -> Result<Vec<LayerTensors>, ImportError> {
        let names = self.names();
        let mut found: Vec<String> = Vec::new();
        for layers in names.actor {
            match layers {
                Layers::One(name) => found.push((*name).to_owned()),
                Layers::Numbered(prefix) => found.extend(numbered(prefix, file)),
            }
        }
        if !found.iter().any(|layer| file.contains(&format!("{layer}.weight"))) {
            let expected = names.actor.iter().map(|layers| match layers {
                Layers::One(name) => format!("{name}.weight"),
                Layers::Numbered(prefix) => format!("{prefix}.0.weight"),
            });
            let expected = expected.collect::<Vec<String>>().join(" or ");
            return Err(place.refuse(format!("it has no tensor {expected}, as layout {} has them", names.framework)));
        }
        let parts = ["weight", "bias"].map(|part| found.iter().map(move |layer| format!("{layer}.{part}")));
        let known: Vec<String> = parts.into_iter().flatten().collect();
        let is_beside = |name: &str| names.beside.iter().chain(&MOMENTS).any(|beside| name.starts_with(beside));
        if let Some(other) = file.names().find(|name| !is_beside(name) && !known.iter().any(|known| known == name)) {
            return Err(place.refuse(format!(
                "tensor {other} has no place in a policy of layout {}: {}",
                names.framework,
                reason(other)
            )));
        }
        found.iter().map(|layer| pair(layer, file)).collect()
    }
}

/// Why a tensor that is not expected may be there.
fn reason(name: &str) -> &'static str {
    if name.starts_with("log_std") {
        "actions are continuous there; train on the MultiDiscrete space"
    } else if name.contains("features_extractor") || name.contains("cnn") {
        "observations go through a network of another kind first; train an MLP on the 35 features"
    } else if name.contains("lstm") || name.contains("gru") {
        "it remembers, and a table decides by what is there; train without recurrence"
    } else {
        "name the actor's layers under `tensors` if they are others than the layout's"
    }
}

fn pair(layer: &str, file: &TensorFile) -> Result<LayerTensors, ImportError> {
    let (weight, bias) = (format!("{layer}.weight"), format!("{layer}.bias"));
    let found = file.get(&weight, "[outputs, inputs]")?;
    let bias = (bias.clone(), file.get(&bias, "[outputs]")?);
    Ok(LayerTensors { weight: (weight, found), bias: Some(bias) })
}

/// `prefix.0`, `prefix.2`, …: those that have a weight, by their number.
fn numbered(prefix: &str, file: &TensorFile) -> Vec<String> {
    let number = |name: &str| {
        let (number, part) = name.strip_prefix(prefix)?.strip_prefix('.')?.split_once('.')?;
        (part == "weight").then(|| number.parse::<u32>().ok()).flatten()
    };
    let mut numbers: Vec<u32> = file.names().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| format!("{prefix}.{number}")).collect()
}
