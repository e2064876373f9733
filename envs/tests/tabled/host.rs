//! The host's part.

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Hardware, HostTimes};
use kvtide_envs::sched::StepPlan;
use kvtide_envs::time::Micros;

use super::{KINDS, Step, smooth_deployment};

const HOST: HostTimes = HostTimes {
    step: 2e-3,
    sequence: 10e-6,
    exposed: 0.5e-3,
    exposed_sequence: 12e-6,
    chunk_overhead: 3e-3,
    launch: 5e-6,
    layer_launches: 12,
    piece_launches: 5,
    cudagraph_tokens: 512,
    client: kvtide_envs::deploy::ClientTimes::NONE,
};

fn engine(async_scheduling: bool) -> EngineConfig {
    EngineConfig { engine: EngineKind::V1, async_scheduling, ..EngineConfig::default() }
}

fn deployment(host: HostTimes) -> Deployment {
    let mut deployment = smooth_deployment(KINDS[0], 1);
    deployment.hardware.host = Some(host);
    assert_eq!(deployment.hardware.validate(), Ok(()));
    deployment
}

fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-9, "{value}, expected {expected}");
}

#[test]
fn a_loop_is_hidden_behind_the_accelerator_or_stands_before_it() {
    let cost = CostModel::new(&deployment(HOST), 16);
    let [sync, asynchronous] = [false, true].map(|is_async| cost.clone().under(&engine(is_async)));
    assert_eq!(sync, cost);
    let step = Step::decodes(100, 1000);
    let device = cost.device_seconds(&step.load());
    near(sync.step_seconds(&step.load()), device + 2e-3 + 100.0 * 10e-6);
    near(asynchronous.step_seconds(&step.load()), device + 0.5e-3 + 100.0 * 12e-6);
    // A step with prompts costs its preparation under both.
    let prompt = Step::prompt(600);
    let device = cost.device_seconds(&prompt.load());
    near(sync.step_seconds(&prompt.load()), device + 2e-3 + 10e-6 + 3e-3);
    near(asynchronous.step_seconds(&prompt.load()), device + 0.5e-3 + 12e-6 + 3e-3);
    // V0 plans nothing ahead, whatever it is told.
    assert_eq!(cost.clone().under(&EngineConfig { engine: EngineKind::V0, ..engine(true) }), sync);
}

#[test]
fn an_accelerator_that_is_faster_waits_for_the_loop() {
    let slow = HostTimes { step: 0.5, ..HOST };
    let cost = CostModel::new(&deployment(slow), 16).under(&engine(true));
    let step = Step::decodes(10, 100);
    near(cost.step_seconds(&step.load()), 0.5 + 10.0 * 10e-6 + 5e-6 + 0.5e-3 + 10.0 * 12e-6);
}

#[test]
fn graphs_are_launched_at_once_and_kernels_one_by_one() {
    // So slow that nothing but launching takes time: 32 layers, a second a launch.
    let slow = HostTimes { launch: 1.0, step: 0.0, sequence: 0.0, chunk_overhead: 0.0, ..HOST };
    let cost = |host: HostTimes| CostModel::new(&deployment(host), 16);
    let near = |host: &HostTimes, step: &Step, launches: f64| {
        near(cost(host.clone()).step_seconds(&step.load()), launches);
    };
    near(&slow, &Step::decodes(512, 10), 1.0);
    near(&slow, &Step::decodes(513, 10), 32.0 * 12.0);
    near(&slow, &Step::prompt(512), 32.0 * 5.0);
    near(&slow, &Step::prompt(513), 32.0 * 12.0);
    near(&slow, &Step { decodes: 1, context: 10, chunks: vec![(511, 0)] }, 32.0 * 5.0);
    near(&HostTimes { cudagraph_tokens: 0, ..slow }, &Step::decodes(1, 10), 32.0 * 12.0);
}

#[test]
fn without_it_two_overheads_are_what_they_were() {
    let mut with = deployment(HOST);
    let step = Step::decodes(7, 100);
    with.hardware.host = None;
    let cost = CostModel::new(&with, 16);
    near(cost.step_seconds(&step.load()), cost.device_seconds(&step.load()) + 3e-3 + 7.0 * 15e-6);
    assert_eq!(cost.clone().under(&engine(true)), cost);
}

#[test]
fn what_is_measured_on_a_device_gets_the_same_on_top() {
    let cost = CostModel::new(&deployment(HOST), 16);
    let plan = StepPlan { cohort: 20, decode_context: 20_000, ..StepPlan::default() };
    let device = Micros(20_000);
    assert_eq!(cost.host_time(&plan, device), Micros(2_200));
    assert_eq!(cost.clone().under(&engine(true)).host_time(&plan, device), Micros(740));
    // Shorter than the loop, and so the rest of it comes on top.
    assert_eq!(cost.under(&engine(true)).host_time(&plan, Micros(1_000)), Micros(2_205 - 1_000 + 740));
}

#[test]
fn overheads_are_set_by_their_names() {
    let setting = |text: &str| [text.parse().unwrap()];
    let hardware = deployment(HOST).hardware;
    let set = hardware.clone().with(&setting("step_overhead=0.004"));
    assert_eq!(set.host, Some(HostTimes { step: 0.004, ..HOST }));
    let set = hardware.clone().with(&setting("sequence_overhead=0.001"));
    assert_eq!(set.host, Some(HostTimes { sequence: 0.001, ..HOST }));
    let other = hardware.clone().with(&setting("swap_overhead=0.001"));
    assert_eq!((other.host, hardware.host), (Some(HOST), Some(HOST)));
}

#[test]
fn a_plain_roofline_may_have_it_too() {
    let plain = Deployment::load("llama-3-8b@h100").unwrap();
    let mut hosted = plain.clone();
    hosted.hardware = Hardware { kernels: None, tables: None, host: Some(HOST), ..plain.hardware.clone() };
    let mut bare = hosted.clone();
    bare.hardware.host = None;
    let step = Step::decodes(7, 100);
    let [hosted, bare] = [hosted, bare].map(|deployment| CostModel::new(&deployment, 16));
    assert_eq!(hosted.device_seconds(&step.load()).to_bits(), bare.device_seconds(&step.load()).to_bits());
    near(hosted.step_seconds(&step.load()), bare.device_seconds(&step.load()) + 2e-3 + 7.0 * 10e-6);
}
