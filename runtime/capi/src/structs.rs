//! What is passed. All plain: integers and floats, no padding, any bits are a value.

use kvtide_runtime as rt;
use kvtide_runtime::observer::Totals;

use crate::choices::{Admission, Eviction, FallbackReason, Preemption, Victim, numbered};
use crate::foreign::Sized32;
use crate::status::Failure;
use crate::{KVTIDE_ABI_VERSION, KVTIDE_NUM_FEATURES, KVTIDE_NUM_HEADS};

/// How a policy is opened. Fill with kvtide_options_default, then change what should differ.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Options {
    /// sizeof(kvtide_options).
    pub struct_size: u32,
    /// KVTIDE_ABI_VERSION.
    pub abi_version: u32,
    /// The heads this node can act on, a kvtide_profile. A table that decides others is refused. Default: watermark.
    pub honoured_profile: u32,
    /// kvtide_victim without a table, and where the table does not decide it. Default: newest.
    pub fallback_victim: u32,
    /// kvtide_preemption likewise. Default: recompute.
    pub fallback_preemption: u32,
    /// kvtide_admission likewise. Default: fcfs.
    pub fallback_admission: u32,
    /// kvtide_eviction likewise. Default: lru.
    pub fallback_eviction: u32,
    /// 0.
    pub reserved: u32,
    /// Fraction of the pool to leave free without a table, 0 to 1; clamped, NaN is 0. Default: 0.01.
    pub fallback_watermark: f64,
    /// Most tokens of a step without a table, and where it does not decide that; clamped to 128 to 1,048,576, NaN is 128.
    /// Default: 1,048,576, which is more than any engine's own.
    pub fallback_budget: f64,
    /// An observation older than this is stale. Default: one second.
    pub max_age_us: u64,
    /// How far outside its trained range a feature may be, as a fraction of the range's width. Default: 0.1.
    pub range_tolerance: f32,
    /// The fallback begins at this many decisions in a row with a feature out of range. Default: 8.
    pub out_of_range_decisions: u32,
    /// The table resumes at this many decisions in a row with every feature in range. Default: 32.
    pub recovery_decisions: u32,
    /// What the table decided stays for at least this many decisions; 0 and 1 limit nothing. Default: 0.
    pub hold_decisions: u32,
}

/// What a scheduler knows at a decision point.
///
/// The fields marked (R) are sums over the running requests and those marked (W) over the waiting queue. Pass the
/// requests to kvtide_policy_observe and leave these 0, or fill them and pass none.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Snapshot {
    /// sizeof(kvtide_snapshot).
    pub struct_size: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Now, on any clock that does not go backwards.
    pub now_us: u64,
    /// Size of the GPU pool, blocks.
    pub num_gpu_blocks: u32,
    /// Free GPU blocks.
    pub free_gpu_blocks: u32,
    /// Cached GPU blocks nobody uses.
    pub evictable_blocks: u32,
    /// Size of the host pool, blocks; 0 without one.
    pub num_cpu_blocks: u32,
    /// Free host blocks.
    pub free_cpu_blocks: u32,
    /// (R) Blocks the running requests must still be given to decode 1, 8 and 32 more steps.
    pub growth_blocks: [u32; 3],
    /// (R) Blocks held by the running requests.
    pub held_blocks: u32,
    /// (R) Running requests.
    pub running: u32,
    /// Waiting requests, all of them.
    pub waiting: u32,
    /// Swapped requests.
    pub swapped: u32,
    /// Most requests that may run at once.
    pub max_num_seqs: u32,
    /// Most tokens a step may compute.
    pub max_num_batched_tokens: u32,
    /// (W) Blocks the head of waiting asks for.
    pub head_blocks: u32,
    /// (W) Tokens the head of waiting asks for.
    pub head_tokens: u32,
    /// (W) How many of the first 16 waiting requests have no token yet and are past their TTFT target.
    pub late_waiting: u32,
    /// (W) How many of the newest 64 waiting requests have no token yet and can still get it by their TTFT target,
    /// prefill included.
    pub on_time_waiting: u32,
    /// (R) Running requests whose next token is past its deadline.
    pub behind: u32,
    /// (R) Running requests that decode: their prompt is computed.
    pub decodes: u32,
    /// (W) Blocks the first 16 waiting requests ask for.
    pub waiting_blocks: u64,
    /// (W) Tokens the first 16 waiting requests ask for.
    pub waiting_tokens: u64,
    /// (W) Longest time since arrival among the first 16 waiting requests that have no token yet.
    pub oldest_wait_us: u64,
    /// (W) Blocks those asked for that are counted by on_time_waiting.
    pub on_time_blocks: u64,
    /// (W) Least time among those by which the prefill may still be put off; 0 if there is none.
    pub on_time_slack_us: u64,
    /// (R) Sum of (deadline of the next token - now).
    pub slack_sum_us: i64,
    /// (R) Tokens generated so far by the running requests.
    pub generated_tokens: u64,
    /// (R) Prompt tokens the running requests have still to compute.
    pub pending_prefill_tokens: u64,
    /// (R) Sum over those that decode of (deadline of the next token - now).
    pub decode_slack_sum_us: i64,
    /// (R) Least (deadline of the next token - now) of those; of no meaning without any.
    pub least_decode_slack_us: i64,
    /// TTFT target.
    pub ttft_target_us: u64,
    /// TPOT target.
    pub tpot_target_us: u64,
    /// Since the scheduler started: scheduler steps. This and the following only grow.
    pub total_steps: u64,
    /// Since then: steps in which an admission was refused.
    pub total_refused_steps: u64,
    /// Since then: requests that arrived.
    pub total_arrivals: u64,
    /// Since then: prompt tokens that arrived.
    pub total_arrived_prompt_tokens: u64,
    /// Since then: requests that finished.
    pub total_completions: u64,
    /// Since then: output tokens of the requests that finished.
    pub total_completed_output_tokens: u64,
    /// Since then: preemptions.
    pub total_preemptions: u64,
    /// Since then: blocks swapped in or out.
    pub total_swapped_blocks: u64,
    /// Since then: tokens given to requests in all steps, decodes' included.
    pub total_tokens: u64,
}

/// What a node knows of a running request.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RunningRequest {
    /// Prompt tokens plus those generated so far.
    pub tokens: u32,
    /// Tokens whose keys and values exist.
    pub computed_tokens: u32,
    /// Tokens generated so far.
    pub generated_tokens: u32,
    /// GPU blocks it holds.
    pub held_blocks: u32,
    /// By when its next token is on time: arrival + TTFT target + generated tokens x TPOT target.
    pub deadline_us: u64,
}

/// What a node knows of a waiting request.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct WaitingRequest {
    /// Tokens it has: the prompt, and after a preemption those generated as well.
    pub tokens: u32,
    /// Not 0 if it has had its first token, before a preemption.
    pub had_first_token: u32,
    /// When it arrived.
    pub arrival_us: u64,
    /// By when its first token is on time; of no meaning once it has had it.
    pub first_token_deadline_us: u64,
    /// How long it takes to compute its tokens.
    pub prefill_us: u64,
}

/// What a policy sees: the features in the order of the schema.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Observation {
    /// sizeof(kvtide_observation).
    pub struct_size: u32,
    /// Each finite and within its range, if kvtide_policy_observe made them.
    pub values: [f32; KVTIDE_NUM_FEATURES],
    /// The snapshot's now_us.
    pub taken_us: u64,
}

/// Which choices the engine can carry out right now: bit i of a head's word allows choice i. Bits beyond a head's
/// choices mean nothing.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Mask {
    /// Watermark (20 choices), victim (5), preemption (3), admission (3), budget (9), eviction (2).
    pub allowed: [u32; KVTIDE_NUM_HEADS],
}

/// What a scheduler obeys until the next decision.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Controls {
    /// sizeof(kvtide_controls), set by the program.
    pub struct_size: u32,
    /// Who is preempted, a kvtide_victim.
    pub victim: u32,
    /// How, a kvtide_preemption.
    pub preemption: u32,
    /// Who is admitted next, a kvtide_admission.
    pub admission: u32,
    /// Fraction of the GPU pool admission must leave free, 0 to 1.
    pub watermark: f64,
    /// Most tokens of a step; where it is more than the engine's own, that. Never fewer than decodes need.
    pub budget: f64,
    /// In which order cached blocks go, a kvtide_eviction.
    pub eviction: u32,
    /// Why these are the fallback, a kvtide_fallback; 0 if the table decided.
    pub fallback: u32,
}

/// What happened since a policy was opened. A decision is counted once beside decisions, and a table offered once.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Counters {
    /// sizeof(kvtide_counters), set by the program.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Decisions asked for, but those that failed.
    pub decisions: u64,
    /// Decisions the table took.
    pub table_decisions: u64,
    /// Fallbacks: there is no table.
    pub no_table: u64,
    /// Fallbacks: the table was made for another schema or action set.
    pub unknown_schema: u64,
    /// Fallbacks: the observation was too old.
    pub stale: u64,
    /// Fallbacks: a value was NaN or infinite.
    pub non_finite: u64,
    /// Fallbacks: outside the trained range.
    pub out_of_range: u64,
    /// Calls to decide that failed; their controls were the fallback.
    pub failed: u64,
    /// Tables taken.
    pub loads_accepted: u64,
    /// Files that could not be read.
    pub loads_unreadable: u64,
    /// Tables that were not sound.
    pub loads_invalid: u64,
    /// Tables made for another schema or action set.
    pub loads_unknown_schema: u64,
    /// Tables that decide heads the node cannot act on.
    pub loads_unfit_profile: u64,
    /// Decisions of the table that hold_decisions held back; they count as the table's.
    pub held: u64,
}

macro_rules! sized {
    ($($name:ident = $text:literal,)+) => {
        $(
            // SAFETY: `repr(C)`, `struct_size: u32` comes first, and all fields are integers and floats.
            unsafe impl Sized32 for $name {
                const NAME: &'static str = $text;
            }
        )+
    };
}

sized! {
    Options = "options",
    Snapshot = "snapshot",
    Observation = "observation",
    Controls = "controls",
    Counters = "counters",
}

impl Options {
    pub(crate) fn default_values() -> Options {
        let config = rt::GuardConfig::default();
        let rt::Controls { watermark, victim, preemption, admission, budget, eviction } = config.fallback;
        Options {
            struct_size: size_of::<Options>() as u32,
            abi_version: KVTIDE_ABI_VERSION,
            honoured_profile: rt::ActionProfile::Watermark as u32,
            fallback_victim: victim as u32,
            fallback_preemption: preemption as u32,
            fallback_admission: admission as u32,
            fallback_eviction: eviction as u32,
            reserved: 0,
            fallback_watermark: watermark,
            fallback_budget: budget,
            max_age_us: config.max_age_us,
            range_tolerance: config.range_tolerance,
            out_of_range_decisions: config.out_of_range_decisions,
            recovery_decisions: config.recovery_decisions,
            hold_decisions: config.hold_decisions,
        }
    }

    /// What the options mean to the runtime.
    pub(crate) fn meaning(&self) -> Result<(rt::ActionProfile, rt::GuardConfig), Failure> {
        fn pick<T: Copy>(choices: &[T], number: u32, name: &'static str) -> Result<T, Failure> {
            let limit = choices.len() as u64 - 1;
            numbered(choices, number).ok_or(Failure::Number { name, found: number.into(), limit })
        }
        check_abi(self.abi_version)?;
        let profile = pick(&rt::ActionProfile::ALL, self.honoured_profile, "honoured_profile")?;
        let fallback = rt::Controls {
            watermark: self.fallback_watermark,
            victim: pick(rt::Victim::ALL, self.fallback_victim, "fallback_victim")?,
            preemption: pick(rt::Preemption::ALL, self.fallback_preemption, "fallback_preemption")?,
            admission: pick(rt::Admission::ALL, self.fallback_admission, "fallback_admission")?,
            budget: self.fallback_budget,
            eviction: pick(rt::Eviction::ALL, self.fallback_eviction, "fallback_eviction")?,
        }
        .sound();
        let config = rt::GuardConfig {
            fallback,
            max_age_us: self.max_age_us,
            range_tolerance: self.range_tolerance,
            out_of_range_decisions: self.out_of_range_decisions,
            recovery_decisions: self.recovery_decisions,
            hold_decisions: self.hold_decisions,
        };
        Ok((profile, config))
    }
}

pub(crate) fn check_abi(found: u32) -> Result<(), Failure> {
    if found == KVTIDE_ABI_VERSION { Ok(()) } else { Err(Failure::Abi { found, expected: KVTIDE_ABI_VERSION }) }
}

impl Snapshot {
    /// The runtime's snapshot with the given requests counted in.
    pub(crate) fn counted(
        &self,
        running: &[RunningRequest],
        waiting: &[WaitingRequest],
    ) -> Result<rt::Snapshot, Failure> {
        if waiting.len() > self.waiting as usize {
            return Err(Failure::FewerWaiting { waiting: self.waiting, given: waiting.len() });
        }
        let mut snapshot = self.plain();
        snapshot.add_all_running(running.iter().map(RunningRequest::theirs));
        if !waiting.is_empty() {
            snapshot.look_at_waiting(
                waiting.iter().map(WaitingRequest::theirs),
                waiting.iter().rev().map(WaitingRequest::theirs),
            );
        }
        Ok(snapshot)
    }

    fn plain(&self) -> rt::Snapshot {
        rt::Snapshot {
            now_us: self.now_us,
            block_size: self.block_size,
            num_gpu_blocks: self.num_gpu_blocks,
            free_gpu_blocks: self.free_gpu_blocks,
            evictable_blocks: self.evictable_blocks,
            num_cpu_blocks: self.num_cpu_blocks,
            free_cpu_blocks: self.free_cpu_blocks,
            growth_blocks: self.growth_blocks,
            held_blocks: self.held_blocks,
            running: self.running,
            waiting: self.waiting,
            swapped: self.swapped,
            max_num_seqs: self.max_num_seqs,
            max_num_batched_tokens: self.max_num_batched_tokens,
            head_blocks: self.head_blocks,
            head_tokens: self.head_tokens,
            waiting_blocks: self.waiting_blocks,
            waiting_tokens: self.waiting_tokens,
            oldest_wait_us: self.oldest_wait_us,
            late_waiting: self.late_waiting,
            on_time_waiting: self.on_time_waiting,
            on_time_blocks: self.on_time_blocks,
            on_time_slack_us: self.on_time_slack_us,
            behind: self.behind,
            slack_sum_us: self.slack_sum_us,
            generated_tokens: self.generated_tokens,
            pending_prefill_tokens: self.pending_prefill_tokens,
            decodes: self.decodes,
            decode_slack_sum_us: self.decode_slack_sum_us,
            least_decode_slack_us: self.least_decode_slack_us,
            ttft_target_us: self.ttft_target_us,
            tpot_target_us: self.tpot_target_us,
            totals: Totals {
                steps: self.total_steps,
                refused_steps: self.total_refused_steps,
                arrivals: self.total_arrivals,
                arrived_prompt_tokens: self.total_arrived_prompt_tokens,
                completions: self.total_completions,
                completed_output_tokens: self.total_completed_output_tokens,
                preemptions: self.total_preemptions,
                swapped_blocks: self.total_swapped_blocks,
                tokens: self.total_tokens,
            },
        }
    }
}

impl RunningRequest {
    pub(crate) fn theirs(&self) -> rt::RunningRequest {
        rt::RunningRequest {
            tokens: self.tokens,
            computed_tokens: self.computed_tokens,
            generated_tokens: self.generated_tokens,
            held_blocks: self.held_blocks,
            deadline_us: self.deadline_us,
        }
    }
}

impl WaitingRequest {
    fn theirs(&self) -> rt::WaitingRequest {
        rt::WaitingRequest {
            tokens: self.tokens,
            arrival_us: self.arrival_us,
            first_token_deadline_us: (self.had_first_token == 0).then_some(self.first_token_deadline_us),
            prefill_us: self.prefill_us,
        }
    }
}

impl Mask {
    pub(crate) fn meaning(&self) -> Result<rt::ActionMask, Failure> {
        let mut mask = rt::ActionMask::ALL;
        for (head, word) in rt::Head::ALL.into_iter().zip(self.allowed) {
            let choices = 0..head.size() as u8;
            if !choices.clone().any(|choice| word >> choice & 1 == 1) {
                return Err(Failure::EmptyHead(head.name()));
            }
            mask =
                choices.filter(|choice| word >> choice & 1 == 0).fold(mask, |mask, choice| mask.forbid(head, choice));
        }
        Ok(mask)
    }
}

impl Controls {
    pub(crate) fn fill(&mut self, controls: rt::Controls, fallback: FallbackReason) {
        let rt::Controls { watermark, victim, preemption, admission, budget, eviction } = controls;
        *self = Controls {
            struct_size: self.struct_size,
            victim: Victim::from(victim) as u32,
            preemption: Preemption::from(preemption) as u32,
            admission: Admission::from(admission) as u32,
            watermark,
            budget,
            eviction: Eviction::from(eviction) as u32,
            fallback: fallback as u32,
        };
    }
}
