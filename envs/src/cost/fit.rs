//! From timings of a device to its [`Hardware`].
//!
//! Once it is known on which side of each `max` a point lies, the price of a step (head of `roofline.rs`) is linear in
//! what is sought: the heights of the curve's knots and five constants of attention. So the fit is least squares, with
//! coefficients that are not negative, repeated until sides and weights settle. Residuals are relative, since a
//! decode of 4 ms matters as much as a prompt of 400 ms, and weighted by Huber, so that a disturbed measurement is one
//! point lost and not a curve bent. The curve's heights are sums of its rises: it cannot fall.
//!
//! Nothing of a held-out point is read before the constants stand.

use serde::{Deserialize, Serialize};

use super::errors::{Errors, Kind, KindErrors, Miss};
use super::kernels::between;
use super::least_squares::{forgiving, nearest_to_one};
use super::points::Brief;
use super::profile::DeviceTimings;
use super::{
    CostModel, Deployment, DeviceAbout, Hardware, Kernels, Measured, Overlap, OverlapPoint, Point, Role, StepLoad,
    TransferPoint,
};

/// Rounds of least squares.
const ROUNDS: usize = 40;
/// A knot is left out where the line between its neighbours is this near.
const STRAIGHT: f64 = 0.005;
/// A step within this of the floor of launches says nothing about its kernels.
const NEAR_FLOOR: f64 = 1.05;
/// Fewest points of each kind that must be there.
const LEAST: usize = 4;
/// Most points.
const MOST: usize = 100_000;
/// Longest time of a point, seconds, and most tokens of a step or before it.
const LONGEST: f64 = 1e4;
const MOST_TOKENS: u32 = 1 << 24;

/// A device's constants, and how well they predict what was held out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fitted {
    /// The deployment's hardware with measured kernels, host link and efficiencies. The host's overheads are the
    /// deployment's: nothing that is timed has them.
    pub hardware: Hardware,
    /// The device that was timed.
    pub about: DeviceAbout,
    /// Model and accelerator: `llama-3-8b@h200`.
    pub env: String,
    /// Points the constants were found from.
    pub points_fitted: usize,
    /// Errors on all points held out.
    pub held_out: Errors,
    /// The same by kind.
    pub by_kind: Vec<KindErrors>,
}

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Several devices at once.
    #[error("{0} devices; one is timed, and its profile serves any number")]
    Devices(u32),
    /// Too few points of a kind.
    #[error("{found} points of {what}, and at least {least} are needed")]
    TooFew {
        /// Of which.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there must be.
        least: usize,
    },
    /// Too many points.
    #[error("{0} points; at most {MOST} are taken")]
    TooMany(usize),
    /// A time that cannot be one.
    #[error("{what} took {seconds} s: expected more than 0 and at most {LONGEST}")]
    Time {
        /// Of what.
        what: String,
        /// The time.
        seconds: f64,
    },
    /// A step or a copy of nothing, or of too much.
    #[error("{0}: a point needs 1 to {MOST_TOKENS} tokens, or blocks")]
    Load(String),
}

/// Fits the hardware of `deployment`, one device, to what was measured on it.
///
/// # Errors
/// Several devices, a point that cannot be one, or too few points: four steps of decodes and four of chunks to be
/// fitted, two copies if there are any, and one point held out.
pub fn fit(measured: &Measured, deployment: &Deployment) -> Result<Fitted, FitError> {
    check(measured, deployment)?;
    let steps: Vec<&Point> = measured.steps.iter().filter(|point| point.role == Role::Fit).collect();
    let copies: Vec<&TransferPoint> = measured.transfers.iter().filter(|point| point.role == Role::Fit).collect();
    let overlaps: Vec<&OverlapPoint> = measured.overlaps.iter().filter(|point| point.role == Role::Fit).collect();
    let hardware = fit_points(&steps, &copies, &overlaps, measured, deployment)?;
    let fitted = Deployment { hardware, ..deployment.clone() };
    let misses = misses(measured, &CostModel::new(&fitted, measured.block_size));
    let held_out = Errors::of(&misses).ok_or(FitError::TooFew { what: "any kind held out", found: 0, least: 1 })?;
    let mut kinds: Vec<Kind> = steps.iter().map(|point| Kind::of(&point.shape)).collect();
    kinds.extend(copies.iter().map(|point| Kind::from(point.direction)));
    kinds.extend(overlaps.iter().map(|_| Kind::Overlap));
    Ok(Fitted {
        about: measured.about.clone(),
        env: deployment.name(),
        points_fitted: kinds.len(),
        by_kind: KindErrors::split(&kinds, &misses),
        held_out,
        hardware: fitted.hardware,
    })
}

impl Fitted {
    /// What a profile says of its origin; `date` is the day of the measurement.
    pub fn provenance(&self, date: &str) -> DeviceTimings {
        DeviceTimings {
            device: self.about.name.clone(),
            driver: self.about.driver.clone(),
            date: date.to_owned(),
            commit: self.about.commit.clone(),
            env: self.env.clone(),
            points_fitted: self.points_fitted as u64,
            points_held_out: self.held_out.count as u64,
            median_error: self.held_out.median,
            p95_error: self.held_out.p95,
        }
    }
}

fn check(measured: &Measured, deployment: &Deployment) -> Result<(), FitError> {
    if deployment.devices != 1 {
        return Err(FitError::Devices(deployment.devices));
    }
    let count = measured.steps.len() + measured.transfers.len() + measured.overlaps.len();
    if count > MOST {
        return Err(FitError::TooMany(count));
    }
    let time = |what: &dyn Fn() -> String, seconds: f64| {
        let is_time = seconds > 0.0 && seconds <= LONGEST;
        if is_time { Ok(()) } else { Err(FitError::Time { what: what(), seconds }) }
    };
    let shape = |shape: &super::StepShape| {
        let decodes = shape.decodes.iter().map(|context| (*context, 1));
        let sequences = decodes.chain(shape.chunks.iter().map(|chunk| (chunk.context, chunk.tokens)));
        let tokens: u64 = sequences.clone().map(|(_, tokens)| u64::from(tokens)).sum();
        let is_load = sequences.clone().all(|(context, tokens)| tokens > 0 && context < MOST_TOKENS)
            && (1..=u64::from(MOST_TOKENS)).contains(&tokens);
        if is_load { Ok(()) } else { Err(FitError::Load(Brief(shape).to_string())) }
    };
    time(&|| "launching a step".to_owned(), measured.launch.seconds)?;
    for point in &measured.steps {
        shape(&point.shape)?;
        time(&|| Brief(&point.shape).to_string(), point.timing.seconds)?;
    }
    for point in &measured.transfers {
        if point.blocks == 0 {
            return Err(FitError::Load(copies(point.blocks)));
        }
        time(&|| copies(point.blocks), point.timing.seconds)?;
    }
    for point in &measured.overlaps {
        shape(&point.shape)?;
        let overlap = point.overlap;
        for seconds in [overlap.compute_s, overlap.transfer_s, overlap.together_s] {
            time(&|| during(point), seconds)?;
        }
    }
    Ok(())
}

fn copies(blocks: u32) -> String {
    format!("{blocks} blocks")
}

fn during(point: &OverlapPoint) -> String {
    format!("{} blocks during {}", point.blocks, Brief(&point.shape))
}

/// Predictions of all that was held out.
fn misses(measured: &Measured, cost: &CostModel) -> Vec<Miss> {
    let is_held_out = |role: Role| role == Role::HeldOut;
    let steps = measured.steps.iter().filter(|point| is_held_out(point.role)).map(|point| Miss {
        kind: Kind::of(&point.shape),
        what: Brief(&point.shape).to_string(),
        measured_s: point.timing.seconds,
        predicted_s: cost.device_seconds(&point.shape.load()),
    });
    let transfers = measured.transfers.iter().filter(|point| is_held_out(point.role)).map(|point| Miss {
        kind: point.direction.into(),
        what: copies(point.blocks),
        measured_s: point.timing.seconds,
        predicted_s: cost.device_seconds(&StepLoad {
            decodes: 0,
            decode_context: 0,
            chunks: std::iter::empty(),
            blocks: point.blocks as usize,
        }),
    });
    let overlaps = measured.overlaps.iter().filter(|point| is_held_out(point.role)).map(|point| Miss {
        kind: Kind::Overlap,
        what: during(point),
        measured_s: point.overlap.together_s,
        predicted_s: cost.device_seconds(&StepLoad { blocks: point.blocks as usize, ..point.shape.load() }),
    });
    steps.chain(transfers).chain(overlaps).collect()
}

fn fit_points(
    steps: &[&Point],
    copies: &[&TransferPoint],
    overlaps: &[&OverlapPoint],
    measured: &Measured,
    deployment: &Deployment,
) -> Result<Hardware, FitError> {
    let count = |is: fn(&Point) -> bool| steps.iter().filter(|point| is(point)).count();
    let decodes = count(|point| point.shape.chunks.is_empty());
    let chunks = count(|point| point.shape.decodes.is_empty());
    for (what, found) in [("decodes to fit", decodes), ("chunks to fit", chunks)] {
        if found < LEAST {
            return Err(FitError::TooFew { what, found, least: LEAST });
        }
    }
    let constants = fit_steps(steps, measured.launch.seconds, deployment)?;
    let mut hardware = deployment.hardware.clone();
    let kernels = constants.kernels(measured.launch.seconds, swap_overlap(overlaps), deployment);
    // Whoever takes the kernels out of the profile finds the roofline nearest to them.
    let last = kernels.tokens.len() - 1;
    let flops = 2.0 * f64::from(kernels.tokens[last]) / (kernels.ps_per_weight[last] * 1e-12);
    let bandwidth = deployment.model.weight_bytes / (kernels.ps_per_weight[0] * 1e-12);
    hardware.compute_efficiency = (flops / hardware.peak_flops).clamp(0.01, 1.5);
    hardware.bandwidth_efficiency = (bandwidth / hardware.peak_bandwidth).clamp(0.01, 1.5);
    hardware.kernels = Some(kernels);
    fit_copies(copies, measured.block_size, deployment, &mut hardware)?;
    Ok(hardware)
}

/// The share of the shorter of two things by which both at once are shorter than one after the other, where it leaves the
/// least relative squares of the time both take.
fn swap_overlap(points: &[&OverlapPoint]) -> f64 {
    let sums = points.iter().map(|point| {
        let Overlap { compute_s, transfer_s, together_s } = point.overlap;
        let shorter = compute_s.min(transfer_s) / together_s;
        let saved = (compute_s + transfer_s) / together_s - 1.0;
        (saved * shorter, shorter * shorter)
    });
    let (saved, shorter) = sums.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    if shorter > 0.0 { (saved / shorter).clamp(0.0, 1.0) } else { 0.0 }
}

/// A fixed time, and a time by the block.
fn fit_copies(
    points: &[&TransferPoint],
    block_size: u32,
    deployment: &Deployment,
    hardware: &mut Hardware,
) -> Result<(), FitError> {
    if points.is_empty() {
        return Ok(());
    }
    if points.len() < 2 {
        return Err(FitError::TooFew { what: "copies to fit", found: points.len(), least: 2 });
    }
    let row = |point: &&TransferPoint| vec![1.0 / point.timing.seconds, f64::from(point.blocks) / point.timing.seconds];
    let rows: Vec<Vec<f64>> = points.iter().map(row).collect();
    let mut weights = vec![1.0; rows.len()];
    let mut constants = Vec::new();
    for _ in 0..ROUNDS {
        constants = nearest_to_one(&rows, &weights);
        weights = forgiving(&residuals(&rows, &constants));
    }
    let block_bytes = deployment.model.kv_bytes_per_token() * f64::from(block_size);
    hardware.swap_overhead = constants[0].clamp(0.0, 10.0);
    hardware.pcie_bandwidth = (block_bytes / constants[1].max(1e-30)).clamp(1e6, 1e16);
    Ok(())
}

fn residuals(rows: &[Vec<f64>], constants: &[f64]) -> Vec<f64> {
    rows.iter().map(|row| dot(row, constants) - 1.0).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}

/// Constants after the rises of the curve, in the order of a row. Seconds per unit.
const CONTEXT_TOKEN: usize = 0;
const SEQUENCE: usize = 1;
const PAIR: usize = 2;
const FIXED: usize = 3;
const CONSTANTS: usize = 4;
/// Tiles of a chunk's attention that are tried.
const TILES: [u32; 6] = [1, 16, 32, 64, 128, 256];

/// What steps cost: seconds a weight takes at each knot, and the constants.
struct Constants {
    knots: Vec<u32>,
    weight: Vec<f64>,
    rest: [f64; CONSTANTS],
    chunk_tile: u32,
}

impl Constants {
    fn kernels(&self, launch: f64, swap_overlap: f64, deployment: &Deployment) -> Kernels {
        let Deployment { model, hardware, .. } = deployment;
        let layers = f64::from(model.num_layers);
        let share = |per_unit: f64, peak: f64, least: f64| (per_unit / peak).clamp(least, 1.5);
        let chunk_compute =
            share(model.attention_flops_per_pair(), hardware.peak_flops * self.rest[PAIR].max(1e-300), 0.001);
        let decode_bandwidth =
            share(model.kv_bytes_per_token(), hardware.peak_bandwidth * self.rest[CONTEXT_TOKEN].max(1e-300), 0.01);
        Kernels {
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

/// Fits on every size that was timed, leaves out the knots that lie on a straight line, and fits again.
fn fit_steps(points: &[&Point], launch: f64, deployment: &Deployment) -> Result<Constants, FitError> {
    let tells = |point: &&&Point| point.timing.seconds > NEAR_FLOOR * launch && Kind::of(&point.shape) != Kind::Mixed;
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
    let steps = Steps { points, launch, deployment };
    let of_tile = |tile: u32| {
        let all = steps.solve(&sizes, tile).0;
        steps.solve(&telling_knots(&sizes, &all.weight), tile)
    };
    // Of equal tiles the smallest.
    let best = TILES.into_iter().map(of_tile).min_by(|a, b| a.1.total_cmp(&b.1));
    Ok(best.expect("tiles are tried").0)
}

/// What is fitted to, the same in every round.
struct Steps<'a> {
    points: &'a [&'a Point],
    launch: f64,
    deployment: &'a Deployment,
}

impl Steps<'_> {
    /// The constants with these knots and this tile, and the mean relative error that is left.
    fn solve(&self, knots: &[u32], chunk_tile: u32) -> (Constants, f64) {
        let mut known: Option<Constants> = None;
        let mut weights = vec![1.0; self.points.len()];
        let mut before = vec![0.0; self.points.len()];
        for _ in 0..ROUNDS {
            let row = |point: &&Point| row(point, knots, chunk_tile, known.as_ref(), self.deployment);
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
            known = Some(Constants {
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
            |(point, share): (&&Point, &f64)| if self.is_floor(point, *share) { 0.0 } else { (share - 1.0).abs() };
        let error = self.points.iter().zip(&before).map(off).sum::<f64>() / self.points.len() as f64;
        (known.expect("there are rounds"), error)
    }

    /// Whether all that `point` says is that its kernels take no longer than launching them, and they do not where they
    /// are predicted to take `share` of the time measured.
    fn is_floor(&self, point: &Point, share: f64) -> bool {
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
fn row(point: &Point, knots: &[u32], tile: u32, known: Option<&Constants>, deployment: &Deployment) -> Vec<f64> {
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
        let is_reading =
            |known: &Constants| chunk.end() * known.rest[CONTEXT_TOKEN] > chunk.tiled_pairs(tile) * known.rest[PAIR];
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
        if off > STRAIGHT && kept.len() <= Kernels::max_knots() {
            break;
        }
        kept.remove(straightest);
    }
    kept.into_iter().map(|index| sizes[index]).collect()
}
