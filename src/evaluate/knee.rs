//! The load at which a node begins to fail.

use kvtide_envs::env::RunError;
use kvtide_envs::workload::{Window, WorkloadError};

use super::matrix::MatrixError;
use crate::world::{Draw, World};

/// Loads looked at lie within this factor of 1.
const MAX_FACTOR: f64 = 1024.0;
/// Halvings of the bracket, in logarithms: 2 ^ (1 / 2 ^ 6) is 1.1 %.
const HALVINGS: u32 = 6;
/// The seed of the search; results are judged on others.
const SEED: u64 = 0;

/// The load at which the engine's default attains `target` of the requests of `window`, to about 1 %.
///
/// Attainment falls with load but for noise; the search takes the first crossing it finds. If the default attains more
/// at every load that can be drawn, the highest is the answer; if less, the lowest.
///
/// # Errors
/// Nothing can be drawn at load 1, or a faithful engine dies.
pub fn knee(world: &World, window: Option<Window>, target: f64) -> Result<f64, MatrixError> {
    let attains = |load: f64| -> Result<bool, MatrixError> {
        let workload = match world.draw(&Draw { window, load, seed: SEED }) {
            // So little load that nobody comes is always served, and more than can be drawn never.
            Err(WorkloadError::ThinnedToNothing { .. } | WorkloadError::IdleWindow(_)) if load < 1.0 => {
                return Ok(true);
            }
            Err(WorkloadError::TooManyRequests { .. }) if load > 1.0 => return Ok(false),
            drawn => {
                drawn.map_err(|error| MatrixError::Draw { window: "search".to_owned(), load, seed: SEED, error })?
            }
        };
        let mut controls = world.node.engine.engine.default_action().controls();
        let summary = world.serve(&workload, &mut controls).map_err(|error| failed(load, error))?;
        Ok(summary.slo_attainment >= target)
    };
    let up = attains(1.0)?;
    let step = if up { 2.0 } else { 0.5 };
    let (mut from, mut to) = (1.0, step);
    while attains(to)? == up {
        if !(1.0 / MAX_FACTOR..=MAX_FACTOR).contains(&(to * step)) {
            return Ok(to);
        }
        from = to;
        to *= step;
    }
    // `from` is on the side of load 1, `to` beyond the crossing.
    for _ in 0..HALVINGS {
        let middle = f64::sqrt(from * to);
        if attains(middle)? == up { from = middle } else { to = middle }
    }
    Ok(f64::sqrt(from * to))
}

fn failed(load: f64, error: RunError) -> MatrixError {
    MatrixError::Run { policy: "default".to_owned(), window: "search".to_owned(), load, seed: SEED, error }
}
