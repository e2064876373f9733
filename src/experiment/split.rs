//! Which part of the traffic is for what, and the environments that are made of each part.

use std::sync::Arc;

use kvtide_envs::env::{EnvConfig, EpisodeSource, WorldDraw};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Split, Window, WorkloadError, to_whole_second};
use kvtide_runtime::{Host, HostMismatch};

use super::{Episodes, Experiment, ExperimentError};
use crate::world::{World, WorldError};

/// Which part of the traffic. What is validated on is the last `share` of what may be looked at, or nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Subset {
    /// What is learned from.
    Train,
    /// What is chosen on.
    Validate,
    /// What may not be looked at in training; where nothing is left over, what is validated on.
    Unseen,
}

impl Experiment {
    /// The part of the traffic of its first world that is trained on, to the whole second where that leaves any.
    ///
    /// # Errors
    /// The traffic has no length.
    pub fn fit_range(&self, world: &World) -> Result<Window, WorkloadError> {
        self.episodes.fit_range(world)
    }

    /// The part of it that nobody has seen, to the next whole second, so that people can be told whole seconds.
    ///
    /// # Errors
    /// As [`fit_range`](Self::fit_range).
    pub fn test_range(&self, world: &World) -> Result<Window, WorkloadError> {
        Ok(Window { start: self.fit_range(world)?.end, end: to_whole_second(world.span()?) })
    }

    /// The environment it trains in; `world` is the first of its worlds.
    ///
    /// # Errors
    /// The part that is trained on is shorter than an episode, a further world cannot be set up, or the host of `world` does
    /// not let a table decide what is to be learned.
    pub fn env_config(&self, world: &World) -> Result<Arc<EnvConfig>, ExperimentError> {
        self.check_heads(&world.node.host)?;
        self.part(world, Subset::Train)
    }

    fn check_heads(&self, host: &Host) -> Result<(), ExperimentError> {
        let foreign = self.profile().heads().iter().find(|&&head| !host.decides(head));
        let unfit = |&head| ExperimentError::Unfit {
            profile: self.profile.clone(),
            source: HostMismatch::Head { host: host.name, head },
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
        self.validation.map(|_| self.part(world, Subset::Validate)).transpose()
    }

    /// The environment whose traffic neither learning nor choosing has seen: the rest of a trace, fresh draws of a generator.
    /// Of a trace that is trained on to its end it is the part that is validated on, by which the policy was chosen: whether
    /// no trace needed that is returned as well.
    ///
    /// # Errors
    /// As [`env_config`](Self::env_config); [`ExperimentError::NothingUnseen`] if a trace has neither.
    pub fn unseen_config(&self, world: &World) -> Result<(Arc<EnvConfig>, bool), ExperimentError> {
        let config = self.part(world, Subset::Unseen)?;
        let mut is_unseen = self.episodes.has_rest(world)?;
        for also in &self.also {
            is_unseen &= also.episodes.has_rest(&also.world.world()?)?;
        }
        Ok((config, is_unseen))
    }

    fn part(&self, world: &World, part: Subset) -> Result<Arc<EnvConfig>, ExperimentError> {
        let share = self.validation.map_or(0.0, |validation| validation.share);
        let seed = self.seed();
        let mut worlds = vec![self.episodes.draw(world, share, part, seed)?];
        for also in &self.also {
            worlds.push(also.episodes.draw(&also.world.world()?, share, part, seed)?);
        }
        let decision_interval = world.decision_interval;
        // A device steps the environment that learns. What is judged, many episodes at once, is judged in the model.
        let memory = match part {
            Subset::Train => world.memory.clone(),
            _ if world.memory.is_exclusive() => MemorySource::Modelled,
            _ => world.memory.clone(),
        };
        let (profile, reward) = (self.profile(), self.reward);
        Ok(Arc::new(EnvConfig { worlds, profile, allowed: self.allowed(), reward, decision_interval, memory }))
    }
}

impl Episodes {
    /// A world's traffic, the last `share` of what may be looked at kept for validation.
    fn split(&self, world: &World, share: f64) -> Result<Split, WorkloadError> {
        Split::of(world.span()?, self.fit, share)
    }

    /// The part of a world's traffic that may be looked at.
    fn fit_range(&self, world: &World) -> Result<Window, WorkloadError> {
        Ok(self.split(world, 0.0)?.fit)
    }

    /// Whether an episode can be played of traffic that may not be looked at in training; a generator always draws more.
    fn has_rest(&self, world: &World) -> Result<bool, WorkloadError> {
        let rest = self.split(world, 0.0)?.test;
        Ok(world.source.is_generated() || rest.length() >= Micros::from_secs_f64(self.length_s))
    }

    /// The seconds of a trace that belong to `part`; of a generator, which never draws the same again, all of them.
    fn range(&self, world: &World, share: f64, part: Subset) -> Result<Window, WorkloadError> {
        let split = self.split(world, share)?;
        Ok(match part {
            _ if world.source.is_generated() => split.fit,
            Subset::Train => split.train,
            Subset::Unseen if self.has_rest(world)? => split.test,
            Subset::Validate | Subset::Unseen => split.validation,
        })
    }

    /// What an environment draws its episodes from; clocks, where training draws them, under `seed`.
    fn draw(&self, world: &World, share: f64, part: Subset, seed: u64) -> Result<WorldDraw, ExperimentError> {
        let length = Micros::from_secs_f64(self.length_s);
        // A closed loop over generated requests lasts as long as it lasts.
        let is_endless = world.node.clients.is_some() && world.source.is_generated();
        let whole = Window { start: Micros::ZERO, end: length };
        let range = if is_endless { whole } else { self.range(world, share, part)? };
        if part == Subset::Unseen && range.length() < length {
            return Err(ExperimentError::NothingUnseen);
        }
        if range.length() < length {
            return Err(ExperimentError::Range {
                field: "episodes.length_s",
                value: self.length_s.to_string(),
                expected: "at most the part of the traffic that is trained on (episodes.fit)",
            });
        }
        let slos: Result<Vec<Slo>, _> = self.slos.iter().map(|slo| slo.parse::<Slo>()).collect();
        let clocks = self.clock_spread.filter(|_| part == Subset::Train).map(|clocks| clocks.costs(world, seed));
        let clocks = clocks.unwrap_or_default();
        Ok(WorldDraw {
            weight: self.weight,
            node: world.node.clone(),
            pool: self.pool,
            lengths: self.lengths,
            slos: slos.map_err(WorldError::from)?,
            clocks: clocks.into(),
            episodes: EpisodeSource { source: world.source.clone(), range, length, load: self.load },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const SECOND: u64 = 1_000_000;

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
