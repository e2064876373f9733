//! What is declared of a block: whose it is, what is being done with it, when it is needed, what it costs to have it again.

/// Makes an enum whose names in files are in capitals, and the list of them.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident: $($(#[$case_meta:meta])* $case:ident = $text:literal,)+) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub enum $name {
            $($(#[$case_meta])* #[cfg_attr(feature = "serde", serde(rename = $text))] $case,)+
        }

        impl $name {
            /// Every one, in order.
            pub const ALL: &[$name] = &[$($name::$case,)+];

            /// Its name in files.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$case => $text,)+
                }
            }

            /// The one of that name.
            pub fn named(name: &str) -> Option<$name> {
                match name {
                    $($text => Some($name::$case),)+
                    _ => None,
                }
            }
        }
    };
}

named! {
    /// What a block's request is doing.
    Phase:
    /// Its prompt is being computed.
    Prefill = "PREFILL",
    /// It generates, and reads the block at every token.
    Decode = "DECODE",
    /// A draft of it is being verified.
    Verify = "VERIFY",
    /// A draft of it was refused.
    Rollback = "ROLLBACK",
    /// It has ended.
    Done = "DONE",
    /// It waits, for a user or a tool.
    Idle = "IDLE",
}

named! {
    /// How much depends on a block being there.
    Priority:
    /// The token being generated waits for it.
    DecodeCritical = "DECODE_CRITICAL",
    /// It will be read soon.
    Hot = "HOT",
    /// It may be read soon.
    Warm = "WARM",
    /// Nobody expects it to be read.
    Cold = "COLD",
}

named! {
    /// Where a block can be, nearest to the accelerator first.
    Tier:
    /// The accelerator's memory.
    Hbm = "HBM",
    /// The host's memory.
    Dram = "DRAM",
    /// Memory behind a coherent link.
    Cxl = "CXL",
    /// A disk.
    Nvme = "NVME",
}

/// A set of tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tiers(u8);

impl Tiers {
    /// HBM and DRAM.
    pub const HBM_AND_DRAM: Tiers = Tiers(0b11);

    /// The same set with `tier` in it.
    #[must_use]
    pub fn with(self, tier: Tier) -> Tiers {
        Tiers(self.0 | 1 << tier as u8)
    }

    /// Whether `tier` is in it.
    #[inline]
    pub fn has(self, tier: Tier) -> bool {
        self.0 & (1 << tier as u8) != 0
    }

    /// Its tiers, nearest first.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.iter().copied().filter(move |&tier| self.has(tier))
    }

    /// The nearest that is not HBM: where a victim goes.
    #[inline]
    pub fn below_hbm(self) -> Option<Tier> {
        self.iter().find(|&tier| tier != Tier::Hbm)
    }
}

/// What is declared of a block of KV cache, at one moment. Names and units are those of its fields in files; times are in
/// microseconds, steps are the stream's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryIntent {
    /// Whose it is, as a hash: enough to tell requests apart.
    pub request: u64,
    /// What its request is doing.
    pub phase: Phase,
    /// How much depends on it.
    pub priority: Priority,
    /// Where it may be.
    pub allowed_tiers: Tiers,
    /// Where whoever declares it has it, or wants it.
    pub current_tier: Tier,
    /// Bytes, at least 1.
    pub size_bytes: u64,
    /// Of its request, 0 to 100: more is more important.
    pub request_priority: u32,
    /// How recently it was used, 1 just now, 0 long ago.
    pub recency_score: f64,
    /// Time that its decode step has.
    pub deadline_us: Option<u64>,
    /// Time that can pass until that step has to start; negative if it is late.
    pub slack_us: Option<i64>,
    /// Step at which it is needed.
    pub target_decode_step: Option<u64>,
    /// Tokens within which it is expected to be read again.
    pub expected_reuse_window_tokens: Option<u64>,
    /// Time to compute it again.
    pub recompute_cost_us: Option<u64>,
    /// Time to move it out.
    pub spill_cost_us: Option<u64>,
    /// Step of its last access.
    pub last_access_step: u64,
    /// It may be kept compressed.
    pub compression_ok: bool,
    /// It may be dropped and computed again.
    pub recompute_ok: bool,
    /// It may be brought in before it is needed.
    pub prefetch_ok: bool,
    /// It is asked to stay where it is; always so of a decode-critical block.
    pub pin_requested: bool,
    /// It holds drafted tokens.
    pub is_draft: bool,
    /// Its tokens are accepted.
    pub is_committed: bool,
}

impl MemoryIntent {
    /// A cold committed block of `size_bytes` in HBM that may go to DRAM, of which nothing else is declared.
    pub fn new(request: u64, size_bytes: u64) -> MemoryIntent {
        MemoryIntent {
            request,
            phase: Phase::Prefill,
            priority: Priority::Cold,
            allowed_tiers: Tiers::HBM_AND_DRAM,
            current_tier: Tier::Hbm,
            size_bytes,
            request_priority: 50,
            recency_score: 0.0,
            deadline_us: None,
            slack_us: None,
            target_decode_step: None,
            expected_reuse_window_tokens: None,
            recompute_cost_us: None,
            spill_cost_us: None,
            last_access_step: 0,
            compression_ok: false,
            recompute_ok: false,
            prefetch_ok: false,
            pin_requested: false,
            is_draft: false,
            is_committed: true,
        }
    }

    /// Whether the token being generated waits for it.
    #[inline]
    pub fn is_decode_critical(&self) -> bool {
        self.priority == Priority::DecodeCritical || self.phase == Phase::Decode
    }

    /// Keeps the promise of `pin_requested`, after a change of priority.
    #[inline]
    pub fn settle_pin(&mut self) {
        self.pin_requested |= self.priority == Priority::DecodeCritical;
    }
}
