//! One policy against another: how many fewer requests miss a target, which is the form in which the product's aims are stated, and
//! what that costs at the worst load.

use serde::Serialize;

use super::compare::{by_load, loads, longest_wait_ms};
use super::resample::{PairedDraw, ResampledRun, Resampling};
use super::row::RunRow;
use crate::bootstrap::Interval;
use crate::policy::PolicyName;

/// A policy against another one on the same draws, over every load run. No load is left out: one at which nobody misses a
/// target adds nothing to either side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Against {
    /// The other one.
    pub than: PolicyName,
    /// 1 - violations / the other's violations, where violations are 1 - attainment, averaged over loads; `None` if the other
    /// has none.
    pub fewer_violations: Option<Interval>,
    /// Attainment less the other's.
    pub gain: Option<Interval>,
    /// The load at which it gains least.
    pub worst_load: Option<GainAt>,
    /// The longest wait at each load, as a multiple of the other's.
    pub longest_waits: Vec<WaitAt>,
}

/// A gain at one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GainAt {
    /// The load.
    pub load: f64,
    /// Mean attainment less the other's.
    pub gain: f64,
}

/// Longest waits at one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WaitAt {
    /// The load.
    pub load: f64,
    /// The mean over draws of the longest time to a first token, over the other's; `None` where nobody got one.
    pub times: Option<f64>,
}

impl Against {
    /// `None` if they have no draw in common.
    pub(super) fn of(
        resampling: &Resampling<'_>,
        mine: &[ResampledRun<'_>],
        than: &PolicyName,
        theirs: &[ResampledRun<'_>],
    ) -> Option<Against> {
        let pairs = pairs(mine, theirs);
        if pairs.is_empty() {
            return None;
        }
        Some(Against {
            than: than.clone(),
            fewer_violations: resampling.interval(&pairs, fewer),
            gain: resampling.interval(&pairs, gain),
            worst_load: worst_load(&pairs),
            longest_waits: longest_waits(&pairs),
        })
    }
}

/// Each run of `mine` with the other policy's on the same draw.
pub(super) fn pairs<'b, 'a>(
    mine: &'b [ResampledRun<'a>],
    theirs: &'b [ResampledRun<'a>],
) -> Vec<(&'b ResampledRun<'a>, &'b ResampledRun<'a>)> {
    let same_draw = |a: &RunRow, b: &RunRow| a.is_same_cell(b) && a.seed == b.seed;
    // Both are in the same order, so that the partner is nearly always at the same place.
    let partner = |index: usize, one: &ResampledRun<'_>| {
        let guess = theirs.get(index).filter(|other| same_draw(one.row, other.row));
        guess.or_else(|| theirs.iter().find(|other| same_draw(one.row, other.row)))
    };
    mine.iter().enumerate().filter_map(|(index, one)| Some((one, partner(index, one)?))).collect()
}

/// Mean attainment of `mine` less that of `theirs` on the same draws; `None` if they have none in common.
pub(super) fn mean_gain(mine: &[&RunRow], theirs: &[&RunRow]) -> Option<f64> {
    let same_draw = |a: &RunRow, b: &RunRow| a.is_same_cell(b) && a.seed == b.seed;
    let pair = |one: &&RunRow| {
        let other = theirs.iter().find(|other| same_draw(one, other))?;
        let attained = |row: &RunRow| row.summary.slo_attainment;
        Some(PairedDraw { load: one.load, mine: attained(one), theirs: attained(other) })
    };
    gain(&mine.iter().filter_map(pair).collect::<Vec<PairedDraw>>())
}

/// Each load counts the same, however many draws it has.
fn fewer(pairs: &[PairedDraw]) -> Option<f64> {
    let mean = |values: Vec<(f64, f64)>| values.iter().map(|(_, value)| value).sum::<f64>() / values.len() as f64;
    let mine = mean(by_load(pairs.iter().map(|pair| (pair.load, 1.0 - pair.mine))));
    let theirs = mean(by_load(pairs.iter().map(|pair| (pair.load, 1.0 - pair.theirs))));
    (theirs > 0.0).then(|| 1.0 - mine / theirs)
}

/// Every draw counts the same.
pub(super) fn gain(pairs: &[PairedDraw]) -> Option<f64> {
    let sum: f64 = pairs.iter().map(|pair| pair.mine - pair.theirs).sum();
    (!pairs.is_empty()).then(|| sum / pairs.len() as f64)
}

fn worst_load(pairs: &[(&ResampledRun<'_>, &ResampledRun<'_>)]) -> Option<GainAt> {
    let attained = |served: &ResampledRun<'_>| served.row.summary.slo_attainment;
    let gains = by_load(pairs.iter().map(|(mine, theirs)| (mine.row.load, attained(mine) - attained(theirs))));
    gains.into_iter().map(|(load, gain)| GainAt { load, gain }).min_by(|a, b| a.gain.total_cmp(&b.gain))
}

fn longest_waits(pairs: &[(&ResampledRun<'_>, &ResampledRun<'_>)]) -> Vec<WaitAt> {
    let rows: Vec<&RunRow> = pairs.iter().map(|(mine, _)| mine.row).collect();
    let at = |load: f64| {
        let of_load = || pairs.iter().filter(|(mine, _)| mine.row.load == load);
        let mine = longest_wait_ms(&of_load().map(|(mine, _)| mine.row).collect::<Vec<&RunRow>>());
        let theirs = longest_wait_ms(&of_load().map(|(_, theirs)| theirs.row).collect::<Vec<&RunRow>>());
        let times = mine.zip(theirs).filter(|(_, theirs)| *theirs > 0.0).map(|(mine, theirs)| mine / theirs);
        WaitAt { load, times }
    };
    loads(&rows).into_iter().map(at).collect()
}
