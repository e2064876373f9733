//! What a decision, an observation and a load cost: `cargo bench -p kvtide-runtime`.
//!
//! Tables are complete trees with seeded features and thresholds; each decision takes the next of 1,024 observations,
//! so that the branch predictor cannot learn the way. An observation counts 256 running and 64 waiting requests, as a
//! node with a full batch would in a scheduler step.
//!
//! After criterion's means come percentiles of single decisions and observations (`-- percentiles` for those alone),
//! each with the two readings of the clock it is measured with; what those cost by themselves stands in the first row.
//!
//! Instructions do not depend on the machine's other work. Valgrind counts those of 10,000 calls:
//! ```text
//! cargo bench -p kvtide-runtime --bench decide --no-run     # prints the path of the program
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*counted_guarded*' PROGRAM instructions
//! ```
//! and likewise `*counted_decisions*` (a table without its guard) and `*counted_observations*`.

use std::hint::black_box;
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group};
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::format::{
    FeatureRange, RetentionSpec, TableSpec, encode, encode_with_retention, encoded_len, encoded_len_with_retention,
};
use kvtide_runtime::observer::Totals;
use kvtide_runtime::{
    ACTION_SET_HASH, ActionMask, ActionProfile, Controls, FEATURES, FeatureSpec, Guard, GuardConfig, NUM_FEATURES,
    NUM_RELEASE_FEATURES, Observation, Observer, Part, Policy, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, Release,
    ReleaseObservation, RetentionGuard, RunningRequest, SCHEMA_HASH, Snapshot, Stop, Table, TreeNode, WaitingRequest,
};

const DEPTHS: [u32; 4] = [4, 8, 10, 13];

/// Steele, Lea and Flood's `SplitMix64`: enough for a bench, and no dependency.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A value of `feature`, uniform over its range.
    fn value(&mut self, feature: usize) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1 << 24) as f32;
        FEATURES[feature].min + unit * (FEATURES[feature].max - FEATURES[feature].min)
    }
}

fn complete_tree(depth: u32) -> Vec<u8> {
    let mut random = Random(u64::from(depth));
    let splits = (1 << depth) - 1;
    let nodes: Vec<TreeNode> = (0..=2 * splits)
        .map(|node| {
            if node < splits {
                let feature = random.next() as usize % NUM_FEATURES;
                TreeNode::Split { feature: feature as u8, left: 2 * node + 1, threshold: random.value(feature) }
            } else {
                TreeNode::Leaf { choices: [(random.next() % 12) as u8, 0, 1, 0, 8, 0] }
            }
        })
        .collect();
    let ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let spec = TableSpec {
        profile: ActionProfile::Full,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &nodes,
        metadata: &[("experiment", "bench")],
        extensions: &[],
    };
    let mut bytes = vec![0; encoded_len(&spec)];
    encode(&spec, &mut bytes).expect("a complete tree keeps the rules");
    bytes
}

fn observations() -> Vec<Observation> {
    let mut random = Random(7);
    (0..1024).map(|_| Observation { values: std::array::from_fn(|feature| random.value(feature)) }).collect()
}

fn decide(criterion: &mut Criterion) {
    let observations = observations();
    let mut group = criterion.benchmark_group("decide");
    for depth in DEPTHS {
        let bytes = complete_tree(depth);
        let table = Table::parse(&bytes).expect("the encoder checked it");
        group.bench_with_input(BenchmarkId::new("table", depth), &table, |bencher, table| {
            let mut next = observations.iter().cycle();
            bencher.iter(|| table.decide(black_box(next.next().expect("cycles")), ActionMask::ALL));
        });
        group.bench_with_input(BenchmarkId::new("guard", depth), &table, |bencher, &table| {
            let mut guard = Guard::new(Ok(table), GuardConfig::default());
            let mut next = observations.iter().cycle();
            bencher.iter(|| guard.decide(black_box(next.next().expect("cycles")), 0, ActionMask::ALL));
        });
    }
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    for depth in DEPTHS {
        let bytes = complete_tree(depth);
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_with_input(BenchmarkId::new("table", depth), &bytes, |bencher, bytes| {
            bencher.iter(|| Table::parse(black_box(bytes)).is_ok());
        });
    }
}

/// A node's queues, and the steps it has made.
struct Scheduler {
    running: Vec<RunningRequest>,
    waiting: Vec<WaitingRequest>,
    block_size: u32,
    steps: u64,
}

impl Scheduler {
    fn new(num_running: usize, num_waiting: usize, block_size: u32) -> Scheduler {
        let mut random = Random(3);
        let mut below = |limit: u64| (random.next() % limit) as u32;
        let running = (0..num_running)
            .map(|index| {
                let (prompt, generated) = (1 + below(2000), below(500));
                // One in eight has still to compute some of its prompt.
                let computed_tokens = if index % 8 == 0 { below(u64::from(prompt)) } else { prompt + generated };
                RunningRequest {
                    tokens: prompt + generated + 1,
                    computed_tokens,
                    generated_tokens: generated,
                    held_blocks: computed_tokens.div_ceil(block_size),
                    deadline_us: 5_000_000 + u64::from(below(1_000_000)),
                }
            })
            .collect();
        let waiting = (0..num_waiting)
            .map(|_| {
                let arrival_us = u64::from(below(5_000_000));
                WaitingRequest {
                    tokens: 1 + below(2000),
                    arrival_us,
                    first_token_deadline_us: (below(8) > 0).then_some(arrival_us + 2_000_000),
                    prefill_us: u64::from(below(400_000)),
                }
            })
            .collect();
        Scheduler { running, waiting, block_size, steps: 0 }
    }

    /// What a node does in each scheduler step.
    fn observe(&mut self, observer: &mut Observer) -> Observation {
        self.steps += 1;
        let mut snapshot = Snapshot {
            now_us: 5_000_000 + 25_000 * self.steps,
            block_size: self.block_size,
            num_gpu_blocks: 27_000,
            free_gpu_blocks: 500,
            waiting: self.waiting.len() as u32,
            max_num_seqs: 256,
            max_num_batched_tokens: 8192,
            ttft_target_us: 2_000_000,
            tpot_target_us: 100_000,
            totals: Totals { steps: self.steps, arrivals: self.steps / 4, ..Totals::default() },
            ..Snapshot::default()
        };
        snapshot.add_all_running(self.running.iter().copied());
        snapshot.look_at_waiting(self.waiting.iter().copied(), self.waiting.iter().rev().copied());
        observer.observe(&snapshot)
    }
}

fn observe(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("observe");
    for (name, running, waiting, block_size) in
        [("empty", 0, 0, 16), ("256+64", 256, 64, 16), ("256+64, blocks of 24", 256, 64, 24)]
    {
        group.bench_function(name, |bencher| {
            let mut scheduler = Scheduler::new(running, waiting, block_size);
            let mut observer = Observer::new();
            bencher.iter(|| black_box(&mut scheduler).observe(&mut observer));
        });
    }
}

/// Leaves 1,024.
const PERCENTILE_DEPTH: u32 = 10;

/// Prints the 1st, 50th, 99th and 99.9th percentile of `work` over 200,000 calls, nanoseconds. The 1st is what it takes
/// when nothing else wants the core.
#[expect(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn percentiles_of<T>(name: &str, mut work: impl FnMut() -> T) {
    let mut nanoseconds: Vec<u128> = (0..220_000)
        .map(|_| {
            let start = Instant::now();
            black_box(work());
            start.elapsed().as_nanos()
        })
        .skip(20_000)
        .collect();
    nanoseconds.sort_unstable();
    let at = |share: usize| nanoseconds[(nanoseconds.len() - 1) * share / 1000];
    let [p1, p50, p99, p999] = [10, 500, 990, 999].map(at);
    println!("{name:<40} p1 {p1:>6} ns   p50 {p50:>6} ns   p99 {p99:>6} ns   p99.9 {p999:>6} ns");
}

fn percentiles() {
    let observations = observations();
    let bytes = complete_tree(PERCENTILE_DEPTH);
    let table = Table::parse(&bytes).expect("the encoder checked it");
    let mut guard = Guard::new(Ok(table), GuardConfig::default());
    let mut next = observations.iter().cycle();
    let mut next = || black_box(next.next().expect("cycles"));
    percentiles_of("nothing: the clock itself", || ());
    percentiles_of("table, 1,024 leaves", || table.decide(next(), ActionMask::ALL));
    percentiles_of("guard, 1,024 leaves", || guard.decide(next(), 0, ActionMask::ALL));
    releases();
    let mut scheduler = Scheduler::new(256, 64, 16);
    let mut observer = Observer::new();
    percentiles_of("observation, 256 running, 64 waiting", || scheduler.observe(&mut observer));
    percentiles_of("observation and guard", || guard.decide(&scheduler.observe(&mut observer), 0, ActionMask::ALL));
}

/// What a release costs: the tree alone, behind its guard, and with the observation that it is asked by.
fn releases() {
    let bytes = retaining(PERCENTILE_DEPTH);
    let tree = Table::parse(&bytes).expect("the encoder checked it").retention().expect("it has a second tree");
    let mut random = Random(11);
    let node = Observation { values: std::array::from_fn(|feature| random.value(feature)) };
    let mut below = |bound: u64| random.next() % bound;
    let releases: Vec<Release> = (0..1024)
        .map(|_| Release {
            part: if below(2) == 0 { Part::Head } else { Part::Tail },
            stop: Stop::ALL[below(5) as usize],
            turn: 1 + below(20) as u32,
            block_size: 16,
            num_gpu_blocks: 27_000,
            prompt_tokens: 1 + below(30_000) as u32,
            hit_tokens: below(20_000) as u32,
            generated_tokens: below(2_000) as u32,
            part_blocks: 1 + below(1_000) as u32,
            depth_blocks: below(1_000) as u32,
            shared_blocks: below(100) as u32,
            asked: below(40) as u32,
            asked_evicted: (below(3) > 0).then(|| below(200_000)),
            kind_reuse: below(100) as f32 / 100.0,
            kind_return_us: (below(3) > 0).then(|| below(600_000_000)),
            last_return_us: (below(3) > 0).then(|| below(600_000_000)),
            held_evicted: below(20_000),
            evicted_per_second: below(3_000) as f32,
            kept_blocks: below(20_000) as u32,
            ttft_target_us: 2_000_000,
        })
        .collect();
    let seen: Vec<ReleaseObservation> = releases.iter().map(|release| release.observe(&node)).collect();
    let mut guard = RetentionGuard::new(GuardConfig::default());
    let (mut next_seen, mut next_release) = (seen.iter().cycle(), releases.iter().cycle());
    let mut next_seen = || black_box(next_seen.next().expect("cycles"));
    percentiles_of("release, tree of 1,024 leaves", || tree.decide(next_seen()));
    percentiles_of("release, guard, 1,024 leaves", || guard.decide(Ok(&tree), next_seen(), 0));
    percentiles_of("release observed and decided", || {
        let release = black_box(next_release.next().expect("cycles"));
        guard.decide(Ok(&tree), &release.observe(black_box(&node)), 0)
    });
}

/// A table of one leaf with a complete retention tree.
fn retaining(depth: u32) -> Vec<u8> {
    let mut random = Random(100 + u64::from(depth));
    let splits = (1 << depth) - 1;
    let nodes: Vec<TreeNode> = (0..=2 * splits)
        .map(|node| {
            if node < splits {
                let feature = random.next() as usize % NUM_RELEASE_FEATURES;
                let FeatureSpec { min, max, .. } = RELEASE_FEATURES[feature];
                let unit = (random.next() >> 40) as f32 / (1 << 24) as f32;
                TreeNode::Split { feature: feature as u8, left: 2 * node + 1, threshold: min + unit * (max - min) }
            } else {
                let mut choices = [0; NUM_HEADS];
                choices[0] = (random.next() % 4) as u8;
                TreeNode::Leaf { choices }
            }
        })
        .collect();
    let ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let release_ranges = RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let spec = TableSpec {
        profile: ActionProfile::Full,
        heads: NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &[TreeNode::Leaf { choices: [0; NUM_HEADS] }],
        metadata: &[],
        extensions: &[],
    };
    let retention = RetentionSpec { schema_hash: RELEASE_SCHEMA_HASH, ranges: &release_ranges, nodes: &nodes };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut bytes).expect("complete trees keep the rules");
    bytes
}

const COUNTED_CALLS: usize = 10_000;

#[inline(never)]
fn counted_decisions(table: Table<'_>, observations: &[Observation]) {
    for observation in observations.iter().cycle().take(COUNTED_CALLS) {
        black_box(table.decide(black_box(observation), ActionMask::ALL));
    }
}

#[inline(never)]
fn counted_guarded(guard: &mut Guard<'_>, observations: &[Observation]) -> Controls {
    let mut last = GuardConfig::default().fallback;
    for observation in observations.iter().cycle().take(COUNTED_CALLS) {
        last = black_box(guard.decide(black_box(observation), 0, ActionMask::ALL));
    }
    last
}

#[inline(never)]
fn counted_observations(scheduler: &mut Scheduler, observer: &mut Observer) {
    for _ in 0..COUNTED_CALLS {
        black_box(black_box(&mut *scheduler).observe(observer));
    }
}

/// For callgrind: a known number of calls, each kind within one function.
fn instructions() {
    let observations = observations();
    let bytes = complete_tree(PERCENTILE_DEPTH);
    let table = Table::parse(&bytes).expect("the encoder checked it");
    counted_decisions(table, &observations);
    counted_guarded(&mut Guard::new(Ok(table), GuardConfig::default()), &observations);
    counted_observations(&mut Scheduler::new(256, 64, 16), &mut Observer::new());
    println!("{COUNTED_CALLS} calls of each kind");
}

criterion_group!(benches, decide, parse, observe);

fn main() {
    let asked = |word: &str| std::env::args().any(|argument| argument == word);
    if asked("instructions") {
        return instructions();
    }
    if !asked("percentiles") {
        benches();
        Criterion::default().configure_from_args().final_summary();
    }
    // `cargo test --benches` passes no `--bench`: nothing is measured then.
    if asked("--bench") && !asked("--test") && !asked("--list") {
        percentiles();
    }
}
