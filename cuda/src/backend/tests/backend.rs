//! Nodes on drawn blocks: the device holds what host memory holds.

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind};
use kvtide_envs::env::{Node, NodeConfig, RunError, run};
use kvtide_envs::memory::{KvShape, MemoryError, MemoryReport, MemorySource};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{Action, Host, Preemption, Victim};

use super::emulated_or_skip;
use crate::lend_drawn;

/// A node under so much pressure that it swaps all the time.
pub(super) fn crowd(engine: EngineKind, block_size: u32) -> (NodeConfig, Arc<[Request]>) {
    let tokens = 24 * block_size;
    let engine = EngineConfig {
        engine,
        block_size,
        num_gpu_blocks: 26,
        num_cpu_blocks: 40,
        max_num_seqs: 8,
        max_num_batched_tokens: if engine == EngineKind::V0 { tokens } else { 2 * block_size + 3 },
        max_model_len: tokens,
        enable_chunked_prefill: engine == EngineKind::V1,
        enable_prefix_caching: engine == EngineKind::V1,
        async_scheduling: engine == EngineKind::V1,
        ..EngineConfig::default()
    };
    let requests = (0..20).map(|index: u32| {
        let mut request = Request::new(
            Micros(u64::from(index)),
            1 + index * 5 % (3 * block_size),
            4 * block_size + index % block_size,
        );
        request.session = index.is_multiple_of(3).then(|| "a conversation".to_owned());
        request
    });
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().unwrap();
    let cost = CostModel::new(&deployment, block_size);
    (NodeConfig { cost, engine, slo: Slo::default(), clients: None, host: Host::KVTIDE }, requests.collect())
}

pub(super) fn serve(engine: EngineKind, block_size: u32, memory: &MemorySource) -> Result<Summary, RunError> {
    let (config, requests) = crowd(engine, block_size);
    let mut node =
        Node::new(&config, requests, Collector::default()).unwrap().with_memory(memory.memory(&config.engine)?);
    let mut controls = Action::ENGINE_DEFAULT.controls();
    (controls.preemption, controls.victim) = (Preemption::Swap, Victim::MostBlocks);
    run(&mut node, &mut controls, 8)
}

fn drawn(engine: EngineKind, token_bytes: u32) -> Result<MemorySource, MemoryError> {
    let (config, _) = crowd(engine, 4);
    let shape = KvShape::small(token_bytes, 4).unwrap();
    lend_drawn(0, shape, &config.engine)
}

/// What time has no part in.
fn contents(summary: Summary) -> MemoryReport {
    MemoryReport { backend: String::new(), ..summary.memory.unwrap() }
}

#[test]
fn a_device_holds_what_host_memory_holds_in_whatever_order_it_runs() {
    let emulated = emulated_or_skip!();
    for engine in [EngineKind::V0, EngineKind::V1] {
        for seed in 0..12 {
            emulated.reset(seed);
            emulated.set_eager(if seed % 2 == 0 { 0 } else { 50 });
            // A small token goes by kernel, a large one by the copy engine.
            let token_bytes = if seed % 3 == 0 { 65_536 } else { 64 };
            let source = drawn(engine, token_bytes).unwrap();
            let summary = serve(engine, 4, &source).unwrap();
            let report = summary.memory.clone().unwrap();
            assert_eq!(report.backend, "kvtide emulated device");
            assert!(report.round_trips_checked > 10, "{report:?}");
            if engine == EngineKind::V0 && seed < 2 {
                // Time is measured, so that another course is taken than in the model; contents are checked all the same.
                assert_ne!(summary.hash, serve(engine, 4, &MemorySource::Modelled).unwrap().hash);
            }
            drop(source);
        }
    }
}

#[test]
fn the_same_schedule_leaves_the_same_bytes_on_host_and_device() {
    let emulated = emulated_or_skip!();
    for seed in 0..4 {
        emulated.reset(seed);
        // Everything arrives at once, and nobody decides by the clock: the course is the same however long steps take.
        let at_once = |memory: &MemorySource| {
            let (config, requests) = crowd(EngineKind::V0, 4);
            let requests = requests.iter().map(|request| Request { arrival: Micros::ZERO, ..request.clone() });
            let node = Node::new(&config, requests.collect(), Collector::default()).unwrap();
            let mut node = node.with_memory(memory.memory(&config.engine).unwrap());
            let mut controls = Action::ENGINE_DEFAULT.controls();
            controls.preemption = Preemption::Swap;
            contents(run(&mut node, &mut controls, 8).unwrap())
        };
        let device = at_once(&drawn(EngineKind::V0, 64).unwrap());
        let host = at_once(&MemorySource::Host { token_bytes: 64 });
        assert!(host.round_trips_checked > 10);
        assert_eq!(device, host);
    }
}

#[test]
fn a_device_that_is_too_small_says_what_does_not_fit() {
    let emulated = emulated_or_skip!();
    emulated.set_memory_bytes(1 << 20);
    let error = drawn(EngineKind::V0, 65_536).unwrap_err();
    let MemoryError::OutOfMemory { what, needed, free, .. } = &error else { panic!("{error}") };
    assert_eq!((what.as_str(), *needed), ("the pool of 26 blocks", 26 * 4 * 65_536));
    assert!(free.is_some_and(|free| free <= 1 << 20));
    assert!(
        error.to_string().starts_with("out of GPU memory: the pool of 26 blocks: 6.8 MB asked for, 1.0 MB"),
        "{error}"
    );
}

#[test]
fn a_lost_device_is_an_error_and_no_panic() {
    let emulated = emulated_or_skip!();
    for operations in [0, 3, 20, 57] {
        emulated.reset(operations);
        let source = drawn(EngineKind::V1, 64).unwrap();
        emulated.set_fail_after(operations.cast_signed());
        let error = serve(EngineKind::V1, 4, &source).unwrap_err().to_string();
        assert!(error.starts_with("the device is lost: "), "{error}");
        drop(source);
        emulated.set_fail_after(-1);
    }
}
