//! The best constant choice: where learning starts, and what a perfect operator could have done with constants.
//!
//! There is one search. Who asks brings the stage on which constants are played, and says whether all of them are, or whether
//! only the best of a round go on to the next.

use kvtide_runtime::action::Asked;
use kvtide_runtime::{ActionMask, ActionProfile, Controls, Head};

/// The constants to choose from, in the order in which ties are decided.
#[derive(Debug, Clone, Copy)]
pub struct ConstantSpace {
    /// The heads that vary.
    pub profile: ActionProfile,
    /// What the others are set to.
    pub default: Controls,
    /// The choices there are.
    pub allowed: ActionMask,
}

/// Which round of a search it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchRound {
    /// Every choice of the heads that are always asked for.
    Coarse,
    /// And of those that only a preemption asks for.
    Fine,
    /// The best of these, once more.
    Last,
}

/// Where constants are played.
pub trait ConstantEvaluator {
    /// What came of a constant.
    type Runs;
    /// Why it cannot be played.
    type Error;

    /// Plays each of `constants`; `None` if interrupted.
    ///
    /// # Errors
    /// One cannot be played.
    fn play(&mut self, round: SearchRound, constants: &[Controls]) -> Result<Option<Vec<Self::Runs>>, Self::Error>;

    /// How good that is: first what counts most.
    fn score(runs: &Self::Runs) -> (f64, f64);

    /// Whether anybody was preempted.
    fn preempted(runs: &Self::Runs) -> bool;
}

/// How a search goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Everything of the heads that are always asked for, and where somebody is preempted, with the best [`MOST_OPEN`] of these
    /// all that only a preemption asks for.
    All,
    /// So many of the best go on from round to round, and budgets are a round of their own: with the best so far each of
    /// them, and with the best of these all the others again.
    Race(usize),
}

/// Constants with which the heads that only a preemption asks for are varied where hindsight looks at everything.
pub const MOST_OPEN: usize = 32;

/// Other budgets than the engine's own with which a race looks at everything else again.
const MOST_BUDGETS: usize = 2;

impl ConstantSpace {
    /// Every choice of the heads that are always asked for.
    pub fn coarse(&self) -> Vec<Controls> {
        self.variants(&[self.default], Asked::Always)
    }

    /// `coarse`, each with every choice of the heads that only a preemption asks for.
    pub fn fine(&self, coarse: &[Controls]) -> Vec<Controls> {
        self.variants(coarse, Asked::OnPreemption)
    }

    fn variants(&self, bases: &[Controls], asked: Asked) -> Vec<Controls> {
        self.varied(bases, |head| head.asked() == asked)
    }

    fn varied(&self, bases: &[Controls], is_varied: impl Fn(Head) -> bool) -> Vec<Controls> {
        let heads = self.profile.heads().iter().filter(|&&head| is_varied(head));
        heads.fold(bases.to_vec(), |variants, &head| {
            let choices = (0..head.size() as u8).filter(|&choice| self.allowed.allows(head, choice));
            let mut choices: Vec<u8> = choices.collect();
            if head == Head::Budget {
                // The engine's own is the last, and of equals the first is taken.
                choices.reverse();
            }
            let of_one = |base: &Controls| {
                let base = *base;
                choices.iter().filter_map(move |&choice| base.with(head, choice)).collect::<Vec<Controls>>()
            };
            variants.iter().flat_map(of_one).collect()
        })
    }

    /// The best of them with its runs, the first of equals; `None` if interrupted.
    ///
    /// # Errors
    /// One cannot be played.
    pub fn best<S: ConstantEvaluator>(
        &self,
        stage: &mut S,
        effort: Effort,
    ) -> Result<Option<(Controls, S::Runs)>, S::Error> {
        match effort {
            Effort::All => {
                let Some(coarse) = play(stage, SearchRound::Coarse, &self.coarse())? else { return Ok(None) };
                let open = ranked::<S>(coarse.iter().filter(|(_, runs)| S::preempted(runs)), MOST_OPEN);
                let played = play(stage, SearchRound::Fine, &self.fine(&open))?;
                Ok(played.and_then(|fine| best::<S>(coarse.into_iter().chain(fine))))
            }
            Effort::Race(keep) => {
                let Some(coarse) = self.raced(stage, keep)? else { return Ok(None) };
                let ahead = ranked::<S>(&coarse, keep);
                let Some(fine) = play(stage, SearchRound::Fine, &self.fine(&ahead))? else { return Ok(None) };
                let ahead = ranked::<S>(&fine, keep);
                Ok(play(stage, SearchRound::Last, &ahead)?.and_then(|last| best::<S>(last.into_iter())))
            }
        }
    }
}

impl ConstantSpace {
    /// What a race plays of the heads that are always asked for.
    fn raced<S: ConstantEvaluator>(&self, stage: &mut S, keep: usize) -> Result<Option<Played<S>>, S::Error> {
        let others = |head: Head| head.asked() == Asked::Always && head != Head::Budget;
        let Some(mut played) = play(stage, SearchRound::Coarse, &self.varied(&[self.default], others))? else {
            return Ok(None);
        };
        let budgets = self.varied(&ranked::<S>(&played, keep), |head| head == Head::Budget);
        if !more(stage, &mut played, &budgets)? {
            return Ok(None);
        }
        let mut again: Vec<Controls> = Vec::new();
        for Controls { budget, .. } in ranked::<S>(&played, keep) {
            let base = Controls { budget, ..self.default };
            if base != self.default && !again.contains(&base) && again.len() < MOST_BUDGETS {
                again.push(base);
            }
        }
        let again = self.varied(&again, others);
        Ok(more(stage, &mut played, &again)?.then_some(played))
    }
}

type Played<S> = Vec<(Controls, <S as ConstantEvaluator>::Runs)>;

fn play<S: ConstantEvaluator>(
    stage: &mut S,
    round: SearchRound,
    constants: &[Controls],
) -> Result<Option<Played<S>>, S::Error> {
    let runs = stage.play(round, constants)?;
    Ok(runs.map(|runs| constants.iter().copied().zip(runs).collect()))
}

/// Plays those of `constants` that are not among the `played` yet; false if interrupted.
fn more<S: ConstantEvaluator>(stage: &mut S, played: &mut Played<S>, constants: &[Controls]) -> Result<bool, S::Error> {
    let is_new = |one: &&Controls| !played.iter().any(|(known, _)| known == *one);
    let new: Vec<Controls> = constants.iter().filter(is_new).copied().collect();
    let Some(more) = play(stage, SearchRound::Coarse, &new)? else { return Ok(false) };
    played.extend(more);
    Ok(true)
}

/// So many of the best, best first, the earlier of equals.
fn ranked<'p, S: ConstantEvaluator + 'p>(
    played: impl IntoIterator<Item = &'p (Controls, S::Runs)>,
    keep: usize,
) -> Vec<Controls> {
    let mut ranked: Vec<((f64, f64), Controls)> =
        played.into_iter().map(|(controls, runs)| (S::score(runs), *controls)).collect();
    ranked.sort_by(|(a, _), (b, _)| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    ranked.into_iter().take(keep).map(|(_, controls)| controls).collect()
}

/// The one with the highest score, the first of equals.
fn best<S: ConstantEvaluator>(played: impl Iterator<Item = (Controls, S::Runs)>) -> Option<(Controls, S::Runs)> {
    let mut best: Option<(Controls, S::Runs)> = None;
    for (controls, runs) in played {
        if best.as_ref().is_none_or(|(_, so_far)| S::score(&runs) > S::score(so_far)) {
            best = Some((controls, runs));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::{Action, Head, Preemption};

    use super::*;

    fn constants(profile: ActionProfile, allowed: ActionMask) -> ConstantSpace {
        ConstantSpace { profile, default: Action::V1_DEFAULT.controls(), allowed }
    }

    #[test]
    fn every_constant_of_a_profile_is_there_once() {
        let without_host = ActionMask::ALL.pin(Head::Preemption, Preemption::Recompute as u8);
        let count = |profile, allowed| {
            let constants = constants(profile, allowed);
            let (coarse, fine) = (constants.coarse(), constants.fine(&constants.coarse()));
            assert!(coarse.contains(&constants.default) && coarse.iter().all(|one| fine.contains(one)));
            assert!(fine.iter().enumerate().all(|(at, one)| !fine[..at].contains(one)));
            (coarse.len(), fine.len())
        };
        assert_eq!(count(ActionProfile::Watermark, ActionMask::ALL), (20, 20));
        assert_eq!(count(ActionProfile::Core, ActionMask::ALL), (20, 20 * 5 * 3));
        assert_eq!(count(ActionProfile::Full, ActionMask::ALL), (20 * 3 * 9, 20 * 5 * 3 * 3 * 9));
        assert_eq!(count(ActionProfile::Full, without_host), (20 * 3 * 9, 20 * 5 * 3 * 9));
    }

    /// Scores by a rule, counts what is asked for.
    struct Ruled {
        score: fn(&Controls) -> f64,
        preempts: bool,
        asked: Vec<(SearchRound, usize)>,
    }

    impl ConstantEvaluator for Ruled {
        type Runs = (f64, bool);
        type Error = std::convert::Infallible;

        fn play(
            &mut self,
            round: SearchRound,
            constants: &[Controls],
        ) -> Result<Option<Vec<(f64, bool)>>, Self::Error> {
            self.asked.push((round, constants.len()));
            Ok(Some(constants.iter().map(|one| ((self.score)(one), self.preempts)).collect()))
        }

        fn score(runs: &(f64, bool)) -> (f64, f64) {
            (runs.0, 0.0)
        }

        fn preempted(runs: &(f64, bool)) -> bool {
            runs.1
        }
    }

    #[test]
    fn what_makes_no_difference_is_not_played_and_the_first_of_equals_wins() {
        let found = |score, preempts, effort| {
            let mut stage = Ruled { score, preempts, asked: Vec::new() };
            let (best, _) = constants(ActionProfile::Full, ActionMask::ALL).best(&mut stage, effort).unwrap().unwrap();
            (Action::nearest(&best).indices(), stage.asked.iter().map(|(_, count)| *count).collect::<Vec<usize>>())
        };
        let by_victim = |one: &Controls| f64::from(one.victim as u8) - one.watermark;
        assert_eq!(found(by_victim, false, Effort::All), ([0, 0, 1, 0, 8, 0], vec![540, 0]));
        assert_eq!(found(by_victim, true, Effort::All), ([0, 4, 0, 0, 8, 0], vec![540, 32 * 15]));
        assert_eq!(found(by_victim, true, Effort::Race(4)), ([0, 4, 0, 0, 8, 0], vec![60, 32, 56, 60, 4]));
        assert_eq!(found(|_| 1.0, true, Effort::All), ([0, 0, 1, 0, 8, 0], vec![540, 32 * 15]));
        assert_eq!(found(|_| 1.0, true, Effort::Race(4)), ([0, 0, 0, 0, 8, 0], vec![60, 32, 0, 60, 4]));
        // A watermark that is good under a small budget alone.
        let small = |one: &Controls| {
            let level = if one.budget == 512.0 { 0.2 + one.watermark } else { 0.1 - one.watermark };
            level - (one.budget.log2() - 9.0).abs() / 100.0
        };
        for effort in [Effort::All, Effort::Race(4)] {
            let (Controls { watermark, budget, .. }, _) = {
                let mut stage = Ruled { score: small, preempts: false, asked: Vec::new() };
                constants(ActionProfile::Full, ActionMask::ALL).best(&mut stage, effort).unwrap().unwrap()
            };
            assert_eq!((watermark, budget), (1.0, 512.0), "{effort:?}");
        }
    }
}
