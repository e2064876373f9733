//! When a batch needs the most blocks, and the watermark that keeps room for it.
//!
//! Gong et al. 2025, "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS '25), section 3.2: requests that
//! decode together grow together, and usage falls only when one finishes. So the peak is at one of those moments: with
//! requests in order of remaining tokens, longest first, it is the largest of `sum(held tokens of the first i) + i ·
//! remaining(i)`. The paper counts tokens, we count blocks.

use kvtide_runtime::Admission;

use crate::deploy::{EngineConfig, EngineKind};
use crate::env::Node;
use crate::kv::blocks_for;
use crate::sched::{RequestId, RequestView, Scheduler};
use crate::tier::Tier;

/// What a request holds and will hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Claim {
    /// Tokens with a slot before its next token is computed.
    pub(super) slots: u32,
    /// Blocks it holds.
    pub(super) held: u32,
    /// Steps until it gives them back: tokens it will still generate.
    pub(super) remaining: u32,
}

impl Claim {
    fn of(request: &RequestView, held: u32, remaining: u32) -> Claim {
        Claim { slots: request.computed.max(request.len() - 1), held, remaining: remaining.max(1) }
    }

    /// After a step in which the others stood still.
    fn a_step_ahead(self) -> Claim {
        Claim { slots: self.slots + 1, remaining: self.remaining.saturating_sub(1).max(1), ..self }
    }
}

/// Requests that decode together, longest to go first.
#[derive(Debug, Clone, Default)]
pub(super) struct DecodeBatch {
    claims: Vec<Claim>,
}

impl DecodeBatch {
    pub(super) fn add(&mut self, claim: Claim) {
        let at = self.claims.partition_point(|other| other.remaining >= claim.remaining);
        self.claims.insert(at, claim);
    }

    /// Blocks used at the worst moment, `lag` steps after a finished request's last token being when its blocks are free
    /// again. Of the blocks held now only a share of `distinct` counts, where requests hold blocks in common.
    pub(super) fn peak(&self, block_size: u32, lag: u32, distinct: f64) -> f64 {
        let mut peak: f64 = 0.0;
        let (mut whole, mut held) = (0_u64, 0_u64);
        // Tokens in the last block, of those still there: how many requests have each number of them.
        let mut partial = vec![0_u64; block_size as usize];
        for (index, claim) in self.claims.iter().enumerate() {
            whole += u64::from(claim.slots / block_size);
            held += u64::from(claim.held);
            partial[(claim.slots % block_size) as usize] += 1;
            // Equals go at the same moment.
            if self.claims.get(index + 1).is_some_and(|next| next.remaining == claim.remaining) {
                continue;
            }
            let steps = claim.remaining.saturating_add(lag);
            let (blocks, tokens) = (u64::from(steps / block_size), steps % block_size);
            let in_part = |(there, &requests): (usize, &u64)| {
                let tokens = there as u32 + tokens;
                requests * (u64::from(tokens > 0) + u64::from(tokens > block_size))
            };
            let grown = blocks * (index as u64 + 1) + partial.iter().enumerate().map(in_part).sum::<u64>();
            let used = whole + grown;
            peak = peak.max(used as f64 - held as f64 + held as f64 * distinct);
        }
        peak
    }
}

/// Who can say how many tokens a request will still generate. Asked of running requests once a decision, then of those
/// that may be admitted, in each of `draws` equally likely futures.
pub(super) trait LengthPredictor {
    /// Futures to prepare for.
    fn draws(&self, running: usize) -> usize;
    /// Tokens `request` will still generate.
    fn remaining(&mut self, node: &Node, id: RequestId, request: &RequestView) -> u32;
}

/// Blocks to leave free in the next step, so that those requests are admitted, in the order of `order`, with which the peak is at most
/// `share` of the pool in every future, and nobody else: what will be free once they are admitted, and everything if there is
/// nobody to admit.
///
/// It holds for one step: afterwards blocks that are given back would let one in too many.
pub(super) fn reserve(node: &Node, order: Admission, foresight: &mut impl LengthPredictor, share: f64) -> f64 {
    let scheduler = node.scheduler();
    let config = scheduler.config();
    let (block_size, lag) = (config.block_size, u32::from(scheduler.is_async()));
    let pool = f64::from(scheduler.num_blocks(Tier::Gpu));
    // V0 asks for a free block for each token, needed or not: the last one is never used up.
    let capacity = (pool * share).floor() - f64::from(u8::from(config.engine == EngineKind::V0));
    let free = f64::from(scheduler.free_blocks(Tier::Gpu));

    let mut batches = vec![DecodeBatch::default(); foresight.draws(scheduler.running().len())];
    let (mut held, mut growth) = (0, 0);
    for &id in scheduler.running() {
        let view = scheduler.view(id);
        held += u64::from(view.held_blocks);
        growth += view.running().growth(1, block_size);
        for batch in &mut batches {
            batch.add(Claim::of(&view, view.held_blocks, foresight.remaining(node, id, &view)));
        }
    }
    let distinct = if held == 0 { 1.0 } else { ((pool - free) / held as f64).min(1.0) };
    let fits = |batch: &DecodeBatch| batch.peak(block_size, lag, distinct) <= capacity;

    let runs_first = gives_running_first(config);
    left_after(node, order, growth, |id, view| {
        for batch in &mut batches {
            let mut claim = Claim::of(view, 0, foresight.remaining(node, id, view));
            if !runs_first {
                claim = claim.a_step_ahead();
            }
            batch.add(claim);
        }
        batches.iter().all(fits)
    })
}

/// Whether running requests get their blocks before anybody is admitted, as in steps in chunks. A step of whole prompts is
/// theirs alone: nobody else gets a token in it.
fn gives_running_first(config: &EngineConfig) -> bool {
    config.engine == EngineKind::V1 || config.enable_chunked_prefill
}

/// Blocks to leave free in the next step, so that those requests are admitted, in the order of `order`, that `is_let_in`, each asked
/// once and none behind one that is not: what will be free once they are admitted and the running ones have the `growth` blocks they
/// take in that step, and everything if there is nobody to admit.
pub(super) fn left_after(
    node: &Node,
    order: Admission,
    growth: u32,
    mut is_let_in: impl FnMut(RequestId, &RequestView) -> bool,
) -> f64 {
    let scheduler = node.scheduler();
    let config = scheduler.config();
    let free = f64::from(scheduler.free_blocks(Tier::Gpu));
    let mut left = if gives_running_first(config) { free - f64::from(growth) } else { free };
    let mut admits = false;
    let slots = (config.max_num_seqs as usize).saturating_sub(scheduler.running().len());
    for (id, need) in candidates(node, order).take(slots) {
        if !is_let_in(id, &scheduler.view(id)) || need > left {
            break;
        }
        left -= need;
        admits = true;
    }
    if admits { left } else { f64::INFINITY }
}

/// Who may be admitted next, and for how many blocks: those on the host before those that wait.
fn candidates(node: &Node, order: Admission) -> impl Iterator<Item = (RequestId, f64)> {
    let scheduler = node.scheduler();
    let swapped: Vec<RequestId> = match scheduler {
        Scheduler::V0(v0) => v0.swapped().collect(),
        Scheduler::V1(_) => Vec::new(),
    };
    // V0 asks for the block of the next token as well if it brings a request back.
    let swapped = swapped.into_iter().map(|id| (id, 1));
    let waiting = scheduler.waiting_in(order, node.now()).into_iter().map(|id| (id, 0));
    let need = |id| blocks_for(scheduler.view(id).len(), scheduler.config().block_size);
    swapped.chain(waiting).map(move |(id, more)| (id, f64::from(need(id) + more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(claims: &[(u32, u32, u32)]) -> DecodeBatch {
        let mut batch = DecodeBatch::default();
        for &(slots, held, remaining) in claims {
            batch.add(Claim { slots, held, remaining });
        }
        batch
    }

    #[test]
    fn the_peak_is_when_somebody_finishes() {
        // The paper's figure 4, with blocks of one token: alone, a request ends at slots + remaining.
        assert_eq!(batch(&[(4, 4, 3)]).peak(1, 0, 1.0), 7.0);
        // Two that never meet at full length: after 1 step 4 + 6, after 5 steps the longer one has 10 and is alone.
        assert_eq!(batch(&[(5, 5, 5), (3, 3, 1)]).peak(1, 0, 1.0), 10.0);
        // After 2 steps 7 + 8 = 15, later 10.
        assert_eq!(batch(&[(5, 5, 5), (6, 6, 2)]).peak(1, 0, 1.0), 15.0);
        // Equals end at once, in whatever order they came.
        assert_eq!(batch(&[(1, 1, 4), (2, 2, 4), (3, 3, 4)]).peak(1, 0, 1.0), 18.0);
        assert_eq!(DecodeBatch::default().peak(16, 0, 1.0), 0.0);
    }

    #[test]
    fn blocks_are_counted_whole() {
        // 15 + 1 tokens are one block of 16; 15 + 2 are two; 31 + 34 are five.
        assert_eq!([1, 2].map(|remaining| batch(&[(15, 1, remaining)]).peak(16, 0, 1.0)), [1.0, 2.0]);
        assert_eq!(batch(&[(31, 2, 34)]).peak(16, 0, 1.0), 5.0);
        // One step later a finished request is still there.
        assert_eq!(batch(&[(15, 1, 1)]).peak(16, 1, 1.0), 2.0);
    }

    #[test]
    fn the_quick_count_is_the_slow_one() {
        use rand::RngExt;
        let mut stream = crate::seed::stream(1, "peak", 0);
        for _ in 0..200 {
            let block_size = stream.random_range(1..20);
            let claims: Vec<(u32, u32, u32)> = (0..stream.random_range(1..12))
                .map(|_| (stream.random_range(0..90), 0, stream.random_range(1..90)))
                .collect();
            let at = |time: u32| {
                let there = claims.iter().filter(|claim| claim.2 >= time);
                there.map(|claim| (claim.0 + time).div_ceil(block_size)).sum::<u32>()
            };
            let slow = (1..=90).map(at).max().unwrap();
            assert_eq!(batch(&claims).peak(block_size, 0, 1.0), f64::from(slow), "{block_size} {claims:?}");
        }
    }

    #[test]
    fn blocks_held_in_common_count_once() {
        // Two requests of three blocks, two of which are the same: four distinct ones. Both take one more.
        assert_eq!(batch(&[(48, 3, 16), (48, 3, 16)]).peak(16, 0, 4.0 / 6.0), 6.0);
    }
}
