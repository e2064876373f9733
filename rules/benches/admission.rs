//! What admission order costs: `cargo bench -p kvtide-rules`.
//!
//! Queues of 64, 1,600 and 10,000 requests. A *choice* asks who is next, as every step does while somebody waits; an
//! *admission* takes whoever is next out and lets a new request in, as a step that admits does, while time passes and
//! requests become late. Below each the same with a look at everybody, which is what the index is for.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use kvtide_rules::queue::rank;
use kvtide_rules::{AdmissionQueue, Entry, Micros, Patience, Seat};
use kvtide_runtime::Admission;

const WAITING: [u64; 3] = [64, 1600, 10_000];
const ORDERS: [Admission; 3] = [Admission::Fcfs, Admission::OnTimeFirst, Admission::ShortestOnTimeFirst];
/// Between two choices, microseconds.
const STEP: u64 = 20_000;

/// The `number`th request, of some thousands of tokens, late after a few thousand steps.
fn entry(number: u64, now: Micros) -> Entry<u64> {
    // Knuth's multiplicative hash: a sequence without order, and no dependency.
    let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let late_at = Micros(now.0 + random % (5000 * STEP));
    Entry { id: number, tokens: 1 + (random % 4096) as u32, arrival: now, late_at, first_token_by: Some(late_at) }
}

fn queue(waiting: u64) -> AdmissionQueue<u64> {
    let mut queue = AdmissionQueue::new();
    for number in 0..waiting {
        queue.push_back(entry(number, Micros(number)));
    }
    queue
}

fn choices(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("choice");
    for (waiting, order) in WAITING.into_iter().flat_map(|waiting| ORDERS.map(|order| (waiting, order))) {
        let (mut queue, mut now) = (queue(waiting), Micros(waiting));
        group.bench_function(BenchmarkId::new(order.name(), waiting), |bencher| {
            bencher.iter(|| {
                now += Micros(1);
                black_box(queue.next(order, now, Patience::default()))
            });
        });
    }
    group.finish();
}

fn admissions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("admission");
    for (waiting, order) in WAITING.into_iter().flat_map(|waiting| ORDERS.map(|order| (waiting, order))) {
        let (mut queue, mut number) = (queue(waiting), waiting);
        group.bench_function(BenchmarkId::new(order.name(), waiting), |bencher| {
            bencher.iter(|| {
                number += 1;
                let now = Micros(number * STEP);
                let next = queue.next(order, now, Patience::default());
                queue.admit(next.map_or(Seat::default(), |(seat, _)| seat), now);
                queue.push_back(entry(number, now))
            });
        });
    }
    group.finish();
}

fn looks_at_everybody(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("choice-by-looking-at-everybody");
    for waiting in WAITING {
        let (queue, order) = (queue(waiting), Admission::ShortestOnTimeFirst);
        group.bench_function(BenchmarkId::new(order.name(), waiting), |bencher| {
            bencher.iter(|| {
                queue.iter().min_by_key(|entry| rank(entry, order, Micros(waiting), black_box(Micros::MAX))).copied()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, choices, admissions, looks_at_everybody);
criterion_main!(benches);
