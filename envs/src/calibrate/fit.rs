//! From timings of a device to its [`Hardware`].
//!
//! Nothing of a held-out point is read before the constants stand.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::errors::{KindErrors, Miss, PointKind, RelativeErrors};
use super::fit_steps::{ROUNDS, fit_steps};
use super::least_squares::{forgiving, nearest_to_one, residuals};
use super::points::Brief;
use super::{DeviceAbout, Measured, Overlap, OverlapPoint, Role, StepPoint, TransferPoint};
use crate::cost::{CostModel, StepLoad};
use crate::deploy::{Deployment, DeviceTimings, FittedTo, Hardware, HardwareProfile};
use crate::tier::{Link, Links};

/// Fewest points of each kind that must be there.
pub(super) const LEAST: usize = 4;
/// Most points.
const MOST: usize = 100_000;
/// Longest time of a point, seconds, and most tokens of a step or before it.
const LONGEST: f64 = 1e4;
const MOST_TOKENS: u32 = 1 << 20;
/// Most tokens of a block.
const MOST_BLOCK_TOKENS: u32 = 4096;

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
    pub held_out: RelativeErrors,
    /// The same by kind.
    pub by_kind: Vec<KindErrors>,
}

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Several devices at once.
    #[error("{0} devices; one is timed, and its profile serves any number")]
    Devices(u32),
    /// Timings of another model.
    #[error("the timings are of {timed}, not of {asked}: the profile fitted to them serves any model")]
    Model {
        /// Which model was timed.
        timed: String,
        /// Which one is asked for.
        asked: String,
    },
    /// A block size no engine has.
    #[error("block_size is {0}; it must be from 1 to {MOST_BLOCK_TOKENS}")]
    BlockSize(u32),
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
    /// A model whose steps are made of other kernels.
    #[error("{0}: kernels are fitted to dense models with grouped-query attention in 16 bits")]
    Structure(String),
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
    let steps: Vec<&StepPoint> = measured.steps.iter().filter(|point| point.role == Role::Fit).collect();
    let copies: Vec<&TransferPoint> = measured.transfers.iter().filter(|point| point.role == Role::Fit).collect();
    let overlaps: Vec<&OverlapPoint> = measured.overlaps.iter().filter(|point| point.role == Role::Fit).collect();
    let hardware = fit_points(&steps, &copies, &overlaps, measured, deployment)?;
    let fitted = Deployment { hardware, ..deployment.clone() };
    let misses = misses(measured, &CostModel::new(&fitted, measured.block_size));
    let held_out =
        RelativeErrors::of(&misses).ok_or(FitError::TooFew { what: "any kind held out", found: 0, least: 1 })?;
    let mut kinds: Vec<PointKind> = steps.iter().map(|point| PointKind::of(&point.shape)).collect();
    kinds.extend(copies.iter().map(|point| PointKind::from(point.direction)));
    kinds.extend(overlaps.iter().map(|_| PointKind::Overlap));
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
    /// The profile in the file `path`; `date` is the day of the measurement.
    pub fn profile(&self, path: &Path, date: &str) -> HardwareProfile {
        HardwareProfile::fitted(path, self.hardware.clone(), FittedTo::Timings(self.provenance(date)))
    }

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
    if !deployment.model.is_plain() {
        return Err(FitError::Structure(deployment.model.name.clone()));
    }
    let (timed, asked) = (&measured.about.model, &deployment.model.name);
    if timed != asked {
        return Err(FitError::Model { timed: timed.clone(), asked: asked.clone() });
    }
    if !(1..=MOST_BLOCK_TOKENS).contains(&measured.block_size) {
        return Err(FitError::BlockSize(measured.block_size));
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

/// What a timed copy or overlap loads: all timed copies are between a device and its host.
fn over_pcie(blocks: u32) -> Links<usize> {
    Links::from_fn(|link| match link {
        Link::Pcie => blocks as usize,
    })
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
        kind: PointKind::of(&point.shape),
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
            blocks: over_pcie(point.blocks),
        }),
    });
    let overlaps = measured.overlaps.iter().filter(|point| is_held_out(point.role)).map(|point| Miss {
        kind: PointKind::Overlap,
        what: during(point),
        measured_s: point.overlap.together_s,
        predicted_s: cost.device_seconds(&StepLoad { blocks: over_pcie(point.blocks), ..point.shape.load() }),
    });
    steps.chain(transfers).chain(overlaps).collect()
}

fn fit_points(
    steps: &[&StepPoint],
    copies: &[&TransferPoint],
    overlaps: &[&OverlapPoint],
    measured: &Measured,
    deployment: &Deployment,
) -> Result<Hardware, FitError> {
    let count = |is: fn(&StepPoint) -> bool| steps.iter().filter(|point| is(point)).count();
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
    hardware.tables = None;
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
