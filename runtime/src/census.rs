//! From what a node knows of each of its requests to the sums of a [`Snapshot`].
//!
//! The environment and a serving node count with this code, request by request, so that a sum cannot mean two things.
#![expect(clippy::needless_bitwise_bool, reason = "a branch on who is late is often mispredicted")]

use crate::observer::{GROWTH_STEPS, NEWEST_WINDOW, Snapshot, WAITING_WINDOW};

/// The greatest slack either way, microseconds.
const FURTHEST: u64 = i64::MAX.cast_unsigned();

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
    #[inline]
    pub fn growth(&self, steps: u32, block_size: u32) -> u32 {
        let tokens = u64::from(self.slots_before_decode()) + u64::from(steps);
        let blocks = tokens.div_ceil(block_size.max(1).into()).saturating_sub(self.held_blocks.into());
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    /// Tokens that must have a slot before it decodes. A request that decodes has one without keys and values: the one
    /// sampled last.
    #[inline]
    fn slots_before_decode(&self) -> u32 {
        self.computed_tokens.max(self.tokens.saturating_sub(1))
    }

    /// Prompt (or recomputed) tokens without keys and values; 0 for a decode, which has one such token.
    #[inline]
    pub fn pending_prefill(&self) -> u32 {
        let pending = self.tokens.saturating_sub(self.computed_tokens);
        pending - u32::from((pending == 1) & (self.generated_tokens > 0))
    }

    /// Time left to the next token's deadline, microseconds; negative once it is missed.
    #[inline]
    pub fn slack_us(&self, now_us: u64) -> i64 {
        let (left, late) = (self.deadline_us.saturating_sub(now_us), now_us.saturating_sub(self.deadline_us));
        left.min(FURTHEST).cast_signed() - late.min(FURTHEST).cast_signed()
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
    #[inline]
    pub fn add_running(&mut self, request: &RunningRequest) {
        self.add_all_running(core::iter::once(*request));
    }

    /// Counts running requests, at less cost each than one by one; `now_us` and `block_size` must be set.
    #[inline]
    pub fn add_all_running(&mut self, requests: impl Iterator<Item = RunningRequest>) {
        // A division by a variable costs as much as everything else here together, and is a shift nearly everywhere.
        if self.block_size.is_power_of_two() {
            let (shift, round_up) = (self.block_size.trailing_zeros(), u64::from(self.block_size - 1));
            self.sum_running(requests, |tokens| (tokens + round_up) >> shift);
        } else {
            let block_size = u64::from(self.block_size.max(1));
            self.sum_running(requests, |tokens| tokens.div_ceil(block_size));
        }
    }

    /// `blocks_for` gives the blocks that hold so many tokens.
    ///
    /// What is usual goes first, and the rest is one jump away that is seldom taken: a request decodes, and has no block that it
    /// does not need yet. Sums of times are sums of deadlines, from which now is taken away once.
    #[inline]
    fn sum_running(&mut self, requests: impl Iterator<Item = RunningRequest>, blocks_for: impl Fn(u64) -> u64) {
        // A deadline further away than a slack can say counts as the furthest that it can.
        let (earliest, latest) = (self.now_us.saturating_sub(FURTHEST), self.now_us.saturating_add(FURTHEST));
        // In 64 bits nothing overflows below 2^32 requests, so that limits are looked at once, at the end.
        let (mut count, mut held, mut behind, mut generated, mut pending) = (0_u64, 0, 0, 0, 0);
        let mut growth = [0_u64; GROWTH_STEPS.len()];
        let (mut prompts, mut least) = (0_u64, latest);
        let (mut deadlines, mut prompt_deadlines) = (0_u128, 0_u128);
        for request in requests {
            let deadline = request.deadline_us.clamp(earliest, latest);
            deadlines += u128::from(deadline);
            behind += u64::from(deadline < self.now_us);
            count += 1;
            let blocks = u64::from(request.held_blocks);
            held += blocks;
            generated += u64::from(request.generated_tokens);
            let (tokens, computed) = (u64::from(request.tokens), u64::from(request.computed_tokens));
            let mut slots = computed;
            if computed + 1 == tokens && request.generated_tokens > 0 {
                least = least.min(deadline);
            } else {
                slots = u64::from(request.slots_before_decode());
                match request.pending_prefill() {
                    0 => least = least.min(deadline),
                    prompt => {
                        pending += u64::from(prompt);
                        prompts += 1;
                        prompt_deadlines += u128::from(deadline);
                    }
                }
            }
            let needed = GROWTH_STEPS.map(|steps| blocks_for(slots + u64::from(steps)));
            // What it holds is taken away at the end, from all of it.
            let fits = needed[0] >= blocks;
            for (growth, needed) in growth.iter_mut().zip(needed) {
                *growth += if fits { needed } else { needed.max(blocks) };
            }
        }
        for growth in &mut growth {
            *growth -= held;
        }
        let decodes = count - prompts;
        let slack = |deadlines: u128, of: u64| {
            deadlines.cast_signed() - (u128::from(self.now_us) * u128::from(of)).cast_signed()
        };
        let slack_sum = i128::from(self.slack_sum_us) + slack(deadlines, count);
        let decode_slack_sum = i128::from(self.decode_slack_sum_us) + slack(deadlines - prompt_deadlines, decodes);
        if decodes > 0 {
            let slack = least.wrapping_sub(self.now_us).cast_signed();
            self.least_decode_slack_us = if self.decodes == 0 { slack } else { slack.min(self.least_decode_slack_us) };
        }
        let narrow = |sum: u32, more: u64| u32::try_from(u64::from(sum).saturating_add(more)).unwrap_or(u32::MAX);
        for (blocks, more) in self.growth_blocks.iter_mut().zip(growth) {
            *blocks = narrow(*blocks, more);
        }
        self.running = narrow(self.running, count);
        self.held_blocks = narrow(self.held_blocks, held);
        self.behind = narrow(self.behind, behind);
        self.slack_sum_us = slack_sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        self.decodes = narrow(self.decodes, decodes);
        self.decode_slack_sum_us = decode_slack_sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        if self.decodes == 0 {
            self.least_decode_slack_us = 0;
        }
        self.generated_tokens = self.generated_tokens.saturating_add(generated);
        self.pending_prefill_tokens = self.pending_prefill_tokens.saturating_add(pending);
    }

    /// Looks at both ends of the waiting queue, from its front and from its back, as far as a policy sees; `now_us` and
    /// `block_size` must be set. How many are waiting stays as it is.
    #[inline]
    pub fn look_at_waiting(
        &mut self,
        from_front: impl Iterator<Item = WaitingRequest>,
        from_back: impl Iterator<Item = WaitingRequest>,
    ) {
        if self.block_size.is_power_of_two() {
            let (shift, round_up) = (self.block_size.trailing_zeros(), u64::from(self.block_size - 1));
            self.look_at_ends(from_front, from_back, |tokens| (tokens + round_up) >> shift);
        } else {
            let block_size = u64::from(self.block_size.max(1));
            self.look_at_ends(from_front, from_back, |tokens| tokens.div_ceil(block_size));
        }
    }

    /// `blocks_for` as in [`sum_running`](Self::sum_running). Who is on time is as good as random, so that a branch would
    /// often be mispredicted: nothing here depends on it but numbers.
    #[inline]
    fn look_at_ends(
        &mut self,
        from_front: impl Iterator<Item = WaitingRequest>,
        from_back: impl Iterator<Item = WaitingRequest>,
        blocks_for: impl Fn(u64) -> u64,
    ) {
        let (mut blocks, mut tokens, mut late) = (0_u64, 0_u64, 0_u32);
        for (position, request) in from_front.take(WAITING_WINDOW).enumerate() {
            let asked_for = blocks_for(request.tokens.into());
            if position == 0 {
                (self.head_blocks, self.head_tokens) = (asked_for as u32, request.tokens);
            }
            blocks += asked_for;
            tokens += u64::from(request.tokens);
            let (without_token, deadline) = request.first_token();
            let waited = self.now_us.saturating_sub(request.arrival_us);
            self.oldest_wait_us = self.oldest_wait_us.max(waited * u64::from(without_token));
            late += u32::from(without_token & (self.now_us > deadline));
        }
        self.waiting_blocks = self.waiting_blocks.saturating_add(blocks);
        self.waiting_tokens = self.waiting_tokens.saturating_add(tokens);
        self.late_waiting = self.late_waiting.saturating_add(late);

        let (mut blocks, mut count, mut least) = (0_u64, 0_u32, u64::MAX);
        for request in from_back.take(NEWEST_WINDOW) {
            let ready = self.now_us.saturating_add(request.prefill_us);
            let (without_token, deadline) = request.first_token();
            let on_time = without_token & (deadline >= ready);
            count += u32::from(on_time);
            blocks += blocks_for(request.tokens.into()) * u64::from(on_time);
            // All ones, which is no minimum, unless it is on time.
            let none = u64::from(on_time).wrapping_sub(1);
            least = least.min(deadline.wrapping_sub(ready) | none);
        }
        self.on_time_waiting = self.on_time_waiting.saturating_add(count);
        self.on_time_blocks = self.on_time_blocks.saturating_add(blocks);
        self.on_time_slack_us = if count == 0 { 0 } else { least };
    }
}

impl WaitingRequest {
    /// Whether it has no token yet, and by when it should have it; 0 if it has.
    #[inline]
    fn first_token(&self) -> (bool, u64) {
        (self.first_token_deadline_us.is_some(), self.first_token_deadline_us.unwrap_or(0))
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
        assert_eq!((shot.decodes, shot.least_decode_slack_us, shot.decode_slack_sum_us), (2, -100_000, 200_000));
        // A prompt counts among those running alone; so does an answer that is computed again.
        shot.add_running(&RunningRequest { tokens: 40, deadline_us: 500_000, ..late });
        shot.add_running(&RunningRequest { computed_tokens: 0, deadline_us: 500_000, ..late });
        assert_eq!((shot.running, shot.behind, shot.slack_sum_us), (4, 3, -800_000));
        assert_eq!((shot.decodes, shot.least_decode_slack_us, shot.decode_slack_sum_us), (2, -100_000, 200_000));
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

        // Sums a host has filled to the brim.
        let mut full = Snapshot {
            block_size: 1,
            growth_blocks: [u32::MAX; 3],
            held_blocks: u32::MAX,
            running: u32::MAX,
            waiting_blocks: u64::MAX,
            waiting_tokens: u64::MAX,
            late_waiting: u32::MAX,
            on_time_waiting: u32::MAX,
            on_time_blocks: u64::MAX,
            behind: u32::MAX,
            slack_sum_us: i64::MIN,
            decodes: u32::MAX,
            decode_slack_sum_us: i64::MIN,
            least_decode_slack_us: i64::MIN,
            generated_tokens: u64::MAX,
            pending_prefill_tokens: u64::MAX,
            now_us: 1,
            ..Snapshot::default()
        };
        let before = full;
        full.add_running(&RunningRequest { tokens: 9, generated_tokens: 1, held_blocks: 1, ..Default::default() });
        let late = WaitingRequest { tokens: 1, first_token_deadline_us: Some(0), ..Default::default() };
        let early = WaitingRequest { tokens: 1, first_token_deadline_us: Some(9), ..Default::default() };
        full.look_at_waiting([late].into_iter(), [early].into_iter());
        let looked_at = Snapshot { head_blocks: 1, head_tokens: 1, oldest_wait_us: 1, on_time_slack_us: 8, ..before };
        assert_eq!(full, looked_at);
    }
}
