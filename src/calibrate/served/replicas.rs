//! Runs of several engines beside each other (`data_parallel_size`): who served what, and all of them as one.

use super::measured::MeasuredRequest;
use super::seen::{ObservedRun, Tick};
use super::serve::SimulatedRun;

/// How much more a waiting request counts than a running one where vLLM picks an engine.
const WAITING: usize = 4;

/// Gives each request, in order of arrival, the engine that vLLM's balancer picks (`DPLBAsyncMPClient`): that with the least
/// running requests, waiting ones counted four times. What was running and waiting is what was measured by then, so that nothing
/// later is seen.
pub(super) fn assign(requests: &mut [MeasuredRequest], replicas: u32) {
    // First and last tokens of what each engine has not finished.
    let mut open: Vec<Vec<(f64, f64)>> = vec![Vec::new(); replicas as usize];
    for request in requests {
        let load = |open: &mut Vec<(f64, f64)>| {
            open.retain(|(_, last)| *last > request.queued);
            open.iter().map(|(first, _)| if *first > request.queued { WAITING } else { 1 }).sum::<usize>()
        };
        let loads = open.iter_mut().map(load).enumerate();
        let least = loads.min_by_key(|(_, load)| *load).map_or(0, |(index, _)| index);
        request.replica = least as u32;
        open[least].push((request.first_token, request.last_token));
    }
}

impl SimulatedRun {
    /// What engines beside each other did, of each the requests in `seen` that are its own.
    pub(super) fn together(seen: &ObservedRun, runs: &[SimulatedRun]) -> SimulatedRun {
        let mut next = vec![0; runs.len()];
        let mut whole = SimulatedRun::default();
        for replica in &seen.replicas {
            let replica = *replica as usize;
            whole.stamps.push(runs[replica].stamps[next[replica]]);
            whole.preempted.push(runs[replica].preempted[next[replica]]);
            next[replica] += 1;
        }
        whole.ticks = seen.ticks.iter().map(|tick| Tick { at_s: tick.at_s, ..Tick::default() }).collect();
        for run in runs {
            whole.end_s = whole.end_s.max(run.end_s);
            whole.stopped_s = whole.stopped_s.max(run.stopped_s);
            whole.recomputed_tokens += run.recomputed_tokens;
            whole.prefix_hit_tokens += run.prefix_hit_tokens;
            for (sum, tick) in whole.ticks.iter_mut().zip(&run.ticks) {
                sum.output_tokens += tick.output_tokens;
                sum.running += tick.running;
                sum.waiting += tick.waiting;
                sum.kv_usage += tick.kv_usage / runs.len() as f64;
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_with_least_to_do_is_picked() {
        let request = |queued: f64, first_token: f64, last_token: f64| MeasuredRequest {
            prompt_tokens: 9,
            output_tokens: 9,
            arrival: queued,
            queued,
            first_token,
            last_token,
            block_hashes: Vec::new(),
            replica: 0,
        };
        let mut requests = [
            request(0.0, 1.0, 9.0),
            request(0.5, 5.0, 9.0),
            // The first engine runs one, the second has one that waits.
            request(2.0, 2.5, 3.0),
            // The first runs two, the second runs one.
            request(6.0, 7.0, 8.0),
            // Nobody has anything to do.
            request(20.0, 21.0, 22.0),
        ];
        requests[2].last_token = 9.0;
        assign(&mut requests, 2);
        assert_eq!(requests.each_ref().map(|request| request.replica), [0, 1, 0, 1, 0]);
    }
}
