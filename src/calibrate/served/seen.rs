//! A measured run up to a moment: all that a fit may see.
//!
//! Three clocks are brought to one, **seconds since the first arrival**: the client's wall clock, the engine's
//! monotonic clock, and that of the recorder of ticks. How they relate is found in what was recorded by then as well.

use std::sync::Arc;

use kvtide_envs::time::Micros;
use kvtide_envs::trace::{MAX_OUTPUT_TOKENS, Request};

use super::measured::{MeasuredRequest, MeasuredRun, MeasuredTick};

/// A measured run up to a moment. Nothing that was recorded later is in it, nor does anything in it depend on that:
/// no stamp and no tick, no request that had not been queued, and no length of an answer that was not finished.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedRun {
    /// The moment.
    pub until_s: f64,
    /// How the clocks relate.
    pub clock: ClockOffsets,
    /// In order of arrival. An answer that was not finished is as long as the engine allows.
    pub requests: Arc<[Request]>,
    /// What came of each request by then.
    pub stamps: Vec<Stamps>,
    /// In order.
    pub ticks: Vec<Tick>,
    /// Which of the engines beside each other served each request.
    pub replicas: Vec<u32>,
}

/// When a request got its first and its last token.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stamps {
    /// Its first token; `None` if it had none yet.
    pub first_s: Option<f64>,
    /// Its last token; `None` if it was not finished.
    pub last_s: Option<f64>,
}

/// What a server looked like at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tick {
    /// The moment.
    pub at_s: f64,
    /// Tokens generated since the start.
    pub output_tokens: f64,
    /// Requests running.
    pub running: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Share of KV blocks in use.
    pub kv_usage: f64,
}

/// How the clocks of a run relate: what each of them shows, in seconds, at the first arrival.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClockOffsets {
    /// The client's wall clock.
    client: f64,
    /// The engine's monotonic clock. A request is queued as soon as it arrives if the engine has nothing to do,
    /// so the shortest time from arrival to queue is taken for none.
    engine: f64,
    /// The clock of whatever recorded the ticks.
    recorder: f64,
}

impl ClockOffsets {
    /// Of what `run` had recorded by `until` on the engine's clock.
    fn of(run: &MeasuredRun, until: f64) -> ClockOffsets {
        let queued = || run.requests.iter().filter(|request| request.queued <= until);
        let client = queued().map(|request| request.arrival).fold(f64::INFINITY, f64::min);
        let offset = queued().map(|request| request.queued - request.arrival).fold(f64::INFINITY, f64::min);
        let engine = client + offset;
        let start = run.start();
        let recorder = (engine - start) + recorder_lead(run, start, until);
        ClockOffsets { client, engine, recorder }
    }

    fn arrival_s(&self, request: &MeasuredRequest) -> f64 {
        request.arrival - self.client
    }

    fn engine_s(&self, stamp: f64) -> f64 {
        stamp - self.engine
    }

    fn tick_s(&self, tick: &MeasuredTick) -> f64 {
        tick.t - self.recorder
    }
}

/// How long before the first request was queued, at `start`, the recorder's clock showed zero: half way between the
/// bounds that ticks up to `until` give. A tick has counted the prompts of all first tokens before it and of none after
/// it, so where its count is that of the first `n`, it was taken between the `n`-th first token and the next. All of that
/// is only used to place ticks within the second, so a tick whose count fits nothing says nothing.
fn recorder_lead(run: &MeasuredRun, start: f64, until: f64) -> f64 {
    let seen = run.requests.iter().filter(|request| request.first_token <= until);
    let mut firsts: Vec<(f64, f64)> =
        seen.map(|request| (request.first_token, f64::from(request.prompt_tokens))).collect();
    firsts.sort_by(|a, b| a.0.total_cmp(&b.0));
    let length = run.ticks.first().map_or(0.0, |tick| tick.t);
    let (mut low, mut high) = (-length, length);
    let (mut counted, mut told, mut known) = (0.0, 0, 0.0);
    // Whatever the lead is, these were taken by then.
    for tick in run.ticks.iter().take_while(|tick| start + tick.t + length <= until) {
        counted += tick.prompt_tokens;
        while told < firsts.len() && known + firsts[told].1 <= counted + 0.5 {
            known += firsts[told].1;
            told += 1;
        }
        if told == 0 || (counted - known).abs() > 0.5 {
            continue;
        }
        let (last, next) = (firsts[told - 1].0, firsts.get(told).map(|next| next.0));
        // Of several in one step, some counted and some not, nothing follows.
        if next.is_none_or(|next| next > last) {
            high = high.min(start + tick.t - last);
            low = low.max(next.map_or(low, |next| start + tick.t - next));
        }
    }
    if low <= high { f64::midpoint(low, high) } else { 0.0 }
}

impl ObservedRun {
    /// What `run` had recorded by `until` on the engine's clock.
    pub fn until(run: &MeasuredRun, until: f64) -> ObservedRun {
        let clock = ClockOffsets::of(run, until);
        ObservedRun::with(run, clock, until)
    }

    /// The whole run on the clock of a part of it.
    pub fn whole(run: &MeasuredRun, clock: ClockOffsets) -> ObservedRun {
        ObservedRun::with(run, clock, f64::INFINITY)
    }

    fn with(run: &MeasuredRun, clock: ClockOffsets, until: f64) -> ObservedRun {
        let until_s = clock.engine_s(until);
        let seen = |stamp: f64| (stamp <= until).then(|| clock.engine_s(stamp));
        let queued = || run.requests.iter().filter(|request| request.queued <= until);
        let block_size = run.engine.tokens_per_block();
        let requests = queued().map(|request| {
            let arrival = Micros::from_secs_f64(clock.arrival_s(request));
            let output_tokens = if request.last_token <= until { request.output_tokens } else { MAX_OUTPUT_TOKENS };
            let hash_block_tokens = if request.block_hashes.is_empty() { 0 } else { block_size };
            let hash_ids = request.block_hashes.iter().copied().collect();
            Request { hash_ids, hash_block_tokens, ..Request::new(arrival, request.prompt_tokens, output_tokens) }
        });
        let stamps =
            queued().map(|request| Stamps { first_s: seen(request.first_token), last_s: seen(request.last_token) });
        let mut output_tokens = 0.0;
        let ticks = run.ticks.iter().map(|tick| {
            output_tokens += tick.output_tokens;
            let &MeasuredTick { running, waiting, kv_usage, .. } = tick;
            Tick { at_s: clock.tick_s(tick), output_tokens, running, waiting, kv_usage }
        });
        ObservedRun {
            until_s,
            clock,
            requests: requests.collect(),
            stamps: stamps.collect(),
            ticks: ticks.take_while(|tick| tick.at_s <= until_s).collect(),
            replicas: queued().map(|request| request.replica).collect(),
        }
    }

    /// What `replica` served, at the same moments.
    pub(super) fn of_replica(&self, replica: u32) -> ObservedRun {
        let is_its = |(_, other): &(usize, &u32)| **other == replica;
        let its = || self.replicas.iter().enumerate().filter(is_its).map(|(index, _)| index);
        ObservedRun {
            requests: its().map(|index| self.requests[index].clone()).collect(),
            stamps: its().map(|index| self.stamps[index]).collect(),
            ticks: self.ticks.clone(),
            replicas: its().map(|_| replica).collect(),
            ..*self
        }
    }

    /// Arrival of a request.
    pub fn arrival_s(&self, index: usize) -> f64 {
        self.requests[index].arrival.as_secs_f64()
    }

    /// The last token of all.
    pub fn end_s(&self) -> f64 {
        self.stamps.iter().filter_map(|stamps| stamps.last_s).fold(0.0, f64::max)
    }

    /// Requests that had got their first token.
    pub fn num_started(&self) -> usize {
        self.stamps.iter().filter(|stamps| stamps.first_s.is_some()).count()
    }
}
