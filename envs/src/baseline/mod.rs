//! What a policy is measured against and may itself not be: controllers that look at the engine directly.
//!
//! | file | rule |
//! |---|---|
//! | `opt_factor.rs`, `average_blocks.rs` | the two watermarks of the watermark study of vLLM's scheduler, stated in blocks |
//! | `prompt_pressure.rs` | P-PAS: fewer prompt tokens a step while several prompts press upon decodes |
//! | `past_future.rs` | admit while the peak predicted from recent answers fits |
//! | `oracle.rs` | the same with every answer's length known |
//! | `lookahead.rs` | try every choice on copies of the node that know more or less of the future |
//! | `primal_dual.rs` | admit while a request is worth the blocks it takes, at a price for blocks that is learnt on line |
//! | `peak.rs` | when a batch needs most, and the watermark that lets in whom a rule lets in |
//! | `answers.rs`, `history.rs` | the requests that have finished since a rule last looked, and how long recent answers were |
//!
//! `past-future`, `oracle` and `primal-dual` are asked in every scheduler step, as a rule within a scheduler would be, whatever the decision
//! interval: nobody shall say that they were held back. Fixed controls need no code, since [`Controls`] is a controller.

mod answers;
mod average_blocks;
mod history;
mod lookahead;
mod opt_factor;
mod oracle;
mod past_future;
mod peak;
mod primal_dual;
mod prompt_pressure;

use kvtide_runtime::Controls;

pub use average_blocks::AverageBlocks;
pub use lookahead::{Foresight, Lengths, Lookahead, LookaheadPlan};
pub use opt_factor::OptFactor;
pub use oracle::Oracle;
pub use past_future::{PastFuture, Prediction};
pub use primal_dual::{BlockPrice, PrimalDual};

use crate::env::Node;

/// `controls` with a watermark of that many blocks, rounded down and limited to the pool.
fn leaving_free(node: &Node, blocks: f64, controls: Controls) -> Controls {
    let pool = f64::from(node.scheduler().config().num_gpu_blocks);
    // Half a block more, so that the scheduler's own truncation gives the number back.
    let watermark = ((blocks.max(0.0).floor() + 0.5) / pool).min(1.0);
    Controls { watermark, ..controls }
}
