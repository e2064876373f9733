//! Experiment files: one TOML says everything a training run depends on.

mod conditions;
mod episodes;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtide_envs::env::{EnvConfig, RewardWeights};
use kvtide_envs::memory::{MemoryKind, MemorySource};
use kvtide_envs::workload::{Window, WorkloadError};
use kvtide_runtime::action::WATERMARK_LEVELS;
use kvtide_runtime::observation::FEATURES;
use kvtide_runtime::{ActionMask, ActionProfile, Head, Host, Unfit};
use serde::{Deserialize, Serialize};

use crate::agent::{ConfigError, CrossEntropyConfig, PpoConfig};
use crate::world::{World, WorldError, WorldSpec};

pub use conditions::met_in_training;
pub use episodes::Episodes;

use episodes::Part;

/// A training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it is called.
    pub name: String,
    /// Heads the agent decides: `watermark`, `core` or `full`.
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
    /// Where learning starts: a `fixed:` policy, or `search` for the best constant choice on the traffic that is trained
    /// on. `None`: from a nearly uniform policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prior: Option<String>,
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
}

impl Default for Validation {
    fn default() -> Validation {
        Validation { share: 0.2, episodes: 32, every: 10 }
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
        Ok(())
    }
}

fn num_envs() -> usize {
    64
}

/// Why an experiment cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no experiment.
    #[error("{}: {reason}", path.display())]
    Toml {
        /// Which.
        path: PathBuf,
        /// What is wrong, with its line.
        reason: String,
    },
    /// A value out of range.
    #[error("{field} = {value}: expected {expected}")]
    Range {
        /// Which.
        field: &'static str,
        /// What stood there.
        value: String,
        /// What would do.
        expected: &'static str,
    },
    /// A setting of the method.
    #[error(transparent)]
    Method(#[from] ConfigError),
    /// The world cannot be set up.
    #[error(transparent)]
    World(#[from] WorldError),
    /// The traffic cannot be cut.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A head is to be learned that the world's host decides itself: no table of it would be loaded there.
    #[error("profile {profile}: {source}")]
    Unfit {
        /// The profile.
        profile: String,
        /// Which head.
        source: Unfit,
    },
    /// All of a trace was trained on.
    #[error("no episode of a trace is left to judge on: lower episodes.fit, or add [validation]")]
    NothingUnseen,
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
        for also in &mut experiment.also {
            also.world = also.world.clone().relative_to(folder);
        }
        experiment.ppo.blind = experiment.blind()?;
        experiment.validate()?;
        Ok(experiment)
    }

    /// Reads an experiment as [`to_toml`](Self::to_toml) writes it.
    ///
    /// # Errors
    /// What is wrong, in one line.
    pub fn parse(text: &str) -> Result<Experiment, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
            let line = before.matches('\n').count() + 1;
            format!("line {line}: {}", error.message())
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
            return range("profile", self.profile.clone(), "watermark, core or full");
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
        if let Some(fallback) =
            self.fallback.filter(|fallback| !self.watermarks.is_empty() && !self.watermarks.contains(fallback))
        {
            return range("fallback", fallback.to_string(), "one of watermarks: add it there");
        }
        // Found out before the work, not when the agent is made.
        match self.method {
            Method::Ppo => self.ppo.plan(self.num_envs).map(drop)?,
            Method::CrossEntropy => self.cross_entropy.validate()?,
        }
        self.validate_memory()?;
        self.validation.map_or(Ok(()), Validation::validate)?;
        self.episodes.validate()?;
        self.also.iter().try_for_each(|also| also.episodes.validate())
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
        left_out.fold(ActionMask::ALL, |mask, (level, _)| mask.forbid(Head::Watermark, level as u8))
    }

    /// Seed of the method's streams.
    pub fn seed(&self) -> u64 {
        match self.method {
            Method::Ppo => self.ppo.seed,
            Method::CrossEntropy => self.cross_entropy.seed,
        }
    }

    /// The part of the traffic of its first world that is trained on, to the whole second where that leaves any.
    ///
    /// # Errors
    /// The traffic has no length.
    pub fn fit_range(&self, world: &World) -> Result<Window, WorkloadError> {
        self.episodes.fit_range(world)
    }

    /// The environment it trains in; `world` is the first of its worlds.
    ///
    /// # Errors
    /// The part that is trained on is shorter than an episode, a further world cannot be set up, or the host of `world` does
    /// not let a table decide what is to be learned.
    pub fn env_config(&self, world: &World) -> Result<Arc<EnvConfig>, ExperimentError> {
        self.check_heads(&world.node.host)?;
        self.part(world, Part::Train { but: self.validation.map_or(0.0, |validation| validation.share) })
    }

    fn check_heads(&self, host: &Host) -> Result<(), ExperimentError> {
        let foreign = self.profile().heads().iter().find(|head| !host.profile.heads().contains(head));
        let unfit = |&head| ExperimentError::Unfit {
            profile: self.profile.clone(),
            source: Unfit::Head { host: host.name, head },
        };
        foreign.map_or(Ok(()), |head| Err(unfit(head)))
    }

    /// The same with blocks that are only numbers, where that is cheaper: what tables are taught in.
    ///
    /// # Errors
    /// As [`env_config`](Self::env_config).
    pub fn modelled_config(&self, world: &World) -> Result<Arc<EnvConfig>, ExperimentError> {
        let config = self.env_config(world)?;
        if !config.memory.is_exclusive() {
            return Ok(config);
        }
        Ok(Arc::new(EnvConfig { memory: MemorySource::Modelled, ..EnvConfig::clone(&config) }))
    }

    /// The environment its policies are judged in, if they are.
    ///
    /// # Errors
    /// As [`env_config`](Self::env_config).
    pub fn validation_config(&self, world: &World) -> Result<Option<Arc<EnvConfig>>, ExperimentError> {
        self.validation.map(|validation| self.part(world, Part::Validate { last: validation.share })).transpose()
    }

    /// The environment whose traffic neither learning nor choosing has seen: the rest of a trace, fresh draws of a generator.
    /// Of a trace that is trained on to its end it is the part that is validated on, by which the policy was chosen: whether
    /// no trace needed that is returned as well.
    ///
    /// # Errors
    /// As [`env_config`](Self::env_config); [`ExperimentError::NothingUnseen`] if a trace has neither.
    pub fn unseen_config(&self, world: &World) -> Result<(Arc<EnvConfig>, bool), ExperimentError> {
        let config =
            self.part(world, Part::Unseen { or_last: self.validation.map_or(0.0, |validation| validation.share) })?;
        let mut is_unseen = self.episodes.has_rest(world)?;
        for also in &self.also {
            is_unseen &= also.episodes.has_rest(&also.world.world()?)?;
        }
        Ok((config, is_unseen))
    }

    fn part(&self, world: &World, part: Part) -> Result<Arc<EnvConfig>, ExperimentError> {
        let mut worlds = vec![self.episodes.draw(world, part)?];
        for also in &self.also {
            worlds.push(also.episodes.draw(&also.world.world()?, part)?);
        }
        let decision_interval = world.decision_interval;
        // A device steps the environment that learns. What is judged, many episodes at once, is judged in the model.
        let memory = match part {
            Part::Train { .. } => world.memory.clone(),
            _ if world.memory.is_exclusive() => MemorySource::Modelled,
            _ => world.memory.clone(),
        };
        let (profile, reward) = (self.profile(), self.reward);
        Ok(Arc::new(EnvConfig { worlds, profile, allowed: self.allowed(), reward, decision_interval, memory }))
    }
}

#[cfg(test)]
mod tests {
    use kvtide_envs::time::Micros;

    use super::*;

    const SECOND: u64 = 1_000_000;

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

    #[test]
    fn heads_that_the_host_keeps_are_not_learned() {
        let learned = |profile: &str, host: &str| {
            let text = format!(
                "name = \"heads\"\nprofile = \"{profile}\"\n[world]\nworkload = \"chat:rate=1,n=99\"\nhost = \"{host}\"\n\
                 [episodes]\nfit = 0.8\nlength_s = 9.0\nload = [1.0, 1.0]\n"
            );
            let experiment = Experiment::parse(&text).unwrap();
            experiment.env_config(&experiment.world.world().unwrap()).map(drop).map_err(|error| error.to_string())
        };
        let refusal = "profile core: sglang-0.5 lets no policy decide victim";
        assert_eq!(learned("core", "sglang-0.5"), Err(refusal.to_owned()));
        assert_eq!((learned("watermark", "sglang-0.5"), learned("full", "vllm-0.33")), (Ok(()), Ok(())));
    }

    /// A request a second for 1,000 s, of which 800 s may be looked at.
    fn ranges(validation: &str) -> (Window, Option<Window>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let row = |second| {
            format!("{{\"arrival_us\": {}, \"prompt_tokens\": 100, \"output_tokens\": 10}}\n", second * SECOND)
        };
        fs::write(&path, (0..=1000).map(row).collect::<String>()).unwrap();
        let text = format!(
            "name = \"split\"\nprofile = \"full\"\nnum_envs = 2\n[world]\ntrace = {path:?}\n\
             [episodes]\nfit = 0.8\nlength_s = 60.0\nload = [1.0, 1.0]\n{validation}"
        );
        let experiment = Experiment::parse(&text).unwrap();
        experiment.validate().unwrap();
        let world = experiment.world.world().unwrap();
        let range = |config: Arc<EnvConfig>| config.worlds[0].episodes.range;
        (range(experiment.env_config(&world).unwrap()), experiment.validation_config(&world).unwrap().map(range))
    }

    #[test]
    fn what_is_judged_on_is_not_trained_on() {
        let window = |start: u64, end: u64| Window { start: Micros(start * SECOND), end: Micros(end * SECOND) };
        assert_eq!(ranges(""), (window(0, 800), None));
        assert_eq!(ranges("[validation]\nshare = 0.25\n"), (window(0, 600), Some(window(600, 800))));
    }

    #[test]
    fn statistics_of_clients_are_split_by_time_like_any_trace() {
        let folder = tempfile::tempdir().unwrap();
        let row = |row| format!("{},2.0,1.0,Gamma,1,1\n", row * 600);
        fs::write(folder.path().join("chunk-0-trace.csv"), (0..10).map(row).collect::<String>()).unwrap();
        let lengths = "{\"0\": {\"input_tokens\": \"{9: 1.0}\", \"output_tokens\": \"{5: 1.0}\"}}";
        fs::write(folder.path().join("chunk-0-dataset.json"), lengths).unwrap();
        let text = format!(
            "name = \"days\"\nprofile = \"full\"\n[world]\ntrace = {:?}\n\
             [episodes]\nfit = 0.5\nlength_s = 60.0\nload = [0.5, 1.0]\nlengths = [0.5, 2.0]\n",
            folder.path()
        );
        let experiment = Experiment::parse(&text).unwrap();
        experiment.validate().unwrap();
        let world = experiment.world.world().unwrap();
        let config = experiment.env_config(&world).unwrap();
        assert_eq!(config.worlds[0].episodes.range, "0..3000".parse().unwrap());
        assert_eq!(config.worlds[0].lengths, (0.5, 2.0));
        let (unseen, is_unseen) = experiment.unseen_config(&world).unwrap();
        assert!(is_unseen && unseen.worlds[0].episodes.range == "3000..6000".parse().unwrap());

        let turned = Experiment::parse(&text.replace("[0.5, 2.0]", "[2.0, 0.5]")).unwrap();
        assert!(turned.validate().unwrap_err().to_string().starts_with("episodes.lengths = [2, 0.5]: expected"));
    }

    /// The part a table is judged on of a trace of 1,000 s, and whether nobody has seen it.
    fn unseen(fit: f64, validation: &str) -> Result<(Window, bool), ExperimentError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.jsonl");
        let row = |second| {
            format!("{{\"arrival_us\": {}, \"prompt_tokens\": 100, \"output_tokens\": 10}}\n", second * SECOND)
        };
        fs::write(&path, (0..=1000).map(row).collect::<String>()).unwrap();
        let text = format!(
            "name = \"rest\"\nprofile = \"full\"\n[world]\ntrace = {path:?}\n\
             [episodes]\nfit = {fit:?}\nlength_s = 60.0\nload = [1.0, 1.0]\n{validation}"
        );
        let experiment = Experiment::parse(&text).unwrap();
        let (config, is_unseen) = experiment.unseen_config(&experiment.world.world().unwrap())?;
        Ok((config.worlds[0].episodes.range, is_unseen))
    }

    #[test]
    fn a_table_is_judged_on_what_is_left_of_a_trace_or_on_what_is_validated_on() {
        let validation = "[validation]\nepisodes = 1\nevery = 1\n";
        // The last request is part of it.
        let rest = Window { start: Micros(800 * SECOND), end: Micros(1000 * SECOND + 1) };
        for table in ["", validation] {
            assert_eq!(unseen(0.8, table).unwrap(), (rest, true));
        }
        // Less than an episode is left, or nothing.
        for fit in [0.95, 1.0] {
            assert!(matches!(unseen(fit, ""), Err(ExperimentError::NothingUnseen)));
            let (part, is_unseen) = unseen(fit, validation).unwrap();
            let end = (1000.0 * fit) as u64;
            assert!(
                !is_unseen && part.end == Micros(end * SECOND) && part.start == Micros(end * SECOND / 5 * 4),
                "{part}"
            );
        }
    }
}
