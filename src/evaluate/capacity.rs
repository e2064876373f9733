//! Goodput capacity: the highest load a policy serves within the targets.
//!
//! Zhong et al. 2024, "`DistServe`" (OSDI '24), section 2: goodput is the highest rate at which at least 90 % of requests meet
//! their targets. Here the rate is a load factor.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

use super::compare::Comparison;
use super::kept::{Kept, KeptError, RunFile};
use super::knee::{AttainmentCurve, Crossing, LOOKS, Probe};
use super::matrix::{Matrix, MatrixError, Watch, most_runs, run_matrix};
use super::watch::Budget;
use crate::bootstrap::Evidence;
use crate::policy::{PolicyName, Subject};
use crate::world::World;

/// Share of requests that must be attained.
pub const CAPACITY_TARGET: f64 = 0.9;

/// The highest load with enough attained.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Capacity {
    /// The load, or the one it lies beyond.
    pub load: f64,
    /// Lower end of its 95 % interval; `None` where nothing can be resampled or the load was found by bisection.
    pub low: Option<f64>,
    /// Upper end, likewise.
    pub high: Option<f64>,
    /// Requests offered a second there, as many a load as at the loads run; `None` in a closed loop.
    pub offered_rps: Option<f64>,
    /// How the load is meant.
    pub bound: Bound,
    /// What the interval rests on; `None` of a bisection.
    #[serde(flatten)]
    pub evidence: Option<Evidence>,
}

impl Capacity {
    fn bisected(load: f64, bound: Bound) -> Capacity {
        Capacity { load, low: None, high: None, offered_rps: None, bound, evidence: None }
    }
}

/// Whether a capacity lies within the loads that were run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Between two of them, where a straight line crosses the target.
    Exact,
    /// At the highest load enough is attained.
    AtLeast,
    /// At no load enough is attained, not even at the lowest.
    Below,
}

/// The capacity of a policy that attains `curve`: loads, ascending, with the share attained at each. `None` of none.
pub(super) fn interpolated(curve: &[(f64, f64)], target: f64) -> Option<(f64, Bound)> {
    let Some(last) = curve.iter().rposition(|(_, attained)| *attained >= target) else {
        return curve.first().map(|(load, _)| (*load, Bound::Below));
    };
    let (load, attained) = curve[last];
    let Some(&(next_load, next_attained)) = curve.get(last + 1) else { return Some((load, Bound::AtLeast)) };
    let share = (attained - target) / (attained - next_attained);
    Some((load + (next_load - load) * share, Bound::Exact))
}

/// The capacity of one policy on the windows and seeds of `matrix`, whose own policies and loads are not looked at, to
/// about 1 %. `None` if interrupted.
///
/// # Errors
/// A run has no result.
pub fn bisect_capacity(
    world: &World,
    matrix: &Matrix,
    policy: &(PolicyName, Subject),
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Capacity>, MatrixError> {
    let mut look = |load: f64| -> Result<Option<Probe>, MatrixError> {
        let one = Matrix { policies: vec![policy.clone()], loads: vec![load], ..matrix.clone() };
        let mut attained = Vec::new();
        let run = run_matrix(world, &one, watch, stop, &mut |rows| {
            attained.extend(rows.iter().map(|row| row.summary.slo_attainment));
            ControlFlow::Continue(())
        });
        match run {
            Ok(cells) if cells < one.windows.len() => Ok(None),
            Ok(_) => Ok(Some(Probe::Attained(attained.iter().sum::<f64>() / attained.len().max(1) as f64))),
            Err(error) => Probe::of_draw(&error, load).map(Some).ok_or(error),
        }
    };
    let crossing = AttainmentCurve::new(&mut look).crossing(CAPACITY_TARGET)?;
    Ok(crossing.map(|crossing| {
        let (load, bound) = match crossing {
            Crossing::At(load) => (load, Bound::Exact),
            Crossing::Above(load) => (load, Bound::AtLeast),
            Crossing::Below(load) => (load, Bound::Below),
        };
        Capacity::bisected(load, bound)
    }))
}

/// Why capacities are not all found.
#[derive(Debug, thiserror::Error)]
pub enum CapacityError {
    /// A run has no result.
    #[error(transparent)]
    Run(#[from] MatrixError),
    /// One that was found cannot be kept.
    #[error(transparent)]
    Kept(#[from] KeptError),
}

/// Finds the capacity of each policy that was compared, but for those `kept`, and keeps it in `file`. False if interrupted.
///
/// # Errors
/// A run has no result, or one that was found cannot be kept.
pub fn bisect_capacities(
    world: &World,
    matrix: &Matrix,
    comparisons: &mut [Comparison],
    (kept, mut file): (&Kept, Option<&mut RunFile>),
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<bool, CapacityError> {
    let draws = matrix.windows.len() * matrix.seeds.len();
    let runs: usize = most_runs(world, matrix).iter().sum();
    let budget = Budget::new(watch, LOOKS * draws * runs);
    for comparison in comparisons {
        let Some(policy) = matrix.policies.iter().find(|(name, _)| *name == comparison.policy) else { continue };
        let capacity = if let Some((load, bound)) = kept.capacity(&policy.0) {
            Capacity::bisected(load, bound)
        } else {
            let Some(found) = bisect_capacity(world, matrix, policy, &budget, stop)? else { return Ok(false) };
            if let Some(file) = &mut file {
                file.capacity(&policy.0, found.load, found.bound)?;
            }
            found
        };
        let offered_rps = comparison.rate_of_load().map(|rate| rate * capacity.load);
        comparison.capacity = Some(Capacity { offered_rps, ..capacity });
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_where_a_straight_line_crosses() {
        let at = |curve: &[(f64, f64)]| interpolated(curve, 0.9).unwrap();
        let (load, bound) = at(&[(0.5, 1.0), (1.0, 0.95), (2.0, 0.85), (3.0, 0.2)]);
        assert!((load - 1.5).abs() < 1e-12 && bound == Bound::Exact);
        // A dip is not the end: what counts is the highest load.
        let (load, _) = at(&[(1.0, 0.95), (2.0, 0.85), (3.0, 0.9), (4.0, 0.8)]);
        assert_eq!(load, 3.0);
        assert_eq!(at(&[(1.0, 0.95), (2.0, 0.91)]), (2.0, Bound::AtLeast));
        assert_eq!(at(&[(1.0, 0.89), (2.0, 0.5)]), (1.0, Bound::Below));
        assert_eq!(interpolated(&[], 0.9), None);
    }
}
