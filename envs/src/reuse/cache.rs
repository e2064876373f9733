//! A cache of blocks that knows nothing of engines: keys, and slots that a policy orders.

use super::references::Asked;
use crate::evict::key_map::KeyMap;
use crate::evict::{BlockView, Evict};

/// No slot.
const NOWHERE: u32 = 0;

/// Slots of a cache: one more than blocks, because a policy's block 0 is nobody's.
pub(super) fn num_slots(capacity: u32) -> u32 {
    capacity.saturating_add(1)
}

/// Blocks, each in a slot, which is what its policy knows as a block.
#[derive(Debug)]
pub(super) struct SlotCache<E> {
    policy: E,
    slot_of: KeyMap<u32>,
    /// Per slot, the block in it.
    block_in: Vec<u32>,
    /// Slots in use, the null slot included; the others come next.
    used: u32,
    /// Slots of the path being served.
    path: Vec<u32>,
}

impl<E: Evict> SlotCache<E> {
    /// An empty cache for `capacity` blocks, of a policy over its [slots](num_slots).
    pub(super) fn new(policy: E, capacity: u32) -> SlotCache<E> {
        assert!(capacity > 0, "a cache has room for a block");
        SlotCache {
            policy,
            slot_of: KeyMap::new(capacity as usize),
            block_in: vec![0; num_slots(capacity) as usize],
            used: 1,
            path: Vec::new(),
        }
    }

    /// Refers to each block by itself. How many hit.
    pub(super) fn refer_all(&mut self, asked: &Asked<'_>) -> u32 {
        let mut hits = 0;
        for (index, &block) in asked.blocks.iter().enumerate() {
            let seen = |slot| view(asked, index, slot);
            if let Some(slot) = self.slot_of.get(block) {
                self.policy.used(seen(slot));
                hits += 1;
            } else {
                let slot = self.room_for(block);
                self.policy.idle(seen(slot));
            }
        }
        hits
    }

    /// Serves a request whose blocks are a path. How many hit: those before the first that is not cached. A path longer than the
    /// cache is kept as far as there is room.
    pub(super) fn serve(&mut self, asked: &Asked<'_>) -> u32 {
        let blocks = asked.blocks;
        let blocks = &blocks[..blocks.len().min(self.block_in.len() - 1)];
        let mut path = std::mem::take(&mut self.path);
        path.clear();
        // What is cached is held, so that nothing of it goes for the sake of the rest.
        path.extend(blocks.iter().map(|&block| {
            let slot = self.slot_of.get(block).unwrap_or(NOWHERE);
            if slot != NOWHERE {
                self.policy.taken(BlockView::of(slot));
            }
            slot
        }));
        let hits = path.iter().take_while(|&&slot| slot != NOWHERE).count() as u32;
        for (slot, &block) in path.iter_mut().zip(blocks) {
            if *slot == NOWHERE {
                *slot = self.room_for(block);
            }
        }
        let length = blocks.len() as u32;
        for (position, &slot) in path.iter().enumerate().rev() {
            self.policy.idle(BlockView { position: position as u32, length, ..view(asked, position, slot) });
        }
        self.path = path;
        hits
    }

    /// A slot for a block that is in none, which another block leaves if all are in use.
    #[inline]
    fn room_for(&mut self, block: u32) -> u32 {
        let slot = if (self.used as usize) < self.block_in.len() {
            self.used += 1;
            self.used - 1
        } else {
            let slot = self.policy.victim().expect("a path is no longer than the cache, and the rest is idle");
            self.slot_of.remove(self.block_in[slot as usize]);
            slot
        };
        self.block_in[slot as usize] = block;
        self.slot_of.insert(block, slot);
        slot
    }
}

/// What a policy is told of the block of a reference by itself. Its key is never 0, which is no key.
#[inline]
fn view(asked: &Asked<'_>, index: usize, slot: u32) -> BlockView {
    BlockView {
        key: u64::from(asked.blocks[index]) + 1,
        next_use: asked.next_uses[index],
        past_uses: asked.past_uses[index],
        ..BlockView::of(slot)
    }
}
