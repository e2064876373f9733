//! Who is next in a waiting queue, without a look at everybody.
//!
//! A tournament tree (Knuth, *The Art of Computer Programming* 3, 5.4.1) over the queue's positions: a node knows the
//! earliest arrival below it, and of those still on time the fewest tokens and the first moment at which one is late. So
//! whoever comes first is found on one way down, and a change is told on one way up. Time only takes requests out of those
//! on time, each once.

use alloc::vec;
use alloc::vec::Vec;

use kvtide_runtime::Admission;

use crate::Micros;

/// What the tree knows of a request, and of all below a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    earliest_arrival: Micros,
    /// Of those on time.
    fewest_tokens: u64,
    /// Of those on time.
    first_late_at: Micros,
}

impl Standing {
    /// Of nobody.
    pub(crate) const VACANT: Standing =
        Standing { earliest_arrival: Micros::MAX, fewest_tokens: u64::MAX, first_late_at: Micros::MAX };

    /// Of a request that is on time, or will be found not to be.
    pub(crate) fn new(arrival: Micros, tokens: u32, late_at: Micros) -> Standing {
        Standing { earliest_arrival: arrival, fewest_tokens: tokens.into(), first_late_at: late_at }
    }

    fn is_any_on_time(&self) -> bool {
        self.fewest_tokens != u64::MAX
    }

    fn with(&self, other: &Standing) -> Standing {
        Standing {
            earliest_arrival: self.earliest_arrival.min(other.earliest_arrival),
            fewest_tokens: self.fewest_tokens.min(other.fewest_tokens),
            first_late_at: self.first_late_at.min(other.first_late_at),
        }
    }
}

/// The tree. Positions in the queue are leaves, from leaf `front` on.
#[derive(Debug, Clone)]
pub(crate) struct Index {
    /// The root is node 1, the children of node *n* are 2*n* and 2*n* + 1, and the second half are the leaves.
    nodes: Vec<Standing>,
    front: usize,
    /// Whoever was late by then is out of those on time.
    passed: Micros,
}

/// Smallest tree.
const MIN_LEAVES: usize = 64;

impl Index {
    /// Of the requests with these standings, in queue order. Linear; there is then room for as many more at either end, so
    /// that it is not made anew before the queue has changed as often.
    pub(crate) fn new(standings: impl ExactSizeIterator<Item = Standing>) -> Index {
        let count = standings.len();
        let leaves = (3 * count).next_power_of_two().max(MIN_LEAVES);
        let front = (leaves - count) / 2;
        let mut nodes = vec![Standing::VACANT; 2 * leaves];
        for (leaf, standing) in nodes[leaves + front..].iter_mut().zip(standings) {
            *leaf = standing;
        }
        let mut index = Index { nodes, front, passed: Micros::ZERO };
        for node in (1..leaves).rev() {
            index.refresh(node);
        }
        index
    }

    /// The latest moment it was asked about: for an earlier one it must be made anew.
    pub(crate) fn passed(&self) -> Micros {
        self.passed
    }

    fn leaves(&self) -> usize {
        self.nodes.len() / 2
    }

    /// Tells the tree of a change at `position`; false if it does not reach that far.
    #[must_use]
    pub(crate) fn set(&mut self, position: usize, standing: Standing) -> bool {
        let leaf = self.front + position;
        if leaf >= self.leaves() {
            return false;
        }
        self.set_node(self.leaves() + leaf, standing);
        true
    }

    /// Somebody is before the first now; false if there is no room.
    #[must_use]
    pub(crate) fn push_front(&mut self, standing: Standing) -> bool {
        let Some(front) = self.front.checked_sub(1) else { return false };
        self.front = front;
        self.set(0, standing)
    }

    /// The first position, which is vacant, is there no more.
    pub(crate) fn pop_front(&mut self) {
        self.front += 1;
    }

    /// Position of who is next under an order that is not the queue's; `None` if that is the first, because all are late.
    /// `now` is not before [`passed`](Self::passed).
    pub(crate) fn next(&mut self, order: Admission, now: Micros, max_wait: Micros) -> Option<usize> {
        let waits_too_long = |standing: &Standing| now.since(standing.earliest_arrival) > max_wait;
        if waits_too_long(&self.nodes[1]) {
            return Some(self.first(waits_too_long));
        }
        self.pass_time(now);
        let all = self.nodes[1];
        if !all.is_any_on_time() {
            return None;
        }
        Some(if order == Admission::ShortestOnTimeFirst {
            self.first(|standing| standing.fewest_tokens == all.fewest_tokens)
        } else {
            self.first(Standing::is_any_on_time)
        })
    }

    /// Takes those who are late now out of those on time.
    fn pass_time(&mut self, now: Micros) {
        self.passed = now;
        while self.nodes[1].first_late_at < now {
            let position = self.first(|standing| standing.first_late_at < now);
            let node = self.leaves() + self.front + position;
            let late = Standing { earliest_arrival: self.nodes[node].earliest_arrival, ..Standing::VACANT };
            self.set_node(node, late);
        }
    }

    /// The first position for which `holds`, which holds for a node if it does for one below it, and does for the root.
    fn first(&self, holds: impl Fn(&Standing) -> bool) -> usize {
        let mut node = 1;
        while node < self.leaves() {
            node *= 2;
            node += usize::from(!holds(&self.nodes[node]));
        }
        node - self.leaves() - self.front
    }

    fn set_node(&mut self, leaf: usize, standing: Standing) {
        self.nodes[leaf] = standing;
        let mut node = leaf / 2;
        while node > 0 {
            let before = self.nodes[node];
            self.refresh(node);
            if self.nodes[node] == before {
                break;
            }
            node /= 2;
        }
    }

    fn refresh(&mut self, node: usize) {
        self.nodes[node] = self.nodes[2 * node].with(&self.nodes[2 * node + 1]);
    }
}
