//! How a replay counts and moves: as the simulator it follows, or with what is questionable there repaired.

use std::fmt;

/// What a replay does where there is a choice. [`FAITHFUL`](Rules::FAITHFUL) is the tier simulator that decisions are compared
/// with, to the last integer; [`CORRECTED`](Rules::CORRECTED) is what it should have been. Each difference is a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A block that is marked cold is no longer asked to stay, unless the mark asks for it. Else whatever was decode-critical
    /// once is pinned until it is freed, and a request that never ends leaks its tail.
    pub cold_unpins: bool,
    /// Room is made before a block comes, never of that block itself, and where every block is pinned the least urgent goes: HBM
    /// holds what it holds. Else the block is there first, may be its own victim, and pins let HBM exceed its capacity.
    pub capacity_holds: bool,
    /// DRAM takes no more than it holds, whoever moves a block there, and a block is in one tier. Else only victims are refused.
    pub dram_is_finite: bool,
    /// A block found in DRAM costs a transfer, one that is nowhere what computing it again is declared to cost. Else both cost the
    /// same miss.
    pub dram_hits: bool,
    /// A block that is brought in ahead of its use displaces none that ranks as more worth keeping, and is not made older. Else it may
    /// displace what is needed next, or itself.
    pub prefetch_yields: bool,
    /// Latency is that of decode steps, and what moves nothing takes no time. Else it is that of events, marks and commits among them,
    /// each of which takes the time of a step.
    pub latency_of_decode_steps: bool,
}

impl Rules {
    /// As the simulator that is followed.
    pub const FAITHFUL: Rules = Rules {
        cold_unpins: false,
        capacity_holds: false,
        dram_is_finite: false,
        dram_hits: false,
        prefetch_yields: false,
        latency_of_decode_steps: false,
    };

    /// With every repair.
    pub const CORRECTED: Rules = Rules {
        cold_unpins: true,
        capacity_holds: true,
        dram_is_finite: true,
        dram_hits: true,
        prefetch_yields: true,
        latency_of_decode_steps: true,
    };
}

/// One of the two sets of rules, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// [`Rules::FAITHFUL`].
    Faithful,
    /// [`Rules::CORRECTED`].
    Corrected,
}

impl Mode {
    /// Both.
    pub const ALL: [Mode; 2] = [Mode::Faithful, Mode::Corrected];

    /// As in options and results.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Faithful => "faithful",
            Mode::Corrected => "corrected",
        }
    }

    /// Its rules.
    pub fn rules(self) -> Rules {
        match self {
            Mode::Faithful => Rules::FAITHFUL,
            Mode::Corrected => Rules::CORRECTED,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What things take, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Latencies {
    /// An event, or a decode step.
    pub base_us: u64,
    /// An access to a block that is not in HBM.
    pub miss_us: u64,
    /// Moving a block to DRAM.
    pub spill_us: u64,
    /// Moving one from there.
    pub prefetch_us: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { base_us: 50, miss_us: 5_000, spill_us: 200, prefetch_us: 100 }
    }
}

/// What tiers hold, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierCapacity {
    /// Of HBM.
    pub hbm_bytes: u64,
    /// Of DRAM.
    pub dram_bytes: u64,
}
