//! How fast the world turns: scheduler steps, and environment decisions, per second on one core.
//!
//! `cargo bench -p kvtide-envs --bench scheduler`

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{DeadEnds, Deployment, EngineConfig, EngineKind};
use kvtide_envs::env::{EnvConfig, EpisodeSource, NodeConfig, ResetOptions, RewardWeights, ServingEnv, WorldDraw};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::{Outcome, Pricing, Slo, StepPlan, V0};
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Host};

/// Steps a scheduler of the steady-decode bench takes before it is made anew.
const STEPS: u32 = 1000;

/// A scheduler on which `batch` requests have just computed their prompts and will decode for a long time.
fn decoding(batch: u32) -> V0 {
    let engine = EngineConfig {
        block_size: 16,
        num_gpu_blocks: 256 * 128,
        num_cpu_blocks: 0,
        max_num_seqs: 256,
        max_num_batched_tokens: 256 * 256,
        max_model_len: 4096,
        enable_chunked_prefill: false,
        dead_ends: DeadEnds::Safe,
        max_wait: Micros::MAX,
        pricing: Pricing::default(),
        ..EngineConfig::default()
    };
    let mut scheduler = V0::new(engine).expect("the settings are valid");
    for _ in 0..batch {
        scheduler.submit(Micros::ZERO, 256, 4000, Slo::default());
    }
    turn(&mut scheduler, 1, &mut StepPlan::default(), &mut Outcome::default());
    scheduler
}

fn turn(scheduler: &mut V0, steps: u32, plan: &mut StepPlan, outcome: &mut Outcome) {
    let controls = Action::ENGINE_DEFAULT.controls();
    for step in 0..steps {
        let now = Micros(u64::from(step));
        scheduler.schedule(now, &controls, plan).expect("a safe engine does not die");
        scheduler.complete(black_box(plan), now, outcome);
    }
}

fn steady_decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("v0_steady_decode");
    group.throughput(Throughput::Elements(u64::from(STEPS)));
    for batch in [1, 64, 256] {
        let fresh = decoding(batch);
        let (mut plan, mut outcome) = (StepPlan::default(), Outcome::default());
        group.bench_function(BenchmarkId::from_parameter(batch), |bencher| {
            let steps = |mut scheduler: V0| {
                turn(&mut scheduler, STEPS, &mut plan, &mut outcome);
                scheduler
            };
            bencher.iter_batched(|| fresh.clone(), steps, BatchSize::LargeInput);
        });
    }
    group.finish();
}

/// Decisions of one iteration of the environment bench.
const DECISIONS: u64 = 200;

fn decisions(criterion: &mut Criterion) {
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().expect("a known deployment");
    let mut group = criterion.benchmark_group("env_decisions");
    group.throughput(Throughput::Elements(DECISIONS));
    for source in ["chat:rate=8,duration=600", "reasoning:rate=1.5,duration=600"] {
        let length = Micros::from_millis(600_000);
        let config = EnvConfig {
            worlds: vec![WorldDraw::new(
                NodeConfig {
                    engine: deployment.engine(EngineKind::V0),
                    cost: CostModel::new(&deployment, 16),
                    slo: Slo::default(),
                    clients: None,
                    host: Host::KVTIDE,
                },
                EpisodeSource {
                    source: WorkloadSource::Synthetic(source.parse().expect("a known profile")),
                    range: Window { start: Micros::ZERO, end: length },
                    length,
                    load: (1.0, 1.0),
                },
            )],
            profile: ActionProfile::Watermark,
            reward: RewardWeights::default(),
            decision_interval: 8,
            allowed: ActionMask::ALL,
            memory: MemorySource::Modelled,
        };
        let mut env = ServingEnv::new(Arc::new(config)).expect("the settings are valid");
        let mut seed = 0;
        env.reset(seed, &ResetOptions::default()).expect("an episode can be drawn");
        group.bench_function(BenchmarkId::from_parameter(source.split(':').next().unwrap_or(source)), |bencher| {
            bencher.iter(|| {
                for _ in 0..DECISIONS {
                    let step = env.step(Action::ENGINE_DEFAULT).expect("a safe engine does not die");
                    if step.terminated || step.truncated {
                        seed += 1;
                        env.reset(seed, &ResetOptions::default()).expect("an episode can be drawn");
                    }
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, steady_decode, decisions);
criterion_main!(benches);
