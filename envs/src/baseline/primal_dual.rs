//! `primal-dual`: a price for blocks, learnt on line, in place of a watermark.
//!
//! Whom to admit is a knapsack that refills: with `x` whether a request is let in, `R` what it is worth, `σ²` how uncertain its need of
//! blocks is and `c` how many blocks it is expected to take,
//!
//! ```text
//! maximise Σ x (R − λ σ²)   subject to   Σ x c ≤ M      whose Lagrangian is   Σ x (R − λ σ² − μ c) + μ M
//! ```
//!
//! So at a price `μ` exactly those requests are let in whose excess value `g = R − λ σ² − μ c` is not negative, and the price rises
//! where more is asked for than there is: `μ ← μ · exp(η (D − M) / M)`, multiplicative weights on the one constraint (Buchbinder, Naor
//! 2009, "The Design of Competitive Online Algorithms via a Primal-Dual Approach", chapter 2; Arora, Hazan, Kale 2012, "The
//! Multiplicative Weights Update Method", section 3.3). The rule is that of Token-PD ("Token-PD: Portfolio-Optimal KV-Cache Eviction for
//! Multi-Tenant LLM Inference", KDD 2025 workshop on inference optimization), which prices cached tokens; here requests are
//! priced, because a request is what a node admits. What its letters are:
//!
//! | | |
//! |---|---|
//! | `R` | 1: the targets count requests, each alike |
//! | `c` | blocks at its end, its answer as long as recent ones are on average, over the mean of finished requests: a price of 1 is what an average request is just worth |
//! | `σ²` | variance of recent answers in blocks, over the square of that mean |
//! | `M` | the pool |
//! | `D` | blocks in use, what running requests take in the next [`HORIZON`] steps, and what those that were preempted had: demand that was refused is demand |
//!
//! What follows is a watermark that is open or closed for whoever is next, and differs from a number in two ways: it knows how large the next
//! request is, and it has a memory. The memory is bounded, or a quiet hour would have to be unlearnt request by request.

use std::collections::VecDeque;

use kvtide_runtime::Controls;

use super::answers::Answers;
use super::leaving_free;
use super::peak::left_after;
use crate::env::{Controller, Node};
use crate::kv::blocks_for;
use crate::sched::RequestView;
use crate::tier::Tier;

/// How a price is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockPrice {
    /// `λ`, what a request is worth less for each unit of variance of what it needs.
    pub risk_aversion: f32,
    /// `η`, how far a scheduler step moves the price.
    pub rate: f32,
}

impl BlockPrice {
    /// What `primal-dual` is without numbers.
    pub const USUAL: BlockPrice = BlockPrice { risk_aversion: 0.0, rate: 1.0 };
}

/// Steps of growth that count as demand: the longest look ahead among the features of a policy.
pub const HORIZON: u32 = 32;
/// Where the price begins, and between what it stays.
const FIRST_PRICE: f64 = 1.0;
const PRICES: (f64, f64) = (0.2, 5.0);
/// Finished requests that are remembered.
const WINDOW: usize = 200;

/// `primal-dual`: admit while the next request is worth the blocks it takes, at a price for blocks that follows demand.
#[derive(Debug, Clone)]
pub struct PrimalDual {
    rule: BlockPrice,
    controls: Option<Controls>,
    price: f64,
    answers: Answers,
    recent: Recent,
}

impl PrimalDual {
    /// A controller that has seen nothing yet. `controls` are the other heads, their watermark ignored; `None` for the engine's default.
    pub fn new(rule: BlockPrice, controls: Option<Controls>) -> PrimalDual {
        PrimalDual { rule, controls, price: FIRST_PRICE, answers: Answers::default(), recent: Recent::default() }
    }

    /// `μ`, in what an average request is worth.
    pub fn price(&self) -> f64 {
        self.price
    }

    fn move_price(&mut self, demand: f64, pool: f64) {
        let (least, most) = PRICES;
        self.price = (self.price * (f64::from(self.rule.rate) * (demand - pool) / pool).exp()).clamp(least, most);
    }
}

impl Controller for PrimalDual {
    fn control(&mut self, node: &Node) -> Controls {
        let scheduler = node.scheduler();
        let block_size = scheduler.config().block_size;
        let recent = &mut self.recent;
        self.answers.finished(node, |_, request| recent.push(request, block_size));

        let pool = f64::from(scheduler.num_blocks(Tier::Gpu));
        let (mut next, mut ahead) = (0, 0);
        for &id in scheduler.running() {
            let request = scheduler.view(id).running();
            next += request.growth(1, block_size);
            ahead += request.growth(HORIZON, block_size);
        }
        // Whoever was preempted stands before all that wait.
        let preempted = scheduler.waiting().map(|id| scheduler.view(id)).take_while(|view| view.preemptions > 0);
        let refused: u32 = preempted.map(|view| blocks_for(view.len(), block_size)).sum();
        let used = pool - f64::from(scheduler.free_blocks(Tier::Gpu));
        self.move_price(used + f64::from(ahead) + f64::from(refused), pool);

        let controls = self.controls.unwrap_or_else(|| scheduler.default_controls());
        let shape = self.recent.shape(block_size);
        let is_worth_it = |view: &RequestView| {
            1.0 - f64::from(self.rule.risk_aversion) * shape.variance - self.price * shape.claim(view, block_size)
                >= 0.0
        };
        leaving_free(node, left_after(node, controls.admission, next, |_, view| is_worth_it(view)), controls)
    }

    fn interval(&self) -> Option<u32> {
        Some(1)
    }
}

/// The last requests that finished: blocks they ended with, tokens of their answers.
#[derive(Debug, Clone, Default)]
struct Recent {
    window: VecDeque<(u32, u32)>,
    /// Of blocks, of answers, and of the squares of these.
    blocks: u64,
    answers: u64,
    squares: u64,
}

impl Recent {
    fn push(&mut self, request: &RequestView, block_size: u32) {
        if self.window.len() == WINDOW
            && let Some((blocks, answer)) = self.window.pop_front()
        {
            self.blocks -= u64::from(blocks);
            self.answers -= u64::from(answer);
            self.squares -= u64::from(answer).pow(2);
        }
        let (blocks, answer) = (blocks_for(request.len(), block_size), request.generated);
        self.window.push_back((blocks, answer));
        self.blocks += u64::from(blocks);
        self.answers += u64::from(answer);
        self.squares += u64::from(answer).pow(2);
    }

    fn shape(&self, block_size: u32) -> Shape {
        if self.window.is_empty() {
            return Shape { blocks: None, answer: 0.0, variance: 0.0 };
        }
        let count = self.window.len() as f64;
        let (blocks, answer) = (self.blocks as f64 / count, self.answers as f64 / count);
        let variance = (self.squares as f64 / count - answer * answer).max(0.0);
        Shape { blocks: Some(blocks), answer, variance: variance / (f64::from(block_size) * blocks).powi(2) }
    }
}

/// What requests have been like.
struct Shape {
    /// Mean blocks at the end; `None` as long as nobody has finished.
    blocks: Option<f64>,
    /// Mean tokens of an answer.
    answer: f64,
    /// Variance of the blocks of an answer over the square of the mean blocks.
    variance: f64,
}

impl Shape {
    /// What `request` is expected to take, in mean requests.
    fn claim(&self, request: &RequestView, block_size: u32) -> f64 {
        let Some(mean) = self.blocks else { return 1.0 };
        let answer = self.answer.max(f64::from(request.generated) + 1.0);
        (f64::from(request.prompt_tokens) + answer) / f64::from(block_size) / mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sched::{Phase, Slo};
    use crate::time::Micros;

    fn request(prompt_tokens: u32, generated: u32) -> RequestView {
        RequestView {
            arrival: Micros::ZERO,
            slo: Slo::default(),
            prompt_tokens,
            generated,
            computed: 0,
            held_blocks: 0,
            phase: Phase::Finished,
            first_token: None,
            preemptions: 0,
        }
    }

    #[test]
    fn the_price_follows_demand_and_stays_within_bounds() {
        let mut rule = PrimalDual::new(BlockPrice { rate: 2.0, ..BlockPrice::USUAL }, None);
        rule.move_price(110.0, 100.0);
        assert!((rule.price() - 0.2_f64.exp()).abs() < 1e-12);
        rule.move_price(90.0, 100.0);
        assert!((rule.price() - 1.0).abs() < 1e-12, "what was too much is taken back by as much too little");
        for (demand, bound) in [(0.0, PRICES.0), (1e9, PRICES.1)] {
            (0..100).for_each(|_| rule.move_price(demand, 100.0));
            assert!((rule.price() - bound).abs() < 1e-12);
        }
    }

    #[test]
    fn a_request_claims_what_recent_ones_took() {
        let mut recent = Recent::default();
        assert!((recent.shape(16).claim(&request(1_000_000, 0), 16) - 1.0).abs() < 1e-12, "nothing is known");
        for answer in [160, 480].into_iter().cycle().take(3 * WINDOW) {
            recent.push(&request(320, answer), 16);
        }
        // Answers of 320 on average, 40 blocks with the prompt; a standard deviation of 10 blocks.
        let shape = recent.shape(16);
        assert_eq!((recent.window.len(), shape.blocks, shape.answer), (WINDOW, Some(40.0), 320.0));
        assert!((shape.variance - 1.0 / 16.0).abs() < 1e-12);
        let claim = |prompt, generated| shape.claim(&request(prompt, generated), 16);
        assert!((claim(320, 0) - 1.0).abs() < 1e-12 && (claim(960, 0) - 2.0).abs() < 1e-12);
        // Longer already than they are on average: one token more at least.
        assert!((claim(320, 639) - 1.5).abs() < 1e-12);
    }
}
