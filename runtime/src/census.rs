//! From what a node knows of each of its requests to the sums of a [`Snapshot`].
//!
//! The environment and a serving node count with this code, request by request, so that a sum cannot mean two things.

use crate::observer::{GROWTH_STEPS, NEWEST_WINDOW, Snapshot, WAITING_WINDOW};

/// What a node knows of a running request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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

impl RunningRequest {
    /// Blocks it must still be given to finish its prompt and decode `steps` more steps.
    pub fn growth(&self, steps: u32, block_size: u32) -> u32 {
        // A request that decodes has one token without keys and values: the one sampled last.
        let computed = self.computed_tokens.max(self.tokens.saturating_sub(1));
        computed.saturating_add(steps).div_ceil(block_size.max(1)).saturating_sub(self.held_blocks)
    }

    /// Prompt (or recomputed) tokens without keys and values; 0 for a decode, which has one such token.
    pub fn pending_prefill(&self) -> u32 {
        match self.tokens.saturating_sub(self.computed_tokens) {
            1 if self.generated_tokens > 0 => 0,
            pending => pending,
        }
    }

    /// Time left to the next token's deadline, microseconds; negative once it is missed.
    pub fn slack_us(&self, now_us: u64) -> i64 {
        self.deadline_us.wrapping_sub(now_us).cast_signed()
    }
}

/// What a node knows of a waiting request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitingRequest {
    /// Tokens it has: the prompt, and after a preemption those generated as well.
    pub tokens: u32,
    /// When it arrived.
    pub arrival_us: u64,
    /// By when its first token is on time; `None` if it has had it, before a preemption.
    pub first_token_deadline_us: Option<u64>,
    /// How long it takes to compute its tokens.
    pub prefill_us: u64,
}

impl Snapshot {
    /// Counts one more running request; `now_us` and `block_size` must be set.
    pub fn add_running(&mut self, request: &RunningRequest) {
        for (blocks, steps) in self.growth_blocks.iter_mut().zip(GROWTH_STEPS) {
            *blocks = blocks.saturating_add(request.growth(steps, self.block_size));
        }
        let slack = request.slack_us(self.now_us);
        self.running = self.running.saturating_add(1);
        self.held_blocks = self.held_blocks.saturating_add(request.held_blocks);
        self.behind += u32::from(slack < 0);
        self.slack_sum_us = self.slack_sum_us.saturating_add(slack);
        self.generated_tokens += u64::from(request.generated_tokens);
        self.pending_prefill_tokens += u64::from(request.pending_prefill());
    }

    /// Looks at both ends of the waiting queue, from its front and from its back, as far as a policy sees; `now_us` and
    /// `block_size` must be set. How many are waiting stays as it is.
    pub fn look_at_waiting(
        &mut self,
        from_front: impl Iterator<Item = WaitingRequest>,
        from_back: impl Iterator<Item = WaitingRequest>,
    ) {
        let block_size = self.block_size.max(1);
        let blocks_of = |request: &WaitingRequest| request.tokens.div_ceil(block_size);
        for (position, request) in from_front.take(WAITING_WINDOW).enumerate() {
            let blocks = blocks_of(&request);
            if position == 0 {
                (self.head_blocks, self.head_tokens) = (blocks, request.tokens);
            }
            self.waiting_blocks += u64::from(blocks);
            self.waiting_tokens += u64::from(request.tokens);
            if let Some(deadline) = request.first_token_deadline_us {
                self.oldest_wait_us = self.oldest_wait_us.max(self.now_us.saturating_sub(request.arrival_us));
                self.late_waiting += u32::from(self.now_us > deadline);
            }
        }
        let mut least = u64::MAX;
        for request in from_back.take(NEWEST_WINDOW) {
            let ready = self.now_us.saturating_add(request.prefill_us);
            let slack = request.first_token_deadline_us.and_then(|deadline| deadline.checked_sub(ready));
            if let Some(slack) = slack {
                self.on_time_waiting += 1;
                self.on_time_blocks += u64::from(blocks_of(&request));
                least = least.min(slack);
            }
        }
        self.on_time_slack_us = if self.on_time_waiting == 0 { 0 } else { least };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shot() -> Snapshot {
        Snapshot { now_us: 1_000_000, block_size: 16, ..Snapshot::default() }
    }

    #[test]
    fn growth_counts_the_blocks_that_are_missing() {
        // 33 tokens of which the last has no slot yet: two blocks are full.
        let decode = RunningRequest {
            tokens: 33,
            computed_tokens: 32,
            generated_tokens: 3,
            held_blocks: 2,
            ..Default::default()
        };
        assert_eq!([0, 1, 16, 17].map(|steps| decode.growth(steps, 16)), [0, 1, 1, 2]);
        // 40 prompt tokens, 16 computed, one block held: the prompt itself needs two more.
        let prefill = RunningRequest { tokens: 40, computed_tokens: 16, held_blocks: 1, ..Default::default() };
        assert_eq!([1, 9, 10].map(|steps| prefill.growth(steps, 16)), [2, 2, 3]);
        assert_eq!((decode.pending_prefill(), prefill.pending_prefill()), (0, 24));
    }

    #[test]
    fn running_requests_add_up() {
        let mut shot = shot();
        let late = RunningRequest {
            tokens: 33,
            computed_tokens: 32,
            generated_tokens: 3,
            held_blocks: 2,
            deadline_us: 900_000,
        };
        shot.add_running(&late);
        shot.add_running(&RunningRequest { deadline_us: 1_300_000, ..late });
        assert_eq!((shot.running, shot.held_blocks, shot.behind, shot.slack_sum_us), (2, 4, 1, 200_000));
        assert_eq!((shot.growth_blocks, shot.generated_tokens, shot.pending_prefill_tokens), ([2, 2, 4], 6, 0));
    }

    #[test]
    fn both_ends_of_the_queue_are_looked_at() {
        let request = |tokens, arrival_us, deadline: u64| WaitingRequest {
            tokens,
            arrival_us,
            first_token_deadline_us: (deadline > 0).then_some(deadline),
            prefill_us: 100_000,
        };
        let mut queue = [request(8, 990_000, 2_000_000); 73];
        queue[..3].copy_from_slice(&[
            request(17, 100_000, 900_000),
            request(16, 200_000, 0),
            request(32, 300_000, 1_050_000),
        ]);
        let mut shot = shot();
        shot.look_at_waiting(queue.iter().copied(), queue.iter().rev().copied());
        assert_eq!((shot.head_blocks, shot.head_tokens), (2, 17));
        assert_eq!((shot.waiting_blocks, shot.waiting_tokens), (2 + 1 + 2 + 13, 17 + 16 + 32 + 13 * 8));
        assert_eq!((shot.oldest_wait_us, shot.late_waiting), (900_000, 1));
        assert_eq!((shot.on_time_waiting, shot.on_time_blocks, shot.on_time_slack_us), (64, 64, 900_000));
        let mut few = self::shot();
        few.look_at_waiting(queue.iter().take(3).copied(), queue.iter().take(3).rev().copied());
        // The third would be late by the time it is computed.
        assert_eq!((few.on_time_waiting, few.on_time_blocks, few.on_time_slack_us), (0, 0, 0));
    }

    #[test]
    fn numbers_at_the_edge_of_their_types_do_not_panic() {
        let mut shot = Snapshot::default();
        let most = RunningRequest {
            tokens: u32::MAX,
            computed_tokens: u32::MAX,
            generated_tokens: u32::MAX,
            held_blocks: u32::MAX,
            deadline_us: u64::MAX,
        };
        for _ in 0..3 {
            shot.add_running(&most);
            shot.add_running(&RunningRequest { computed_tokens: 0, held_blocks: 0, deadline_us: 0, ..most });
        }
        let most = WaitingRequest {
            tokens: u32::MAX,
            arrival_us: u64::MAX,
            first_token_deadline_us: Some(u64::MAX),
            prefill_us: u64::MAX,
        };
        shot.look_at_waiting([most; 3].into_iter(), [most; 3].into_iter());
        shot.now_us = u64::MAX;
        shot.look_at_waiting([most; 3].into_iter(), [most; 3].into_iter());
    }
}
