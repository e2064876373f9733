//! Where candidates play: worlds, and what a seed draws of each.

use std::path::Path;
use std::sync::Arc;

use kvtide_envs::env::{EnvConfig, NodeConfig, ResetOptions, Reward, ServingEnv};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::Window;
use kvtide_runtime::ActionMask;

use super::PlayError;
use crate::evaluate::check_engine;
use crate::experiment::Experiment;
use crate::policy::{PolicyName, Subject};
use crate::world::{Draw, World, WorldSpec};

/// Worlds that candidates are played in, all of one kind: episodes as training draws them, or whole traffic.
#[derive(Debug, Clone)]
pub struct Grounds {
    kind: Kind,
    names: Vec<String>,
    /// The first world: what policies say of the engine they were made for is held against it.
    world: World,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Of each world, and the tokens of its mean answer, by which rewards are scaled.
    Episodes { config: Arc<EnvConfig>, mean_outputs: Vec<f64> },
    /// Of the one world, a window at a load.
    Whole(Vec<(Option<Window>, f64)>),
}

/// What a seed drew: everything a run depends on but who decides.
#[derive(Debug, Clone)]
pub(super) struct Start {
    pub(super) config: NodeConfig,
    pub(super) requests: Arc<[Request]>,
    /// When it is cut short; `None` if it is played to its end.
    pub(super) end: Option<Micros>,
    pub(super) load: f64,
    /// What is earned, where anything is.
    pub(super) reward: Option<Reward>,
}

impl Grounds {
    /// The episodes of `config`, a part of the traffic of `experiment` whose first world is `world`; each world of the experiment
    /// is one here, whatever its weight.
    ///
    /// # Errors
    /// No episode can be drawn.
    pub fn episodes(experiment: &Experiment, world: &World, config: Arc<EnvConfig>) -> Result<Grounds, PlayError> {
        if config.memory.is_exclusive() {
            return Err(PlayError::World("candidates are played in the model: leave out memory".to_owned()));
        }
        // As an environment checks it.
        ServingEnv::new(Arc::clone(&config))?;
        let mean_outputs = config.worlds.iter().map(|world| world.episodes.mean_output()).collect::<Result<_, _>>()?;
        let specs = std::iter::once(&experiment.world).chain(experiment.also.iter().map(|also| &also.world));
        let names = specs.map(name).collect();
        Ok(Grounds { kind: Kind::Episodes { config, mean_outputs }, names, world: world.clone() })
    }

    /// All of the traffic of `world`, or of a window, at each of `loads`: what evaluation runs.
    ///
    /// # Errors
    /// There is no load, or blocks are more than numbers.
    pub fn whole(world: &World, window: Option<Window>, loads: &[f64]) -> Result<Grounds, PlayError> {
        if world.memory.is_exclusive() {
            return Err(PlayError::World("candidates are played in the model: leave out memory".to_owned()));
        }
        if loads.is_empty() {
            return Err(PlayError::World("loads is empty: name at least one".to_owned()));
        }
        if let Some(load) = loads.iter().find(|load| !(1e-6..=1e3).contains(*load)) {
            return Err(PlayError::World(format!("load {load}: expected a number from 0.000001 to 1000")));
        }
        let cells: Vec<(Option<Window>, f64)> = loads.iter().map(|&load| (window, load)).collect();
        let part = window.map_or_else(String::new, |window| format!(", {window}"));
        let named = |load: &f64| format!("{} on {}{part}, load {load}", world.trace, world.deployment.name());
        Ok(Grounds { kind: Kind::Whole(cells), names: loads.iter().map(named).collect(), world: world.clone() })
    }

    /// What its worlds are called, in their order.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Scheduler steps between decisions.
    pub(super) fn interval(&self) -> u32 {
        match &self.kind {
            Kind::Episodes { config, .. } => config.decision_interval,
            Kind::Whole(_) => self.world.decision_interval,
        }
    }

    /// The choices that are left to who learns there.
    pub(super) fn allowed(&self) -> ActionMask {
        match &self.kind {
            Kind::Episodes { config, .. } => config.allowed,
            Kind::Whole(_) => ActionMask::ALL,
        }
    }

    /// Whether the host of each of `worlds` would run the policy.
    pub(super) fn check(&self, name: &PolicyName, subject: &Subject, worlds: &[usize]) -> Result<(), PlayError> {
        check_engine(&self.world, name.spec())?;
        match &self.kind {
            Kind::Episodes { config, .. } => {
                worlds.iter().try_for_each(|&world| subject.check(name, &config.worlds[world].node))?;
            }
            Kind::Whole(_) => subject.check(name, &self.world.node)?,
        }
        Ok(())
    }

    /// What `seed` draws of a world.
    pub(super) fn draw(&self, world: usize, seed: u64) -> Result<Start, PlayError> {
        match &self.kind {
            Kind::Episodes { config, mean_outputs } => {
                let (node, drawn) = config.worlds[world].draw(seed, &ResetOptions::default())?;
                let interval = config.decision_interval;
                let reward = Reward::new(config.reward, &node.engine, &node.cost, interval, mean_outputs[world]);
                let (requests, end, load) = (drawn.requests, Some(drawn.end), drawn.load);
                Ok(Start { config: node, requests, end, load, reward: Some(reward) })
            }
            Kind::Whole(cells) => {
                let (window, load) = cells[world];
                let workload = self.world.draw(&Draw { window, load, seed })?;
                let config = self.world.node_at(load);
                Ok(Start { config, requests: workload.share(), end: None, load, reward: None })
            }
        }
    }
}

/// `chat:rate=5 on llama-3-8b@h100`, as it was written.
fn name(spec: &WorldSpec) -> String {
    let traffic = match (&spec.trace, &spec.workload) {
        (Some(path), _) => path.file_name().unwrap_or(Path::new("").as_os_str()).to_string_lossy().into_owned(),
        (None, Some(workload)) => workload.to_string(),
        (None, None) => String::new(),
    };
    format!("{traffic} on {}", spec.env)
}
