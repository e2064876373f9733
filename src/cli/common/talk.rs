//! What training says to people while it looks for where to start.

use super::progress::Runs;
use crate::evaluate::Watch;
use crate::policy::PolicySpec;
use crate::train::{BestConstant, Listener};

/// Tells stderr.
pub(in crate::cli) struct Talk;

impl Listener for Talk {
    fn watch(&self) -> Box<dyn Watch + '_> {
        Box::new(Runs::new())
    }

    fn found(&self, found: BestConstant) {
        match found {
            BestConstant::Prior(controls) => {
                let prior = PolicySpec::Fixed(controls);
                say!("   learning starts from the best constant choice on that traffic: {prior}");
            }
            BestConstant::Fallback(watermark) => {
                say!("   a table that cannot be trusted falls back to the best constant watermark there: {watermark}");
            }
        }
    }
}
