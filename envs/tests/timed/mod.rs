//! Devices of known truth are timed, fitted and predicted.

mod kept;
mod prices;
mod profile;
mod synthetic;

use std::ops::ControlFlow;

use kvtide_envs::calibrate::{
    DeviceAbout, Direction, FitError, Fitted, MeasureError, Measured, MeasurementPlan, Overlap, Role, StepPoint,
    StepShape, TimedDevice, Timing, fit, measure, render,
};
use kvtide_envs::cost::{Chunk, CostModel};
use kvtide_envs::deploy::{Deployment, EngineKind, KernelTimes};
use synthetic::Synthetic;

fn measured(device: &mut Synthetic, budget: u32) -> Measured {
    let schedule = MeasurementPlan::new(&device.deployment.engine(EngineKind::V1), budget, 20);
    measure(&schedule, device, &mut |_| {}).unwrap()
}

fn fitted(device: &mut Synthetic) -> Fitted {
    let measured = measured(device, 1000);
    fit(&measured, &device.deployment).unwrap()
}

/// The device that leaves the roofline in most ways.
fn tiles(seed: u64) -> Synthetic {
    synthetic::all(seed).into_iter().find(|device| device.name == "tiles").unwrap()
}

fn kernels(measured: &Measured, device: &Synthetic) -> KernelTimes {
    fit(measured, &device.deployment).unwrap().hardware.kernels.unwrap()
}

#[test]
fn what_was_held_out_is_predicted() {
    for seed in 1..=3 {
        for mut device in synthetic::all(seed) {
            let fitted = fitted(&mut device);
            let text = render(&fitted);
            println!("{text}");
            assert_eq!(fitted.hardware.validate(), Ok(()), "{text}");
            let errors = &fitted.held_out;
            assert!(errors.median <= 0.03 && errors.p95 <= 0.08 && errors.max <= 0.12, "{text}");
            for kind in &fitted.by_kind {
                let errors = &kind.held_out;
                assert!(kind.fitted > 0 && errors.median <= 0.03 && errors.p95 <= 0.08, "{text}");
            }
        }
    }
}

#[test]
fn without_noise_a_roofline_is_found_as_it_is() {
    let mut device = Synthetic { noise: 0.0, ..synthetic::all(1).remove(0) };
    let fitted = fitted(&mut device);
    let kernels = fitted.hardware.kernels.as_ref().unwrap();
    let near = |found: f64, truth: f64| (found / truth - 1.0).abs() < 1e-3;
    assert!(near(kernels.decode_bandwidth, 0.86) && near(kernels.chunk_compute, 0.72), "{kernels:?}");
    assert!(near(kernels.ps_per_weight[0], 2e12 / device.bandwidth), "{kernels:?}");
    assert!(near(fitted.hardware.compute_efficiency, 0.72) && near(fitted.hardware.bandwidth_efficiency, 0.86));
    assert!(near(fitted.hardware.pcie_bandwidth, device.link[0]) && near(fitted.hardware.swap_overhead, device.copy_s));
    assert!((kernels.chunk_tile, kernels.swap_overlap) == (1, 0.0) && kernels.attention_fixed < 1e-9, "{kernels:?}");
    // Only where the ridge lies between two knots is a straight line off.
    assert!(fitted.held_out.median < 1e-3 && fitted.held_out.p95 < 0.01, "{}", render(&fitted));
}

#[test]
fn what_a_card_reaches_holds_for_another_model() {
    let fitted = fitted(&mut tiles(1));
    let qwen: Deployment = "qwen2.5-7b@h200-datasheet".parse().unwrap();
    let other = Synthetic { deployment: qwen.clone(), ..tiles(2) };
    let cost = CostModel::new(&Deployment { hardware: fitted.hardware, ..qwen.clone() }, 16);
    let schedule = MeasurementPlan::new(&qwen.engine(EngineKind::V1), 1000, 1);
    let off = |shape: &StepShape| (cost.device_seconds(&shape.load()) / other.truth(shape) - 1.0).abs();
    let mut errors: Vec<f64> = schedule.steps.iter().map(|(_, shape)| off(shape)).collect();
    errors.sort_by(f64::total_cmp);
    let (median, p95) = (errors[errors.len() / 2], errors[errors.len() * 95 / 100]);
    println!("another model: median {median:.4}, p95 {p95:.4}");
    assert!(median < 0.03 && p95 < 0.1, "{median} {p95}");
}

#[test]
fn held_out_points_are_judges_and_nothing_else() {
    let mut device = tiles(1);
    let honest = measured(&mut device, 1000);
    let before = fit(&honest, &device.deployment).unwrap();
    let corrupt = |role: Role| {
        let mut corrupt = honest.clone();
        let steps = corrupt.steps.iter_mut().filter(|point| point.role == role);
        steps.for_each(|point| point.timing.seconds *= 1.5);
        let transfers = corrupt.transfers.iter_mut().filter(|point| point.role == role);
        transfers.for_each(|point| point.timing.seconds *= 1.5);
        let overlaps = corrupt.overlaps.iter_mut().filter(|point| point.role == role);
        overlaps.for_each(|point| point.overlap.together_s *= 1.2);
        fit(&corrupt, &device.deployment).unwrap()
    };
    let judged = corrupt(Role::HeldOut);
    assert_eq!(judged.hardware, before.hardware);
    assert!(judged.held_out.median > 0.3 && before.held_out.median < 0.03);
    let misled = corrupt(Role::Fit);
    let [was, is] = [&before, &misled].map(|fitted| fitted.hardware.kernels.clone().unwrap());
    assert!((is.decode_bandwidth / was.decode_bandwidth * 1.5 - 1.0).abs() < 0.1);
    assert!(is.swap_overlap < was.swap_overlap);
    assert!(misled.hardware.pcie_bandwidth < 0.8 * before.hardware.pcie_bandwidth && misled.held_out.median > 0.3);
    assert_eq!((misled.held_out.count, misled.points_fitted), (before.held_out.count, before.points_fitted));
    // Nor does their being there: without all but one of them the constants are the same.
    let mut alone = honest.clone();
    let mut left = 1;
    alone.steps.retain(|point| point.role == Role::Fit || std::mem::take(&mut left) == 1);
    alone.transfers.retain(|point| point.role == Role::Fit);
    alone.overlaps.retain(|point| point.role == Role::Fit);
    let alone = fit(&alone, &device.deployment).unwrap();
    assert_eq!((alone.hardware, alone.held_out.count), (before.hardware, 1));
}

#[test]
fn the_report_tells_each_kind_and_what_was_missed() {
    let fitted = fitted(&mut tiles(1));
    let text = render(&fitted);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("llama-3-8b@h200-datasheet on tiles: {} points fitted", fitted.points_fitted));
    let heads: Vec<&str> = lines[1..].iter().filter(|line| !line.starts_with(' ')).map(|line| &line[..9]).collect();
    let kinds = ["decode", "prefill", "mixed", "copy in", "copy out", "overlap", "all"];
    assert_eq!(heads, kinds.map(|kind| format!("{kind:<9}")));
    // Three misses under each, the furthest off first.
    assert_eq!(lines.len(), 1 + 4 * kinds.len());
    let worst = &fitted.held_out.worst;
    assert_eq!(worst[0].error().abs(), fitted.held_out.max);
    assert!(worst.is_sorted_by(|a, b| a.error().abs() >= b.error().abs()));
    let count: usize = fitted.by_kind.iter().map(|kind| kind.held_out.count).sum();
    assert_eq!(count, fitted.held_out.count);
}

/// A device that fails at its first copy.
struct Failing(Synthetic);

impl TimedDevice for Failing {
    fn about(&self) -> DeviceAbout {
        self.0.about()
    }

    fn step(&mut self, shape: &StepShape, repeats: u32) -> Result<Timing, String> {
        self.0.step(shape, repeats)
    }

    fn transfer(&mut self, _: Direction, _: u32, _: u32) -> Result<Timing, String> {
        Err("out of pinned memory".to_owned())
    }

    fn overlap(&mut self, shape: &StepShape, blocks: u32, repeats: u32) -> Result<Overlap, String> {
        self.0.overlap(shape, blocks, repeats)
    }

    fn launch(&mut self, repeats: u32) -> Result<Timing, String> {
        self.0.launch(repeats)
    }
}

#[test]
fn a_device_that_fails_is_told_with_what_was_asked_of_it() {
    let device = tiles(1);
    let schedule = MeasurementPlan::new(&device.deployment.engine(EngineKind::V1), 1000, 20);
    let mut watched = Vec::new();
    let error = measure(&schedule, &mut Failing(device), &mut |done| watched.push(done)).unwrap_err();
    assert_eq!(error.to_string(), "cannot time 1 blocks copied in: out of pinned memory");
    // Launches, every step, and the copy that failed.
    assert_eq!(watched, (0..schedule.steps.len() + 2).collect::<Vec<usize>>());
}

#[test]
fn the_same_points_give_the_same_fit() {
    let device = tiles(1);
    let [one, two] = [1, 1].map(|seed| fitted(&mut tiles(seed)));
    assert_eq!(one, two);
    let json = serde_json::to_string(&one).unwrap();
    assert_eq!(serde_json::from_str::<Fitted>(&json).unwrap(), one);
    let measured = measured(&mut device.clone(), 1000);
    let json = serde_json::to_string(&measured).unwrap();
    assert_eq!(serde_json::from_str::<Measured>(&json).unwrap(), measured);
}

#[test]
fn a_few_disturbed_points_do_not_bend_the_curve() {
    let mut device = tiles(1);
    let mut measured = measured(&mut device, 1000);
    for point in measured.steps.iter_mut().filter(|point| point.role == Role::Fit).step_by(20) {
        point.timing.seconds *= 1.4;
    }
    let fitted = fit(&measured, &device.deployment).unwrap();
    assert!(fitted.held_out.median <= 0.03 && fitted.held_out.p95 <= 0.08, "{}", render(&fitted));
}

#[test]
fn a_small_budget_is_still_enough() {
    for mut device in synthetic::all(1) {
        let measured = measured(&mut device, 120);
        let fitted = fit(&measured, &device.deployment).unwrap();
        println!("{}", render(&fitted));
        assert!(fitted.held_out.median <= 0.04, "{}", render(&fitted));
    }
}

#[test]
fn however_many_sizes_are_timed_the_curve_stays_small() {
    let mut device = tiles(1);
    let mut measured = measured(&mut device, 1000);
    let point = measured.steps.iter().find(|point| point.role == Role::Fit).unwrap().clone();
    for tokens in 1..600 {
        let chunk = Chunk { context: 0, tokens };
        let shape = StepShape { decodes: Vec::new(), chunks: vec![chunk] };
        // A curve that bends everywhere.
        let mut timing = point.timing;
        timing.seconds = 4e-3 + 1e-8 * f64::from(tokens).powi(3);
        measured.steps.push(StepPoint { role: Role::Fit, shape, timing });
    }
    let kernels = kernels(&measured, &device);
    assert_eq!((kernels.validate(), kernels.tokens.len() <= 64), (Ok(()), true));
}

#[test]
fn points_that_cannot_be_are_refused() {
    let mut device = tiles(1);
    let honest = measured(&mut device, 1000);
    let error = |change: &dyn Fn(&mut Measured)| {
        let mut changed = honest.clone();
        change(&mut changed);
        fit(&changed, &device.deployment).unwrap_err().to_string()
    };
    for seconds in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let told = error(&|measured| measured.steps[0].timing.seconds = seconds);
        assert_eq!(told, format!("1 decodes of 128 took {seconds} s: expected more than 0 and at most 10000"));
        assert!(
            error(&|measured| measured.overlaps[0].overlap.together_s = seconds).contains("blocks during 32 decodes")
        );
        assert!(error(&|measured| measured.launch.seconds = seconds).starts_with("launching a step took"));
    }
    assert!(
        error(&|measured| measured.steps[3].shape = StepShape::default()).contains("a point needs 1 to 1048576 tokens")
    );
    let endless = vec![Chunk { context: 0, tokens: u32::MAX }; 3];
    assert!(error(&|measured| measured.steps[3].shape.chunks.clone_from(&endless)).contains("a point needs 1 to"));
    assert!(error(&|measured| measured.transfers[0].blocks = 0).contains("a point needs 1 to 1048576 tokens"));
    let few = error(&|measured| measured.steps.retain(|point| !point.shape.chunks.is_empty()));
    assert_eq!(few, "0 points of decodes to fit, and at least 4 are needed");
    let judges = error(&|measured| {
        measured.steps.retain(|point| point.role == Role::Fit);
        measured.transfers.clear();
        measured.overlaps.clear();
    });
    assert_eq!(judges, "0 points of any kind held out, and at least 1 are needed");
    assert!(error(&|measured| measured.launch.seconds = 1e3).contains("above the launch floor"));
    let several: Deployment = "llama-3-8b@2xh200-datasheet".parse().unwrap();
    assert_eq!(fit(&honest, &several), Err(FitError::Devices(2)));
}

#[test]
fn measuring_goes_on_where_it_was_broken_off() {
    let quiet = || Synthetic { noise: 0.0, ..synthetic::all(1).remove(0) };
    let mut device = quiet();
    let schedule = MeasurementPlan::new(&device.deployment.engine(EngineKind::V1), 60, 3);
    let whole = measure(&schedule, &mut quiet(), &mut |_| {}).unwrap();
    let mut measured = Measured::begin(&schedule, &mut device).unwrap();
    for most in [5, 30, usize::MAX] {
        let mut until = |done| if done < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        let ended = measured.complete(&schedule, &mut device, &mut until).unwrap();
        assert_eq!(ended.is_break(), most < schedule.len());
        assert_eq!(measured.len(), most.min(schedule.len()));
    }
    assert_eq!(measured, whole);

    // Kept as they come: every ten, where it is broken off, and where it fails.
    let mut measured = Measured::begin(&schedule, &mut device).unwrap();
    assert!(measured.is_of(&device, &schedule));
    assert!(!Measured { block_size: 8, ..measured.clone() }.is_of(&device, &schedule));
    let mut kept = Vec::new();
    let mut keep = |measured: &Measured| -> Result<(), MeasureError> {
        kept.push(measured.len());
        Ok(())
    };
    let mut until = |done| if done < 26 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    let ended = measured.complete_keeping(&schedule, &mut device, 10, &mut until, &mut keep).unwrap();
    assert!(ended.is_break());
    let mut failing = Failing(quiet());
    let on = &mut |_| ControlFlow::Continue(());
    let error = measured.complete_keeping(&schedule, &mut failing, 1000, on, &mut keep).unwrap_err();
    assert!(error.to_string().contains("out of pinned memory"), "{error}");
    assert_eq!(kept, [11, 21, 26, 1 + schedule.steps.len()]);
}
