//! Timing what a schedule says on a device.
//!
//! A device runs the forward pass of a step without a scheduler above it: matrix products of the layers, attention over
//! paged keys and values, and the head for one token of each sequence. What the host does for each step in an engine
//! is not part of it. The order is: a [`MeasurementPlan`] says what, a [`TimedDevice`] how long, and
//! [`fit`](super::fit()) which [`Hardware`](crate::deploy::Hardware) that is.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::points::Brief;
use super::{Direction, MeasurementPlan, Overlap, OverlapPoint, StepPoint, StepShape, Timing, TransferPoint};

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
pub trait TimedDevice {
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
    pub steps: Vec<StepPoint>,
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
    schedule: &MeasurementPlan,
    device: &mut dyn TimedDevice,
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
    pub fn begin(schedule: &MeasurementPlan, device: &mut dyn TimedDevice) -> Result<Measured, MeasureError> {
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
        schedule: &MeasurementPlan,
        device: &mut dyn TimedDevice,
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
            self.steps.push(StepPoint { role: *role, shape: shape.clone(), timing });
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

fn failed(what: String) -> impl FnOnce(String) -> MeasureError {
    move |reason| MeasureError { what, reason }
}
