//! The constant that was best on what an experiment trains on: the only one an operator can have before the traffic that is judged
//! comes.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::ServingArena;
use kvtide_envs::seed;
use kvtide_runtime::{Action, Controls};

use super::TrainError;
use crate::agent::best_constant;
use crate::evaluate::Watch;
use crate::experiment::{Also, Episodes, Experiment, ExperimentError, met_in_training};
use crate::world::World;

/// The best constant on training traffic, and what that was.
#[derive(Debug, Clone, PartialEq)]
pub struct BestTrain {
    /// The constant, over everything the experiment's profile decides.
    pub controls: Controls,
    /// The experiment.
    pub experiment: String,
    /// The traffic of its worlds that are as near to the judged one as it has any.
    pub traffic: Vec<String>,
}

/// Looks for the constant under which the largest share of requests is attained, on the training part of those worlds of
/// `experiment` that are as near to the `judged` one as it has any: of the same card first, then the same host, the same targets without other
/// pools and lengths, the same trace or kind of generated traffic. Choices that learning was denied are looked at as well. It is the search
/// that learning starts from, so where these are all worlds of a checkpoint's experiment that began so, it has been made. `None` if stopped.
///
/// # Errors
/// A world cannot be set up, or an episode cannot be played.
pub fn best_train(
    experiment: &Experiment,
    judged: &World,
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<BestTrain>, TrainError> {
    let (near, first) = near(experiment, judged)?;
    let mut traffic: Vec<String> = vec![first.trace.clone()];
    for also in &near.also {
        traffic.push(also.world.world().map_err(ExperimentError::from)?.trace);
    }
    traffic.dedup();
    let found = |action: Action| BestTrain { controls: action.controls(), experiment: near.name.clone(), traffic };
    if let Some(action) = prior(experiment).filter(|_| near.also == experiment.also) {
        return Ok(Some(found(action)));
    }
    let arena = ServingArena::new(&near.env_config(&first)?)?;
    let show = |planned, done| {
        watch.planned(planned);
        (0..done).for_each(|_| watch.done());
    };
    let seed = seed::derive(near.seed(), "prior", 0);
    Ok(best_constant(&arena, near.profile(), seed, &show, stop)?.map(found))
}

/// What learning started from, where that is the best constant of everything the experiment's profile decides.
fn prior(experiment: &Experiment) -> Option<Action> {
    let is_searched = experiment.prior.as_deref() == Some("search");
    let is_free = experiment.watermarks.is_empty() && experiment.without_heads.is_empty();
    let prior = experiment.ppo.prior.as_ref().filter(|_| is_searched && is_free)?;
    Action::new(prior.choices.as_slice().try_into().ok()?)
}

/// Whether a world is as near to the judged one as it may be in one respect.
type IsNear<'a> = &'a dyn Fn(&(Also, World)) -> bool;

/// The experiment with those of its worlds alone that are near to the judged one, and the first of these.
fn near(experiment: &Experiment, judged: &World) -> Result<(Experiment, World), TrainError> {
    let Experiment { world, episodes, .. } = experiment.clone();
    let mut kept = Vec::new();
    for also in std::iter::once(Also { world, episodes }).chain(experiment.also.iter().cloned()) {
        let world = also.world.world().map_err(ExperimentError::from)?;
        kept.push((also, world));
    }
    let same = |key: &str, world: &World| {
        let of =
            |world: &World| world.conditions().into_iter().find(|(known, _)| *known == key).map(|(_, value)| value);
        of(world).zip(of(judged)).is_some_and(|(there, here)| met_in_training(key, &there, &here))
    };
    let tests: [IsNear<'_>; 4] = [
        &|(_, world)| same("env", world),
        &|(_, world)| same("host", world) && same("engine", world),
        &|(also, world)| same("slo", world) && is_plain(&also.episodes),
        &|(_, world)| kind(world) == kind(judged),
    ];
    for test in tests {
        if kept.iter().any(test) {
            kept.retain(test);
        }
    }
    let mut kept = kept.into_iter();
    let (first, world) = kept.next().expect("no test leaves none, and there is the experiment's own world");
    let near = Experiment {
        world: first.world,
        episodes: first.episodes,
        also: kept.map(|(also, _)| also).collect(),
        watermarks: Vec::new(),
        without_heads: Vec::new(),
        ..experiment.clone()
    };
    Ok((near, world))
}

/// Whether episodes are of the world as it is.
fn is_plain(episodes: &Episodes) -> bool {
    let ones = (1.0, 1.0);
    episodes.pool == ones && episodes.lengths == ones && episodes.slos.is_empty()
}

/// The profile of generated traffic, or the name of a trace.
fn kind(world: &World) -> &str {
    world.trace.split([':', ',']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn experiment(worlds: &[(&str, &str, &str, &str)]) -> Experiment {
        let mut text = "name = \"near\"\nprofile = \"watermark\"\n".to_owned();
        for (index, (workload, env, slo, more)) in worlds.iter().enumerate() {
            let (table, in_) = if index == 0 { ("", "") } else { ("[[also]]\n", "also.") };
            let _ = write!(
                text,
                "{table}[{in_}world]\nworkload = \"{workload}\"\nenv = \"{env}\"\nslo = \"{slo}\"\n[{in_}episodes]\nfit = 1.0\n\
                 length_s = 30.0\nload = [1.0, 1.0]\n{more}\n"
            );
        }
        Experiment::parse(&text).unwrap()
    }

    const LOW: &str = "ttft:2000,tpot:100,stall:3000";
    const HIGH: &str = "ttft:9000,tpot:100,stall:3000";

    #[test]
    fn the_worlds_nearest_to_what_is_judged_are_looked_at() {
        let experiment = experiment(&[
            ("chat:rate=2,duration=60", "llama-3-8b@l40s", LOW, ""),
            ("code:rate=1,duration=60", "llama-3-8b@l40s", LOW, ""),
            ("chat:rate=3,duration=60", "llama-3-8b@l40s", LOW, "pool = [0.5, 2.0]"),
            ("chat:rate=4,duration=60", "llama-3-8b@a10-estimated", HIGH, ""),
        ]);
        let rates = |workload: &str, env: &str, slo: &str| {
            let judged = self::experiment(&[(workload, env, slo, "")]).world.world().unwrap();
            let (near, first) = near(&experiment, &judged).unwrap();
            assert_eq!(first.trace, near.world.world().unwrap().trace);
            let also = near.also.iter().map(|also| also.world.world().unwrap().trace);
            let all = std::iter::once(first.trace).chain(also);
            all.map(|trace| trace.split(',').next().unwrap().to_owned()).collect::<Vec<String>>()
        };
        assert_eq!(rates("chat:rate=9,duration=60", "llama-3-8b@l40s", LOW), ["chat:rate=2"]);
        assert_eq!(rates("code:rate=9,duration=60", "llama-3-8b@l40s", LOW), ["code:rate=1"]);
        // Of traffic nobody trained on, all of the card's own.
        assert_eq!(rates("mix:rate=9,duration=60", "llama-3-8b@l40s", LOW), ["chat:rate=2", "code:rate=1"]);
        assert_eq!(rates("chat:rate=9,duration=60", "llama-3-8b@a10-estimated", LOW), ["chat:rate=4"]);
        // Of a card and targets nobody trained on, whatever is of the kind.
        assert_eq!(
            rates("chat:rate=9,duration=60", "llama-3-8b@h100", "ttft:1,tpot:1,stall:1"),
            ["chat:rate=2", "chat:rate=3", "chat:rate=4"]
        );
    }
}
