//! Decisions per second of inference, and iterations of training, at the sizes kvtide trains with.

#[path = "../tests/toys/mod.rs"]
mod toys;

use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvtide::agent::inference::Inference;
use kvtide::agent::{Architecture, NetworkPolicy, PpoConfig, Trainer, Weights};
use kvtide_envs::seed;
use kvtide_runtime::{ActionMask, ActionProfile, Guard, GuardConfig, Head, NUM_FEATURES, Observation, Policy, Table};
use kvtide_torch::Torch;
use rand::RngExt;
use tch::{Tensor, no_grad};
use toys::{Serving, Toys};

fn weights() -> Weights {
    let head_sizes = Head::ALL.map(Head::size).to_vec();
    Weights::orthogonal(Architecture { observation_size: NUM_FEATURES, hidden: vec![64, 64], head_sizes }, 1)
}

/// The actor's forward pass over a batch of environments: ours, and libtorch's with the copies in and out.
fn forward(criterion: &mut Criterion) {
    tch::set_num_threads(1);
    let weights = weights();
    let inference = Inference::new(weights.actor());
    let tensors: Vec<(Tensor, Tensor)> = weights
        .actor()
        .map(|(weight, bias)| {
            let outputs = bias.len() as i64;
            (Tensor::from_slice(weight).view([outputs, -1]), Tensor::from_slice(bias))
        })
        .collect();
    let mut group = criterion.benchmark_group("forward");
    for num_envs in [1_usize, 8, 64] {
        let observations = vec![0.25; num_envs * NUM_FEATURES];
        let mut logits = vec![0.0_f32; num_envs * inference.outputs()];
        group.throughput(Throughput::Elements(num_envs as u64));
        group.bench_function(BenchmarkId::new("rust", num_envs), |bencher| {
            bencher.iter(|| inference.forward(black_box(&observations), black_box(&mut logits)));
        });
        group.bench_function(BenchmarkId::new("libtorch", num_envs), |bencher| {
            bencher.iter(|| {
                no_grad(|| {
                    let rows = Tensor::from_slice(black_box(&observations)).view([num_envs as i64, -1]);
                    let hidden = rows.linear(&tensors[0].0, Some(&tensors[0].1)).tanh();
                    let hidden = hidden.linear(&tensors[1].0, Some(&tensors[1].1)).tanh();
                    let output = hidden.linear(&tensors[2].0, Some(&tensors[2].1));
                    output.copy_data(black_box(&mut logits), num_envs * inference.outputs());
                });
            });
        });
    }
    group.finish();
}

/// One decision: the network of two layers of 64 in plain Rust (`forward/libtorch/1` is what libtorch takes for the same
/// numbers), and the table that ships for `reasoning`.
fn decide(criterion: &mut Criterion) {
    let policy = NetworkPolicy::new(&weights(), None, ActionProfile::Full).expect("kvtide's own shape");
    let mut group = criterion.benchmark_group("policy");
    group.throughput(Throughput::Elements(1));
    group.bench_function("network", |bencher| {
        bencher.iter(|| policy.decide(black_box(&Observation::ZERO), black_box(ActionMask::ALL)));
    });
    let table = Table::parse(include_bytes!("../../checkpoints/reasoning/policy.kvt")).expect("a table of this build");
    // Observations drawn over the trained range, so that the way is not always the same.
    let mut stream = seed::stream(1, "bench", 0);
    let mut observation = || {
        let ranges: Vec<_> = table.ranges().collect();
        Observation { values: std::array::from_fn(|index| stream.random_range(ranges[index].min..=ranges[index].max)) }
    };
    let observations: Vec<Observation> = (0..1024).map(|_| observation()).collect();
    let mut next = observations.iter().cycle();
    group.bench_function("table", |bencher| {
        bencher.iter(|| table.decide(black_box(next.next().expect("endless")), black_box(ActionMask::ALL)));
    });
    let mut guard = Guard::new(Ok(table), GuardConfig::default());
    group.bench_function("guarded table", |bencher| {
        bencher.iter(|| guard.decide(black_box(next.next().expect("endless")), 0, black_box(ActionMask::ALL)));
    });
    group.finish();
}

/// A whole iteration, 64 environments of 128 steps: rollout (toys that cost next to nothing) and update; and the same
/// with one epoch, so that the difference is three epochs of the update.
fn iterate(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("iterate");
    group.sample_size(10);
    group.throughput(Throughput::Elements(64 * 128));
    for num_epochs in [1, 4] {
        let config = PpoConfig { total_decisions: 1 << 40, num_epochs, ..PpoConfig::default() };
        let trainer = || Trainer::new(config.clone(), Toys::<Serving>::boxed(64), &Torch).expect("sound settings");
        group.bench_function(BenchmarkId::new("epochs", num_epochs), |bencher| {
            bencher.iter_batched_ref(trainer, Trainer::iterate, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, forward, decide, iterate);
criterion_main!(benches);
