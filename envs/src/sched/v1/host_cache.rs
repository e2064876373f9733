//! The host tier as a cache: blocks are stored there under the keys of their contents, and brought back instead of computed
//! when the price list says that it is cheaper.
//!
//! What a step copies is carried out before it computes, what leaves the GPU first. So a block that a step fills is stored by
//! the next plan, whatever became of its request by then: until that plan, nobody can have written to it. Host blocks that a
//! plan copies to or from are held until the next one, so that within a plan none is given out twice.
//!
//! **Write-through** follows the blocks of a request from its first to its last as they are filled. Its host blocks, its
//! **path**, are held until all that is to be stored of it is, and given back at once, so that the order of eviction sees each
//! of them become idle once, the end of the path first. Where a swapped request or other blocks need the room, paths are
//! given back as far as they got.
//!
//! **Write-back** stores a block when the GPU pool evicts it.

use kvtide_rules::intent::RequestIntent;
use kvtide_runtime::Stop;

use super::super::{BlockCopy, Entry, Fetched, Phase, RequestId, StepPlan};
use super::V1;
use crate::kv::BlockId;
use crate::tier::{HostCache, HostCacheScope, Route};

/// What is being stored, and what waits to be.
#[derive(Debug, Clone, Default)]
pub(super) struct HostCacheBooks {
    /// Running requests with blocks that were not offered yet.
    produced: Vec<RequestId>,
    /// What requests that finished have left to store.
    left: Vec<LastBlocks>,
    /// Host blocks that the plan made last copies to or from and that no path holds, each table to be given back as one.
    in_flight: Vec<Vec<BlockId>>,
    /// Requests with a path.
    open: Vec<RequestId>,
    /// Copies of plans that were no steps.
    carried: Vec<BlockCopy>,
    /// Number of the plan, those that were no steps left out.
    round: u32,
    /// Of each GPU block, whether all it holds is prompt; only where that matters.
    is_prompt: Vec<bool>,
    /// Evicted by the GPU pool in this plan, kept so that a step allocates nothing.
    evicted: Vec<(BlockId, u64)>,
}

/// The blocks of a finished request that were full when it finished and are not stored yet, and its path before them.
#[derive(Debug, Clone)]
struct LastBlocks {
    path: Vec<BlockId>,
    blocks: Vec<(BlockId, u64)>,
    /// Leading blocks of the request that were offered before, and what it declares of them all.
    offered: u32,
    intent: Option<Box<RequestIntent>>,
}

/// How far a running request is stored.
#[derive(Debug, Clone, Default)]
pub(super) struct HostPath {
    /// Host blocks that it holds, in order.
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks of the request that were offered, and are in the cache or were there.
    offered: u32,
    /// The plan that the last of `blocks` were appended in, and how many there were before.
    appended: (u32, usize),
    /// Whether it is among those that have produced blocks.
    is_noted: bool,
}

/// What the host holds of the request admission looked at last, behind what the GPU does.
#[derive(Debug, Clone, Default)]
pub(super) struct HostLookup {
    /// Who, how many tokens it had, and how many blocks the GPU holds; `None` before the first.
    of: Option<(RequestId, u32, usize)>,
    hits: Vec<BlockId>,
    /// How many of them are worth bringing back: all or none.
    pub(super) fetch: u32,
}

impl V1 {
    /// Whether blocks are stored as they are filled.
    fn writes_through(&self) -> bool {
        self.config.host_cache == HostCache::WriteThrough
    }

    /// Makes the pools ready for a cache, if the host tier is one.
    pub(super) fn open_host_cache(&mut self) {
        if self.config.host_cache == HostCache::WriteBack {
            self.pool.note_evictions();
            if self.config.host_cache_scope == HostCacheScope::Prompt {
                self.host_books.is_prompt = vec![false; self.config.num_gpu_blocks as usize];
            }
        }
    }

    /// Begins a plan: what the last one copied is done, and what it filled is stored.
    pub(super) fn store_produced(&mut self, plan: &mut StepPlan) {
        if self.config.host_cache.is_off() {
            return;
        }
        if self.host_books.carried.is_empty() {
            self.host_books.round = self.host_books.round.wrapping_add(1);
            for table in &mut self.host_books.in_flight {
                self.host.give_back(table);
            }
            self.host_books.in_flight.clear();
        } else {
            // These have not been copied: the plan was no step.
            plan.copies[Route::GpuToHost].append(&mut self.host_books.carried);
            plan.stored = plan.copies[Route::GpuToHost].len() as u32;
        }
        for LastBlocks { mut path, blocks, offered, intent } in std::mem::take(&mut self.host_books.left) {
            let is_stored = self.store(&blocks, &mut path, plan);
            let end = if is_stored { offered + blocks.len() as u32 } else { offered };
            self.declare_on_host(&path, end, intent.as_deref());
            self.host_books.in_flight.push(path);
        }
        let mut produced = std::mem::take(&mut self.host_books.produced);
        for id in produced.drain(..) {
            self.sequences[id.index()].host_path.is_noted = false;
            if self.sequences[id.index()].phase == Phase::Running {
                self.store_filled(id, plan);
            }
        }
        self.host_books.produced = produced;
    }

    /// Ends a plan. One that is no step is not carried out: its copies are left to the next.
    pub(super) fn carry_over(&mut self, plan: &mut StepPlan) {
        if !self.config.host_cache.is_off() && plan.is_idle() {
            self.host_books.carried.append(&mut plan.copies[Route::GpuToHost]);
            plan.stored = 0;
        }
    }

    /// Blocks `from` to `to` of a running request are full, or will be when this step is computed; or the GPU pool held
    /// them, full, when it was admitted.
    pub(super) fn note_produced(&mut self, id: RequestId, from: u32, to: u32, was_cached: bool) {
        if from >= to {
            return;
        }
        let sequence = &mut self.sequences[id.index()];
        if self.config.host_cache == HostCache::WriteThrough && !sequence.host_path.is_noted {
            sequence.host_path.is_noted = true;
            self.host_books.produced.push(id);
        }
        if !self.host_books.is_prompt.is_empty() {
            let prompt = sequence.prompt_tokens / self.config.block_size;
            for (index, block) in (from..to).zip(&sequence.blocks[from as usize..]) {
                // A prompt may quote what another request has generated.
                let is_prompt = &mut self.host_books.is_prompt[block.0 as usize];
                *is_prompt = index < prompt || (was_cached && *is_prompt);
            }
        }
    }

    /// Most blocks that are ever stored of a request.
    fn most_stored(&self, id: RequestId) -> u32 {
        match self.config.host_cache_scope {
            HostCacheScope::Prompt => self.sequences[id.index()].prompt_tokens / self.config.block_size,
            HostCacheScope::All => u32::MAX,
        }
    }

    /// Blocks of a request that are full, are to be stored and were not offered.
    fn not_offered(&self, id: RequestId) -> Vec<(BlockId, u64)> {
        let sequence = &self.sequences[id.index()];
        let end = sequence.registered.min(self.most_stored(id)) as usize;
        let from = (sequence.host_path.offered as usize).min(end);
        sequence.blocks[from..end].iter().copied().zip(sequence.keys[from..end].iter().copied()).collect()
    }

    /// Stores what a running request has filled, and closes its path if that is all there will be. Where there is no room, it
    /// is offered again with the next block that is filled.
    fn store_filled(&mut self, id: RequestId, plan: &mut StepPlan) {
        let blocks = self.not_offered(id);
        let mut path = std::mem::take(&mut self.sequences[id.index()].host_path);
        let before = path.blocks.len();
        let is_stored = self.store(&blocks, &mut path.blocks, plan);
        if is_stored {
            path.offered += blocks.len() as u32;
        }
        let round = self.host_books.round;
        if path.appended.0 != round {
            path.appended = (round, before);
        }
        let is_all = is_stored && path.offered >= self.most_stored(id);
        if is_all && !path.blocks.is_empty() {
            let intent = self.intent_on_host(id, Stop::Unknown);
            self.declare_on_host(&path.blocks, path.offered, intent.as_deref());
            self.host_books.in_flight.push(std::mem::take(&mut path.blocks));
        }
        if path.blocks.is_empty() {
            self.host_books.open.retain(|&other| other != id);
        } else if !self.host_books.open.contains(&id) {
            self.host_books.open.push(id);
        }
        self.sequences[id.index()].host_path = path;
    }

    /// Holds the host's copy of each block, in order, and appends them to `path`: those that are cached, and new ones for
    /// the others. False, and nothing is done, if there is no room for those.
    fn store(&mut self, blocks: &[(BlockId, u64)], path: &mut Vec<BlockId>, plan: &mut StepPlan) -> bool {
        let mut held = Vec::new();
        let is_cached: Vec<bool> = blocks.iter().map(|&(_, key)| self.host.hold(key, &mut held)).collect();
        let missing = (blocks.len() - held.len()) as u32;
        if !self.has_host_room(missing) {
            self.host.give_back(&mut held);
            return false;
        }
        let mut held = held.into_iter();
        for (&(src, key), is_cached) in blocks.iter().zip(is_cached) {
            if is_cached {
                path.extend(held.next());
            } else {
                self.host.store(key, true, path);
                plan.copies[Route::GpuToHost].extend(path.last().map(|&dst| BlockCopy { src, dst }));
                plan.stored += 1;
            }
        }
        true
    }

    /// Whether `need` host blocks can be taken. If not, paths are given back as far as they were stored before this plan.
    pub(super) fn has_host_room(&mut self, need: u32) -> bool {
        if need > self.host.num_free() {
            for index in 0..self.host_books.open.len() {
                let id = self.host_books.open[index];
                let path = &mut self.sequences[id.index()].host_path;
                let settled =
                    if path.appended.0 == self.host_books.round { path.appended.1 } else { path.blocks.len() };
                let mut table: Vec<BlockId> = path.blocks.drain(..settled).collect();
                let end = path.offered.saturating_sub(path.blocks.len() as u32);
                path.appended.1 = 0;
                let intent = self.intent_on_host(id, Stop::Unknown);
                self.declare_on_host(&table, end, intent.as_deref());
                self.host.give_back(&mut table);
            }
            let is_open = |id: &RequestId| !self.sequences[id.index()].host_path.blocks.is_empty();
            let mut open = std::mem::take(&mut self.host_books.open);
            open.retain(is_open);
            self.host_books.open = open;
        }
        need <= self.host.num_free()
    }

    /// A running request is preempted in this plan and about to give its blocks back.
    pub(super) fn store_victim(&mut self, id: RequestId, plan: &mut StepPlan) {
        if self.writes_through() {
            self.store_filled(id, plan);
            self.close_path(id, Stop::Preempted);
            self.host_books.produced.retain(|&other| other != id);
        }
    }

    /// A request has finished and is about to give its blocks back, which the next plan may still copy.
    pub(super) fn store_finished(&mut self, id: RequestId) {
        if !self.writes_through() {
            return;
        }
        let blocks = self.not_offered(id);
        if blocks.is_empty() {
            self.close_path(id, Stop::Unknown);
        } else {
            self.host_books.open.retain(|&other| other != id);
            let intent = self.intent_on_host(id, Stop::Unknown);
            let HostPath { blocks: path, offered, .. } = std::mem::take(&mut self.sequences[id.index()].host_path);
            self.host_books.left.push(LastBlocks { path, blocks, offered, intent });
        }
    }

    fn close_path(&mut self, id: RequestId, stop: Stop) {
        let path = std::mem::take(&mut self.sequences[id.index()].host_path);
        if !path.blocks.is_empty() {
            let intent = self.intent_on_host(id, stop);
            self.declare_on_host(&path.blocks, path.offered, intent.as_deref());
            self.host_books.open.retain(|&other| other != id);
            self.host_books.in_flight.push(path.blocks);
        }
    }

    /// The GPU pool has evicted blocks in this plan: the host keeps them.
    pub(super) fn write_back(&mut self, plan: &mut StepPlan) {
        if self.config.host_cache != HostCache::WriteBack {
            return;
        }
        let mut evicted = std::mem::take(&mut self.host_books.evicted);
        self.pool.evicted(&mut evicted);
        let mut table = Vec::new();
        for (src, key) in evicted.drain(..) {
            let is_kept = self.host_books.is_prompt.get(src.0 as usize).is_none_or(|&is_prompt| is_prompt);
            if !is_kept {
                continue;
            }
            if !self.host.hold(key, &mut table) {
                if self.host.num_free() == 0 {
                    continue;
                }
                self.host.store(key, false, &mut table);
                plan.copies[Route::GpuToHost].extend(table.last().map(|&dst| BlockCopy { src, dst }));
                plan.stored += 1;
            }
            if let Some(&dst) = table.last() {
                self.declare_written_back(src, dst);
            }
        }
        if !table.is_empty() {
            // Evicted first, idle first.
            table.reverse();
            self.host_books.in_flight.push(table);
        }
        self.host_books.evicted = evicted;
    }

    /// Finds what the host holds of `head` behind the `cached` blocks that the GPU does. The last token is never taken from
    /// there either.
    pub(super) fn look_up_on_host(&mut self, head: Entry, cached: usize) {
        let HostLookup { of, hits, fetch } = &mut self.host_lookup;
        *fetch = 0;
        let sequence = &self.sequences[head.id.index()];
        if self.config.host_cache.is_off() || !sequence.host_blocks.is_empty() {
            return;
        }
        let most = ((head.tokens - 1) / self.config.block_size) as usize;
        if *of != Some((head.id, head.tokens, cached)) || !self.host.watch_is_valid() {
            *of = Some((head.id, head.tokens, cached));
            hits.clear();
        }
        let found = hits.len();
        if cached + found < most {
            self.host.lookup(sequence.keys[cached + found..most].iter().copied(), hits);
        }
        if hits.len() > found || found == 0 {
            self.host.watch(hits);
        }
        let (blocks, block_size) = (hits.len() as u32, self.config.block_size);
        if self.config.pricing.brings_back(blocks, cached as u32 * block_size, blocks * block_size) {
            *fetch = blocks;
        }
    }

    /// Holds the blocks that are to be brought back for the request that is being admitted, before anything is taken for it.
    pub(super) fn hold_fetched(&mut self) {
        if self.host_lookup.fetch > 0 {
            self.host.touch(&self.host_lookup.hits);
        }
    }

    /// Copies the blocks that were held behind the `cached` first ones of an admitted request, which has blocks for them.
    pub(super) fn fetch(&mut self, id: RequestId, cached: usize, plan: &mut StepPlan) {
        let fetched = std::mem::take(&mut self.host_lookup.fetch);
        self.host_lookup.of = None;
        if self.config.host_cache.is_off() {
            return;
        }
        let writes_through = self.writes_through();
        let sequence = &mut self.sequences[id.index()];
        sequence.host_path = HostPath::default();
        if fetched > 0 {
            let hits = std::mem::take(&mut self.host_lookup.hits);
            let pairs = hits.iter().zip(&sequence.blocks[cached..]);
            plan.copies[Route::HostToGpu].extend(pairs.map(|(&src, &dst)| BlockCopy { src, dst }));
            plan.moved[Route::HostToGpu].push((id, fetched));
            plan.fetched.push(Fetched { id, blocks: fetched, tokens: fetched * self.config.block_size });
            if writes_through {
                // What was found is not offered.
                sequence.host_path.offered = cached as u32 + fetched;
                sequence.host_path.appended = (self.host_books.round, 0);
                sequence.host_path.blocks = hits;
                self.host_books.open.push(id);
            } else {
                self.host_books.in_flight.push(hits);
            }
        }
        // What the GPU held is a prompt's now, whoever made it.
        self.note_produced(id, 0, cached as u32, true);
    }

    /// Gives back the host blocks of a swapped request that was admitted in this plan.
    pub(super) fn give_back_swapped(&mut self, id: RequestId) {
        let sequence = &mut self.sequences[id.index()];
        if self.config.host_cache.is_off() {
            self.host.give_back(&mut sequence.host_blocks);
        } else {
            self.host_books.in_flight.push(std::mem::take(&mut sequence.host_blocks));
        }
    }

    /// Host blocks that are held by paths and by copies of the plan made last.
    pub(super) fn held_by_cache(&self) -> impl Iterator<Item = BlockId> {
        let paths = self.sequences.iter().flat_map(|sequence| &sequence.host_path.blocks);
        let left = self.host_books.left.iter().flat_map(|left| &left.path);
        paths.chain(left).chain(self.host_books.in_flight.iter().flatten()).copied()
    }

    /// What is wrong with the books, if anything.
    pub(super) fn validate_host_books(&self) -> Result<(), String> {
        for (index, sequence) in self.sequences.iter().enumerate() {
            let id = RequestId(index as u32);
            let is_open = self.host_books.open.iter().filter(|&&open| open == id).count();
            if is_open != usize::from(!sequence.host_path.blocks.is_empty()) {
                return Err(format!("request {index} is {is_open} times among those with a path"));
            }
            if is_open > 0 && sequence.phase != Phase::Running {
                return Err(format!("request {index} is {:?} and has a path on the host", sequence.phase));
            }
        }
        Ok(())
    }
}
