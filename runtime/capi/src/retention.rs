//! Which cached blocks stay, for a node in C: what a release is described by, and the class a policy gives it.
#![expect(clippy::missing_safety_doc, reason = "the rules for all functions stand at the head of the header")]

use std::sync::atomic::{AtomicU64, Ordering};

use kvtide_runtime as rt;

use crate::choices::{FallbackReason, Retention};
use crate::foreign::{self, Sized32};
use crate::policy::Policy;
use crate::rules::choice;
use crate::status::{Failure, Status, guarded};
use crate::structs::Observation;

/// The value of a count or a time that is not known.
pub const KVTIDE_UNKNOWN: u64 = u64::MAX;

/// What a node knows of a request that gives its blocks back, finished or preempted, and of one part of them. Asked at most
/// twice a release: for the blocks that were cached when it was first admitted, and for those it computed.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Release {
    /// sizeof(kvtide_release).
    pub struct_size: u32,
    /// Which of its blocks, a kvtide_part.
    pub part: u32,
    /// Why, a kvtide_stop.
    pub stop: u32,
    /// Turn of its session, from 1.
    pub turn: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Size of the GPU pool, blocks.
    pub num_gpu_blocks: u32,
    /// Its prompt's tokens.
    pub prompt_tokens: u32,
    /// How many of them were cached when it was first admitted.
    pub hit_tokens: u32,
    /// Tokens it generated.
    pub generated_tokens: u32,
    /// Blocks of the part.
    pub part_blocks: u32,
    /// Blocks before the part.
    pub depth_blocks: u32,
    /// Blocks of the part that another request holds.
    pub shared_blocks: u32,
    /// Earlier requests that asked for the part's prefix, as far as is remembered.
    pub asked: u32,
    /// Idle cached blocks above class normal.
    pub kept_blocks: u32,
    /// Share of the releases of its tenant and stop that were asked for again, 0 to 1.
    pub kind_reuse: f32,
    /// Cached blocks evicted per second, lately.
    pub evicted_per_second: f32,
    /// Cached blocks evicted since the last of those that asked; KVTIDE_UNKNOWN without any.
    pub asked_evicted: u64,
    /// How long it took until those of its kind were asked for again; KVTIDE_UNKNOWN if none was.
    pub kind_return_us: u64,
    /// How long its own session took to come back with it; KVTIDE_UNKNOWN if it has not.
    pub last_return_us: u64,
    /// Cached blocks evicted since it was admitted.
    pub held_evicted: u64,
    /// TTFT target.
    pub ttft_target_us: u64,
}

/// How long the blocks stay cached.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Retained {
    /// sizeof(kvtide_retained), set by the program.
    pub struct_size: u32,
    /// Their class, a kvtide_retention.
    pub retention: u32,
    /// Why it is not the table's, a kvtide_fallback; 0 if it is. Then the class is normal.
    pub fallback: u32,
    /// 0.
    pub reserved: u32,
}

/// What happened to classes since a policy was opened. A decision is counted once beside decisions.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct RetainedCounters {
    /// sizeof(kvtide_retained_counters), set by the program.
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Decisions asked for, but those that failed.
    pub decisions: u64,
    /// Decisions the table took.
    pub table_decisions: u64,
    /// Of those: evict first.
    pub evict_first: u64,
    /// Of those: normal.
    pub normal: u64,
    /// Of those: keep.
    pub keep: u64,
    /// Of those: keep long.
    pub keep_long: u64,
    /// Normal, because there is no table, or it says nothing of retention.
    pub no_table: u64,
    /// Normal, because what it says of retention is for another build.
    pub unknown_schema: u64,
    /// Normal, because the observation was too old.
    pub stale: u64,
    /// Normal, because a value was NaN or infinite.
    pub non_finite: u64,
    /// Normal, because a value has been outside its trained range for too long.
    pub out_of_range: u64,
    /// Normal, because the pool was behind LRU.
    pub behind_lru: u64,
    /// Calls that failed; their class was normal.
    pub failed: u64,
}

// SAFETY: `repr(C)`, `struct_size: u32` comes first, and all fields are integers and floats.
unsafe impl Sized32 for Release {
    const NAME: &'static str = "release";
}
// SAFETY: as above.
unsafe impl Sized32 for Retained {
    const NAME: &'static str = "retained";
}
// SAFETY: as above.
unsafe impl Sized32 for RetainedCounters {
    const NAME: &'static str = "counters";
}

/// Decides how long the blocks of a part stay cached that a request gives back, at the time now_us. observation is the
/// node's last one, of kvtide_policy_observe. For the thread that decides.
///
/// A table need not say anything of retention: then everything is normal, which is what every engine does, and so it is
/// whenever the table cannot be trusted. What a class means is for the node to do: victims come from the lowest class that
/// has any, least recently used first; keep lasts for as many evicted blocks as 2 pools have, keep-long for 8 and then 2
/// more as keep, after which a block is the most recent of the class below. No block has less than what continues it.
///
/// retained is safe to obey whatever the status is, unless that is because retained itself is null or of the wrong size: a
/// call that fails says normal, with KVTIDE_FALLBACK_FAILED. No allocation, no lock that is waited for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_retention_decide(
    policy: *const Policy,
    observation: *const Observation,
    release: *const Release,
    now_us: u64,
    retained: *mut Retained,
) -> Status {
    guarded(|| {
        // SAFETY: null, or a struct that begins with its size and that nobody else uses now.
        let out = unsafe { foreign::output(retained)? };
        out.fill(rt::Retention::Normal, FallbackReason::Failed);
        // SAFETY: null or a policy that lives.
        let policy = unsafe { foreign::reference(policy, "policy")? };
        // SAFETY: null or as the header says.
        let decided = unsafe { decide(policy, observation, release, now_us, out) };
        if decided.is_err() {
            policy.retained.failed.fetch_add(1, Ordering::Relaxed);
        }
        decided
    })
}

/// Says whether the pool hits less than it would if the least recently used block went first (is_behind is not 0). While it
/// does everything is normal, and what has a class already should be treated as if it had none. For the thread that decides.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_retention_set_behind(policy: *const Policy, is_behind: u32) -> Status {
    guarded(|| {
        // SAFETY: null or a policy that lives.
        let policy = unsafe { foreign::reference(policy, "policy")? };
        policy.deciding()?.reader.set_behind(is_behind != 0);
        Ok(())
    })
}

/// Writes what happened to classes since the policy was opened. For any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvtide_retention_counters(policy: *const Policy, counters: *mut RetainedCounters) -> Status {
    guarded(|| {
        // SAFETY: null or as the header says.
        let (policy, out) = unsafe { (foreign::reference(policy, "policy")?, foreign::output(counters)?) };
        *out = policy.retained.counters(out.struct_size);
        Ok(())
    })
}

/// # Safety
/// observation and release are null or begin with their sizes.
unsafe fn decide(
    policy: &Policy,
    observation: *const Observation,
    release: *const Release,
    now_us: u64,
    out: &mut Retained,
) -> Result<(), Failure> {
    // SAFETY: the caller says so.
    let (observation, release) = unsafe { (foreign::input(observation)?, foreign::input(release)?) };
    let node = rt::Observation { values: observation.values };
    let seen = release.meaning()?.observe(&node);
    let age_us = now_us.saturating_sub(observation.taken_us);
    let mut deciding = policy.deciding()?;
    let class = deciding.reader.retain(&seen, age_us);
    policy.retained.tell(deciding.reader.retention_counters());
    out.fill(class, FallbackReason::from(deciding.reader.last_retention_fallback()));
    Ok(())
}

impl Release {
    /// The runtime's.
    fn meaning(&self) -> Result<rt::Release, Failure> {
        let known = |value: u64| (value != KVTIDE_UNKNOWN).then_some(value);
        Ok(rt::Release {
            part: choice(&[rt::Part::Head, rt::Part::Tail], self.part, "part")?,
            stop: choice(&rt::Stop::ALL, self.stop, "stop")?,
            turn: self.turn,
            block_size: self.block_size,
            num_gpu_blocks: self.num_gpu_blocks,
            prompt_tokens: self.prompt_tokens,
            hit_tokens: self.hit_tokens,
            generated_tokens: self.generated_tokens,
            part_blocks: self.part_blocks,
            depth_blocks: self.depth_blocks,
            shared_blocks: self.shared_blocks,
            asked: self.asked,
            asked_evicted: known(self.asked_evicted),
            kind_reuse: self.kind_reuse,
            kind_return_us: known(self.kind_return_us),
            last_return_us: known(self.last_return_us),
            held_evicted: self.held_evicted,
            evicted_per_second: self.evicted_per_second,
            kept_blocks: self.kept_blocks,
            ttft_target_us: self.ttft_target_us,
        })
    }
}

impl Retained {
    fn fill(&mut self, class: rt::Retention, fallback: FallbackReason) {
        let (retention, fallback) = (Retention::from(class) as u32, fallback as u32);
        *self = Retained { struct_size: self.struct_size, retention, fallback, reserved: 0 };
    }
}

/// The guard's counters as of the last decision, for other threads.
#[derive(Default)]
pub(crate) struct ToldRetention {
    told: [AtomicU64; 12],
    failed: AtomicU64,
}

impl ToldRetention {
    fn tell(&self, counters: &rt::RetentionCounters) {
        let rt::RetentionCounters { decisions, table_decisions, chosen, fallbacks, behind } = *counters;
        let all = [decisions, table_decisions].into_iter().chain(chosen).chain(fallbacks).chain([behind]);
        for (told, counted) in self.told.iter().zip(all) {
            told.store(counted, Ordering::Relaxed);
        }
    }

    fn counters(&self, struct_size: u32) -> RetainedCounters {
        let told = self.told.each_ref().map(|told| told.load(Ordering::Relaxed));
        // In the order of the runtime's classes and reasons.
        let [decisions, table_decisions, evict_first, normal, keep, keep_long, reasons @ ..] = told;
        let [no_table, unknown_schema, stale, non_finite, out_of_range, behind_lru] = reasons;
        RetainedCounters {
            struct_size,
            reserved: 0,
            decisions,
            table_decisions,
            evict_first,
            normal,
            keep,
            keep_long,
            no_table,
            unknown_schema,
            stale,
            non_finite,
            out_of_range,
            behind_lru,
            failed: self.failed.load(Ordering::Relaxed),
        }
    }
}
