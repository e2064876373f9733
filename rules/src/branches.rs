//! Which cached blocks are continued by text other than that of the table at hand.
//!
//! A block is registered behind the one before it in its text. Blocks are reused, so each counts its contents, and a link to a
//! content that is gone is known to be stale.

use alloc::vec;
use alloc::vec::Vec;

/// Behind nothing.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Branch {
    content: u32,
    /// The block before it in the path it was registered in, and the content of that then.
    parent: u32,
    parent_content: u32,
    /// Cached blocks registered behind it.
    children: u32,
}

impl Branch {
    const EMPTY: Branch = Branch { content: 0, parent: NONE, parent_content: 0, children: 0 };
}

/// Of every block of a pool, what it was registered behind, and how many cached blocks are behind it.
#[derive(Debug, Clone)]
pub struct Branches(Vec<Branch>);

impl Branches {
    /// Of a pool of `num_blocks`, none of which has content.
    pub fn new(num_blocks: u32) -> Branches {
        Branches(vec![Branch::EMPTY; num_blocks.max(1) as usize])
    }

    /// A block has new content, behind `parent` if anything is before it.
    pub fn registered(&mut self, block: u32, parent: Option<u32>) {
        self.emptied(block);
        if let Some(parent) = parent {
            self.link(block, parent);
        }
    }

    /// A block that has content turns out to lie behind `parent`. What it was registered behind stays, if that is still there.
    pub fn continues(&mut self, block: u32, parent: u32) {
        let known = self.0[block as usize];
        if known.parent == NONE || self.0[known.parent as usize].content != known.parent_content {
            self.link(block, parent);
        }
    }

    fn link(&mut self, block: u32, parent: u32) {
        let before = &mut self.0[parent as usize];
        before.children += 1;
        let parent_content = before.content;
        let block = &mut self.0[block as usize];
        (block.parent, block.parent_content) = (parent, parent_content);
    }

    /// The content of a block is gone.
    pub fn emptied(&mut self, block: u32) {
        let Branch { content, parent, parent_content, .. } = self.0[block as usize];
        if parent != NONE && self.0[parent as usize].content == parent_content {
            let children = &mut self.0[parent as usize].children;
            *children = children.saturating_sub(1);
        }
        self.0[block as usize] = Branch { content: content.wrapping_add(1), ..Branch::EMPTY };
    }

    /// Whether cached text other than `behind`, the next block of a table, continues a block of it. Its own continuation is no
    /// branch, if that was registered behind this copy of it.
    #[inline]
    pub fn has_others(&self, block: u32, behind: Option<u32>) -> bool {
        let Branch { content, children, .. } = self.0[block as usize];
        let own = behind.is_some_and(|behind| {
            let next = &self.0[behind as usize];
            next.parent == block && next.parent_content == content
        });
        children > u32::from(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_others_that_are_still_cached_are_counted() {
        let mut branches = Branches::new(8);
        branches.registered(1, None);
        branches.registered(2, Some(1));
        assert!(!branches.has_others(1, Some(2)) && branches.has_others(1, None) && !branches.has_others(2, None));
        branches.registered(3, Some(1));
        assert!(branches.has_others(1, Some(2)) && branches.has_others(1, Some(3)));
        branches.emptied(3);
        assert!(!branches.has_others(1, Some(2)));
        // What block 1 held is gone, and what it holds now block 2 does not continue.
        branches.registered(1, None);
        assert!(!branches.has_others(1, None));
        branches.registered(4, Some(1));
        assert!(branches.has_others(1, Some(2)));
        branches.emptied(2);
        assert!(branches.has_others(1, Some(2)) && !branches.has_others(1, Some(4)));
        // Told late where it lies, and not again.
        branches.continues(2, 4);
        branches.continues(2, 1);
        assert!(branches.has_others(4, None) && !branches.has_others(1, Some(4)));
    }
}
