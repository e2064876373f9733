//! From the raw numbers a node has at a release to the observation a retention policy sees.

use super::observation::{ReleaseFeature, ReleaseObservation};
use crate::observation::Observation;

/// Which blocks of a request are decided about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Part {
    /// Those that were cached when it was admitted: others have them, or had them.
    #[default]
    Head = 0,
    /// Those it computed.
    Tail = 1,
}

/// Why a request gives its blocks back, in the order in which it may be expected back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Stop {
    /// It was preempted, and will ask for them itself.
    Preempted = 0,
    /// It ended in a tool call, so that whoever sent it is a program that goes on.
    ToolCall = 1,
    /// It finished, and nobody said how.
    #[default]
    Unknown = 2,
    /// It reached the longest answer it was allowed.
    Length = 3,
    /// It ended by itself, and somebody reads.
    EndOfTurn = 4,
}

impl Stop {
    /// Every reason, in index order.
    pub const ALL: [Stop; 5] = [Stop::Preempted, Stop::ToolCall, Stop::Unknown, Stop::Length, Stop::EndOfTurn];
}

/// What a node knows of a request that gives its blocks back, and of one part of them. Times are microseconds.
///
/// `kvtide_rules::reuse` keeps what is not at hand; `None` is what is not known.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Release {
    /// Which of its blocks.
    pub part: Part,
    /// Why.
    pub stop: Stop,
    /// Turn of its session, from 1.
    pub turn: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Size of the GPU pool.
    pub num_gpu_blocks: u32,
    /// Its prompt's tokens.
    pub prompt_tokens: u32,
    /// How many of them were cached when it was admitted.
    pub hit_tokens: u32,
    /// Tokens it generated.
    pub generated_tokens: u32,
    /// Blocks of the part.
    pub part_blocks: u32,
    /// Blocks before the part.
    pub depth_blocks: u32,
    /// Blocks of the part that another request holds.
    pub shared_blocks: u32,
    /// Earlier requests that asked for the part's prefix.
    pub asked: u32,
    /// Blocks evicted since the last of those asked.
    pub asked_evicted: Option<u64>,
    /// Share of the releases of its kind that were asked for again.
    pub kind_reuse: f32,
    /// How long that took.
    pub kind_return_us: Option<u64>,
    /// How long its own session took to come back with it.
    pub last_return_us: Option<u64>,
    /// Blocks evicted since it was admitted.
    pub held_evicted: u64,
    /// Blocks evicted per second, lately.
    pub evicted_per_second: f32,
    /// Idle blocks above class normal.
    pub kept_blocks: u32,
    /// TTFT target.
    pub ttft_target_us: u64,
}

impl Release {
    /// What a policy sees of this release on a node last observed as `node`.
    pub fn observe(&self, node: &Observation) -> ReleaseObservation {
        use ReleaseFeature as F;
        let pool = self.num_gpu_blocks.max(1) as f32;
        let block = self.block_size.max(1) as f32;
        let turnovers_per_second = self.evicted_per_second / pool;
        let turnovers = |evicted: u64| evicted as f32 / pool;
        let until = |time: Option<u64>| time.map_or(f32::MAX, |us| us as f32 * 1e-6 * turnovers_per_second);

        let mut out = ReleaseObservation::of_node(node);
        out.set(F::Part, f32::from(self.part as u8));
        out.set(F::Turn, self.turn as f32);
        out.set(F::HitShare, self.hit_tokens as f32 / self.prompt_tokens.max(1) as f32);
        out.set(F::Asked, self.asked as f32);
        out.set(F::AskedAge, self.asked_evicted.map_or(f32::MAX, turnovers));
        out.set(F::KindReuse, self.kind_reuse);
        out.set(F::KindReturn, until(self.kind_return_us));
        out.set(F::LastReturn, until(self.last_return_us));
        out.set(F::Stop, f32::from(self.stop as u8));
        out.set(F::Prompt, self.prompt_tokens as f32 / block / pool);
        out.set(F::Output, self.generated_tokens as f32 / block / pool);
        out.set(F::PartBlocks, self.part_blocks as f32 / pool);
        out.set(F::Depth, self.depth_blocks as f32 / pool);
        out.set(F::Shared, self.shared_blocks as f32 / self.part_blocks.max(1) as f32);
        out.set(F::Held, turnovers(self.held_evicted));
        out.set(F::TurnoverRate, turnovers_per_second * self.ttft_target_us as f32 * 1e-6);
        out.set(F::Kept, self.kept_blocks as f32 / pool);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_turnovers_of_the_pool() {
        let release = Release {
            part: Part::Tail,
            stop: Stop::EndOfTurn,
            turn: 3,
            block_size: 16,
            num_gpu_blocks: 1000,
            prompt_tokens: 3200,
            hit_tokens: 800,
            generated_tokens: 160,
            part_blocks: 160,
            depth_blocks: 50,
            shared_blocks: 40,
            asked: 7,
            asked_evicted: Some(250),
            kind_reuse: 0.5,
            kind_return_us: Some(40_000_000),
            last_return_us: None,
            held_evicted: 20,
            evicted_per_second: 50.0,
            kept_blocks: 100,
            ttft_target_us: 2_000_000,
        };
        let seen = release.observe(&Observation::ZERO);
        let close = |feature: ReleaseFeature, expected: f32| {
            assert!((seen[feature] - expected).abs() < 1e-6, "{feature:?}: {} is not {expected}", seen[feature]);
        };
        for (feature, expected) in ReleaseFeature::ALL
            .into_iter()
            .zip([1.0, 3.0, 0.25, 7.0, 0.25, 0.5, 2.0, 16.0, 4.0, 0.2, 0.01, 0.16, 0.05, 0.25, 0.02, 0.1, 0.1])
        {
            close(feature, expected);
        }
        // Where nothing is evicted, whatever comes back comes back in time; a node without blocks divides by nothing.
        let calm = Release { evicted_per_second: 0.0, ..release }.observe(&Observation::ZERO);
        assert_eq!((calm[ReleaseFeature::KindReturn], calm[ReleaseFeature::LastReturn]), (0.0, 16.0));
        assert!(Release::default().observe(&Observation::ZERO).values.iter().all(|value| value.is_finite()));
    }
}
