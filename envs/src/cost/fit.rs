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
    Chunk, CostModel, Deployment, DeviceAbout, Hardware, Kernels, Measured, OverlapPoint, Point, Role, StepLoad,
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
/// Longest time of a point, seconds, and most tokens of a sequence.
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
    #[error("{0}: a point needs sequences with 1 to {MOST_TOKENS} tokens, or blocks")]
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
        let has_tokens = |tokens: u32| (1..=MOST_TOKENS).contains(&tokens);
        let is_load = shape.decodes.iter().all(|context| *context < MOST_TOKENS)
            && shape.chunks.iter().all(|chunk| has_tokens(chunk.tokens) && chunk.context < MOST_TOKENS)
            && shape.load().sequences() > 0;
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
        predicted_s: cost
            .device_seconds(&StepLoad { blocks: point.blocks as usize, ..point.shape.load() }),
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
    let (constants, knots) = fit_steps(steps, measured.launch.seconds, deployment)?;
    let mut hardware = deployment.hardware.clone();
    let kernels = constants.kernels(&knots, measured.launch.seconds, swap_overlap(overlaps), deployment);
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

/// The median share of the shorter of two things that both at once were shorter than one after the other.
fn swap_overlap(points: &[&OverlapPoint]) -> f64 {
    let hidden = |point: &&OverlapPoint| {
        let overlap = point.overlap;
        let saved = overlap.compute_s + overlap.transfer_s - overlap.together_s;
        (saved / overlap.compute_s.min(overlap.transfer_s)).clamp(0.0, 1.0)
    };
    let mut shares: Vec<f64> = points.iter().map(hidden).collect();
    shares.sort_by(f64::total_cmp);
    if shares.is_empty() { 0.0 } else { crate::percentile::percentile(&shares, 50.0) }
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
    let row = |point: &&TransferPoint| {
        vec![1.0 / point.timing.seconds, f64::from(point.blocks) / point.timing.seconds]
    };
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
const PAIR_HALF: usize = 3;
const FIXED: usize = 4;
const CONSTANTS: usize = 5;

/// What steps cost: seconds a weight takes at each knot, and the constants.
struct Constants {
    weight: Vec<f64>,
    rest: [f64; CONSTANTS],
}

impl Constants {
    fn of(solved: &[f64]) -> Constants {
        let (rises, rest) = solved.split_at(solved.len() - CONSTANTS);
        let mut height = 0.0;
        let climb = |rise: &f64| {
            height += rise;
            height
        };
        Constants { weight: rises.iter().map(climb).collect(), rest: std::array::from_fn(|index| rest[index]) }
    }

    fn kernels(&self, knots: &[u32], launch: f64, swap_overlap: f64, deployment: &Deployment) -> Kernels {
        let Deployment { model, hardware, .. } = deployment;
        let layers = f64::from(model.num_layers);
        let share = |per_unit: f64, peak: f64, least: f64| (per_unit / peak).clamp(least, 1.5);
        let chunk_compute =
            share(model.attention_flops_per_pair(), hardware.peak_flops * self.rest[PAIR].max(1e-300), 0.001);
        let pair = model.attention_flops_per_pair() / (hardware.peak_flops * chunk_compute);
        let decode_bandwidth =
            share(model.kv_bytes_per_token(), hardware.peak_bandwidth * self.rest[CONTEXT_TOKEN].max(1e-300), 0.01);
        Kernels {
            tokens: knots.to_vec(),
            ps_per_weight: self.weight.iter().map(|seconds| (seconds * 1e12).clamp(1e-6, 1e6)).collect(),
            decode_bandwidth,
            decode_sequence: (self.rest[SEQUENCE] / layers).clamp(0.0, 1.0),
            chunk_compute,
            chunk_half: (self.rest[PAIR_HALF] / pair).clamp(0.0, 65_536.0),
            attention_fixed: (self.rest[FIXED] / layers).clamp(0.0, 1.0),
            launch: launch.clamp(0.0, 10.0),
            swap_overlap,
        }
    }
}

/// Fits on every size that was timed, leaves out the knots that lie on a straight line, and fits again.
fn fit_steps(points: &[&Point], launch: f64, deployment: &Deployment) -> Result<(Constants, Vec<u32>), FitError> {
    let telling: Vec<&Point> =
        points.iter().copied().filter(|point| point.timing.seconds > NEAR_FLOOR * launch).collect();
    let is_pure = |point: &&&Point| Kind::of(&point.shape) != Kind::Mixed;
    let mut sizes: Vec<u32> =
        telling.iter().filter(is_pure).map(|point| point.shape.load().tokens() as u32).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() < LEAST {
        return Err(FitError::TooFew { what: "different sizes above the launch floor", found: sizes.len(), least: LEAST });
    }
    let all = solve(points, &sizes, launch, deployment);
    let knots = telling_knots(&sizes, &all.weight);
    let constants = solve(points, &knots, launch, deployment);
    Ok((constants, knots))
}

fn solve(points: &[&Point], knots: &[u32], launch: f64, deployment: &Deployment) -> Constants {
    let knots: Vec<f64> = knots.iter().copied().map(f64::from).collect();
    let mut solved: Option<Vec<f64>> = None;
    let mut weights = vec![1.0; points.len()];
    for _ in 0..ROUNDS {
        let known = solved.as_deref().map(Constants::of);
        let row = |point: &&Point| row(point, &knots, known.as_ref(), deployment);
        let rows: Vec<Vec<f64>> = points.iter().map(row).collect();
        // A step at the floor of launches says only that its kernels are not above it.
        for ((row, point), weight) in rows.iter().zip(points).zip(&mut weights) {
            let is_near = point.timing.seconds <= NEAR_FLOOR * launch;
            let is_above = solved.as_ref().is_some_and(|solved| dot(row, solved) * point.timing.seconds > launch);
            if is_near && !is_above {
                *weight = 0.0;
            }
        }
        let next = nearest_to_one(&rows, &weights);
        weights = forgiving(&residuals(&rows, &next));
        let is_settled = solved.as_ref().is_some_and(|old| {
            rows.iter().all(|row| (dot(row, old) - dot(row, &next)).abs() < 1e-9)
        });
        solved = Some(next);
        if is_settled {
            break;
        }
    }
    Constants::of(&solved.expect("there are rounds"))
}

/// How a point's time depends on what is sought, as shares of the time measured.
fn row(point: &Point, knots: &[f64], known: Option<&Constants>, deployment: &Deployment) -> Vec<f64> {
    let model = &deployment.model;
    let load = point.shape.load();
    let mut row = vec![0.0; knots.len() + CONSTANTS];
    for (count, params) in [(load.tokens(), model.layer_params), (load.sequences(), model.head_params)] {
        for (knot, weight) in between(knots, count as f64) {
            row[..=knot].iter_mut().for_each(|rise| *rise += weight * params);
        }
    }
    let rest = &mut row[knots.len()..];
    rest[CONTEXT_TOKEN] = load.decode_context as f64;
    rest[SEQUENCE] = f64::from(load.decodes);
    rest[FIXED] = f64::from(u8::from(load.decodes > 0) + u8::from(load.chunks.len() > 0));
    for chunk in load.chunks {
        if known.is_some_and(|known| is_reading(chunk, known)) {
            rest[CONTEXT_TOKEN] += chunk.end();
        } else {
            rest[PAIR] += chunk.pairs();
            rest[PAIR_HALF] += chunk.mean_context();
        }
    }
    row.iter_mut().for_each(|value| *value /= point.timing.seconds);
    row
}

/// Whether reading keys and values takes longer than the arithmetic of a chunk's attention.
fn is_reading(chunk: Chunk, known: &Constants) -> bool {
    let arithmetic = chunk.pairs() * known.rest[PAIR] + chunk.mean_context() * known.rest[PAIR_HALF];
    chunk.end() * known.rest[CONTEXT_TOKEN] > arithmetic
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
