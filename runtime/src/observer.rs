//! From the raw numbers a node has to the observation a policy sees.
//!
//! The environment and a serving node fill the same [`Snapshot`] and share this code, so a feature cannot mean two
//! things.

use crate::observation::{Feature, Observation};

/// Time constant of rates, seconds.
const RATE_SECONDS: f32 = 10.0;
/// Time constant of step time and refusal share, seconds.
const SERVICE_SECONDS: f32 = 1.0;
/// How many tokens the time of a token is told by.
const TOKENS_TIMED: f32 = 1024.0;
/// Requests over which lengths are averaged.
const LENGTH_REQUESTS: f32 = 32.0;
/// How far ahead the growth features look, in decode steps.
pub const GROWTH_STEPS: [u32; 3] = [1, 8, 32];
/// How many waiting requests are looked at from the front.
pub const WAITING_WINDOW: usize = 16;
/// How many waiting requests are looked at from the back, where those are that arrived last.
pub const NEWEST_WINDOW: usize = 64;

/// Raw scheduler state at a decision point. Times are microseconds, blocks and tokens are counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Now, on any clock that does not go backwards.
    pub now_us: u64,
    /// Tokens per block.
    pub block_size: u32,
    /// Size of the GPU pool.
    pub num_gpu_blocks: u32,
    /// Free GPU blocks.
    pub free_gpu_blocks: u32,
    /// Cached GPU blocks nobody uses.
    pub evictable_blocks: u32,
    /// Size of the host pool; 0 without one.
    pub num_cpu_blocks: u32,
    /// Free host blocks.
    pub free_cpu_blocks: u32,
    /// Blocks the running requests must still be given to decode [`GROWTH_STEPS`] more steps.
    pub growth_blocks: [u32; 3],
    /// Blocks held by the running requests.
    pub held_blocks: u32,
    /// Running requests.
    pub running: u32,
    /// Waiting requests.
    pub waiting: u32,
    /// Swapped requests.
    pub swapped: u32,
    /// Most requests that may run at once.
    pub max_num_seqs: u32,
    /// Most tokens a step may compute.
    pub max_num_batched_tokens: u32,
    /// Blocks the head of waiting asks for.
    pub head_blocks: u32,
    /// Tokens the head of waiting asks for.
    pub head_tokens: u32,
    /// Blocks the first [`WAITING_WINDOW`] waiting requests ask for.
    pub waiting_blocks: u64,
    /// Tokens the first [`WAITING_WINDOW`] waiting requests ask for.
    pub waiting_tokens: u64,
    /// Longest time since arrival among the first [`WAITING_WINDOW`] waiting requests that have no token yet.
    pub oldest_wait_us: u64,
    /// How many of the first [`WAITING_WINDOW`] waiting requests have no token yet and are past their TTFT target.
    pub late_waiting: u32,
    /// How many of the newest [`NEWEST_WINDOW`] waiting requests have no token yet and can still get it by their TTFT
    /// target, prefill included.
    pub on_time_waiting: u32,
    /// Blocks those ask for.
    pub on_time_blocks: u64,
    /// Least time among those by which the prefill may still be put off; 0 if there is none.
    pub on_time_slack_us: u64,
    /// Running requests whose next token is past its deadline.
    pub behind: u32,
    /// Sum over running of (deadline of the next token - now).
    pub slack_sum_us: i64,
    /// Tokens generated so far by the running requests.
    pub generated_tokens: u64,
    /// Prompt tokens the running requests have still to compute.
    pub pending_prefill_tokens: u64,
    /// Running requests that decode: their prompt is computed.
    pub decodes: u32,
    /// Sum over those of (deadline of the next token - now).
    pub decode_slack_sum_us: i64,
    /// Least (deadline of the next token - now) among those; of no meaning without any.
    pub least_decode_slack_us: i64,
    /// TTFT target.
    pub ttft_target_us: u64,
    /// TPOT target.
    pub tpot_target_us: u64,
    /// Counters since the scheduler started.
    pub totals: Totals,
}

/// Counters since the scheduler started; they only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Scheduler steps.
    pub steps: u64,
    /// Steps in which an admission was refused.
    pub refused_steps: u64,
    /// Requests that arrived.
    pub arrivals: u64,
    /// Prompt tokens that arrived.
    pub arrived_prompt_tokens: u64,
    /// Requests that finished.
    pub completions: u64,
    /// Output tokens of the requests that finished.
    pub completed_output_tokens: u64,
    /// Requests that were preempted.
    pub preemptions: u64,
    /// Blocks swapped in or out.
    pub swapped_blocks: u64,
    /// Tokens given to requests in all steps, decodes' included.
    pub tokens: u64,
}

impl Snapshot {
    /// Least and mean time that decodes have to their next deadlines, microseconds; `None` if nobody decodes.
    fn decode_slack_us(&self) -> Option<(f32, f32)> {
        let decodes = self.decodes as f32;
        (self.decodes > 0).then(|| (self.least_decode_slack_us as f32, self.decode_slack_sum_us as f32 / decodes))
    }
}

/// Turns snapshots into observations; remembers the last counters and the running averages.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Observer {
    /// Whether `last_us` means anything: a node's clock does not begin at 0.
    started: bool,
    last_us: u64,
    last: Totals,
    /// Per second.
    arrival_rate: f32,
    completion_rate: f32,
    preemption_rate: f32,
    swap_rate: f32,
    /// Seconds.
    step_seconds: f32,
    token_seconds: f32,
    refusal_share: f32,
    /// Tokens.
    prompt_tokens: f32,
    output_tokens: f32,
}

impl Observer {
    /// An observer that has seen nothing.
    pub fn new() -> Observer {
        Observer::default()
    }

    /// Folds the counters into the averages and returns the observation of this moment.
    pub fn observe(&mut self, snapshot: &Snapshot) -> Observation {
        self.fold(snapshot);
        let s = snapshot;
        let pool = s.num_gpu_blocks.max(1) as f32;
        let slots = s.max_num_seqs.max(1) as f32;
        let budget = s.max_num_batched_tokens.max(1) as f32;
        let running = s.running.max(1) as f32;
        let window = (s.waiting as usize).clamp(1, WAITING_WINDOW) as f32;
        let block = s.block_size.max(1) as f32;
        let ttft = (s.ttft_target_us.max(1) as f32) * 1e-6;
        let tpot = (s.tpot_target_us.max(1) as f32) * 1e-6;

        let mut out = Observation::ZERO;
        out.set(Feature::FreeFraction, s.free_gpu_blocks as f32 / pool);
        out.set(Feature::EvictableFraction, s.evictable_blocks as f32 / pool);
        let host_free = if s.num_cpu_blocks == 0 { 0.0 } else { s.free_cpu_blocks as f32 / s.num_cpu_blocks as f32 };
        out.set(Feature::HostFreeFraction, host_free);
        out.set(Feature::Growth1, s.growth_blocks[0] as f32 / pool);
        out.set(Feature::Growth8, s.growth_blocks[1] as f32 / pool);
        out.set(Feature::Growth32, s.growth_blocks[2] as f32 / pool);
        out.set(Feature::BlocksPerSequence, s.held_blocks as f32 / running / pool);
        out.set(Feature::Running, s.running as f32 / slots);
        out.set(Feature::Waiting, s.waiting as f32 / slots);
        out.set(Feature::Swapped, s.swapped as f32 / slots);
        out.set(Feature::HeadBlocks, s.head_blocks as f32 / pool);
        out.set(Feature::WaitingBlocks, s.waiting_blocks as f32 / pool);
        out.set(Feature::HeadTokens, s.head_tokens as f32 / budget);
        out.set(Feature::WaitingTokens, s.waiting_tokens as f32 / budget);
        out.set(Feature::OldestWait, s.oldest_wait_us as f32 * 1e-6 / ttft);
        out.set(Feature::LateWaiting, s.late_waiting as f32 / window);
        out.set(Feature::OnTimeWaiting, s.on_time_waiting as f32 / slots);
        out.set(Feature::OnTimeBlocks, s.on_time_blocks as f32 / pool);
        let slack = if s.on_time_waiting == 0 { 1.0 } else { s.on_time_slack_us as f32 * 1e-6 / ttft };
        out.set(Feature::OnTimeSlack, slack);
        out.set(Feature::ArrivalRate, self.arrival_rate * ttft);
        out.set(Feature::CompletionRate, self.completion_rate * ttft);
        out.set(Feature::PreemptionRate, self.preemption_rate * ttft);
        out.set(Feature::SwapRate, self.swap_rate * ttft / pool);
        out.set(Feature::PromptBlocks, self.prompt_tokens / block / pool);
        out.set(Feature::OutputBlocks, self.output_tokens / block / pool);
        out.set(Feature::StepTime, self.step_seconds / tpot);
        out.set(Feature::BehindFraction, s.behind as f32 / running);
        out.set(Feature::MeanSlack, s.slack_sum_us as f32 * 1e-6 / running / ttft);
        out.set(Feature::Progress, s.generated_tokens as f32 / running / self.output_tokens.max(1.0));
        out.set(Feature::PendingPrefill, s.pending_prefill_tokens as f32 / budget);
        out.set(Feature::RefusalRate, self.refusal_share);
        out.set(Feature::Decodes, s.decodes as f32 / slots);
        let (least, mean) = s.decode_slack_us().unwrap_or((f32::INFINITY, f32::INFINITY));
        out.set(Feature::LeastDecodeSlack, least * 1e-6 / tpot);
        out.set(Feature::MeanDecodeSlack, mean * 1e-6 / tpot);
        out.set(Feature::TokenTime, self.token_seconds * TOKENS_TIMED / tpot);
        out
    }

    /// Averages are first-order lags stepped by backward Euler, `y += dt / (tau + dt) * (x - y)`: stable at any step
    /// and free of `exp`, which `core` does not have.
    fn fold(&mut self, s: &Snapshot) {
        let new = |now: u64, before: u64| now.saturating_sub(before) as f32;
        let seconds = if self.started { new(s.now_us, self.last_us) * 1e-6 } else { 0.0 };
        if seconds > 0.0 {
            let gain = seconds / (RATE_SECONDS + seconds);
            let rate = |average: &mut f32, count: f32| *average += gain * (count / seconds - *average);
            rate(&mut self.arrival_rate, new(s.totals.arrivals, self.last.arrivals));
            rate(&mut self.completion_rate, new(s.totals.completions, self.last.completions));
            rate(&mut self.preemption_rate, new(s.totals.preemptions, self.last.preemptions));
            rate(&mut self.swap_rate, new(s.totals.swapped_blocks, self.last.swapped_blocks));
        }
        let steps = new(s.totals.steps, self.last.steps);
        if steps > 0.0 {
            let gain = seconds / (SERVICE_SECONDS + seconds);
            self.step_seconds += gain * (seconds / steps - self.step_seconds);
            self.refusal_share +=
                gain * (new(s.totals.refused_steps, self.last.refused_steps) / steps - self.refusal_share);
            let tokens = new(s.totals.tokens, self.last.tokens);
            if tokens > 0.0 {
                self.token_seconds += gain * (seconds / tokens - self.token_seconds);
            }
        }
        mean_of(
            &mut self.prompt_tokens,
            new(s.totals.arrived_prompt_tokens, self.last.arrived_prompt_tokens),
            new(s.totals.arrivals, self.last.arrivals),
        );
        mean_of(
            &mut self.output_tokens,
            new(s.totals.completed_output_tokens, self.last.completed_output_tokens),
            new(s.totals.completions, self.last.completions),
        );
        self.started = true;
        self.last_us = s.now_us;
        self.last = s.totals;
    }
}

/// Moves a per-request average by the mean of `count` new requests; the first ones set it outright.
fn mean_of(average: &mut f32, sum: f32, count: f32) {
    if count > 0.0 {
        let gain = if *average == 0.0 { 1.0 } else { count / (LENGTH_REQUESTS + count) };
        *average += gain * (sum / count - *average);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            block_size: 16,
            num_gpu_blocks: 100,
            max_num_seqs: 10,
            max_num_batched_tokens: 1000,
            ttft_target_us: 2_000_000,
            tpot_target_us: 100_000,
            ..Snapshot::default()
        }
    }

    #[test]
    fn fractions_are_of_the_pool() {
        let mut observer = Observer::new();
        let observation = observer.observe(&Snapshot { free_gpu_blocks: 25, growth_blocks: [1, 2, 8], ..snapshot() });
        assert_eq!(observation[Feature::FreeFraction], 0.25);
        assert_eq!(observation[Feature::Growth32], 0.08);
        assert_eq!(observation[Feature::HostFreeFraction], 0.0);
    }

    #[test]
    fn a_steady_rate_is_learnt() {
        let mut observer = Observer::new();
        let mut observation = Observation::ZERO;
        for second in 1..=200 {
            let totals = Totals { arrivals: 5 * second, arrived_prompt_tokens: 5 * second * 160, ..Totals::default() };
            observation = observer.observe(&Snapshot { now_us: second * 1_000_000, totals, ..snapshot() });
        }
        // 5/s for a TTFT target of 2 s is 10 arrivals per target.
        assert!((observation[Feature::ArrivalRate] - 10.0).abs() < 1e-3);
        assert!((observation[Feature::PromptBlocks] - 0.1).abs() < 1e-6);
    }

    #[test]
    fn a_clock_that_stands_still_changes_no_rate() {
        let mut observer = Observer::new();
        let totals = Totals { arrivals: 9, ..Totals::default() };
        let observation = observer.observe(&Snapshot { totals, ..snapshot() });
        assert_eq!(observation[Feature::ArrivalRate], 0.0);
    }

    #[test]
    fn the_clock_may_begin_anywhere() {
        let mut observer = Observer::new();
        let now_us = 1_700_000_000_000_000;
        let totals = Totals { steps: 100, arrivals: 50, ..Totals::default() };
        let observation = observer.observe(&Snapshot { now_us, totals, ..snapshot() });
        assert_eq!((observation[Feature::StepTime], observation[Feature::ArrivalRate]), (0.0, 0.0));
        // A second with ten steps, which is worth half of the average: 0.05 s of a target of 0.1 s.
        let totals = Totals { steps: 110, ..totals };
        let observation = observer.observe(&Snapshot { now_us: now_us + 1_000_000, totals, ..snapshot() });
        assert_eq!(observation[Feature::StepTime], 0.5);
    }

    #[test]
    fn the_time_of_a_token_is_that_of_its_steps() {
        let mut observer = Observer::new();
        observer.observe(&snapshot());
        // A second for 2,048 tokens, worth half of the average: 0.25 s for 1,024 of them, of a target of 0.1 s.
        let totals = Totals { steps: 4, tokens: 2048, ..Totals::default() };
        let observation = observer.observe(&Snapshot { now_us: 1_000_000, totals, ..snapshot() });
        assert_eq!(observation[Feature::TokenTime], 2.5);
        // A step of nothing says nothing of tokens.
        let idle = Snapshot { now_us: 2_000_000, totals: Totals { steps: 5, ..totals }, ..snapshot() };
        assert_eq!(observer.observe(&idle)[Feature::TokenTime], 2.5);
    }

    #[test]
    fn slack_of_decodes_is_in_their_own_targets() {
        let seen = |snapshot: &Snapshot| {
            let seen = Observer::new().observe(snapshot);
            [Feature::Decodes, Feature::LeastDecodeSlack, Feature::MeanDecodeSlack].map(|feature| seen[feature])
        };
        let decoding =
            Snapshot { decodes: 5, decode_slack_sum_us: 500_000, least_decode_slack_us: -50_000, ..snapshot() };
        assert_eq!(seen(&decoding), [0.5, -0.5, 1.0]);
        assert_eq!(seen(&snapshot()), [0.0, 32.0, 32.0]);
        let late = Snapshot { decode_slack_sum_us: i64::MIN, least_decode_slack_us: i64::MIN, ..decoding };
        assert_eq!(seen(&late), [0.5, -16.0, -16.0]);
    }

    #[test]
    fn an_empty_snapshot_gives_finite_values() {
        let observation = Observer::new().observe(&Snapshot::default());
        assert!(observation.values.iter().all(|value| value.is_finite()));
    }
}
