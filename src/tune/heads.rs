//! Which heads the table is to decide: the fewest that gain, by what their best constants do on traffic kept apart.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::ServingArena;
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionProfile, Fixed};
use serde::{Deserialize, Serialize};

use super::TuneError;
use super::effort::Budget;
use crate::agent::{Attained, ConstantSearch, Gain, Validator};
use crate::evaluate::Watch;
use crate::experiment::Experiment;
use crate::policy::PolicySpec;
use crate::world::World;

/// The heads chosen, and the best constants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChosenHeads {
    /// The profile: `watermark`, `core`, `full` or `cache`.
    pub profile: String,
    /// The best constant over its heads on what is trained on: where learning starts, and what could be deployed without a
    /// table.
    pub constant: PolicySpec,
    /// The best constant watermark there: what a table that cannot be trusted falls back to.
    pub fallback: f64,
    /// Every profile that was looked at, the narrowest first.
    pub candidates: Vec<Candidate>,
    /// Why that one, in words.
    pub reason: String,
}

/// A profile that could be chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which.
    pub profile: String,
    /// Its best constant on what is trained on.
    pub constant: PolicySpec,
    /// What that attains on what is chosen on.
    pub attained: f64,
    /// How much more that is than under the best candidate before it.
    pub gain: Option<Gain>,
}

impl ChosenHeads {
    /// Looks for the best constants of every profile of `world`'s host, or of `only`, on the traffic `experiment` trains on, and
    /// compares them on what it validates on. `None` if stopped.
    ///
    /// # Errors
    /// An episode cannot be drawn or played.
    pub fn choose(
        experiment: &Experiment,
        world: &World,
        only: Option<ActionProfile>,
        budget: &Budget,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> Result<Option<ChosenHeads>, TuneError> {
        let seed = experiment.seed();
        let arena = ServingArena::new(&experiment.env_config(world)?)?;
        let mut search = ConstantSearch::new(&arena, budget.race, seed::derive(seed, "tune.constant", 0));
        let show = |planned: usize, done: usize| {
            watch.planned(planned);
            (0..done).for_each(|_| watch.done());
        };
        let widest = world.node.host.profile();
        // What has no effect is no candidate.
        let is_open = |profile: ActionProfile| {
            profile != ActionProfile::Cache || only.is_some() || world.node.engine.has_eviction_classes()
        };
        let wanted = |profile: &ActionProfile| {
            widest.covers(*profile) && is_open(*profile) && only.is_none_or(|only| *profile == only)
        };
        let judge = validator(experiment, world, budget, "tune.heads")?;
        let mut played: Vec<(ActionProfile, Action, Vec<Attained>)> = Vec::new();
        // The watermark's comes first in any case: tables fall back to it.
        let Some(fallback) = search.best(ActionProfile::Watermark, &show, stop)? else { return Ok(None) };
        for profile in ActionProfile::ALL.into_iter().filter(wanted) {
            let Some(constant) = search.best(profile, &show, stop)? else { return Ok(None) };
            let Some(attained) = judge.attained(&Fixed(constant), stop)? else { return Ok(None) };
            played.push((profile, constant, attained));
        }
        Ok(Some(chosen(&played, fallback.controls().watermark)))
    }
}

/// Judges by episodes of what is chosen on, drawn for one purpose.
pub(super) fn validator(
    experiment: &Experiment,
    world: &World,
    budget: &Budget,
    purpose: &str,
) -> Result<Validator, TuneError> {
    let config = experiment.validation_config(world)?.expect("experiments of tune validate");
    let seed = seed::derive(experiment.seed(), purpose, 0);
    Ok(Validator::new(Box::new(ServingArena::new(&config)?), budget.validation.episodes, seed))
}

/// The narrowest that no wider one gains over, beyond chance.
fn chosen(played: &[(ActionProfile, Action, Vec<Attained>)], fallback: f64) -> ChosenHeads {
    let spec = |action: &Action| PolicySpec::Fixed(action.controls());
    let mut best = 0;
    let mut candidates = Vec::new();
    for (index, (profile, constant, attained)) in played.iter().enumerate() {
        let gain = (index > 0).then(|| Gain::between(attained, &played[best].2));
        candidates.push(Candidate {
            profile: profile.name().to_owned(),
            constant: spec(constant),
            attained: Attained::share(attained),
            gain,
        });
        if gain.is_some_and(|gain| gain.is_sure()) {
            best = index;
        }
    }
    let reason = reason(&candidates, best);
    let (profile, constant, _) = &played[best];
    ChosenHeads { profile: profile.name().to_owned(), constant: spec(constant), fallback, candidates, reason }
}

fn reason(candidates: &[Candidate], best: usize) -> String {
    let said = |candidate: &Candidate| {
        let gain = candidate.gain.map_or_else(String::new, |gain| format!(" ({})", gain.text()));
        format!("{} {:.1} %{gain}", candidate.profile, candidate.attained * 100.0)
    };
    let listed = candidates.iter().map(said).collect::<Vec<String>>().join(", ");
    let Candidate { profile, .. } = &candidates[best];
    match (candidates.len(), best) {
        (1, _) => format!("{profile} alone is open: its best constant attains {listed}"),
        (_, 0) => format!("{profile}: no wider profile's best constant gains beyond chance ({listed})"),
        _ => format!("{profile}: the narrowest profile whose best constant gains beyond chance ({listed})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episodes(on_time: impl Fn(usize) -> f64) -> Vec<Attained> {
        (0..20).map(|episode| Attained { requests: 100.0, on_time: on_time(episode), world: 0 }).collect()
    }

    fn profile_of(on_time: [&dyn Fn(usize) -> f64; 3]) -> ChosenHeads {
        let all = ActionProfile::ALL.into_iter().zip(on_time);
        let played: Vec<_> = all.map(|(profile, rule)| (profile, Action::V1_DEFAULT, episodes(rule))).collect();
        chosen(&played, 0.02)
    }

    #[test]
    fn the_narrowest_profile_that_gains_is_chosen() {
        let noise = |episode: usize| 70.0 + (episode % 7) as f64;
        let same = |episode: usize| noise(episode) + if episode.is_multiple_of(2) { 1.0 } else { -1.0 };
        let better = |episode: usize| noise(episode) + 5.0;
        assert_eq!(profile_of([&noise, &same, &same]).profile, "watermark");
        assert_eq!(profile_of([&noise, &better, &better]).profile, "core");
        let full = profile_of([&noise, &same, &better]);
        assert_eq!((full.profile.as_str(), full.fallback), ("full", 0.02));
        assert!(
            full.reason.contains("full 77.") && full.reason.contains("+5.0 points [+5.0, +5.0]"),
            "{}",
            full.reason
        );
    }
}
