//! The curve of matrix products and the constants of attention, from timed steps.
//!
//! Once it is known on which side of each `max` a point lies, the price of a step (told in [`cost`](crate::cost)) is linear in
//! what is sought: the heights of the curve's knots and four constants. So the fit is least squares, with
//! coefficients that are not negative, repeated until sides and weights settle. Residuals are relative, since a
//! decode of 4 ms matters as much as a prompt of 400 ms, and weighted by Huber, so that a disturbed measurement is one
//! point lost and not a curve bent. The curve's heights are sums of its rises: it cannot fall.

use super::errors::PointKind;
use super::fit::LEAST;
use super::least_squares::{forgiving, nearest_to_one, residuals};
use super::{FitError, StepPoint};
use crate::deploy::{Deployment, KernelTimes, between};

/// Rounds of least squares.
pub(super) const ROUNDS: usize = 40;
/// A knot is left out where the line between its neighbours is this near.
const STRAIGHT: f64 = 0.005;
/// A step within this of the floor of launches says nothing about its kernels.
const NEAR_FLOOR: f64 = 1.05;
/// Most knots to begin with: what is left of more sizes is spread evenly over them.
const MOST_SIZES: usize = 256;

/// Constants after the rises of the curve, in the order of a row. Seconds per unit.
const CONTEXT_TOKEN: usize = 0;
const SEQUENCE: usize = 1;
const PAIR: usize = 2;
const FIXED: usize = 3;
const CONSTANTS: usize = 4;
/// Tiles of a chunk's attention that are tried.
const TILES: [u32; 8] = [1, 16, 32, 64, 128, 256, 512, 1024];

/// What steps cost: seconds a weight takes at each knot, and the constants.
pub(super) struct StepConstants {
    knots: Vec<u32>,
    weight: Vec<f64>,
    rest: [f64; CONSTANTS],
    chunk_tile: u32,
}

impl StepConstants {
    pub(super) fn kernels(&self, launch: f64, swap_overlap: f64, deployment: &Deployment) -> KernelTimes {
        let Deployment { model, hardware, .. } = deployment;
        let layers = f64::from(model.num_layers);
        let share = |per_unit: f64, peak: f64, least: f64| (per_unit / peak).clamp(least, 1.5);
        let chunk_compute =
            share(model.attention_flops_per_pair(), hardware.peak_flops * self.rest[PAIR].max(1e-300), 0.001);
        let decode_bandwidth =
            share(model.kv_bytes_per_token(), hardware.peak_bandwidth * self.rest[CONTEXT_TOKEN].max(1e-300), 0.01);
        KernelTimes {
            tokens: self.knots.clone(),
            ps_per_weight: self.weight.iter().map(|seconds| (seconds * 1e12).clamp(1e-6, 1e6)).collect(),
            decode_bandwidth,
            decode_sequence: (self.rest[SEQUENCE] / layers).clamp(0.0, 1.0),
            chunk_compute,
            chunk_tile: self.chunk_tile,
            attention_fixed: (self.rest[FIXED] / layers).clamp(0.0, 1.0),
            launch: launch.clamp(0.0, 10.0),
            swap_overlap,
        }
    }
}

/// Fits on every size that was timed, leaves out the knots that lie on a straight line, and fits again. Points are those to
/// be fitted, `launch` is the time of launching a step's kernels in seconds.
///
/// # Errors
/// Too few different sizes.
pub(super) fn fit_steps(
    points: &[&StepPoint],
    launch: f64,
    deployment: &Deployment,
) -> Result<StepConstants, FitError> {
    let tells = |point: &&&StepPoint| {
        point.timing.seconds > NEAR_FLOOR * launch && PointKind::of(&point.shape) != PointKind::Mixed
    };
    let sizes = points.iter().filter(tells).map(|point| point.shape.load().tokens());
    let mut sizes: Vec<u32> = sizes.collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < LEAST {
        return Err(FitError::TooFew {
            what: "different sizes above the launch floor",
            found: sizes.len(),
            least: LEAST,
        });
    }
    let (count, last) = (sizes.len().min(MOST_SIZES), sizes.len() - 1);
    let sizes: Vec<u32> = (0..count).map(|index| sizes[index * last / (count - 1)]).collect();
    let steps = FitData { points, launch, deployment };
    let of_tile = |tile: u32| {
        let all = steps.solve(&sizes, tile).0;
        steps.solve(&telling_knots(&sizes, &all.weight), tile)
    };
    // Of equal tiles the smallest.
    let best = TILES.into_iter().map(of_tile).min_by(|a, b| a.1.total_cmp(&b.1));
    Ok(best.expect("tiles are tried").0)
}

/// What is fitted to, the same in every round.
struct FitData<'a> {
    points: &'a [&'a StepPoint],
    launch: f64,
    deployment: &'a Deployment,
}

impl FitData<'_> {
    /// The constants with these knots and this tile, and the mean relative error that is left.
    fn solve(&self, knots: &[u32], chunk_tile: u32) -> (StepConstants, f64) {
        let mut known: Option<StepConstants> = None;
        let mut weights = vec![1.0; self.points.len()];
        let mut before = vec![0.0; self.points.len()];
        for _ in 0..ROUNDS {
            let row = |point: &&StepPoint| row(point, knots, chunk_tile, known.as_ref(), self.deployment);
            let rows: Vec<Vec<f64>> = self.points.iter().map(row).collect();
            for ((point, weight), before) in self.points.iter().zip(&mut weights).zip(&before) {
                if self.is_floor(point, *before) {
                    *weight = 0.0;
                }
            }
            let solved = nearest_to_one(&rows, &weights);
            let residuals = residuals(&rows, &solved);
            weights = forgiving(&residuals);
            let is_settled =
                residuals.iter().zip(&before).all(|(residual, before)| (residual + 1.0 - before).abs() < 1e-9);
            before = residuals.iter().map(|residual| residual + 1.0).collect();
            let (rises, rest) = solved.split_at(knots.len());
            known = Some(StepConstants {
                knots: knots.to_vec(),
                weight: heights(rises),
                rest: std::array::from_fn(|index| rest[index]),
                chunk_tile,
            });
            if is_settled {
                break;
            }
        }
        let off =
            |(point, share): (&&StepPoint, &f64)| if self.is_floor(point, *share) { 0.0 } else { (share - 1.0).abs() };
        let error = self.points.iter().zip(&before).map(off).sum::<f64>() / self.points.len() as f64;
        (known.expect("there are rounds"), error)
    }

    /// Whether all that `point` says is that its kernels take no longer than launching them, and they do not where they
    /// are predicted to take `share` of the time measured.
    fn is_floor(&self, point: &StepPoint, share: f64) -> bool {
        point.timing.seconds <= NEAR_FLOOR * self.launch && share * point.timing.seconds <= self.launch
    }
}

fn heights(rises: &[f64]) -> Vec<f64> {
    let climb = |height: &mut f64, rise: &f64| {
        *height += rise;
        Some(*height)
    };
    rises.iter().scan(0.0, climb).collect()
}

/// How a point's time depends on what is sought, as shares of the time measured.
fn row(
    point: &StepPoint,
    knots: &[u32],
    tile: u32,
    known: Option<&StepConstants>,
    deployment: &Deployment,
) -> Vec<f64> {
    let model = &deployment.model;
    let load = point.shape.load();
    let positions: Vec<f64> = knots.iter().copied().map(f64::from).collect();
    let mut row = vec![0.0; knots.len() + CONSTANTS];
    for (count, params) in [(load.tokens(), model.layer_params), (load.sequences(), model.head_params)] {
        for (knot, weight) in between(&positions, f64::from(count)) {
            row[..=knot].iter_mut().for_each(|rise| *rise += weight * params);
        }
    }
    let rest = &mut row[knots.len()..];
    rest[CONTEXT_TOKEN] = load.decode_context as f64;
    rest[SEQUENCE] = f64::from(load.decodes);
    rest[FIXED] = f64::from(u8::from(load.decodes > 0) + u8::from(load.chunks.len() > 0));
    for chunk in load.chunks {
        let is_reading = |known: &StepConstants| {
            chunk.end() * known.rest[CONTEXT_TOKEN] > chunk.tiled_pairs(tile) * known.rest[PAIR]
        };
        if known.is_some_and(is_reading) {
            rest[CONTEXT_TOKEN] += chunk.end();
        } else {
            rest[PAIR] += chunk.tiled_pairs(tile);
        }
    }
    row.into_iter().map(|value| value / point.timing.seconds).collect()
}

/// The knots without which the curve would be another: those are left out, the most straight first, that a line between
/// their neighbours comes near to, and as many more as are too many.
fn telling_knots(sizes: &[u32], heights: &[f64]) -> Vec<u32> {
    // By how much the curve without `kept[index]` is off on any size, as a share.
    let bend = |kept: &[usize], index: usize| {
        let (left, right) = (kept[index - 1], kept[index + 1]);
        let line = |size: usize| {
            let share = f64::from(sizes[size] - sizes[left]) / f64::from(sizes[right] - sizes[left]);
            heights[left] + share * (heights[right] - heights[left])
        };
        let off = |size: usize| (line(size) / heights[size].max(1e-300) - 1.0).abs();
        (left + 1..right).map(off).fold(0.0, f64::max)
    };
    let mut kept: Vec<usize> = (0..sizes.len()).collect();
    while kept.len() > 2 {
        let bends = (1..kept.len() - 1).map(|index| (index, bend(&kept, index)));
        let Some((straightest, off)) = bends.min_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        if off > STRAIGHT && kept.len() <= KernelTimes::max_knots() {
            break;
        }
        kept.remove(straightest);
    }
    kept.into_iter().map(|index| sizes[index]).collect()
}
