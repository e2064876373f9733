//! The same judgement by other clocks: what is said of a policy, over draws of what a step may take.
//!
//! A profile says how far its constants may be off ([`ClockSpread`](kvtide_envs::deploy::ClockSpread)). Each draw is a clock as
//! likely as the profile's own, by which every policy serves the same requests once more; policies of hindsight choose anew, for they
//! know the clock as well. Engine, pool, targets and loads stay: a node's settings do not follow what its steps turn out to take.

use std::sync::atomic::AtomicBool;

use kvtide_envs::deploy::ClockFactors;
use kvtide_envs::percentile::percentile;
use serde::Serialize;

use super::against::mean_gain;
use super::compare::Comparison;
use super::distinct::distinct;
use super::kept::Kept;
use super::matrix::{Matrix, MatrixError, OnFinished, Watch, go_on_with_matrix, most_runs};
use super::row::RunRow;
use super::watch::Budget;
use crate::policy::PolicyName;
use crate::world::World;

/// By how much a policy attains more than another by drawn clocks: the `data` of a `clock_gain` line. Gains are shares of requests,
/// paired by draw of the traffic, each of which counts the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClockGain {
    /// The policy.
    pub policy: PolicyName,
    /// The other one.
    pub than: PolicyName,
    /// The gain by the clock of the profile.
    pub gain: f64,
    /// The median over drawn clocks.
    pub median: f64,
    /// Their 5th percentile.
    pub low: f64,
    /// Their 95th percentile.
    pub high: f64,
    /// Share of drawn clocks by which it gains.
    pub gaining: f64,
    /// The drawn clock by which it gains least.
    pub worst: GainByClock,
    /// Every drawn clock.
    pub draws: Vec<GainByClock>,
}

/// The gain by one drawn clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GainByClock {
    /// Number of the draw, from 1.
    pub draw: u32,
    /// The gain.
    pub gain: f64,
    /// What the times of each group of constants are multiplied by.
    pub factors: ClockFactors,
}

/// Why a judgement cannot be repeated by another clock.
#[derive(Debug, thiserror::Error)]
#[error("clock draw {draw}: {source}")]
pub struct ClockError {
    draw: u32,
    source: Box<MatrixError>,
}

/// Runs all of `matrix` by each of `draws` drawn clocks, one after the other, and hands over what is finished as
/// [`go_on_with_matrix`] does, which see; rows say by which draw. Returns how many draws were finished: all, unless stopped.
///
/// # Errors
/// A run has no result; what was finished before has been handed over.
pub fn go_on_with_clocks(
    (world, matrix): (&World, &Matrix),
    draws: u32,
    kept: &Kept,
    watch: &dyn Watch,
    stop: &AtomicBool,
    on_finished: OnFinished<'_>,
) -> Result<u32, ClockError> {
    let seeds: usize = matrix.loads.iter().map(|&load| matrix.seeds_at(world, load).len()).sum();
    let runs = matrix.windows.len() * seeds * most_runs(world, matrix).iter().sum::<usize>();
    let watch = Budget::new(watch, runs * draws as usize);
    for draw in 1..=draws {
        let drawn = world.by_clock(draw);
        let cells = go_on_with_matrix(&drawn, matrix, kept, &watch, stop, on_finished);
        if cells.map_err(|source| ClockError { draw, source: Box::new(source) })? < matrix.cells() {
            return Ok(draw - 1);
        }
    }
    Ok(draws)
}

/// What each comparison says of a policy and another, over the first `draws` drawn clocks of `world`, whose runs are among
/// `rows`. Empty of no draws.
pub fn clock_gains(world: &World, comparisons: &[Comparison], rows: &[RunRow], draws: u32) -> Vec<ClockGain> {
    let by_draw: Vec<Vec<&RunRow>> = (1..=draws)
        .map(|draw| distinct(&rows.iter().filter(|row| row.clock_draw == Some(draw)).collect::<Vec<_>>()))
        .collect();
    let gain_by = |line: &Comparison, than: &PolicyName| {
        let by_draw = (1..).zip(&by_draw);
        let gains = by_draw.filter_map(|(draw, rows)| {
            let of = |name: &PolicyName| rows.iter().copied().filter(|row| row.policy == *name).collect::<Vec<_>>();
            let gain = mean_gain(&of(&line.policy), &of(than))?;
            Some(GainByClock { draw, gain, factors: world.clock_factors(draw) })
        });
        gains.collect::<Vec<GainByClock>>()
    };
    let compared = comparisons.iter().flat_map(|line| line.against.iter().map(move |against| (line, against)));
    let gains = compared.filter_map(|(line, against)| {
        let draws = gain_by(line, &against.than);
        ClockGain::of(line.policy.clone(), against.than.clone(), against.gain?.mean, draws)
    });
    gains.collect()
}

impl ClockGain {
    /// `None` of no draws.
    fn of(policy: PolicyName, than: PolicyName, gain: f64, draws: Vec<GainByClock>) -> Option<ClockGain> {
        let worst = draws.iter().copied().min_by(|a, b| a.gain.total_cmp(&b.gain))?;
        let mut sorted: Vec<f64> = draws.iter().map(|by| by.gain).collect();
        sorted.sort_by(f64::total_cmp);
        let gaining = sorted.iter().filter(|gain| **gain > 0.0).count() as f64 / sorted.len() as f64;
        let [low, median, high] = [5.0, 50.0, 95.0].map(|p| percentile(&sorted, p));
        Some(ClockGain { policy, than, gain, median, low, high, gaining, worst, draws })
    }

    /// How many of the draws it gains by.
    pub fn gaining_draws(&self) -> usize {
        self.draws.iter().filter(|by| by.gain > 0.0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(gains: &[f64]) -> Vec<GainByClock> {
        let one = |(draw, gain): (u32, &f64)| GainByClock { draw, gain: *gain, factors: ClockFactors::ONE };
        (1..).zip(gains).map(one).collect()
    }

    #[test]
    fn a_spread_is_counted_by_hand() {
        let name = PolicyName::sample;
        let found = ClockGain::of(name("a"), name("b"), 0.25, by(&[0.3, -0.1, 0.0, 0.1, 0.2])).unwrap();
        // In order: -0.1, 0, 0.1, 0.2, 0.3. The 5th percentile lies a fifth of the way from the first to the second, the 95th as
        // far before the last; a gain of nothing is none.
        assert!((found.low + 0.08).abs() < 1e-12 && (found.high - 0.28).abs() < 1e-12, "{found:?}");
        assert_eq!((found.median, found.gain, found.gaining), (0.1, 0.25, 0.6));
        assert_eq!((found.worst.draw, found.worst.gain, found.gaining_draws()), (2, -0.1, 3));
        assert_eq!(ClockGain::of(name("a"), name("b"), 0.25, Vec::new()), None);
        let one = ClockGain::of(name("a"), name("b"), 0.25, by(&[0.5])).unwrap();
        assert_eq!((one.low, one.median, one.high, one.gaining), (0.5, 0.5, 0.5, 1.0));
    }
}
