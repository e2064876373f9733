//! The best constant choice on the traffic that is trained on: where learning starts, and what an agent must beat.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Arena, Episode};
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Controls, Fixed, Head};
use rayon::prelude::*;

use super::AgentError;
use super::validate::{attainment, play};
use crate::constant::{ConstantEvaluator, ConstantSpace, Effort, SearchRound};

/// How a race of constants is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConstantRace {
    /// Episodes all constants are judged on.
    pub few: usize,
    /// Episodes the best of them are judged on; the first of them are the few.
    pub many: usize,
    /// How many go on to the next round.
    pub best: usize,
}

impl Default for ConstantRace {
    fn default() -> ConstantRace {
        ConstantRace { few: 24, many: 96, best: 4 }
    }
}

/// Told how many more episodes are planned, and how many more are done.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A search for constants on the episodes of one arena, drawn from one seed; what was played for one profile is not played again
/// for another.
pub struct ConstantSearch<'a> {
    arena: &'a dyn Arena,
    race: ConstantRace,
    seed: u64,
    known: Vec<(Controls, Vec<Episode>)>,
}

impl<'a> ConstantSearch<'a> {
    /// On episodes of all of the worlds of `arena`.
    pub fn new(arena: &'a dyn Arena, race: ConstantRace, seed: u64) -> ConstantSearch<'a> {
        ConstantSearch { arena, race, seed, known: Vec::new() }
    }

    /// The constant action under which the largest share of requests misses no target: every choice of the heads that are
    /// always asked for first, for the best of these every choice of the others next, and the best of all on the most episodes.
    /// Heads that `profile` does not decide stay at the engine's default. `None` once `stop` is set.
    ///
    /// # Errors
    /// [`AgentError::Play`] if an episode cannot be played.
    pub fn best(
        &mut self,
        profile: ActionProfile,
        progress: Progress<'_>,
        stop: &AtomicBool,
    ) -> Result<Option<Action>, AgentError> {
        let (arena, best) = (self.arena, self.race.best);
        let constants = ConstantSpace { profile, default: arena.default_action().controls(), allowed: allowed(arena) };
        let found = constants.best(&mut ArenaEpisodes { search: self, progress, stop }, Effort::Race(best))?;
        Ok(found.map(|(controls, _)| Action::nearest(&controls)))
    }
}

/// The best constant action of `profile` as training looks for it: see [`ConstantSearch::best`].
///
/// # Errors
/// [`AgentError::Play`] if an episode cannot be played.
pub fn best_constant(
    arena: &dyn Arena,
    profile: ActionProfile,
    seed: u64,
    progress: Progress<'_>,
    stop: &AtomicBool,
) -> Result<Option<Action>, AgentError> {
    ConstantSearch::new(arena, ConstantRace::default(), seed).best(profile, progress, stop)
}

/// The choices that some episode allows.
fn allowed(arena: &dyn Arena) -> ActionMask {
    let choices = Head::ALL.into_iter().zip(arena.choices());
    let forbidden = choices.flat_map(|(head, word)| {
        (0..head.size() as u8).filter(move |choice| word >> choice & 1 == 0).map(move |choice| (head, choice))
    });
    forbidden.fold(ActionMask::ALL, |mask, (head, choice)| mask.forbid(head, choice))
}

/// Constants on the same episodes of an arena each.
struct ArenaEpisodes<'s, 'a> {
    search: &'s mut ConstantSearch<'a>,
    progress: Progress<'s>,
    stop: &'s AtomicBool,
}

impl ConstantEvaluator for ArenaEpisodes<'_, '_> {
    type Runs = Vec<Episode>;
    type Error = AgentError;

    fn play(&mut self, round: SearchRound, constants: &[Controls]) -> Result<Option<Vec<Vec<Episode>>>, AgentError> {
        let ConstantSearch { arena, race, seed, known } = &mut *self.search;
        let (arena, seed) = (*arena, *seed);
        let episodes = if round == SearchRound::Last { race.many } else { race.few };
        let place = |known: &[(Controls, Vec<Episode>)], controls: &Controls| {
            known.iter().position(|(other, _)| other == controls)
        };
        for controls in constants {
            if place(known, controls).is_none() {
                known.push((*controls, Vec::new()));
            }
        }
        let places: Vec<usize> = constants.iter().filter_map(|controls| place(known, controls)).collect();
        let missing: BTreeSet<(usize, usize)> =
            places.iter().flat_map(|&at| (known[at].1.len()..episodes).map(move |episode| (at, episode))).collect();
        let missing: Vec<(usize, usize)> = missing.into_iter().collect();
        (self.progress)(missing.len(), 0);
        let run = |&(at, episode): &(usize, usize)| -> Result<Option<Episode>, AgentError> {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let action = Action::nearest(&known[at].0);
            let played = play(arena, seed::derive(seed, "constant", episode as u64), &Fixed(action), |_| {})?;
            (self.progress)(0, 1);
            Ok(Some(played))
        };
        let played: Result<Vec<Option<Episode>>, AgentError> = missing.par_iter().map(run).collect();
        let Some(played) = played?.into_iter().collect::<Option<Vec<Episode>>>() else { return Ok(None) };
        for ((at, _), episode) in missing.into_iter().zip(played) {
            known[at].1.push(episode);
        }
        Ok(Some(places.into_iter().map(|at| known[at].1[..episodes].to_vec()).collect()))
    }

    fn score(runs: &Vec<Episode>) -> (f64, f64) {
        (attainment(runs), 0.0)
    }

    /// A race varies the best of a round, whatever they do.
    fn preempted(_: &Vec<Episode>) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use kvtide_envs::env::{EnvError, Served};
    use kvtide_runtime::Observation;
    use kvtide_runtime::action::NUM_HEADS;

    use super::*;

    /// Two kinds of traffic, by the seed: one wants watermark 2, the other, which has three times the requests, 8. The
    /// first choice allowed is never swap; the more heads are right, the more requests are on time.
    struct Two;

    fn mask() -> ActionMask {
        ActionMask::ALL.forbid(Head::Preemption, 0)
    }

    impl Arena for Two {
        fn play(
            &self,
            seed: u64,
            decide: &mut dyn FnMut(&Observation, ActionMask) -> Action,
        ) -> Result<Episode, EnvError> {
            let action = decide(&Observation::ZERO, mask());
            assert_ne!(action.get(Head::Preemption), 0, "forbidden");
            let (wanted, requests) = if seed.is_multiple_of(2) { (2, 100) } else { (8, 300) };
            // Percent of the requests.
            let off = u64::from(action.get(Head::Watermark).abs_diff(wanted)) * 2
                + u64::from(action.get(Head::Victim) != 3) * 10
                + u64::from(action.get(Head::Preemption) != 2) * 10
                + u64::from(action.get(Head::Admission) != 1) * 10
                + u64::from(action.get(Head::Budget) != 6) * 10;
            let served = Served { requests, on_time: requests * (100 - off) / 100, ..Served::default() };
            Ok(Episode { env: 0, episode_return: 0.0, decisions: 1, served })
        }

        fn choices(&self) -> [u32; NUM_HEADS] {
            mask().words()
        }

        fn default_action(&self) -> Action {
            Action::V1_DEFAULT
        }
    }

    fn found(profile: ActionProfile, stop: bool) -> Option<[u8; NUM_HEADS]> {
        let (planned, done) = (std::sync::atomic::AtomicUsize::new(0), std::sync::atomic::AtomicUsize::new(0));
        let progress = |more, finished| {
            planned.fetch_add(more, Ordering::Relaxed);
            done.fetch_add(finished, Ordering::Relaxed);
        };
        let best = best_constant(&Two, profile, 7, &progress, &AtomicBool::new(stop)).unwrap();
        assert_eq!(planned.into_inner() == done.into_inner(), best.is_some());
        best.map(Action::indices)
    }

    #[test]
    fn every_world_counts_by_its_requests_and_heads_of_others_stay() {
        assert_eq!(found(ActionProfile::Full, false), Some([8, 3, 2, 1, 6, 0]));
        assert_eq!(found(ActionProfile::Core, false), Some([8, 3, 2, 0, 8, 0]));
        assert_eq!(found(ActionProfile::Watermark, false), Some([8, 0, 1, 0, 8, 0]));
    }

    #[test]
    fn who_is_interrupted_has_found_nothing() {
        assert_eq!(found(ActionProfile::Full, true), None);
    }
}
