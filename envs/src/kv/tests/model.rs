//! Two slow pools that are their definitions: queues are sequences, counts are counted, leaves are searched for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What both definitions say; blocks are plain numbers.
pub(super) trait Slow {
    fn take(&mut self, count: u32) -> Vec<u32>;
    fn give_back(&mut self, table: &[u32]);
    fn lookup(&mut self, keys: &[u64], hits: &mut Vec<u32>);
    fn touch(&mut self, hits: &[u32]);
    fn register(&mut self, block: u32, key: u64, parent: Option<u32>);
    /// Next to be taken first.
    fn free(&self) -> Vec<u32>;
    fn cache(&self) -> &Cache;
    fn cache_mut(&mut self) -> &mut Cache;
}

/// Reference counts, entries and watches: the same for both.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    pub(super) refs: Vec<u32>,
    /// Per block its key and that of the block before it.
    pub(super) entries: Vec<Option<(u64, Option<u64>)>>,
    /// Per key the cached blocks, first registered first.
    pub(super) copies: BTreeMap<u64, Vec<u32>>,
    pub(super) watched: Option<BTreeSet<u32>>,
}

impl Cache {
    fn new(num_blocks: u32) -> Cache {
        Cache {
            refs: vec![0; num_blocks as usize],
            entries: vec![None; num_blocks as usize],
            copies: BTreeMap::new(),
            watched: None,
        }
    }

    fn first(&self, key: u64) -> Option<u32> {
        self.copies.get(&key).map(|copies| copies[0])
    }

    fn enter(&mut self, block: u32, key: u64, parent: Option<u32>) {
        let parent = parent.map(|parent| self.entries[parent as usize].expect("tables are registered in order").0);
        self.entries[block as usize] = Some((key, parent));
        self.copies.entry(key).or_default().push(block);
    }

    /// Drops the entry of `block`, if it has one.
    fn drop_entry(&mut self, block: u32) {
        if let Some((key, _)) = self.entries[block as usize].take() {
            self.disturb(block);
            let copies = self.copies.get_mut(&key).unwrap();
            copies.retain(|&copy| copy != block);
            if copies.is_empty() {
                self.copies.remove(&key);
            }
        }
    }

    fn hold(&mut self, block: u32) {
        if self.refs[block as usize] == 0 {
            self.disturb(block);
        }
        self.refs[block as usize] += 1;
    }

    /// Whether nobody holds `block` any more.
    fn let_go(&mut self, block: u32) -> bool {
        self.refs[block as usize] -= 1;
        if self.refs[block as usize] == 0 {
            self.disturb(block);
        }
        self.refs[block as usize] == 0
    }

    fn disturb(&mut self, block: u32) {
        if self.watched.as_ref().is_some_and(|watched| watched.contains(&block)) {
            self.watched = None;
        }
    }

    pub(super) fn idle(&self) -> impl Iterator<Item = u32> {
        (1..self.refs.len() as u32)
            .filter(|&block| self.refs[block as usize] == 0 && self.entries[block as usize].is_some())
    }
}

/// vLLM's: one free queue.
#[derive(Debug, Clone)]
pub(super) struct Lru {
    cache: Cache,
    free: VecDeque<u32>,
}

impl Lru {
    pub(super) fn new(num_blocks: u32) -> Lru {
        Lru { cache: Cache::new(num_blocks), free: (1..num_blocks).collect() }
    }
}

impl Slow for Lru {
    fn take(&mut self, count: u32) -> Vec<u32> {
        let taken: Vec<u32> = self.free.drain(..count as usize).collect();
        for &block in &taken {
            self.cache.drop_entry(block);
            self.cache.hold(block);
        }
        taken
    }

    fn give_back(&mut self, table: &[u32]) {
        let mut front = VecDeque::new();
        for &block in table.iter().rev() {
            if self.cache.let_go(block) {
                match self.cache.entries[block as usize] {
                    Some(_) => self.free.push_back(block),
                    None => front.push_back(block),
                }
            }
        }
        front.append(&mut self.free);
        self.free = front;
    }

    fn lookup(&mut self, keys: &[u64], hits: &mut Vec<u32>) {
        hits.extend(keys.iter().map_while(|&key| self.cache.first(key)));
    }

    fn touch(&mut self, hits: &[u32]) {
        for &block in hits {
            self.free.retain(|&free| free != block);
            self.cache.hold(block);
        }
    }

    fn register(&mut self, block: u32, key: u64, parent: Option<u32>) {
        self.cache.enter(block, key, parent);
    }

    fn free(&self) -> Vec<u32> {
        self.free.iter().copied().collect()
    }

    fn cache(&self) -> &Cache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }
}

/// SGLang's: a tree of keys, of whose idle leaves the one accessed least recently is evicted.
#[derive(Debug, Clone)]
pub(super) struct Radix {
    cache: Cache,
    /// Free blocks without an entry.
    unregistered: VecDeque<u32>,
    clock: u64,
    accessed: Vec<u64>,
}

impl Radix {
    pub(super) fn new(num_blocks: u32) -> Radix {
        Radix {
            cache: Cache::new(num_blocks),
            unregistered: (1..num_blocks).collect(),
            clock: 0,
            accessed: vec![0; num_blocks as usize],
        }
    }

    fn access(&mut self, path: &[u32]) {
        self.clock += 1;
        for &block in path {
            self.accessed[block as usize] = self.clock;
        }
    }

    /// The idle leaf accessed least recently.
    fn victim(&self) -> u32 {
        let continued: BTreeSet<u64> = self.cache.entries.iter().flatten().filter_map(|&(_, parent)| parent).collect();
        let key = |block: u32| self.cache.entries[block as usize].unwrap().0;
        let leaves: Vec<u32> = self.cache.idle().filter(|&block| !continued.contains(&key(block))).collect();
        let oldest = leaves.iter().map(|&block| self.accessed[block as usize]).min().expect("idle blocks have a leaf");
        let mut oldest = leaves.into_iter().filter(|&block| self.accessed[block as usize] == oldest);
        let victim = oldest.next().unwrap();
        assert_eq!(oldest.next(), None, "two leaves were accessed at one moment");
        victim
    }
}

impl Slow for Radix {
    fn take(&mut self, count: u32) -> Vec<u32> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let block = self.unregistered.pop_front().unwrap_or_else(|| self.victim());
            self.cache.drop_entry(block);
            self.cache.hold(block);
            taken.push(block);
        }
        taken
    }

    fn give_back(&mut self, table: &[u32]) {
        self.access(table);
        let mut front = VecDeque::new();
        for &block in table.iter().rev() {
            if !self.cache.let_go(block) {
                continue;
            }
            if let Some((key, _)) = self.cache.entries[block as usize]
                && self.cache.copies[&key].len() > 1
            {
                self.cache.drop_entry(block);
            }
            if self.cache.entries[block as usize].is_none() {
                front.push_back(block);
            }
        }
        front.append(&mut self.unregistered);
        self.unregistered = front;
    }

    fn lookup(&mut self, keys: &[u64], hits: &mut Vec<u32>) {
        hits.extend(keys.iter().map_while(|&key| self.cache.first(key)));
        self.access(hits);
    }

    fn touch(&mut self, hits: &[u32]) {
        self.access(hits);
        for &block in hits {
            self.cache.hold(block);
        }
    }

    fn register(&mut self, block: u32, key: u64, parent: Option<u32>) {
        let copies = self.cache.copies.get(&key).cloned().unwrap_or_default();
        for copy in copies.into_iter().filter(|&copy| self.cache.refs[copy as usize] == 0).collect::<Vec<_>>() {
            self.cache.drop_entry(copy);
            self.unregistered.push_front(copy);
        }
        self.cache.enter(block, key, parent);
    }

    fn free(&self) -> Vec<u32> {
        let mut rest = self.clone();
        rest.take((self.unregistered.len() + self.cache.idle().count()) as u32)
    }

    fn cache(&self) -> &Cache {
        &self.cache
    }

    fn cache_mut(&mut self) -> &mut Cache {
        &mut self.cache
    }
}
