//! Nodes: how one is stored, what makes many of them a tree, and the way through it.

use core::hint::select_unpredictable;

use super::{FormatError, MAX_DEPTH, NODE_BYTES};
use crate::action::NUM_HEADS;

const SPLIT: u8 = 0;
const LEAF: u8 = 1;

/// Where a leaf has its choices, head by head. The bytes of heads that do not exist are 0.
const CHOICE_AT: [usize; 7] = [4, 5, 6, 7, 2, 3, 0];

const _: () = assert!(NUM_HEADS <= CHOICE_AT.len(), "a leaf has a byte for each head");

/// One node of a decision tree, decoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TreeNode {
    /// Compares one feature: right if its value is greater than the threshold, else left. NaN goes left.
    Split {
        /// Feature index.
        feature: u8,
        /// The left child; the right one follows it.
        left: u16,
        /// In the feature's unit.
        threshold: f32,
    },
    /// Ends the walk.
    Leaf {
        /// One index per head, in head order.
        choices: [u8; NUM_HEADS],
    },
}

impl TreeNode {
    /// The node as stored.
    pub const fn to_bytes(self) -> [u8; NODE_BYTES] {
        match self {
            TreeNode::Split { feature, left, threshold } => {
                let [left_low, left_high] = left.to_le_bytes();
                let [a, b, c, d] = threshold.to_le_bytes();
                [feature, SPLIT, left_low, left_high, a, b, c, d]
            }
            TreeNode::Leaf { choices } => {
                let mut bytes = [0, LEAF, 0, 0, 0, 0, 0, 0];
                let mut head = 0;
                while head < NUM_HEADS {
                    bytes[CHOICE_AT[head]] = choices[head];
                    head += 1;
                }
                bytes
            }
        }
    }

    /// The node in `bytes`. Any kind but leaf is taken for a split; only a parsed file's nodes mean anything.
    pub const fn from_bytes(bytes: [u8; NODE_BYTES]) -> TreeNode {
        let [feature, kind, left_low, left_high, a, b, c, d] = bytes;
        if kind == LEAF {
            TreeNode::Leaf { choices: leaf_choices(bytes) }
        } else {
            let left = u16::from_le_bytes([left_low, left_high]);
            TreeNode::Split { feature, left, threshold: f32::from_le_bytes([a, b, c, d]) }
        }
    }
}

const fn leaf_choices(bytes: [u8; NODE_BYTES]) -> [u8; NUM_HEADS] {
    // As `CHOICE_AT` says, without a loop and byte by byte only at the end: this is part of what a decision costs.
    let word = u64::from_le_bytes(bytes);
    let in_order = word >> 32 | (word >> 16 & 0xffff) << 32 | (word & 0xff) << 48;
    match in_order.to_le_bytes().first_chunk() {
        Some(choices) => *choices,
        None => [0; NUM_HEADS],
    }
}

/// Whether what none of so many heads uses is 0.
const fn leaf_is_clean(bytes: [u8; NODE_BYTES], heads: u8) -> bool {
    let mut at = heads as usize;
    while at < CHOICE_AT.len() && bytes[CHOICE_AT[at]] == 0 {
        at += 1;
    }
    at == CHOICE_AT.len()
}

/// Depth and leaves of a tree.
pub(super) struct TreeShape {
    pub(super) depth: u8,
    pub(super) leaves: u16,
}

/// Checks that `nodes` (at most `MAX_NODES`) are one tree in breadth-first order, with choices of so many heads a leaf.
///
/// In that order the children of the nth split are at 2n + 1 and 2n + 2. A counter therefore shows at once that every
/// node but the root has exactly one parent, that it comes after it, and where each level of the tree ends.
pub(super) const fn check_tree(nodes: &[[u8; NODE_BYTES]], features: u8, heads: u8) -> Result<TreeShape, FormatError> {
    let mut rest = nodes;
    let mut node: u16 = 0;
    let mut next_child: u16 = 1;
    let mut level_end: u16 = 1;
    let mut shape = TreeShape { depth: 0, leaves: 0 };
    while let Some((bytes, tail)) = rest.split_first() {
        if node == next_child {
            return Err(FormatError::Orphan { node });
        }
        if node == level_end {
            if shape.depth == MAX_DEPTH {
                return Err(FormatError::TooDeep { node });
            }
            shape.depth += 1;
            level_end = next_child;
        }
        let [feature, kind, ..] = *bytes;
        match (kind, TreeNode::from_bytes(*bytes)) {
            (SPLIT, TreeNode::Split { left, threshold, .. }) => {
                if feature >= features {
                    return Err(FormatError::NodeFeature { node, feature });
                }
                if !threshold.is_finite() {
                    return Err(FormatError::Threshold { node, bits: threshold.to_bits() });
                }
                if left as usize + 1 >= nodes.len() {
                    return Err(FormatError::ChildOutOfRange { node, left });
                }
                if left <= node {
                    return Err(FormatError::ChildBeforeParent { node, left });
                }
                if left != next_child {
                    return Err(FormatError::ChildOrder { node, left, expected: next_child });
                }
                next_child += 2;
            }
            (LEAF, TreeNode::Leaf { .. }) => {
                if !leaf_is_clean(*bytes, heads) {
                    return Err(FormatError::LeafFields { node });
                }
                shape.leaves += 1;
            }
            (found, _) => return Err(FormatError::NodeKind { node, found }),
        }
        node += 1;
        rest = tail;
    }
    Ok(shape)
}

/// Where a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Which node.
    pub node: u16,
    /// One index per head, in head order.
    pub choices: [u8; NUM_HEADS],
}

/// One comparison on the way to a leaf.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathStep {
    /// Which node compared.
    pub node: u16,
    /// Feature index.
    pub feature: u8,
    /// Value of the feature.
    pub value: f32,
    /// What it was compared with.
    pub threshold: f32,
    /// Whether the value was greater.
    pub went_right: bool,
}

/// The comparisons from the root to a leaf, at most [`MAX_DEPTH`] of them.
#[derive(Debug, Clone)]
pub struct Path<'a, 'v> {
    nodes: &'a [[u8; NODE_BYTES]],
    values: &'v [f32],
    node: u16,
    steps_left: u8,
}

impl<'a, 'v> Path<'a, 'v> {
    /// A walk of `nodes`, which `check_tree` has accepted.
    pub(super) fn new(nodes: &'a [[u8; NODE_BYTES]], values: &'v [f32]) -> Path<'a, 'v> {
        Path { nodes, values, node: 0, steps_left: MAX_DEPTH }
    }

    /// Walks to the leaf.
    #[inline]
    pub(super) fn leaf(self) -> Leaf {
        match self.end() {
            Some((node, bytes)) => Leaf { node, choices: leaf_choices(bytes) },
            // `check_tree` leaves no way here; the root's index and the first choices are as harmless as any.
            None => Leaf { node: 0, choices: [0; NUM_HEADS] },
        }
    }

    /// Walks to the end, as the iterator does: the leaf, and how it is stored. This is what a decision costs, and a walk is one
    /// chain of loads, each waiting for the one before: both children are therefore fetched while the comparison is still being
    /// made.
    #[inline]
    pub(super) fn end(self) -> Option<(u16, [u8; NODE_BYTES])> {
        let mut node = self.node;
        let mut word = u64::from_le_bytes(*self.nodes.get(usize::from(node))?);
        for _ in 0..=self.steps_left {
            let [feature, kind, ..] = word.to_le_bytes();
            if kind == LEAF {
                return Some((node, word.to_le_bytes()));
            }
            let left = (word >> 16) as u16;
            let children = self.nodes.get(usize::from(left)..).and_then(|rest| rest.first_chunk());
            let &[if_left, if_right] = children?;
            let value = self.values.get(usize::from(feature)).copied().unwrap_or(f32::NAN);
            let went_right = value > f32::from_bits((word >> 32) as u32);
            node = left.wrapping_add(u16::from(went_right));
            word = select_unpredictable(went_right, u64::from_le_bytes(if_right), u64::from_le_bytes(if_left));
        }
        None
    }

    fn here(&self) -> Option<TreeNode> {
        self.nodes.get(usize::from(self.node)).copied().map(TreeNode::from_bytes)
    }
}

impl Iterator for Path<'_, '_> {
    type Item = PathStep;

    fn next(&mut self) -> Option<PathStep> {
        let Some(TreeNode::Split { feature, left, threshold }) = self.here() else { return None };
        self.steps_left = self.steps_left.checked_sub(1)?;
        let node = self.node;
        let value = self.values.get(usize::from(feature)).copied().unwrap_or(f32::NAN);
        let went_right = value > threshold;
        self.node = left.saturating_add(u16::from(went_right));
        Some(PathStep { node, feature, value, threshold, went_right })
    }
}
