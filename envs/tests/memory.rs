//! Blocks as bytes: a node on host memory does what it does without, and whatever goes wrong with a block is noticed.

use std::sync::Arc;

use crate::common::defective::{Defect, Defective};
use crate::common::node_config;
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Node, NodeConfig, NodeError, RunError, run};
use kvtide_envs::memory::{Contents, KvShape, MemoryError, MemorySource, Span};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::Slo;
use kvtide_envs::tier::Tier;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::Action;

/// A node that swaps a lot.
fn crowd(engine: EngineKind) -> (NodeConfig, Arc<[Request]>) {
    let config = EngineConfig {
        engine,
        block_size: 4,
        num_gpu_blocks: 24,
        num_cpu_blocks: 40,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 80,
        enable_chunked_prefill: engine == EngineKind::V1,
        enable_prefix_caching: engine == EngineKind::V1,
        async_scheduling: engine == EngineKind::V1,
        ..EngineConfig::default()
    };
    let mut config = config;
    if engine == EngineKind::V0 {
        config.max_num_batched_tokens = 80;
    }
    let requests = (0..30).map(|index| Request::new(Micros(index * 1000), 5 + (index as u32 * 7) % 20, 30));
    (node_config(config, Slo::default()), requests.collect())
}

fn serve(engine: EngineKind, memory: &MemorySource) -> Result<Summary, RunError> {
    let (config, requests) = crowd(engine);
    let mut node = Node::new(&config, requests, Collector::with_gaps()).unwrap();
    node = node.with_memory(memory.memory(&config.engine)?);
    let mut controls = Action::ENGINE_DEFAULT.controls();
    controls.preemption = kvtide_runtime::Preemption::Swap;
    run(&mut node, &mut controls, 8)
}

fn defective(engine: EngineKind, contents: Contents, defect: Defect) -> Result<Summary, RunError> {
    let (config, _) = crowd(engine);
    serve(engine, &Defective::source(KvShape::small(32, 4).unwrap(), &config.engine, contents, defect))
}

const ENGINES: [EngineKind; 2] = [EngineKind::V0, EngineKind::V1];

#[test]
fn a_node_does_the_same_whatever_its_blocks_are_made_of() {
    for engine in ENGINES {
        let modelled = serve(engine, &MemorySource::Modelled).unwrap();
        let hosted = serve(engine, &MemorySource::Host { token_bytes: 64 }).unwrap();
        let report = hosted.memory.clone().unwrap();
        assert_eq!(Summary { memory: None, ..hosted }, modelled);
        assert!(modelled.swap_out_blocks > 20, "{}", modelled.swap_out_blocks);
        assert_eq!((report.blocks_out, report.blocks_in), (modelled.swap_out_blocks, modelled.swap_in_blocks));
        assert!(report.round_trips_checked > 20 && report.blocks_checked > report.round_trips_checked);
        assert!(report.written_tokens >= 30 * 35 && report.backend == "host memory");
        // The size of a token changes the bytes, and so the checksums, but not what is checked.
        let wider = serve(engine, &MemorySource::Host { token_bytes: 128 }).unwrap().memory.unwrap();
        assert_ne!(wider.checksum, report.checksum);
        assert_eq!(
            (wider.blocks_checked, wider.round_trips_checked),
            (report.blocks_checked, report.round_trips_checked)
        );
    }
}

#[test]
fn whatever_goes_wrong_with_a_block_is_noticed() {
    let defects: [(&str, Defect); 10] = [
        ("a copy to the host is forgotten", |copies, _| _ = copies.out.pop()),
        ("a copy from the host is forgotten", |copies, _| _ = copies.back.pop()),
        ("two copies change places", |copies, _| {
            if let [first, second, ..] = &mut copies.back[..] {
                std::mem::swap(&mut first.dst, &mut second.dst);
            }
        }),
        ("a copy goes to the next block", |copies, _| {
            if let Some(copy) = copies.out.first_mut() {
                copy.dst.0 = (copy.dst.0 + 1) % 40;
            }
        }),
        ("a copy comes from the next block", |copies, _| {
            if let Some(copy) = copies.back.first_mut() {
                copy.src.0 = (copy.src.0 + 1) % 40;
            }
        }),
        ("writes come before copies out", |copies, _| copies.writes_first = true),
        ("another block is copied out", |copies, _| {
            if let (Some(copy), Some(&block)) = (copies.out.first_mut(), copies.tables.first()) {
                copy.src = block;
            }
        }),
        ("a token is not written", |copies, _| {
            if let Some(span) = copies.spans.last_mut().filter(|span| span.tokens > 1) {
                span.tokens -= 1;
            }
        }),
        ("a token is written to another block", |copies, step| {
            if step % 5 == 4 && !copies.tables.is_empty() {
                let last = copies.tables.len() - 1;
                copies.tables[last].0 = (copies.tables[last].0 + 1) % 24;
            }
        }),
        ("another text is written", |copies, step| {
            if step == 9
                && let Some(seed) = copies.seeds.first_mut()
            {
                *seed += 1;
            }
        }),
    ];
    for engine in ENGINES {
        assert!(defective(engine, Contents::Drawn, |_, _| {}).is_ok());
        for (name, defect) in defects {
            let result = defective(engine, Contents::Drawn, defect);
            let is_noticed = matches!(result, Err(RunError::Node(NodeError::Memory(MemoryError::Corrupt(_)))));
            assert!(is_noticed, "{engine:?}, {name}: {result:?}");
        }
    }
}

#[test]
fn computed_contents_are_held_to_what_was_computed() {
    for engine in ENGINES {
        let report = defective(engine, Contents::Computed, |_, _| {}).unwrap().memory.unwrap();
        assert!(report.round_trips_checked > 20, "{engine:?}: {report:?}");
        let defects: [(&str, Defect); 6] = [
            ("writes come before copies out", |copies, _| copies.writes_first = true),
            ("a slot of a block in use is written again", |copies, step| {
                // The first slot of somebody's last block, which is partly filled.
                let span = copies.spans.iter().find(|span| span.tokens == 1 && span.context % 4 > 1).cloned();
                if let Some(span) = span.filter(|_| step % 7 == 6) {
                    let context = span.context / 4 * 4;
                    copies.spans.push(Span { context, seeds: copies.seeds.len(), ..span });
                    copies.seeds.push(step);
                }
            }),
            ("a copy to the host is forgotten", |copies, _| _ = copies.out.pop()),
            ("a copy from the host is forgotten", |copies, _| _ = copies.back.pop()),
            ("two copies change places", |copies, _| {
                if let [first, second, ..] = &mut copies.back[..] {
                    std::mem::swap(&mut first.dst, &mut second.dst);
                }
            }),
            ("a token is written to somebody's first block", |copies, step| {
                if step > 8 && copies.tables.len() > 1 {
                    let last = copies.tables.len() - 1;
                    copies.tables[last] = copies.tables[0];
                }
            }),
        ];
        for (name, defect) in defects {
            let result = defective(engine, Contents::Computed, defect);
            let is_noticed = matches!(result, Err(RunError::Node(NodeError::Memory(MemoryError::Corrupt(_)))));
            assert!(is_noticed, "{engine:?}, {name}: {result:?}");
        }
    }
}

#[test]
fn measured_steps_take_what_was_measured_and_the_hosts_time() {
    for engine in ENGINES {
        let (config, _) = crowd(engine);
        let takes = Micros::from_millis(5);
        let source = Defective::measured(KvShape::small(32, 4).unwrap(), &config.engine, takes);
        let summary = serve(engine, &source).unwrap();
        // The profile's 3 ms a step and 15 us for each of at most 8 sequences; requests arrive within 30 ms.
        let steps = summary.scheduler_steps as f64;
        let (least, most) = (steps * 8e-3, steps * (8e-3 + 8.0 * 15e-6) + 0.03);
        assert!(
            (least..=most).contains(&summary.makespan_s),
            "{engine:?}: {least} <= {} <= {most}",
            summary.makespan_s
        );
        assert!(summary.scheduler_steps > 100);
    }
}

#[test]
fn what_is_wrong_is_said() {
    let error = defective(EngineKind::V0, Contents::Drawn, |copies, _| _ = copies.out.pop()).unwrap_err().to_string();
    assert!(error.starts_with("request ") && error.contains(" does not hold the "), "{error}");
    let large = EngineConfig { num_gpu_blocks: 1 << 26, ..EngineConfig::default() };
    let error = MemorySource::Host { token_bytes: 1 << 20 }.memory(&large).unwrap_err();
    assert!(matches!(error, MemoryError::OutOfMemory { tier: Tier::Host, .. }), "{error}");
    assert!(error.to_string().starts_with("out of host memory: the GPU pool of 67108864 blocks: "), "{error}");
}
