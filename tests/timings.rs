//! A profile fitted to timings of a device that were kept, from the command line.

use std::fs;

use crate::common::{done, lines, refused};
use kvtide_envs::calibrate::{
    DeviceAbout, Direction, Measured, MeasurementPlan, Overlap, StepShape, TimedDevice, Timing, measure,
};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind};
use kvtide_envs::sched::{BlockCopy, StepPlan};
use kvtide_envs::tier::Route;
use tempfile::tempdir;

/// A device that takes what the data sheet's roofline says.
struct Sheet(CostModel);

impl Sheet {
    fn copies(&self, blocks: u32) -> f64 {
        let copy = BlockCopy { src: kvtide_envs::kv::BlockId(0), dst: kvtide_envs::kv::BlockId(0) };
        let mut plan = StepPlan::default();
        plan.copies[Route::GpuToHost] = vec![copy; blocks as usize];
        self.0.device_seconds(&plan.load())
    }
}

fn timing(seconds: f64, repeats: u32) -> Timing {
    Timing { seconds, spread: [seconds, seconds], repeats }
}

impl TimedDevice for Sheet {
    fn about(&self) -> DeviceAbout {
        DeviceAbout { name: "a data sheet".to_owned(), model: "llama-3-8b".to_owned(), ..DeviceAbout::default() }
    }

    fn step(&mut self, shape: &StepShape, repeats: u32) -> Result<Timing, String> {
        Ok(timing(self.0.device_seconds(&shape.load()), repeats))
    }

    fn transfer(&mut self, _: Direction, blocks: u32, repeats: u32) -> Result<Timing, String> {
        Ok(timing(self.copies(blocks), repeats))
    }

    fn overlap(&mut self, shape: &StepShape, blocks: u32, _: u32) -> Result<Overlap, String> {
        let (compute_s, transfer_s) = (self.0.device_seconds(&shape.load()), self.copies(blocks));
        Ok(Overlap { compute_s, transfer_s, together_s: compute_s.max(transfer_s) })
    }

    fn launch(&mut self, repeats: u32) -> Result<Timing, String> {
        Ok(timing(1e-4, repeats))
    }
}

/// The timings of such a device.
pub fn measured() -> Measured {
    let deployment: Deployment = "llama-3-8b@h100-datasheet".parse().unwrap();
    let engine = EngineConfig { num_cpu_blocks: 1024, ..deployment.engine(EngineKind::V1) };
    let mut sheet = Sheet(CostModel::new(&deployment, engine.block_size));
    measure(&MeasurementPlan::new(&engine, 200, 1), &mut sheet, &mut |_| {}).unwrap()
}

#[test]
fn timings_that_were_kept_give_a_profile_that_is_used() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("timings.json"), serde_json::to_string(&measured()).unwrap()).unwrap();

    // Fitted to a card of other numbers, the timings' own come out.
    let arguments = [
        "calibrate",
        "--timings",
        "timings.json",
        "--env",
        "llama-3-8b@h200-datasheet",
        "--profile",
        "mine.toml",
        "--json",
    ];
    let run = done(folder.path(), &arguments);
    let fitted = lines(&run.stdout, "device_calibration").remove(0);
    assert!(
        fitted["held_out"]["median"].as_f64() < Some(0.01) && fitted["held_out"]["p95"].as_f64() < Some(0.05),
        "{fitted}"
    );
    let bandwidth = fitted["hardware"]["pcie_bandwidth"].as_f64().unwrap();
    let deployment: Deployment = "llama-3-8b@h100-datasheet".parse().unwrap();
    assert!((bandwidth / deployment.hardware.pcie_bandwidth - 1.0).abs() < 0.02, "{bandwidth}");
    assert!(run.stderr.contains("profile written to mine.toml: use it with --env llama-3-8b@mine.toml"));
    let profile = fs::read_to_string(folder.path().join("mine.toml")).unwrap();
    assert!(
        profile.contains("[timings]")
            && profile.contains("device = \"a data sheet\"")
            && profile.contains("date = \"20")
    );
    let simulate = |env: &str| {
        let arguments = [
            "simulate",
            "--workload",
            "chat:rate=8,duration=20",
            "--env",
            env,
            "--set",
            "num_gpu_blocks=9000",
            "--json",
        ];
        lines(&done(folder.path(), &arguments).stdout, "run").remove(0)["e2e_ms"]["p50"].as_f64().unwrap()
    };
    let ratio = simulate("llama-3-8b@mine.toml") / simulate("llama-3-8b@h100-datasheet");
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}");

    // Of another model they are refused.
    let other = ["calibrate", "--timings", "timings.json", "--env", "qwen2.5-7b@h200-datasheet"];
    assert!(refused(folder.path(), &other).contains("the timings are of llama-3-8b, not of qwen2.5-7b"));
}
