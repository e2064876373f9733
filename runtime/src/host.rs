//! What the engines that tables are made for can do: heads, tiers, and the features they can show.
//!
//! A table trained where there is a tier that the engine lacks has learned from a feature that never moves there. Every such
//! difference is declared here, once, for training, evaluation and the adapters.

use core::fmt;
use core::str::FromStr;

use crate::action::{Action, ActionMask, ActionProfile, Head, PerHead, Preemption};
use crate::feature_set::FeatureSet;
use crate::format::{FeatureRange, TreeNode};
use crate::observation::{FEATURES, Feature, Observation};
use crate::table::Table;

/// An engine, as far as a policy has to know it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Host {
    /// Its name in files and flags.
    pub name: &'static str,
    /// The heads it lets a table decide.
    pub heads: PerHead<bool>,
    /// Whether a victim's blocks can be copied out and brought back.
    pub has_host_tier: bool,
    /// Whether a rule may limit the prompt tokens of a step beside those of its budget.
    pub limits_prompts: bool,
    /// Whether a policy may choose how long blocks that are given back stay cached.
    pub retains: bool,
    /// Features it always shows as one value.
    pub constants: &'static [ConstantFeature],
}

/// A feature that a host always shows as one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConstantFeature {
    /// The feature that never moves.
    pub feature: Feature,
    /// The value.
    pub value: f32,
    /// Why, to follow the host's name.
    pub why: &'static str,
}

const NO_TIER: &str = "has no host tier";
const NO_CACHE: ConstantFeature =
    ConstantFeature { feature: Feature::EvictableFraction, value: 0.0, why: "runs without its prefix cache" };

const fn zero(feature: Feature, why: &'static str) -> ConstantFeature {
    ConstantFeature { feature, value: 0.0, why }
}

impl Host {
    /// vLLM 0.33: every head of its scheduler, no host tier. Its scheduler limits prompts with a patch of some lines.
    pub const VLLM: Host = Host {
        name: "vllm-0.33",
        heads: PerHead {
            watermark: true,
            victim: true,
            preemption: true,
            admission: true,
            budget: true,
            eviction: false,
        },
        has_host_tier: false,
        limits_prompts: true,
        retains: true,
        constants: &[
            zero(Feature::HostFreeFraction, NO_TIER),
            zero(Feature::Swapped, NO_TIER),
            zero(Feature::SwapRate, NO_TIER),
        ],
    };

    /// SGLang 0.5 through its new-token ratio: the watermark alone, and neither refusals, unfinished prompts nor a
    /// step's tokens to be seen.
    pub const SGLANG: Host = Host {
        name: "sglang-0.5",
        heads: PerHead {
            watermark: true,
            victim: false,
            preemption: false,
            admission: false,
            budget: false,
            eviction: false,
        },
        has_host_tier: false,
        limits_prompts: false,
        retains: false,
        constants: &[
            zero(Feature::HostFreeFraction, NO_TIER),
            zero(Feature::Swapped, NO_TIER),
            zero(Feature::SwapRate, NO_TIER),
            zero(Feature::PendingPrefill, "keeps prompts apart from what runs"),
            zero(Feature::RefusalRate, "does not tell when it refuses"),
            zero(Feature::TokenTime, "does not tell how many tokens a step has"),
        ],
    };

    /// The simulator's own engine, and any node that embeds the runtime: everything.
    pub const KVTIDE: Host = Host {
        name: "kvtide",
        heads: PerHead {
            watermark: true,
            victim: true,
            preemption: true,
            admission: true,
            budget: true,
            eviction: true,
        },
        has_host_tier: true,
        limits_prompts: true,
        retains: true,
        constants: &[],
    };

    /// Every host.
    pub const ALL: [Host; 3] = [Host::VLLM, Host::SGLANG, Host::KVTIDE];

    /// The host of that name.
    pub fn from_name(name: &str) -> Option<Host> {
        Host::ALL.into_iter().find(|host| host.name == name)
    }

    /// Whether it lets a table decide `head`.
    pub const fn decides(&self, head: Head) -> bool {
        *self.heads.get(head)
    }

    /// The widest profile of which it lets a table decide every head.
    pub fn profile(&self) -> ActionProfile {
        let fits = |profile: &&ActionProfile| profile.heads().iter().all(|&head| self.decides(head));
        ActionProfile::ALL.iter().rfind(fits).copied().unwrap_or(ActionProfile::Watermark)
    }

    /// `mask` with every head it keeps for itself pinned to `default`'s choice.
    #[must_use]
    pub fn restrict(&self, mask: ActionMask, default: Action) -> ActionMask {
        let own = Head::ALL.into_iter().filter(|&head| !self.decides(head));
        own.fold(mask, |mask, head| mask.pin(head, default.get(head)))
    }

    /// The features that can move on it.
    pub fn features(&self) -> FeatureSet {
        let is_constant = |feature: &Feature| self.constants.iter().any(|constant| constant.feature == *feature);
        Feature::ALL.into_iter().filter(|feature| !is_constant(feature)).collect()
    }

    /// `observation` as the host would show it.
    pub fn show(&self, observation: &mut Observation) {
        for constant in self.constants {
            observation.set(constant.feature, constant.value);
        }
    }

    /// Whether `table` can do its work here, or would fall back for good, or decide what cannot be carried out.
    ///
    /// `has_prefix_cache` says whether this node keeps blocks by content; `tolerance` is the guard's
    /// [`range_tolerance`](crate::GuardConfig::range_tolerance).
    ///
    /// # Errors
    /// The first reason why not.
    pub fn check(&self, table: &Table<'_>, has_prefix_cache: bool, tolerance: f32) -> Result<(), HostMismatch> {
        let host = self.name;
        if let Some(&head) = table.heads().iter().find(|&&head| !self.decides(head)) {
            return Err(HostMismatch::Head { host, head });
        }
        if !self.has_host_tier && table.heads().contains(&Head::Preemption) && swaps(table) {
            return Err(HostMismatch::Swap { host });
        }
        let cache = (!has_prefix_cache).then_some(&NO_CACHE);
        for &ConstantFeature { feature, value, why } in self.constants.iter().chain(cache) {
            let range = table.range(feature);
            if table.uses().contains(feature) && !range.contains(value, tolerance) {
                return Err(HostMismatch::Feature { host, feature, range, value, why });
            }
        }
        Ok(())
    }
}

impl FromStr for Host {
    type Err = UnknownHost;

    fn from_str(name: &str) -> Result<Host, UnknownHost> {
        Host::from_name(name).ok_or(UnknownHost)
    }
}

/// There is no host of that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownHost;

impl fmt::Display for UnknownHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected ")?;
        for (index, host) in Host::ALL.iter().enumerate() {
            let before = if index == 0 {
                ""
            } else if index + 1 == Host::ALL.len() {
                " or "
            } else {
                ", "
            };
            write!(f, "{before}{}", host.name)?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownHost {}

/// Whether some leaf asks for what only a host tier can do.
fn swaps(table: &Table<'_>) -> bool {
    let preempts = |node| match node {
        TreeNode::Leaf { choices } => choices.get(Head::Preemption as usize).copied(),
        TreeNode::Split { .. } => None,
    };
    table.nodes().filter_map(preempts).any(|choice| choice == Preemption::Swap as u8)
}

/// Why a table is not for a host.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum HostMismatch {
    /// It decides a head the host keeps for itself.
    Head {
        /// The host.
        host: &'static str,
        /// The head.
        head: Head,
    },
    /// It swaps, and there is nowhere to swap to.
    Swap {
        /// The host.
        host: &'static str,
    },
    /// It limits the prompt tokens of a step, and the host keeps those to itself.
    PromptLimit {
        /// The host.
        host: &'static str,
    },
    /// It decides by a feature that never comes into its trained range.
    Feature {
        /// The host.
        host: &'static str,
        /// The feature.
        feature: Feature,
        /// What training saw of it.
        range: FeatureRange,
        /// What the host always shows.
        value: f32,
        /// Why it does.
        why: &'static str,
    },
}

impl fmt::Display for HostMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            HostMismatch::Head { host, head } => {
                write!(f, "{host} lets no policy decide {}", head.name())
            }
            HostMismatch::Swap { host } => write!(f, "victims are swapped out, and {host} {NO_TIER}"),
            HostMismatch::PromptLimit { host } => {
                write!(f, "{host} lets nobody limit the prompt tokens of a step")
            }
            HostMismatch::Feature { host, feature, range: FeatureRange { min, max }, value, why } => {
                let name = FEATURES[feature as usize].name;
                write!(
                    f,
                    "the table decides by {name}, which was {min} to {max} in training and is always {value} here: {host} {why}"
                )
            }
        }
    }
}

impl core::error::Error for HostMismatch {}
