//! The pool counted again, from the tables of its holders.

use super::{BlockId, PrefixPool};

impl PrefixPool {
    /// Recounts everything; `held` is every table of every holder, with repetition.
    ///
    /// # Errors
    /// The first thing found that does not add up.
    pub fn validate(&self, held: impl Iterator<Item = BlockId>) -> Result<(), String> {
        let mut refs = vec![0_u32; self.cache.blocks.len()];
        for BlockId(block) in held {
            let count =
                refs.get_mut(block as usize).ok_or_else(|| format!("block {block} is held, but not in the pool"))?;
            *count += 1;
        }
        self.validate_partition(&refs)?;
        if self.cache.caching { self.validate_cache(&refs) } else { Ok(()) }
    }

    /// Each block but the null block is either held or in the free queue, once.
    fn validate_partition(&self, refs: &[u32]) -> Result<(), String> {
        let mut is_free = vec![false; refs.len()];
        // The queue's links may be broken: never follow more of them than there are blocks.
        for BlockId(block) in self.free_blocks().take(refs.len()) {
            if std::mem::replace(&mut is_free[block as usize], true) {
                return Err(format!("block {block} is twice in the free queue"));
            }
        }
        if is_free[0] || refs[0] > 0 {
            return Err("the null block was given out".to_owned());
        }
        for (block, (&count, &is_free)) in refs.iter().zip(&is_free).enumerate().skip(1) {
            if (count > 0) == is_free {
                return Err(format!("block {block} is in {count} tables and free: {is_free}"));
            }
            if !self.cache.caching && count > 1 {
                return Err(format!("block {block} is in {count} tables, and nothing is shared"));
            }
        }
        let num_free = is_free.iter().filter(|&&is_free| is_free).count();
        if num_free != self.num_free() as usize {
            return Err(format!("{} blocks are free, {} are counted", num_free, self.num_free()));
        }
        Ok(())
    }

    /// The two parts of the queue, reference counts, links, and the rings of copies behind the map.
    fn validate_cache(&self, refs: &[u32]) -> Result<(), String> {
        let blocks = &self.cache.blocks;
        if let Some(block) = self.cache.unregistered.iter().find(|block| blocks.get(block.0).is_registered()) {
            return Err(format!("block {} is free and registered, but not idle", block.0));
        }
        if let Some(block) =
            self.free_blocks().skip(self.cache.unregistered.len()).find(|block| !blocks.get(block.0).is_registered())
        {
            return Err(format!("block {} is idle and not registered", block.0));
        }
        for (block, &count) in (0..).zip(refs) {
            if blocks.get(block).refs() != count {
                return Err(format!("block {block} is in {count} tables and counts {}", blocks.get(block).refs()));
            }
            if !blocks.get(block).is_registered() {
                continue;
            }
            if count == 0 && !self.policy.is_sound(block) {
                return Err(format!("block {block} is idle, and the policy contradicts itself"));
            }
            if blocks.get(block).is_keyless() {
                continue;
            }
            if !blocks.copy_links_agree(block) || blocks.key(blocks.next_copy(block)) != blocks.key(block) {
                return Err(format!("block {block} is in a broken ring of copies"));
            }
            if !self.policy.keeps_repeats() && count == 0 && !blocks.get(block).is_sole_copy() {
                return Err(format!("block {block} is idle, and another has its key"));
            }
        }
        self.validate_rings()
    }

    /// Every registered block is in the ring of exactly one key.
    fn validate_rings(&self) -> Result<(), String> {
        let blocks = &self.cache.blocks;
        let mut in_rings = 0;
        for (bucket, first) in self.cache.registry.firsts(blocks) {
            let is_found = self.cache.registry.first(blocks, blocks.key(first), bucket) == Some(first);
            if !is_found || blocks.get(first).home != bucket {
                return Err(format!("block {first} is not found under its key"));
            }
            let mut block = first;
            loop {
                in_rings += 1;
                block = blocks.next_copy(block);
                if block == first || in_rings > blocks.len() {
                    break;
                }
            }
        }
        let keyless = (0..self.num_blocks()).filter(|&block| blocks.get(block).is_keyless()).count();
        if keyless != self.cache.num_keyless as usize {
            return Err(format!("{keyless} blocks have no key, {} are counted", self.cache.num_keyless));
        }
        let registered = (0..self.num_blocks()).filter(|&block| blocks.get(block).is_registered()).count() - keyless;
        if in_rings != registered {
            return Err(format!("{registered} blocks are registered, {in_rings} are in the map"));
        }
        Ok(())
    }
}
