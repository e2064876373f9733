//! What a preemption costs, and a prompt.

use kvtide_runtime::Preemption;

use crate::Micros;

/// What a scheduler believes a preemption costs: the price list behind [`Preemption::Cheaper`] and behind "can still meet
/// its target".
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Pricing {
    /// One block over `PCIe` in one direction, nanoseconds.
    pub swap_ns_per_block: f64,
    /// Prefill, nanoseconds per token.
    pub prefill_ns_per_token: f64,
    /// Attention within a prefill, nanoseconds per token and token of context before it.
    pub attention_ns_per_token_pair: f64,
}

impl Pricing {
    /// Out and in again.
    pub fn swap(&self, blocks: u32) -> Micros {
        Micros::from_secs_f64(2.0 * f64::from(blocks) * self.swap_ns_per_block * 1e-9)
    }

    /// The whole sequence from nothing.
    pub fn prefill(&self, tokens: u32) -> Micros {
        let tokens = f64::from(tokens);
        let pairs = tokens * tokens / 2.0;
        Micros::from_secs_f64((tokens * self.prefill_ns_per_token + pairs * self.attention_ns_per_token_pair) * 1e-9)
    }

    /// Tokens behind `context` others.
    pub fn continued(&self, context: u32, tokens: u32) -> Micros {
        let (context, tokens) = (f64::from(context), f64::from(tokens));
        let pairs = tokens * context + tokens * tokens / 2.0;
        Micros::from_secs_f64((tokens * self.prefill_ns_per_token + pairs * self.attention_ns_per_token_pair) * 1e-9)
    }

    /// Whether `tokens` behind `context` others, which the host holds in `blocks`, are brought back rather than computed.
    pub fn brings_back(&self, blocks: u32, context: u32, tokens: u32) -> bool {
        let back = Micros::from_secs_f64(f64::from(blocks) * self.swap_ns_per_block * 1e-9);
        back < self.continued(context, tokens)
    }

    /// Whether a victim's `blocks` go to the host, which has room for them, rather than its `tokens` being computed again.
    pub fn swaps(&self, preemption: Preemption, blocks: u32, tokens: u32) -> bool {
        match preemption {
            Preemption::Recompute => false,
            Preemption::Swap => true,
            Preemption::Cheaper => self.swap(blocks) < self.prefill(tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_taken() {
        // 4 blocks out and in: 8 ms. 64 tokens: 6.4 ms, and 2,048 pairs.
        let pricing = Pricing { swap_ns_per_block: 1e6, prefill_ns_per_token: 1e5, attention_ns_per_token_pair: 0.0 };
        assert_eq!((pricing.swap(4), pricing.prefill(64)), (Micros(8000), Micros(6400)));
        assert!(!pricing.swaps(Preemption::Cheaper, 4, 64));
        let pricing = Pricing { attention_ns_per_token_pair: 1e3, ..pricing };
        assert_eq!(pricing.prefill(64), Micros(8448));
        assert!(pricing.swaps(Preemption::Cheaper, 4, 64));
        // One way is 4 ms; behind 16 tokens there are 16 * 64 pairs more.
        assert_eq!(pricing.continued(0, 64), pricing.prefill(64));
        assert_eq!(pricing.continued(16, 64), Micros(8448 + 1024));
        assert!(pricing.brings_back(4, 0, 64) && pricing.brings_back(9, 16, 64) && !pricing.brings_back(9, 0, 64));
        assert!(pricing.swaps(Preemption::Swap, 4, 0) && !pricing.swaps(Preemption::Recompute, 4, 64));
    }
}
