//! What the tests of workloads share.

use std::collections::BTreeSet;

use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{Window, Workload};

pub const SECOND: Micros = Micros(1_000_000);

/// A request a second, its number as its prompt.
pub fn metronome(count: u64) -> Workload {
    let requests = (0..count).map(|index| Request::new(SECOND.times(index), index as u32 + 1, 10)).collect();
    Workload::new("metronome", requests, SECOND.times(count)).unwrap()
}

pub fn prompts(workload: &Workload) -> Vec<u32> {
    workload.requests().iter().map(|request| request.prompt_tokens).collect()
}

pub fn arrivals_s(workload: &Workload) -> Vec<f64> {
    workload.requests().iter().map(|request| request.arrival.as_secs_f64()).collect()
}

pub fn seconds(start: u64, end: u64) -> Window {
    Window { start: SECOND.times(start), end: SECOND.times(end) }
}

/// Prefix blocks, and how many of them differ: in hash, or in salt.
pub fn blocks(workload: &Workload) -> (usize, usize) {
    let of = |request: &Request| request.hash_ids.iter().map(|hash| (request.cache_salt.clone(), *hash)).collect();
    let all: Vec<(Option<String>, u64)> =
        workload.requests().iter().flat_map(|request| -> Vec<_> { of(request) }).collect();
    (all.len(), all.iter().collect::<BTreeSet<_>>().len())
}
