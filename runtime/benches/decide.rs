//! What a decision and a load cost: `cargo bench -p kvtide-runtime`.
//!
//! Tables are complete trees with seeded features and thresholds; each decision takes the next of 1,024 observations,
//! so that the branch predictor cannot learn the way.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kvtide_runtime::format::{FeatureRange, TableSpec, encode, encoded_len};
use kvtide_runtime::{
    ACTION_SET_HASH, ActionMask, ActionProfile, FEATURES, Guard, GuardConfig, NUM_FEATURES, Node, Observation, Policy,
    SCHEMA_HASH, Table,
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
    let nodes: Vec<Node> = (0..=2 * splits)
        .map(|node| {
            if node < splits {
                let feature = random.next() as usize % NUM_FEATURES;
                Node::Split { feature: feature as u8, left: 2 * node + 1, threshold: random.value(feature) }
            } else {
                Node::Leaf { choices: [(random.next() % 12) as u8, 0, 1, 0] }
            }
        })
        .collect();
    let ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let spec = TableSpec {
        profile: ActionProfile::Full,
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

criterion_group!(benches, decide, parse);
criterion_main!(benches);
