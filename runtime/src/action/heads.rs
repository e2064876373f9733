//! The action set: what a policy may decide, declared once.
//!
//! An entry is a head: its name in files and logs, the key it has in policy texts, the control it sets, the narrowest profile
//! that decides it, when a scheduler asks for it, what the engines do by themselves, and its choices. Choices are `levels`, numbers in ascending order, or
//! `choices`, a set of rules. [`heads!`](super::declare) makes everything else of it. Entries are only ever appended, and so
//! are choices: their numbers are in tables. A level may be put between others if what went before is entered in
//! [`edition`](crate::edition), by which earlier tables are read.

use super::declare::{HeadValue, heads};
use super::profile::ActionProfile;

heads! {
    /// Fraction of the GPU pool admission must leave free.
    Watermark {
        name: "watermark", key: "watermark", control: watermark, from: Watermark, asked: Always,
        engine: { v0: 0.01, v1: 0.0 },
        /// The watermarks a policy can choose, as fractions of the GPU pool. The last admits nothing while anything runs.
        levels WATERMARK_LEVELS [
            0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.15, 0.18, 0.21, 0.25, 0.3, 0.35, 0.42, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0,
        ]
    }

    /// Which running request is preempted when blocks run out.
    Victim {
        name: "victim", key: "victim", control: victim, from: Core, asked: OnPreemption,
        engine: { v0: Newest, v1: Newest },
        /// Which running request is preempted. Candidates are the running requests not yet handled in the step.
        choices Victim {
            /// The tail of running, as vLLM does.
            Newest = "newest",
            /// The request holding the fewest blocks; the newest of equals.
            FewestBlocks = "fewest-blocks",
            /// The request holding the most blocks; the newest of equals.
            MostBlocks = "most-blocks",
            /// The request with the fewest generated tokens; the newest of equals.
            LeastProgress = "least-progress",
            /// The request whose next token deadline is furthest away; the newest of equals.
            MostSlack = "most-slack",
        }
    }

    /// What happens to the victim's blocks.
    Preemption {
        name: "preemption", key: "mode", control: preemption, from: Core, asked: OnPreemption,
        engine: { v0: Recompute, v1: Recompute },
        /// What happens to a victim's blocks.
        choices Preemption {
            /// Copied to the host and brought back later.
            Swap = "swap",
            /// Dropped and computed again.
            Recompute = "recompute",
            /// Whichever the cost model prices lower for this victim.
            Cheaper = "cheaper",
        }
    }

    /// In which order waiting requests are admitted.
    Admission {
        name: "admission", key: "admission", control: admission, from: Full, asked: Always,
        engine: { v0: Fcfs, v1: Fcfs },
        /// Order in which waiting requests are admitted. Whoever waited past the ageing bound comes first under every order.
        choices Admission {
            /// Queue order, as vLLM does.
            Fcfs = "fcfs",
            /// Requests that can still meet their targets before those that cannot; queue order within each.
            OnTimeFirst = "on-time-first",
            /// As `OnTimeFirst`, and among those on time the fewest tokens to compute first.
            ShortestOnTimeFirst = "shortest-on-time-first",
        }
    }

    /// How many tokens a step computes at most.
    Budget {
        name: "budget", key: "budget", control: budget, from: Full, asked: Always,
        engine: { v0: 1_048_576.0, v1: 1_048_576.0 },
        /// The budgets a policy can choose, in tokens a step. The last is more than any engine's own, which holds under all of
        /// them; so does what the step's decodes need.
        levels BUDGET_LEVELS [128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 1_048_576.0]
    }

    /// Which cached block goes first, of those of a class.
    Eviction {
        name: "eviction", key: "eviction", control: eviction, from: Cache, asked: Always,
        engine: { v0: Lru, v1: Lru },
        /// The order in which cached blocks nobody uses are evicted within a class.
        choices Eviction {
            /// The one that was used least recently, as vLLM does.
            Lru = "lru",
            /// The one that was used least often.
            Lfu = "lfu",
        }
    }
}
