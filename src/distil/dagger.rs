//! Episodes in which the student or the teacher drives, and what they come past.
//!
//! `DAgger` (Ross, Gordon, Bagnell 2011, "A Reduction of Imitation Learning and Structured Prediction to No-Regret Online
//! Learning", algorithm 3.1, with β = 1 in the first iteration and 0 after it): a student that is slightly wrong soon sees
//! states its teacher never let happen. So the student drives, the teacher says what it would have done there, and the
//! samples of all iterations are kept.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::ServingArena;
use kvtide_envs::seed;
use kvtide_runtime::format::FeatureRange;
use kvtide_runtime::{NUM_FEATURES, Policy};
use rand::RngExt;
use rayon::prelude::*;

use super::dataset::{Sample, Visit, ranges, union};
use super::{DistilError, Teacher};

/// Longest episode, in decisions; it is cut short there.
const MAX_DECISIONS: usize = 100_000;
/// As often are further episodes played where they are too short to give the samples asked for.
const MAX_ROUNDS: u64 = 64;

/// What is played.
#[derive(Debug, Clone, Copy)]
pub(super) struct SamplingPlan {
    /// Root of the streams `episode` and `pick`.
    pub(super) seed: u64,
    /// Episodes at a time.
    pub(super) episodes: u64,
    /// Decisions to return.
    pub(super) samples: usize,
}

/// Plays whole episodes, in parallel, and draws decisions from them evenly: the states the driver spends its time in, not
/// only those of the first minutes. Fewer than asked for if the episodes do not have them.
///
/// # Errors
/// That of the first episode that fails; [`DistilError::Stopped`].
pub(super) fn play(
    arena: &ServingArena,
    driver: &(dyn Policy + Sync),
    plan: SamplingPlan,
    stop: &AtomicBool,
) -> Result<Vec<Visit>, DistilError> {
    let mut visits = Vec::new();
    for round in 0..MAX_ROUNDS {
        let episodes = round * plan.episodes..(round + 1) * plan.episodes;
        let played: Vec<Result<Vec<Visit>, DistilError>> = episodes
            .into_par_iter()
            .map(|number| episode(arena, driver, seed::derive(plan.seed, "episode", number), stop))
            .collect();
        for episode in played {
            visits.extend(episode?);
        }
        if visits.len() >= plan.samples {
            break;
        }
    }
    Ok(pick(visits, plan))
}

/// The ranges of what `driver` meets in whole episodes.
///
/// # Errors
/// As [`play`].
pub(super) fn seen(
    arena: &ServingArena,
    driver: &(dyn Policy + Sync),
    root: u64,
    episodes: u64,
    stop: &AtomicBool,
) -> Result<[FeatureRange; NUM_FEATURES], DistilError> {
    let met = |number| {
        let visits = episode(arena, driver, seed::derive(root, "episode", number), stop)?;
        Ok(ranges(visits.iter().map(|visit| &visit.observation)))
    };
    let met: Result<Vec<[FeatureRange; NUM_FEATURES]>, DistilError> = (0..episodes).into_par_iter().map(met).collect();
    Ok(met?.into_iter().reduce(|ranges, others| union(&ranges, &others)).unwrap_or_else(|| ranges([])))
}

/// Every decision of one episode.
fn episode(arena: &ServingArena, driver: &dyn Policy, seed: u64, stop: &AtomicBool) -> Result<Vec<Visit>, DistilError> {
    let mut visits = Vec::new();
    let mut stopped = false;
    arena.play_while(seed, &mut |observation, mask| {
        if visits.len() == MAX_DECISIONS {
            return None;
        }
        stopped = stop.load(Ordering::Relaxed);
        visits.push(Visit { observation: *observation, mask });
        (!stopped).then(|| driver.decide(observation, mask))
    })?;
    if stopped { Err(DistilError::Stopped) } else { Ok(visits) }
}

/// As many visits as planned, each subset as likely as any other, in order (Knuth, "The Art of Computer Programming",
/// section 3.4.2, algorithm S).
fn pick(mut visits: Vec<Visit>, plan: SamplingPlan) -> Vec<Visit> {
    let mut stream = seed::stream(plan.seed, "pick", 0);
    let (mut wanted, mut left) = (plan.samples.min(visits.len()), visits.len());
    visits.retain(|_| {
        let take = stream.random_range(0..left) < wanted;
        wanted -= usize::from(take);
        left -= 1;
        take
    });
    visits
}

/// The teacher's answers, in order.
///
/// # Errors
/// The first answer that is no number.
pub(super) fn label(teacher: &dyn Teacher, visits: &[Visit]) -> Result<Vec<Sample>, DistilError> {
    let labelled: Vec<Result<Sample, DistilError>> =
        visits.par_iter().map(|visit| Sample::label(teacher, visit)).collect();
    labelled.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::{ActionMask, Observation};

    use super::*;

    fn numbered(count: usize) -> Vec<Visit> {
        let visit = |number: usize| {
            let mut observation = Observation::ZERO;
            observation.values[0] = number as f32;
            Visit { observation, mask: ActionMask::ALL }
        };
        (0..count).map(visit).collect()
    }

    #[test]
    fn picks_are_distinct_in_order_and_even() {
        let mut hits = [0_u32; 40];
        for seed in 0..400 {
            let picked = pick(numbered(40), SamplingPlan { seed, episodes: 1, samples: 10 });
            assert_eq!(picked.len(), 10);
            assert!(picked.is_sorted_by(|a, b| a.observation.values[0] < b.observation.values[0]));
            for visit in &picked {
                hits[visit.observation.values[0] as usize] += 1;
            }
        }
        // Binomial(400, 1/4): mean 100, standard deviation 8.7.
        assert!(hits.iter().all(|hits| (65..135).contains(hits)), "{hits:?}");
    }

    #[test]
    fn all_are_picked_where_there_are_too_few() {
        assert_eq!(pick(numbered(3), SamplingPlan { seed: 1, episodes: 1, samples: 10 }), numbered(3));
        assert_eq!(pick(Vec::new(), SamplingPlan { seed: 1, episodes: 1, samples: 10 }), []);
    }
}
