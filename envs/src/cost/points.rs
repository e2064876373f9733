//! What is timed on an accelerator, and what came out.
//!
//! A device runs the forward pass of a step without a scheduler above it: matrix products of the layers, attention over
//! paged keys and values, and the head for one token of each sequence. What the host does for each step in an engine
//! is not part of it. The order is: a [`Schedule`] says what, a [`Timed`] device how long, and
//! [`fit`](super::fit()) which [`Hardware`](super::Hardware) that is.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::{Chunk, Schedule, StepLoad};
use crate::percentile::percentile;
use crate::tier::Links;

/// A step to be timed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepShape {
    /// Of each sequence that decodes, the tokens of context before its new one.
    pub decodes: Vec<u32>,
    /// Chunks of prompts.
    pub chunks: Vec<Chunk>,
}

impl StepShape {
    /// What the step has to do.
    pub fn load(&self) -> StepLoad<impl ExactSizeIterator<Item = Chunk> + Clone> {
        StepLoad {
            decodes: self.decodes.len() as u32,
            decode_context: self.decodes.iter().map(|context| u64::from(*context) + 1).sum(),
            chunks: self.chunks.iter().copied(),
            blocks: Links::default(),
        }
    }
}

/// Whether a point is there to be fitted or to judge the fit by. None is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The constants are found from it.
    Fit,
    /// The error is told from it.
    HeldOut,
}

/// Which way blocks are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the host to the accelerator.
    In,
    /// From the accelerator to the host.
    Out,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::In => "in",
            Direction::Out => "out",
        })
    }
}

/// How long something took, over its repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The median, seconds.
    pub seconds: f64,
    /// The 10th and the 90th percentile, seconds.
    pub spread: [f64; 2],
    /// How often it was repeated.
    pub repeats: u32,
}

impl Timing {
    /// Of the seconds each repeat took; `None` for no repeats.
    pub fn of(seconds: &[f64]) -> Option<Timing> {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let repeats = u32::try_from(sorted.len()).ok()?;
        (repeats > 0).then(|| {
            let [low, median, high] = [10.0, 50.0, 90.0].map(|p| percentile(&sorted, p));
            Timing { seconds: median, spread: [low, high], repeats }
        })
    }
}

/// Computing and copying, each alone and both at once. Seconds, medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// The step alone.
    pub compute_s: f64,
    /// The copies alone.
    pub transfer_s: f64,
    /// From the start of both to the end of the later one.
    pub together_s: f64,
}

/// A step that was timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// What it is there for.
    pub role: Role,
    /// What was run.
    pub shape: StepShape,
    /// How long it took.
    #[serde(flatten)]
    pub timing: Timing,
}

/// A copy of blocks that was timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferPoint {
    /// What it is there for.
    pub role: Role,
    /// Which way.
    pub direction: Direction,
    /// How many blocks, at least one.
    pub blocks: u32,
    /// How long it took.
    #[serde(flatten)]
    pub timing: Timing,
}

/// A step that was timed while blocks were copied to the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverlapPoint {
    /// What it is there for.
    pub role: Role,
    /// What was computed.
    pub shape: StepShape,
    /// How many blocks were copied out.
    pub blocks: u32,
    /// How long it took.
    #[serde(flatten)]
    pub overlap: Overlap,
}

/// The device that was timed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceAbout {
    /// Its name, as the driver has it.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// The model that was run on it; empty if none was.
    pub model: String,
    /// The commit of what was run on it.
    pub commit: String,
}

/// A device that can be timed. One implementation measures an accelerator, the others are made up, for tests.
///
/// Every call runs its load a few times unmeasured, then `repeats` times, and says the median. Between repeats nothing is
/// kept in caches that a serving engine would not find there. An error is a sentence.
pub trait Timed {
    /// Which device it is.
    fn about(&self) -> DeviceAbout;

    /// A step, its inputs on the device: from its first kernel's launch to its last one's end.
    fn step(&mut self, shape: &StepShape, repeats: u32) -> Result<Timing, String>;

    /// Copies of `blocks` blocks that do not lie side by side, between pinned memory of the host and the device.
    fn transfer(&mut self, direction: Direction, blocks: u32, repeats: u32) -> Result<Timing, String>;

    /// A step and copies of `blocks` blocks to the host, each alone and both at once.
    fn overlap(&mut self, shape: &StepShape, blocks: u32, repeats: u32) -> Result<Overlap, String>;

    /// The host's time to launch every kernel of a step that hardly computes: no step is shorter than this.
    fn launch(&mut self, repeats: u32) -> Result<Timing, String>;
}

/// All that was measured on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// On which.
    pub about: DeviceAbout,
    /// Tokens of a block.
    pub block_size: u32,
    /// What launching a step's kernels takes.
    pub launch: Timing,
    /// Steps.
    pub steps: Vec<Point>,
    /// Copies.
    pub transfers: Vec<TransferPoint>,
    /// Steps and copies at once.
    pub overlaps: Vec<OverlapPoint>,
}

/// A measurement that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot time {what}: {reason}")]
pub struct MeasureError {
    /// What was to be timed.
    pub what: String,
    /// The device's reason.
    pub reason: String,
}

/// Measures all that `schedule` says on `device`, in its order. `watch` is called before each measurement with the number
/// of those done.
///
/// # Errors
/// The first measurement that fails; those before it are lost. [`Measured::complete`] keeps them.
pub fn measure(
    schedule: &Schedule,
    device: &mut dyn Timed,
    watch: &mut dyn FnMut(usize),
) -> Result<Measured, MeasureError> {
    watch(0);
    let mut measured = Measured::begin(schedule, device)?;
    let mut go_on = |done| {
        watch(done);
        ControlFlow::Continue(())
    };
    // Nobody breaks off.
    let _ = measured.complete(schedule, device, &mut go_on)?;
    Ok(measured)
}

impl Measured {
    /// Nothing yet but launches.
    ///
    /// # Errors
    /// They could not be timed.
    pub fn begin(schedule: &Schedule, device: &mut dyn Timed) -> Result<Measured, MeasureError> {
        let launch = device.launch(schedule.repeats).map_err(failed("launches".to_owned()))?;
        Ok(Measured {
            about: device.about(),
            block_size: schedule.block_size,
            launch,
            steps: Vec::new(),
            transfers: Vec::new(),
            overlaps: Vec::new(),
        })
    }

    /// Measurements so far, that of launches included.
    pub fn len(&self) -> usize {
        1 + self.steps.len() + self.transfers.len() + self.overlaps.len()
    }

    /// Launches are always there.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Measures on `device` what `schedule` says and is not here yet, in its order. `watch` is called before each
    /// measurement with the number of those done, and may break off.
    ///
    /// # Errors
    /// The first measurement that fails; those before it are here.
    pub fn complete(
        &mut self,
        schedule: &Schedule,
        device: &mut dyn Timed,
        watch: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, MeasureError> {
        let repeats = schedule.repeats;
        for (role, shape) in &schedule.steps {
            if self.steps.iter().any(|point| point.role == *role && point.shape == *shape) {
                continue;
            }
            if watch(self.len()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let timing = device.step(shape, repeats).map_err(failed(format!("a step of {}", Brief(shape))))?;
            self.steps.push(Point { role: *role, shape: shape.clone(), timing });
        }
        for &(role, direction, blocks) in &schedule.transfers {
            let is_this =
                |point: &TransferPoint| (point.role, point.direction, point.blocks) == (role, direction, blocks);
            if self.transfers.iter().any(is_this) {
                continue;
            }
            if watch(self.len()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let what = format!("{blocks} blocks copied {direction}");
            let timing = device.transfer(direction, blocks, repeats).map_err(failed(what))?;
            self.transfers.push(TransferPoint { role, direction, blocks, timing });
        }
        for (role, shape, blocks) in &schedule.overlaps {
            let is_this =
                |point: &OverlapPoint| point.role == *role && point.blocks == *blocks && point.shape == *shape;
            if self.overlaps.iter().any(is_this) {
                continue;
            }
            if watch(self.len()).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let what = format!("{blocks} blocks copied out during {}", Brief(shape));
            let overlap = device.overlap(shape, *blocks, repeats).map_err(failed(what))?;
            self.overlaps.push(OverlapPoint { role: *role, shape: shape.clone(), blocks: *blocks, overlap });
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Measured {
    /// Whether these are measurements of what `device` has on it, in blocks of `schedule`'s size, so that they can be
    /// completed there.
    pub fn is_of(&self, device: &dyn Timed, schedule: &Schedule) -> bool {
        let about = device.about();
        (&self.about.name, &self.about.model, self.block_size) == (&about.name, &about.model, schedule.block_size)
    }

    /// As [`complete`](Self::complete), and `keep` is given what is there after every so many measurements and at the end,
    /// whatever that is: what was measured is not lost with the process.
    ///
    /// # Errors
    /// The first measurement that fails, after what is there was kept; or that it could not be kept.
    pub fn complete_keeping<E: From<MeasureError>>(
        &mut self,
        schedule: &Schedule,
        device: &mut dyn Timed,
        every: usize,
        watch: &mut dyn FnMut(usize) -> ControlFlow<()>,
        keep: &mut dyn FnMut(&Measured) -> Result<(), E>,
    ) -> Result<ControlFlow<()>, E> {
        loop {
            let (before, mut is_stopped) = (self.len(), false);
            let mut until = |done: usize| {
                if done >= before + every.max(1) {
                    return ControlFlow::Break(());
                }
                let flow = watch(done);
                is_stopped = flow.is_break();
                flow
            };
            let ended = self.complete(schedule, device, &mut until);
            keep(self)?;
            let ended = ended?;
            if ended.is_continue() || is_stopped {
                return Ok(ended);
            }
        }
    }
}

fn failed(what: String) -> impl FnOnce(String) -> MeasureError {
    move |reason| MeasureError { what, reason }
}

/// A shape in a few words: `32 decodes of 2048, 1 chunk of 512 after 0`.
pub(super) struct Brief<'a>(pub(super) &'a StepShape);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepShape { decodes, chunks } = self.0;
        if let (Some(least), Some(most)) = (decodes.iter().min(), decodes.iter().max()) {
            write!(f, "{} decodes of {least}", decodes.len())?;
            if least != most {
                write!(f, "..{most}")?;
            }
            if !chunks.is_empty() {
                write!(f, ", ")?;
            }
        }
        if let Some(first) = chunks.first() {
            let word = if chunks.len() == 1 { "chunk" } else { "chunks" };
            write!(f, "{} {word} of {} after {}", chunks.len(), first.tokens, first.context)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;
    use crate::sched::{Prefill, RequestId, Source, StepPlan};

    #[test]
    fn a_shape_costs_what_its_plan_costs() {
        let cost = CostModel::new(&"llama-3-8b@a10".parse().unwrap(), 16);
        let chunk = Chunk { context: 300, tokens: 200 };
        let shape = StepShape { decodes: vec![9, 99, 999], chunks: vec![chunk; 2] };
        let prefill =
            |id| Prefill { id: RequestId(id), tokens: 200, context: 300, source: Source::Waiting, samples: true };
        let plan = StepPlan {
            cohort: 3,
            decode_context: 10 + 100 + 1000,
            prefills: vec![prefill(0), prefill(1)],
            ..StepPlan::default()
        };
        assert_eq!(cost.step_seconds(&shape.load()), cost.step_seconds(&plan.load()));
        assert_eq!(Brief(&shape).to_string(), "3 decodes of 9..999, 2 chunks of 200 after 300");
    }

    #[test]
    fn a_timing_is_its_median() {
        let timing = Timing::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((timing.seconds, timing.repeats), (3.0, 5));
        assert!((timing.spread[0] - 1.4).abs() < 1e-12 && (timing.spread[1] - 4.6).abs() < 1e-12);
        assert_eq!(Timing::of(&[]), None);
    }
}
