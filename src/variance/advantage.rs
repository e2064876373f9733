//! One choice held against another from the same state on, for longer and longer: signal and noise of the advantage.

use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionMask, Head, Policy};
use rand::RngExt;
use rayon::prelude::*;
use serde::Serialize;

use super::branch::{Branch, Branches, Held, Play, Sums};
use super::statistics::{Squares, mean};
use super::{Discount, VarianceConfig, VarianceError};
use crate::bootstrap::{Interval, resampled};

/// Of a choice that is held for so many decisions instead of the likeliest one, in discounted return.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HeldAdvantage {
    /// Decisions for which it is held.
    pub decisions: u32,
    /// How long that takes, seconds.
    pub seconds: f64,
    /// Root mean square, over states, of the expected difference: what there is to be found.
    pub signal: Interval,
    /// The same difference of rewards discounted by γλ: what generalised advantage estimation sees of it without its critic.
    pub traced_signal: f64,
    /// Standard deviation of a return, over everything.
    pub return_noise: f64,
    /// Of a return from a given state: what the best critic leaves.
    pub state_noise: f64,
    /// Of a return from a given state on given traffic: what an input-driven baseline leaves.
    pub traffic_noise: f64,
    /// Of the difference of two forks on the same future under the same draws.
    pub fork_noise: f64,
    /// States it was measured in.
    pub states: usize,
}

impl HeldAdvantage {
    /// Decisions that must be tried, each with such `noise`, before the signal is as large as the error of their mean; `None`
    /// where no signal was found.
    pub fn samples(&self, noise: f64) -> Option<f64> {
        (self.signal.mean > 0.0).then(|| (noise / self.signal.mean).powi(2))
    }
}

/// Action seeds of each future.
const ACTIONS: u64 = 2;

/// What was seen of one state.
struct StateSample {
    returns: Squares,
    /// By hold: the difference under γ, and under γλ, and how long it was held.
    differences: Vec<(Squares, Squares, f64)>,
}

pub(super) fn measure<B: Branches>(
    play: &Play<'_, B>,
    discount: Discount,
    config: &VarianceConfig,
) -> Result<Option<Vec<HeldAdvantage>>, VarianceError> {
    let state = |state: u64| -> Result<Option<StateSample>, VarianceError> {
        let sample = if play.is_stopped() { None } else { sampled(play, discount, config, state)? };
        play.watch.done();
        Ok(sample)
    };
    let states: Result<Vec<_>, _> = (0..u64::from(config.states)).into_par_iter().map(state).collect();
    let states: Vec<StateSample> = states?.into_iter().flatten().collect();
    if play.is_stopped() {
        return Ok(None);
    }
    if states.is_empty() {
        return Err(VarianceError::NoChoice(config.states));
    }
    Ok(Some(config.holds.iter().enumerate().map(|(index, &hold)| summary(&states, index, hold)).collect()))
}

/// Forks an episode in the first two thirds of it, somewhere; `None` if nothing can be chosen there.
fn sampled<B: Branches>(
    play: &Play<'_, B>,
    discount: Discount,
    config: &VarianceConfig,
    state: u64,
) -> Result<Option<StateSample>, VarianceError> {
    let root = seed::derive(config.seed, "variance.state", state);
    let mut stream = seed::stream(root, "where", 0);
    let fork = |branch: &B::Branch| branch.fork().ok_or(VarianceError::Unforkable);
    let mut branch = play.branches.start(root)?;
    let length = play.go_on(&mut fork(&branch)?, root, None, None, u64::MAX)?.decisions;
    let at = (length as f64 * 2.0 / 3.0 * stream.random::<f64>()) as u64;
    play.go_on(&mut branch, root, None, None, at)?;
    let (observation, mask) = branch.seen();
    let likeliest = play.behaviour.policy.decide(observation, mask);
    let Some((head, other)) = alternative(mask, likeliest, &mut stream) else { return Ok(None) };
    let likeliest = likeliest.get(head);

    let mut returns: Vec<Vec<f64>> = Vec::new();
    let holds = config.holds.len();
    let mut differences = vec![(Vec::new(), Vec::new(), 0.0); holds];
    for future in 0..u64::from(config.futures) {
        let mut from = fork(&branch)?;
        from.redraw_future(seed::derive(root, "future", future))?;
        let run = |actions: u64, held: Option<Held>| {
            let actions = seed::derive(root, "actions", actions);
            play.go_on(&mut fork(&from)?, actions, held, Some(discount), u64::MAX)
        };
        let plain: Result<Vec<Sums>, VarianceError> = (0..ACTIONS).map(|actions| run(actions, None)).collect();
        returns.push(plain?.iter().map(|sums| sums.discounted).collect());
        for (hold, kept) in config.holds.iter().zip(&mut differences) {
            let (mut by_gamma, mut by_trace) = (Vec::new(), Vec::new());
            for actions in 0..ACTIONS {
                if play.is_stopped() {
                    return Ok(None);
                }
                let held = |choice| Some(Held { head, choice, decisions: u64::from(*hold) });
                let (tried, stayed) = (run(actions, held(other))?, run(actions, held(likeliest))?);
                by_gamma.push(tried.discounted - stayed.discounted);
                by_trace.push(tried.traced - stayed.traced);
                let per_decision = stayed.seconds / stayed.decisions.max(1) as f64;
                kept.2 += per_decision * f64::from(*hold) / (u64::from(config.futures) * ACTIONS) as f64;
            }
            kept.0.push(by_gamma);
            kept.1.push(by_trace);
        }
    }
    let differences = differences
        .into_iter()
        .map(|(by_gamma, by_trace, seconds)| (Squares::of(&by_gamma), Squares::of(&by_trace), seconds))
        .collect();
    Ok(Some(StateSample { returns: Squares::of(&returns), differences }))
}

/// Another choice than the likeliest of one of the heads that have any, each as likely.
fn alternative(mask: ActionMask, likeliest: Action, stream: &mut seed::Stream) -> Option<(Head, u8)> {
    let others = |head: Head| -> Vec<u8> {
        let free = |&choice: &u8| mask.allows(head, choice) && choice != likeliest.get(head);
        (0..head.size() as u8).filter(free).collect()
    };
    let heads: Vec<Head> = Head::ALL.into_iter().filter(|&head| !others(head).is_empty()).collect();
    if heads.is_empty() {
        return None;
    }
    let head = heads[stream.random_range(0..heads.len())];
    let choices = others(head);
    Some((head, choices[stream.random_range(0..choices.len())]))
}

fn summary(states: &[StateSample], index: usize, decisions: u32) -> HeldAdvantage {
    let root = |square: f64| square.max(0.0).sqrt();
    let over = |part: &dyn Fn(&StateSample) -> f64| mean(states.iter().map(part));
    let signal =
        |states: &[&StateSample]| Some(root(mean(states.iter().map(|state| state.differences[index].0.apart))));
    let everything = over(&|state| state.returns.mean);
    HeldAdvantage {
        decisions,
        seconds: over(&|state| state.differences[index].2),
        signal: resampled(states, signal).unwrap_or(Interval::single(0.0)),
        traced_signal: root(over(&|state| state.differences[index].1.apart)),
        return_noise: root(over(&|state| state.returns.square) - everything * everything),
        state_noise: root(over(&|state| state.returns.square - state.returns.apart)),
        traffic_noise: root(over(&|state| state.returns.square - state.returns.same_future)),
        fork_noise: root(over(&|state| {
            let (difference, ..) = state.differences[index];
            difference.square - difference.apart
        })),
        states: states.len(),
    }
}
