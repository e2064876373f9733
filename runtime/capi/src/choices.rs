//! The runtime's choices as C numbers. Written out, because cbindgen does not expand macros.

use kvtide_runtime as rt;

/// Which running request is preempted when blocks run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Victim {
    /// The tail of running, as vLLM does.
    Newest = 0,
    /// The request holding the fewest blocks; the newest of equals.
    FewestBlocks = 1,
    /// The request holding the most blocks; the newest of equals.
    MostBlocks = 2,
    /// The request with the fewest generated tokens; the newest of equals.
    LeastProgress = 3,
    /// The request whose next token deadline is furthest away; the newest of equals.
    MostSlack = 4,
}

/// What happens to a victim's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Preemption {
    /// Copied to the host and brought back later.
    Swap = 0,
    /// Dropped and computed again.
    Recompute = 1,
    /// Whichever costs less for this victim.
    Cheaper = 2,
}

/// Order in which waiting requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Admission {
    /// Queue order, as vLLM does.
    Fcfs = 0,
    /// Requests that can still meet their targets before those that cannot; queue order within each.
    OnTimeFirst = 1,
    /// As on-time-first, and among those on time the fewest tokens to compute first.
    ShortestOnTimeFirst = 2,
}

/// The order in which cached blocks nobody uses are evicted within a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Eviction {
    /// The one that was used least recently, as vLLM does.
    Lru = 0,
    /// The one that was used least often.
    Lfu = 1,
}

/// The heads a table decides, or a node can act on. Each has all heads of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Profile {
    /// Watermark alone.
    Watermark = 0,
    /// Watermark, victim, preemption.
    Core = 1,
    /// Everything a scheduler decides, with admission order and the tokens of a step.
    Full = 2,
    /// Everything, with the order in which cached blocks go.
    Cache = 3,
}

/// Why controls are the fallback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum FallbackReason {
    /// They are not: the table decided.
    None = 0,
    /// There is no table.
    NoTable = 1,
    /// The table was made for another schema or action set.
    UnknownSchema = 2,
    /// The observation was too old.
    Stale = 3,
    /// A value of the observation was NaN or infinite.
    NonFinite = 4,
    /// A feature has been outside its trained range for too long, or not back inside for long enough.
    OutOfRange = 5,
    /// The call itself failed; its status and kvtide_last_error say why.
    Failed = 6,
    /// Of a retention class alone: the pool hits less than LRU would, says kvtide_retention_set_behind.
    BehindLru = 7,
}

/// How long blocks that a request gives back stay cached. Victims come from the lowest class that has any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Retention {
    /// They go before everything else.
    EvictFirst = 0,
    /// What every engine does with every block.
    Normal = 1,
    /// They stay while the pool turns over twice.
    Keep = 2,
    /// They stay while the pool turns over eight times, and are kept for two more.
    KeepLong = 3,
}

/// Which blocks of a request are decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Part {
    /// Those that were cached when it was first admitted.
    Head = 0,
    /// Those it computed.
    Tail = 1,
}

/// Why a request gives its blocks back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Stop {
    /// It was preempted, and will ask for them itself.
    Preempted = 0,
    /// Its answer ended in a tool call.
    ToolCall = 1,
    /// It finished, and nobody said how.
    Unknown = 2,
    /// It reached the longest answer it was allowed.
    Length = 3,
    /// Its answer ended by itself.
    EndOfTurn = 4,
}

impl From<rt::Victim> for Victim {
    fn from(victim: rt::Victim) -> Victim {
        match victim {
            rt::Victim::Newest => Victim::Newest,
            rt::Victim::FewestBlocks => Victim::FewestBlocks,
            rt::Victim::MostBlocks => Victim::MostBlocks,
            rt::Victim::LeastProgress => Victim::LeastProgress,
            rt::Victim::MostSlack => Victim::MostSlack,
        }
    }
}

impl From<rt::Preemption> for Preemption {
    fn from(preemption: rt::Preemption) -> Preemption {
        match preemption {
            rt::Preemption::Swap => Preemption::Swap,
            rt::Preemption::Recompute => Preemption::Recompute,
            rt::Preemption::Cheaper => Preemption::Cheaper,
        }
    }
}

impl From<rt::Admission> for Admission {
    fn from(admission: rt::Admission) -> Admission {
        match admission {
            rt::Admission::Fcfs => Admission::Fcfs,
            rt::Admission::OnTimeFirst => Admission::OnTimeFirst,
            rt::Admission::ShortestOnTimeFirst => Admission::ShortestOnTimeFirst,
        }
    }
}

impl From<rt::Eviction> for Eviction {
    fn from(eviction: rt::Eviction) -> Eviction {
        match eviction {
            rt::Eviction::Lru => Eviction::Lru,
            rt::Eviction::Lfu => Eviction::Lfu,
        }
    }
}

impl From<Option<rt::Fallback>> for FallbackReason {
    fn from(reason: Option<rt::Fallback>) -> FallbackReason {
        match reason {
            None => FallbackReason::None,
            Some(rt::Fallback::NoTable) => FallbackReason::NoTable,
            Some(rt::Fallback::UnknownSchema) => FallbackReason::UnknownSchema,
            Some(rt::Fallback::Stale) => FallbackReason::Stale,
            Some(rt::Fallback::NonFinite) => FallbackReason::NonFinite,
            Some(rt::Fallback::OutOfRange) => FallbackReason::OutOfRange,
        }
    }
}

impl From<rt::Retention> for Retention {
    fn from(class: rt::Retention) -> Retention {
        match class {
            rt::Retention::EvictFirst => Retention::EvictFirst,
            rt::Retention::Normal => Retention::Normal,
            rt::Retention::Keep => Retention::Keep,
            rt::Retention::KeepLong => Retention::KeepLong,
        }
    }
}

impl From<rt::Part> for Part {
    fn from(part: rt::Part) -> Part {
        match part {
            rt::Part::Head => Part::Head,
            rt::Part::Tail => Part::Tail,
        }
    }
}

impl From<rt::Stop> for Stop {
    fn from(stop: rt::Stop) -> Stop {
        match stop {
            rt::Stop::Preempted => Stop::Preempted,
            rt::Stop::ToolCall => Stop::ToolCall,
            rt::Stop::Unknown => Stop::Unknown,
            rt::Stop::Length => Stop::Length,
            rt::Stop::EndOfTurn => Stop::EndOfTurn,
        }
    }
}

impl From<Option<rt::RetentionFallback>> for FallbackReason {
    fn from(reason: Option<rt::RetentionFallback>) -> FallbackReason {
        match reason {
            None => FallbackReason::None,
            Some(rt::RetentionFallback::Table(reason)) => FallbackReason::from(Some(reason)),
            Some(rt::RetentionFallback::Behind) => FallbackReason::BehindLru,
        }
    }
}

/// The choice of that number, among all of its kind in index order.
pub(crate) fn numbered<T: Copy>(choices: &[T], number: u32) -> Option<T> {
    choices.get(usize::try_from(number).ok()?).copied()
}
