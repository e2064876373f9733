//! What is found out about a device.

use std::sync::Arc;

use kvtide_envs::calibrate::{
    DeviceAbout, Direction, MeasurementPlan, Overlap, StepShape, TimedDevice, Timing, fit, measure,
};
use kvtide_envs::cost::{Chunk, CostModel};
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind};
use kvtide_envs::env::NodeConfig;
use kvtide_envs::memory::KvShape;
use kvtide_envs::sched::Slo;
use kvtide_runtime::Host;

use super::decoder::{deployment, model};
use super::emulated_or_skip;
use crate::backend::Device;
use crate::backend::speed::{self, Sizes};
use crate::{check_kernels, devices, lend, lend_drawn, timer};
use crate::{check_schedules, compare, traffic};

#[test]
fn every_kernel_passes_its_checks_through_the_driver() {
    let _emulated = emulated_or_skip!();
    assert_eq!(devices(), 1);
    let mut checks = Vec::new();
    check_kernels(0, 0..2, &mut |check| checks.push(check.clone())).unwrap();
    assert!(checks.len() >= kvtide_kernels::ALL.len());
    let failed: Vec<_> = checks.iter().filter(|check| check.failure.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let _emulated = emulated_or_skip!();
    let deployment: Deployment = "llama-3-8b@h200".parse().unwrap();
    let engine = deployment.engine(kvtide_envs::deploy::EngineKind::V1);
    let error = crate::open(3, &deployment, &engine).unwrap_err().to_string();
    assert!(error.starts_with("no CUDA device 3: "), "{error}");
}

#[test]
fn random_schedules_leave_the_same_blocks_on_the_device() {
    let _emulated = emulated_or_skip!();
    let mut drawn = |shape: KvShape, engine: &EngineConfig| lend_drawn(0, shape, engine);
    let report = check_schedules(0..25, &mut drawn, &mut || {}).unwrap();
    assert_eq!((report.schedules, report.compared), (25, 25));
    assert!(report.swapped >= 15 && report.round_trips_checked > 200, "{report:?}");
}

/// An engine for the tiny model that has something to time.
fn engine() -> EngineConfig {
    EngineConfig {
        engine: EngineKind::V1,
        num_gpu_blocks: 320,
        num_cpu_blocks: 128,
        max_num_seqs: 32,
        max_num_batched_tokens: 128,
        max_model_len: 1024,
        enable_chunked_prefill: true,
        async_scheduling: true,
        ..EngineConfig::default()
    }
}

#[test]
fn what_is_timed_is_what_the_device_takes() {
    let _emulated = emulated_or_skip!();
    let mut timer = timer(0, &deployment(), &engine(), "abc").unwrap();
    let about = timer.about();
    assert_eq!(
        (about.name.as_str(), about.driver.as_str(), about.commit.as_str()),
        ("kvtide emulated device", "CUDA 13.0", "abc")
    );
    // The emulated clock: 2 us a copy and 25 GB/s, one copy of a small block being a launch of 3 us.
    let block = KvShape::of(&model(64), 16).unwrap().block_bytes() as f64;
    for direction in [Direction::In, Direction::Out] {
        let seconds = timer.transfer(direction, 64, 2).unwrap().seconds;
        assert!((3e-6..64.0 * (2e-6 + block / 25e9) + 1e-4).contains(&seconds), "{direction}: {seconds}");
    }
    let decode = |contexts: &[u32]| StepShape { decodes: contexts.to_vec(), chunks: Vec::new() };
    let one = timer.step(&decode(&[100]), 2).unwrap();
    let many = timer.step(&decode(&[100; 16]), 2).unwrap();
    assert!(one.seconds > 0.0 && one.repeats == 2 && many.seconds > one.seconds, "{one:?} {many:?}");
    let chunk = StepShape { decodes: vec![30, 200], chunks: vec![Chunk { context: 40, tokens: 60 }] };
    assert!(timer.step(&chunk, 1).unwrap().seconds > many.seconds * 0.5);
    let overlap = timer.overlap(&chunk, 32, 1).unwrap();
    // Both at once take at least as long as the longer, and less than one after the other.
    assert!(overlap.together_s >= 0.99 * overlap.compute_s.max(overlap.transfer_s), "{overlap:?}");
    assert!(overlap.together_s < overlap.compute_s + overlap.transfer_s, "{overlap:?}");
    assert!(timer.launch(1).unwrap().seconds > 0.0);
    let error = timer.step(&decode(&[20_000]), 1).unwrap_err();
    assert_eq!(error, "the step needs more than the pool's 320 blocks");
}

/// The emulated device, on which a kernel that does nothing takes as long as one that does: its launches as if they took
/// no time, so that not every step of a tiny model is lost in them.
struct QuickLaunches(Box<dyn TimedDevice>);

impl TimedDevice for QuickLaunches {
    fn about(&self) -> DeviceAbout {
        self.0.about()
    }

    fn step(&mut self, shape: &StepShape, repeats: u32) -> Result<Timing, String> {
        self.0.step(shape, repeats)
    }

    fn transfer(&mut self, direction: Direction, blocks: u32, repeats: u32) -> Result<Timing, String> {
        self.0.transfer(direction, blocks, repeats)
    }

    fn overlap(&mut self, shape: &StepShape, blocks: u32, repeats: u32) -> Result<Overlap, String> {
        self.0.overlap(shape, blocks, repeats)
    }

    fn launch(&mut self, repeats: u32) -> Result<Timing, String> {
        let timing = self.0.launch(repeats)?;
        Ok(Timing { seconds: timing.seconds * 1e-3, ..timing })
    }
}

#[test]
fn a_profile_fitted_to_the_device_foretells_it() {
    let _emulated = emulated_or_skip!();
    let deployment = deployment();
    let engine = engine();
    let mut timer = QuickLaunches(timer(0, &deployment, &engine, "abc").unwrap());
    let mut last = (0, 0);
    let schedule = MeasurementPlan::new(&engine, 60, 1);
    let measured = measure(&schedule, &mut timer, &mut |done| last = (done, schedule.len())).unwrap();
    let fitted = fit(&measured, &deployment).unwrap();
    assert!(last.0 + 1 >= last.1 && last.1 > 30, "{last:?}");
    assert!(measured.transfers.len() >= 8 && !fitted.by_kind.is_empty());
    // A clock without noise: what is left is what the form of the model cannot say of the emulated device.
    assert!(fitted.held_out.median < 0.06, "{}", kvtide_envs::calibrate::render(&fitted));
    drop(timer);

    let fitted = Deployment { hardware: fitted.hardware, ..deployment };
    let cost = CostModel::new(&fitted, 16);
    let config = NodeConfig { cost, engine: engine.clone(), slo: Slo::default(), clients: None, host: Host::KVTIDE };
    let memory = lend(0, &fitted, &engine).unwrap();
    let requests = traffic(&"uniform:rate=4,n=6,in=90,out=12,seed=3".parse().unwrap()).unwrap();
    let comparison = compare("six requests", &config, &requests, &memory).unwrap();
    assert_eq!((comparison.device.completed, comparison.model.completed), (6, 6));
    assert!(comparison.agreement.len() >= 3);
    assert!(comparison.agreement.iter().all(|row| row.error().abs() < 0.1), "{:?}", comparison.agreement);
}

#[test]
fn speeds_are_told_beside_their_ceilings() {
    let _emulated = emulated_or_skip!();
    let device = Arc::new(Device::open(0).unwrap());
    let shape = KvShape { layers: 2, kv_heads: 1, block_size: 16, head_dim: 64 };
    let mut speeds = Vec::new();
    let sizes = Sizes { repeats: 3, swapped: 32, batch: 4, context: 256 };
    speed::speeds(&device, shape, 4, sizes, &mut |speed| speeds.push(speed.clone())).unwrap();
    let ceilings: Vec<&str> =
        speeds.iter().filter(|speed| speed.ceiling.is_none()).map(|speed| speed.name.as_str()).collect();
    assert_eq!(
        ceilings,
        ["device copy, read and write", "one large pinned copy to the host", "one large pinned copy to the device"]
    );
    // Three ways to swap in each direction, of which the one in use has a target; block copy, checksum, attention.
    assert_eq!(speeds.len(), 3 + 6 + 3);
    assert_eq!(speeds.iter().filter(|speed| speed.is_reached().is_some()).count(), 2 + 3);
    assert!(speeds.iter().all(|speed| speed.bytes_per_s.is_finite() && speed.bytes_per_s > 0.0 && speed.repeats == 3));
}
