//! A slow recount of everything, for tests.

use std::collections::BTreeMap;

use super::super::{Phase, RequestId, RequestState, Stage};
use super::V0;
use crate::kv::blocks_for;
use crate::tier::{Tier, Tiers};

/// Where a block or a request was found.
type Places<K> = BTreeMap<K, String>;

impl V0 {
    /// Recounts blocks, queues and requests between two steps.
    ///
    /// Every block of either pool is in exactly one place, its free list or one table; every request is in the queue its
    /// phase names and in no other; and the counters of each request agree with its table. Linear in pools and requests.
    ///
    /// # Errors
    /// What is wrong: a defect of the scheduler.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_queues()?;
        for id in (0..self.requests.len() as u32).map(RequestId) {
            self.validate_request(&self.request(id)).map_err(|wrong| format!("request {}: {wrong}", id.0))?;
        }
        self.validate_cohort()?;
        let is_host = |request: &RequestState| matches!(request.phase, Phase::Swapped | Phase::Rejected);
        self.validate_pool(Tier::Gpu, |request| !is_host(request))?;
        self.validate_pool(Tier::Host, is_host)?;
        let scratch = &self.scratch;
        let left = [&scratch.swapped_in, &scratch.recomputed, &scratch.swapped_out, &scratch.rejected_swapped];
        if !scratch.turns.is_empty() || left.iter().any(|list| !list.is_empty()) {
            return Err(format!("a step left {scratch:?} behind"));
        }
        Ok(())
    }

    /// Blocks that requests hold in each tier: running ones the GPU's, others the host's.
    pub(in super::super) fn held_blocks(&self) -> Tiers<u64> {
        let held = |phases: &[Phase]| {
            let held = self.requests.iter().filter(|request| phases.contains(&request.phase));
            held.map(|request| request.blocks.len() as u64).sum()
        };
        Tiers::from_fn(|tier| match tier {
            Tier::Gpu => held(&[Phase::Running]),
            // A faithful V0 leaks the host blocks of swapped requests it drops; they stay in the request's table.
            Tier::Host => held(&[Phase::Swapped, Phase::Rejected]),
        })
    }

    fn validate_cohort(&self) -> Result<(), String> {
        let is_member = |id: &&RequestId| self.requests[id.index()].joined.is_some();
        let members: Vec<RequestState> = self.running.iter().filter(is_member).map(|&id| self.request(id)).collect();
        let context: u64 = members.iter().map(|request| u64::from(request.len())).sum();
        let counted = (self.cohort.len(), self.cohort.context(self.planned));
        if counted != (members.len() as u32, context) {
            return Err(format!("the cohort counts {counted:?} of {} members with {context} tokens", members.len()));
        }
        let ahead = |request: &&RequestState| request.next_event.wrapping_sub(self.planned);
        if let Some(late) = members.iter().find(|request| ahead(request) >= self.config.block_size) {
            return Err(format!("a member's next event is {} steps ahead", ahead(&late)));
        }
        let mut loose: Vec<RequestId> = self.running.iter().copied().filter(|id| !is_member(&id)).collect();
        let mut listed = self.loose.clone();
        loose.sort_unstable();
        listed.sort_unstable();
        if loose == listed { Ok(()) } else { Err(format!("loose are {loose:?}, listed are {listed:?}")) }
    }

    fn validate_queues(&self) -> Result<(), String> {
        let mut seen: Places<RequestId> = BTreeMap::new();
        let queues: [(&str, Phase, Vec<RequestId>); 3] = [
            ("waiting", Phase::Waiting, self.waiting.iter().map(|entry| entry.id).collect()),
            ("running", Phase::Running, self.running.clone()),
            ("swapped", Phase::Swapped, self.swapped.iter().copied().collect()),
        ];
        for (name, phase, ids) in queues {
            for id in ids {
                if let Some(before) = seen.insert(id, name.to_owned()) {
                    return Err(format!("request {} is in {before} and in {name}", id.0));
                }
                let request = self.requests.get(id.index()).ok_or(format!("request {} of {name} is unknown", id.0))?;
                if request.phase != phase {
                    return Err(format!("request {} is in {name} and {:?}", id.0, request.phase));
                }
            }
        }
        let open = |request: &&RequestState| !matches!(request.phase, Phase::Finished | Phase::Rejected);
        let expected = self.requests.iter().filter(open).count();
        if seen.len() != expected {
            return Err(format!("{} requests are in queues and {expected} are open", seen.len()));
        }
        if !self.running.is_sorted_by_key(|id| self.requests[id.index()].ticket) {
            return Err("running is not in the order of tickets".to_owned());
        }
        if self.requests.iter().any(|request| request.joined.is_some() && request.phase != Phase::Running) {
            return Err("a member of the cohort does not run".to_owned());
        }
        if self.running.len() > self.config.max_num_seqs as usize {
            return Err(format!("{} requests run, above max_num_seqs", self.running.len()));
        }
        match self.waiting.iter().find(|entry| **entry != self.entry(entry.id)) {
            Some(stale) => Err(format!("waiting keeps {stale:?}, which is {:?}", self.entry(stale.id))),
            None => Ok(()),
        }
    }

    fn validate_request(&self, request: &RequestState) -> Result<(), String> {
        let RequestState { generated, output_tokens, computed, slots, .. } = *request;
        let (len, held) = (request.len(), request.blocks.len() as u32);
        let wrong = |what: &str| Err(format!("{what}: {request:?}"));
        if generated > output_tokens || len > self.config.max_model_len.max(request.prompt_tokens) + 1 {
            return wrong("it has more tokens than it may have");
        }
        if (generated == 0) != request.first_token.is_none() || request.first_token > request.last_token {
            return wrong("its tokens and their times disagree");
        }
        let tokens_agree = match (request.phase, request.stage) {
            (Phase::Waiting, Stage::Prefill) => computed == 0 && slots == 0,
            // Only the token sampled last has no slot.
            (Phase::Running | Phase::Swapped, Stage::Decode) => slots + 1 == len && computed == slots,
            (Phase::Running | Phase::Swapped, Stage::Prefill) => slots == len && computed < len,
            (Phase::Finished, _) => generated == output_tokens || len > self.config.max_model_len,
            (Phase::Rejected, _) => true,
            (Phase::Waiting, Stage::Decode) => false,
        };
        if !tokens_agree {
            return wrong("computed, slots and length disagree");
        }
        let blocks_agree = match request.phase {
            Phase::Running | Phase::Swapped => held == blocks_for(slots, self.config.block_size),
            Phase::Waiting | Phase::Finished => held == 0,
            // A faithful V0 leaks the host blocks of swapped requests it drops.
            Phase::Rejected => held == 0 || !self.is_safe(),
        };
        if blocks_agree { Ok(()) } else { wrong("it holds another number of blocks than its slots need") }
    }

    fn validate_pool(&self, tier: Tier, is_here: impl Fn(&RequestState) -> bool) -> Result<(), String> {
        let pool = &self.pools[tier];
        let mut places: Places<u32> = BTreeMap::new();
        let free = pool.free_blocks().iter().map(|block| (block.0, "the free list".to_owned()));
        let tables = self.requests.iter().enumerate().filter(|(_, request)| is_here(request));
        let held = tables.flat_map(|(index, request)| {
            request.blocks.iter().map(move |block| (block.0, format!("the table of request {index}")))
        });
        for (block, place) in free.chain(held) {
            if block >= pool.num_blocks() {
                return Err(format!("{tier} block {block} in {place} is beyond the pool of {}", pool.num_blocks()));
            }
            if let Some(before) = places.insert(block, place.clone()) {
                return Err(format!("{tier} block {block} is in {before} and in {place}"));
            }
        }
        match (0..pool.num_blocks()).find(|block| !places.contains_key(block)) {
            Some(lost) => Err(format!("{tier} block {lost} is nowhere")),
            None => Ok(()),
        }
    }
}
