//! Experiment files: one TOML says everything a training run depends on.
//!
//! The schema is here; which part of the traffic is for what is `split.rs`, of what each episode is drawn `episodes.rs`.

mod clocks;
mod conditions;
mod episodes;
mod error;
mod split;

use std::fs;
use std::path::Path;

use kvtide_envs::env::RewardWeights;
use kvtide_envs::memory::MemoryKind;
use kvtide_runtime::action::WATERMARK_LEVELS;
use kvtide_runtime::observation::FEATURES;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head};
use serde::{Deserialize, Serialize};

use crate::agent::{CrossEntropyConfig, PpoConfig};
use crate::world::WorldSpec;

pub use clocks::ClockDraws;
pub use conditions::{clocks_met_in_training, met_in_training};
pub use episodes::Episodes;
pub use error::ExperimentError;

/// A training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it is called.
    pub name: String,
    /// Heads the agent decides: `watermark`, `core`, `full` or `cache`.
    pub profile: String,
    /// Environments PPO steps in parallel; a search plays whole episodes and has none.
    #[serde(default = "num_envs")]
    pub num_envs: usize,
    /// Traffic, node and targets.
    pub world: WorldSpec,
    /// How episodes are cut from the traffic, and what of the node is drawn anew for each.
    pub episodes: Episodes,
    /// Further worlds that episodes are drawn from, so that one agent serves a range.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Also>,
    /// What is rewarded.
    #[serde(default)]
    pub reward: RewardWeights,
    /// How it is decided which of the run's policies is kept. `None`: the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<Validation>,
    /// Features the agent does not see, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// The watermarks the agent may choose; empty for all of them. What is not far from a good constant does not do far worse
    /// than it, wherever it is deployed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub watermarks: Vec<f64>,
    /// Heads that are left to the engine though the profile decides them, by name, such as `budget`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_heads: Vec<String>,
    /// Where learning starts: a `fixed:` policy, or `search` for the best constant choice on the traffic that is trained
    /// on. `None`: from a nearly uniform policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<String>,
    /// A linear policy that PPO's network starts from and learns to correct: `search` for what the experiment's own
    /// `[cross_entropy]` finds first, or the checkpoint of a search. `None`: from the prior.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// The watermark that tables made of this run fall back to. `None`: the best constant one on the traffic that is trained
    /// on, which is looked for when training starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<f64>,
    /// How the policy is found.
    #[serde(default, skip_serializing_if = "is_default")]
    pub method: Method,
    /// The agent. Its own `prior` is filled in from the one above when training starts.
    #[serde(default)]
    pub ppo: PpoConfig,
    /// The search, under that method; the table of the other method is then not looked at.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cross_entropy: CrossEntropyConfig,
}

/// How a policy is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A network, by proximal policy optimisation.
    #[default]
    Ppo,
    /// A linear policy, by cross-entropy search.
    CrossEntropy,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A further world of a curriculum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Also {
    /// Traffic, node and targets. Its decision interval is that of the experiment's world.
    pub world: WorldSpec,
    /// How episodes are cut from it.
    pub episodes: Episodes,
}

/// Now and then the policy is judged on traffic that is not trained on, taking its likeliest choices; the best is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Validation {
    /// The last so much of what may be trained on of a trace is kept for this, in `(0, 1)`. A generator draws fresh traffic.
    pub share: f64,
    /// Episodes, in `1..=65536`, the same each time.
    pub episodes: usize,
    /// Iterations between two judgements, at least 1.
    pub every: u64,
    /// Decisions that each round of teaching adds to what the table of a judgement is grown from, at least 1.
    #[serde(skip_serializing_if = "are_usual")]
    pub samples: u32,
}

/// As many as `kvtide export` takes.
const SAMPLES: u32 = 20_000;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn are_usual(samples: &u32) -> bool {
    *samples == SAMPLES
}

impl Default for Validation {
    fn default() -> Validation {
        Validation { share: 0.2, episodes: 32, every: 10, samples: SAMPLES }
    }
}

impl Validation {
    fn validate(self) -> Result<(), ExperimentError> {
        let range = |field, value: String, expected| Err(ExperimentError::Range { field, value, expected });
        if !(self.share > 0.0 && self.share < 1.0) {
            return range("validation.share", self.share.to_string(), "above 0, below 1");
        }
        if !(1..=65_536).contains(&self.episodes) {
            return range("validation.episodes", self.episodes.to_string(), "1 to 65536");
        }
        if self.every == 0 {
            return range("validation.every", self.every.to_string(), "at least 1");
        }
        if !(1..=1_000_000).contains(&self.samples) {
            return range("validation.samples", self.samples.to_string(), "1 to 1000000");
        }
        Ok(())
    }
}

/// The start that is looked for first.
pub const START_SEARCH: &str = "search";

fn num_envs() -> usize {
    64
}

/// Most environments.
const MAX_ENVS: usize = 4096;

impl Experiment {
    /// Reads an experiment file; paths in it are relative to its folder.
    ///
    /// # Errors
    /// The file cannot be read or a value is out of range.
    pub fn load(path: &Path) -> Result<Experiment, ExperimentError> {
        let text = fs::read_to_string(path).map_err(|source| ExperimentError::Io { path: path.to_owned(), source })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut experiment =
            Experiment::parse(&text).map_err(|reason| ExperimentError::Toml { path: path.to_owned(), reason })?;
        experiment.world = experiment.world.relative_to(folder);
        if let Some(start) = experiment.start.as_mut().filter(|start| *start != START_SEARCH) {
            *start = folder.join(&*start).display().to_string();
        }
        for also in &mut experiment.also {
            also.world = also.world.clone().relative_to(folder);
        }
        let checked = experiment.blind().and_then(|blind| {
            experiment.ppo.blind = blind;
            experiment.validate()
        });
        match checked {
            Ok(()) => Ok(experiment),
            Err(source) => Err(ExperimentError::In { path: path.to_owned(), source: Box::new(source) }),
        }
    }

    /// Reads an experiment as [`to_toml`](Self::to_toml) writes it.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Experiment, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
            let line = before.matches('\n').count() + 1;
            // The message says what stood there, and not always where.
            let key =
                text.lines().nth(line - 1).and_then(|line| line.split_once('=')).map_or("", |(key, _)| key.trim());
            let named =
                if key.is_empty() || error.message().contains(key) { String::new() } else { format!("{key}: ") };
            format!("line {line}: {named}{}", error.message())
        })
    }

    /// The experiment as a file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("an experiment is plain tables and values")
    }

    /// Indices of the features the agent does not see.
    fn blind(&self) -> Result<Vec<usize>, ExperimentError> {
        let index = |name: &String| {
            FEATURES.iter().position(|feature| feature.name == name).ok_or_else(|| ExperimentError::Range {
                field: "without",
                value: name.clone(),
                expected: "names of features, such as growth_8 (see kvtide inspect)",
            })
        };
        self.without.iter().map(index).collect()
    }

    /// Checks every range that needs no trace.
    ///
    /// # Errors
    /// The first value out of range.
    pub fn validate(&self) -> Result<(), ExperimentError> {
        let range = |field, value: String, expected| Err(ExperimentError::Range { field, value, expected });
        if ActionProfile::from_name(&self.profile).is_none() {
            return range("profile", self.profile.clone(), "watermark, core, full or cache");
        }
        if !(1..=MAX_ENVS).contains(&self.num_envs) {
            return range("num_envs", self.num_envs.to_string(), "1 to 4096");
        }
        if let Some(fallback) = self.fallback.filter(|fallback| !WATERMARK_LEVELS.contains(fallback)) {
            return range("fallback", fallback.to_string(), "one of the watermarks a policy can choose, such as 0.02");
        }
        if let Some(watermark) = self.watermarks.iter().find(|watermark| !WATERMARK_LEVELS.contains(watermark)) {
            return range("watermarks", watermark.to_string(), "watermarks a policy can choose, such as 0.02");
        }
        if let Some(name) = self.without_heads.iter().find(|name| left_out(name).is_none()) {
            return range("without_heads", name.clone(), "heads beside the watermark, such as budget");
        }
        if let Some(fallback) =
            self.fallback.filter(|fallback| !self.watermarks.is_empty() && !self.watermarks.contains(fallback))
        {
            return range("fallback", fallback.to_string(), "one of watermarks: add it there");
        }
        self.validate_reward()?;
        // Found out before the work, not when the agent is made; and of the method that is not asked for as well.
        self.ppo.validate()?;
        self.cross_entropy.validate()?;
        if self.method == Method::Ppo {
            self.ppo.plan(self.num_envs)?;
        } else if let Some(start) = &self.start {
            return range("start", start.clone(), "nothing: a search starts from its prior");
        }
        if let (Some(start), false) = (&self.start, self.ppo.normalise_observations) {
            return range("start", start.clone(), "nothing where ppo.normalise_observations is false");
        }
        self.validate_memory()?;
        self.validation.map_or(Ok(()), Validation::validate)?;
        self.world.check()?;
        self.episodes.validate()?;
        for (index, also) in self.also.iter().enumerate() {
            let checked = also.world.check().map_err(ExperimentError::from).and_then(|()| also.episodes.validate());
            checked.map_err(|source| ExperimentError::Also { number: index + 1, source: Box::new(source) })?;
        }
        Ok(())
    }

    fn validate_reward(&self) -> Result<(), ExperimentError> {
        let RewardWeights { token, on_time, attained, violation, waste } = self.reward;
        for (field, weight) in [
            ("reward.token", token),
            ("reward.on_time", on_time),
            ("reward.attained", attained),
            ("reward.violation", violation),
            ("reward.waste", waste),
        ] {
            if !(0.0..=1e6).contains(&weight) {
                return Err(ExperimentError::Range { field, value: weight.to_string(), expected: "0 to 1000000" });
            }
        }
        Ok(())
    }

    /// A device serves one node at a time, and is set up for one world.
    fn validate_memory(&self) -> Result<(), ExperimentError> {
        let range = |field, value: String, expected| Err(ExperimentError::Range { field, value, expected });
        if let Some(memory) = self.also.iter().find_map(|also| also.world.memory.as_ref()) {
            return range("also.world.memory", memory.to_string(), "nothing: [world] memory is that of every world");
        }
        if !matches!(self.world.memory.as_deref(), Some(MemoryKind::Cuda { .. })) {
            return Ok(());
        }
        if self.method == Method::Ppo && self.num_envs != 1 {
            return range("num_envs", self.num_envs.to_string(), "1: a device serves one node at a time");
        }
        if !self.also.is_empty() {
            return range("also", self.also.len().to_string(), "none: a device is set up for one world");
        }
        if self.episodes.clocks() > 0 {
            let clocks = self.episodes.clocks().to_string();
            return range("episodes.clock_spread", clocks, "none: a device's steps take what they take");
        }
        if self.episodes.pool.1 > 1.0 {
            let pool = format!("{:?}", self.episodes.pool);
            return range("episodes.pool", pool, "at most 1: a device is set up for the engine's own pool");
        }
        Ok(())
    }

    /// The heads the agent decides.
    pub fn profile(&self) -> ActionProfile {
        ActionProfile::from_name(&self.profile).unwrap_or(ActionProfile::Full)
    }

    /// The choices the agent may take.
    fn allowed(&self) -> ActionMask {
        let levels = WATERMARK_LEVELS.iter().enumerate();
        let left_out = levels.filter(|(_, level)| !self.watermarks.is_empty() && !self.watermarks.contains(level));
        let mask = left_out.fold(ActionMask::ALL, |mask, (level, _)| mask.forbid(Head::Watermark, level as u8));
        // Of every head beside the watermark all engines do the same by themselves.
        let own = self.without_heads.iter().filter_map(|name| self::left_out(name));
        own.fold(mask, |mask, head| mask.pin(head, Action::V1_DEFAULT.get(head)))
    }

    /// Seed of the method's streams.
    pub fn seed(&self) -> u64 {
        match self.method {
            Method::Ppo => self.ppo.seed,
            Method::CrossEntropy => self.cross_entropy.seed,
        }
    }
}

/// The head of that name, if it can be left to the engine.
fn left_out(name: &str) -> Option<Head> {
    Head::ALL.into_iter().find(|head| head.name() == name && *head != Head::Watermark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_cannot_do_is_refused_before_it_is_opened() {
        let episodes = "[episodes]\nfit = 0.8\nlength_s = 60.0\nload = [1.0, 1.0]\n";
        let error = |text: &str| {
            let text = format!("name = \"device\"\nprofile = \"full\"\n{text}");
            match Experiment::parse(&text) {
                Ok(experiment) => experiment.validate().err().map(|error| error.to_string()).unwrap_or_default(),
                Err(reason) => reason,
            }
        };
        let world =
            |memory: &str| format!("[world]\nworkload = \"chat:rate=1,n=9\"\nmemory = \"{memory}\"\n{episodes}");
        assert_eq!(error(&format!("num_envs = 1\n{}", world("cuda"))), "");
        assert_eq!(error(&format!("num_envs = 8\n{}", world("host"))), "");
        assert!(error(&format!("num_envs = 8\n{}", world("cuda"))).contains("one node at a time"));
        assert!(error(&world("gpu")).contains("expected modelled, host"));
        let pool = format!("num_envs = 1\n{}pool = [0.5, 2.0]\n", world("cuda"));
        assert!(error(&pool).contains("episodes.pool"), "{}", error(&pool));
        let also = "[[also]]\n[also.world]\nworkload = \"chat:rate=1,n=9\"\nmemory = \"host\"\n[also.episodes]\nfit = 0.8\n\
                    length_s = 60.0\nload = [1.0, 1.0]\n";
        assert!(error(&format!("{}{also}", world("host"))).contains("also.world.memory"));
    }
}
