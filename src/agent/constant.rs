//! The best constant choice on the traffic that is trained on: where learning starts, and what an agent must beat.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::env::{Arena, Episode};
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionProfile, Fixed, Head};
use rayon::prelude::*;

use super::AgentError;
use super::validate::{attainment, play};

/// Episodes all constants are judged on.
const FEW: u64 = 24;
/// Episodes the best of them are judged on.
const MANY: u64 = 96;
/// How many go on to the next round.
const BEST: usize = 4;

/// Looks for the constant action under which the largest share of requests misses no target, over episodes of all of the
/// arena's worlds, drawn from `seed`: every watermark with every admission order first, the victims and preemption modes
/// of the best of these next, and the best of all on four times the episodes. Heads that `profile` does not decide stay
/// at the engine's default. `progress` is told how many more
/// episodes are planned and how many more are done. `None` once `stop` is set.
///
/// # Errors
/// [`AgentError::Play`] if an episode cannot be played.
pub fn best_constant(
    arena: &dyn Arena,
    profile: ActionProfile,
    seed: u64,
    progress: &(dyn Fn(usize, usize) + Sync),
    stop: &AtomicBool,
) -> Result<Option<Action>, AgentError> {
    let default = arena.default_action();
    let coarse = variants(arena, profile, &[default], [Head::Watermark, Head::Admission]);
    let Some(coarse) = best(arena, coarse, FEW, seed, progress, stop)? else { return Ok(None) };
    let fine = variants(arena, profile, &coarse, [Head::Victim, Head::Preemption]);
    let Some(fine) = best(arena, fine, FEW, seed, progress, stop)? else { return Ok(None) };
    Ok(best(arena, fine, MANY, seed, progress, stop)?.map(|best| best[0]))
}

/// `actions` with every choice of two heads that the profile decides and some episode allows.
fn variants(arena: &dyn Arena, profile: ActionProfile, actions: &[Action], heads: [Head; 2]) -> Vec<Action> {
    let allowed = arena.choices();
    let mut variants = actions.to_vec();
    for head in heads.into_iter().filter(|head| profile.heads().contains(head)) {
        let choices = (0..head.size() as u8).filter(|choice| allowed[head as usize] & (1 << choice) != 0);
        let choices: Vec<u8> = choices.collect();
        variants =
            variants.iter().flat_map(|action| choices.iter().filter_map(|&choice| action.with(head, choice))).collect();
    }
    variants
}

/// The best of `actions`, best first, the earlier of equals; `None` once `stop` is set.
fn best(
    arena: &dyn Arena,
    actions: Vec<Action>,
    episodes: u64,
    seed: u64,
    progress: &(dyn Fn(usize, usize) + Sync),
    stop: &AtomicBool,
) -> Result<Option<Vec<Action>>, AgentError> {
    let total = actions.len() * episodes as usize;
    progress(total, 0);
    let run = |number: usize| -> Result<Option<Episode>, AgentError> {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (action, episode) = (actions[number / episodes as usize], number as u64 % episodes);
        let played = play(arena, seed::derive(seed, "constant", episode), &Fixed(action), |_| {})?;
        progress(0, 1);
        Ok(Some(played))
    };
    let played: Result<Vec<Option<Episode>>, AgentError> = (0..total).into_par_iter().map(run).collect();
    let Some(played) = played?.into_iter().collect::<Option<Vec<Episode>>>() else { return Ok(None) };
    let attained = played.chunks(episodes as usize).map(attainment);
    let mut ranked: Vec<(f64, Action)> = attained.zip(actions).collect();
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    Ok(Some(ranked.into_iter().take(BEST).map(|(_, action)| action).collect()))
}

#[cfg(test)]
mod tests {
    use kvtide_envs::env::{EnvError, Served};
    use kvtide_runtime::action::NUM_HEADS;
    use kvtide_runtime::{ActionMask, Observation};

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
            let off = u64::from(action.get(Head::Watermark).abs_diff(wanted)) * 5
                + u64::from(action.get(Head::Victim) != 3) * 10
                + u64::from(action.get(Head::Preemption) != 2) * 10
                + u64::from(action.get(Head::Admission) != 1) * 10;
            let served = Served { requests, on_time: requests * (100 - off) / 100, ..Served::default() };
            Ok(Episode { env: 0, episode_return: 0.0, decisions: 1, served })
        }

        fn choices(&self) -> [u16; NUM_HEADS] {
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
        assert_eq!(found(ActionProfile::Full, false), Some([8, 3, 2, 1]));
        assert_eq!(found(ActionProfile::Core, false), Some([8, 3, 2, 0]));
        assert_eq!(found(ActionProfile::Watermark, false), Some([8, 0, 1, 0]));
    }

    #[test]
    fn who_is_interrupted_has_found_nothing() {
        assert_eq!(found(ActionProfile::Full, true), None);
    }
}
