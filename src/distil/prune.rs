//! Cutting a tree back to a budget, weakest link first.
//!
//! Minimal cost-complexity pruning (Breiman, Friedman, Olshen, Stone 1984, "Classification and Regression Trees", section
//! 3.3): the inner node whose leaves save least error per leaf becomes a leaf, again and again, but none with
//! more leaves than are too many. The trees of all budgets are cut from one and nested in each other, so that a larger table
//! never does without what a smaller one knows.

use super::grow::{Grown, Inner, recount};

/// Cuts `nodes` back to at most `max_leaves` leaves, 1 at least.
pub(super) fn prune(nodes: &mut [Grown], max_leaves: usize) {
    while nodes[0].leaves > max_leaves.max(1) {
        let Some(weakest) = weakest(nodes, nodes[0].leaves - max_leaves.max(1)) else { break };
        nodes[weakest].inner = None;
        recount(nodes, weakest);
    }
}

/// The inner node that saves least error per leaf it costs, of those that cost no more than `surplus`; of equals the one
/// furthest down.
fn weakest(nodes: &[Grown], surplus: usize) -> Option<usize> {
    // Children come after their parent: a walk from the front knows who is still part of the tree, one from the end what
    // is below.
    let mut is_part = vec![false; nodes.len()];
    is_part[0] = true;
    for (index, node) in nodes.iter().enumerate() {
        if let (true, None, Some(Inner { left, .. })) = (is_part[index], node.verdict, node.inner) {
            is_part[left] = true;
            is_part[left + 1] = true;
        }
    }
    let mut below = vec![0_u64; nodes.len()];
    let mut weakest: Option<(f64, usize)> = None;
    for (index, node) in nodes.iter().enumerate().rev() {
        below[index] = match node.inner {
            Some(Inner { left, .. }) if is_part[index] && node.verdict.is_none() => {
                let error = below[left] + below[left + 1];
                let saved = node.error.saturating_sub(error) as f64 / (node.leaves - 1) as f64;
                if node.leaves - 1 <= surplus && weakest.is_none_or(|(least, _)| saved < least) {
                    weakest = Some((saved, index));
                }
                error
            }
            _ => node.error,
        };
    }
    weakest.map(|(_, index)| index)
}
