//! What only a real GPU can show: that the kernels do on it what they do against their references, that blocks keep their
//! contents, that the decoder runs. Without a device every test says so and is counted as skipped.

use std::io::{self, Write};
use std::sync::Arc;

use kvtide_cuda::{check_kernels, check_schedules, devices, lend, lend_drawn, open_drawn};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Hardware, Model, Structure, Widths};
use kvtide_envs::env::{Node, NodeConfig, run};
use kvtide_envs::memory::{KvShape, MemoryError, MemorySource};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{Action, Host, Preemption};

/// Whether the first device can be used; says why not.
fn has_device(test: &str) -> bool {
    let why = match devices() {
        0 => "no CUDA device".to_owned(),
        _ => match open_drawn(0, KvShape::small(32, 16).unwrap(), &EngineConfig::default()) {
            Ok(_) => return true,
            // The driver is there, and something beside it is not.
            Err(MemoryError::Unavailable(why)) => why,
            Err(other) => panic!("{other}"),
        },
    };
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
    false
}

/// A decoder with grouped heads that any GPU holds.
fn small() -> Deployment {
    let (layers, heads, kv_heads, head_dim, hidden, intermediate, vocabulary) = (4, 16, 4, 128, 1024, 2816, 32_000);
    let width = f64::from(hidden);
    let attention = width * f64::from(head_dim * (2 * heads + 2 * kv_heads));
    let model = Model {
        name: "small".to_owned(),
        num_layers: layers,
        num_heads: heads,
        num_kv_heads: kv_heads,
        head_dim,
        hidden_size: hidden,
        layer_params: f64::from(layers) * (attention + 3.0 * width * f64::from(intermediate)),
        head_params: width * f64::from(vocabulary),
        tied_embeddings: false,
        weight_bytes: 2.0,
        kv_bytes: 2.0,
        max_model_len: 4096,
        structure: Structure::default(),
        widths: Widths { intermediate, matrices: 3, vocabulary, ..Widths::default() },
    };
    Deployment::new(model, Hardware::named("h200").unwrap(), 1)
}

fn serve(engine: EngineKind, memory: &MemorySource, config: &EngineConfig) -> Summary {
    let cost = CostModel::new(&small(), 16);
    let config = NodeConfig { cost, engine: config.clone(), slo: Slo::default(), clients: None, host: Host::KVTIDE };
    let requests: Arc<[Request]> =
        (0..40).map(|index: u32| Request::new(Micros::ZERO, 20 + index * 13 % 200, 60 + index % 30)).collect();
    let node = Node::new(&config, requests, Collector::default()).unwrap();
    let mut controls = Action::ENGINE_DEFAULT.controls();
    controls.preemption = Preemption::Swap;
    let summary = run(&mut node.with_memory(memory.memory(&config.engine).unwrap()), &mut controls, 8).unwrap();
    assert_eq!(summary.completed, 40, "{engine:?}");
    summary
}

fn engine(engine: EngineKind) -> EngineConfig {
    let is_v1 = engine == EngineKind::V1;
    EngineConfig {
        engine,
        num_gpu_blocks: 120,
        num_cpu_blocks: 200,
        max_num_seqs: 32,
        max_num_batched_tokens: if is_v1 { 256 } else { 1024 },
        max_model_len: 1024,
        enable_chunked_prefill: is_v1,
        async_scheduling: is_v1,
        enable_prefix_caching: is_v1,
        ..EngineConfig::default()
    }
}

#[test]
fn kernels_do_what_their_references_do() {
    if !has_device("kernels on the device") {
        return;
    }
    let mut failed = Vec::new();
    check_kernels(0, 0..40, &mut |check| {
        failed.extend(check.failure.clone().map(|how| (check.name.clone(), how)));
    })
    .unwrap();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn random_schedules_leave_what_they_leave_in_host_memory() {
    if !has_device("random schedules on the device") {
        return;
    }
    let mut device = |shape: KvShape, engine: &EngineConfig| lend_drawn(0, shape, engine);
    let report = check_schedules(0..40, &mut device, &mut || {}).unwrap();
    assert!(report.compared == 40 && report.round_trips_checked > 300, "{report:?}");
}

#[test]
fn a_decoder_keeps_its_blocks_through_swaps_and_takes_time() {
    if !has_device("a decoder on the device") {
        return;
    }
    let deployment = small();
    for kind in [EngineKind::V0, EngineKind::V1] {
        let engine = engine(kind);
        let memory = lend(0, &deployment, &engine).unwrap();
        let (first, second) = (serve(kind, &memory, &engine), serve(kind, &memory, &engine));
        let (first_report, second_report) = (first.memory.unwrap(), second.memory.unwrap());
        assert!(first_report.round_trips_checked > 20, "{first_report:?}");
        assert!(first.makespan_s > 0.0);
        // The same steps compute the same bits.
        assert_eq!(first_report, second_report);
    }
}

#[test]
fn what_does_not_fit_is_said() {
    if !has_device("memory of the device") {
        return;
    }
    let engine = EngineConfig { num_gpu_blocks: 1 << 26, ..EngineConfig::default() };
    let error = open_drawn(0, KvShape::small(1 << 16, 16).unwrap(), &engine).unwrap_err();
    assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error}");
}
