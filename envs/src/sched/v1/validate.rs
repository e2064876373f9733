//! A slow recount of everything, for tests.

use super::super::{Phase, RequestId};
use super::sequence::Sequence;
use super::{StepPlace, V1};
use crate::deploy::DeadEnds;
use crate::kv::BlockId;
use crate::tier::{Tier, Tiers};

impl V1 {
    /// Recounts blocks, queues, requests and the cohort between two steps.
    ///
    /// Every request is in the queue its phase names and in no other; every block is free, or held as often as its
    /// references say; the cohort's sums are those of its members; and every member has an event within reach. Linear in
    /// pools and requests.
    ///
    /// # Errors
    /// What is wrong: a defect of the scheduler.
    pub fn validate(&self) -> Result<(), String> {
        self.validate_queues()?;
        for (index, sequence) in self.sequences.iter().enumerate() {
            self.validate_sequence(sequence).map_err(|wrong| format!("request {index}: {wrong}"))?;
        }
        self.validate_cohort()?;
        self.pool.validate(self.sequences.iter().flat_map(|sequence| sequence.blocks.iter().copied()))?;
        self.validate_host()
    }

    /// Distinct blocks that requests hold in each tier, and the host's cache while it copies.
    pub(in super::super) fn held_blocks(&self) -> Tiers<u64> {
        Tiers::from_fn(|tier| {
            let tables = self.sequences.iter().flat_map(|sequence| sequence.blocks_in(tier));
            let mut blocks: Vec<BlockId> = tables.copied().collect();
            if tier == Tier::Host {
                blocks.extend(self.held_by_cache());
            }
            blocks.sort_unstable();
            blocks.dedup();
            blocks.len() as u64
        })
    }

    fn validate_queues(&self) -> Result<(), String> {
        let count = |phase| self.sequences.iter().filter(|sequence| sequence.phase == phase).count();
        let phase_of = |id: RequestId| self.sequences[id.index()].phase;
        if let Some(id) = self.waiting().find(|&id| phase_of(id) != Phase::Waiting) {
            return Err(format!("request {} waits but is {:?}", id.0, phase_of(id)));
        }
        if let Some(id) = self.running.iter().find(|&&id| phase_of(id) != Phase::Running) {
            return Err(format!("request {} runs but is {:?}", id.0, phase_of(*id)));
        }
        if count(Phase::Waiting) != self.waiting.len() || count(Phase::Running) != self.running.len() {
            return Err("a request is in two queues or in none".to_owned());
        }
        if !self.running.is_sorted_by_key(|id| self.sequences[id.index()].ticket) {
            return Err("running is not in the order of tickets".to_owned());
        }
        if self.running.len() > self.config.max_num_seqs as usize {
            return Err(format!("{} requests run; max_num_seqs is {}", self.running.len(), self.config.max_num_seqs));
        }
        Ok(())
    }

    fn validate_sequence(&self, sequence: &Sequence) -> Result<(), String> {
        let block_size = self.config.block_size;
        let held = sequence.blocks.len() as u32;
        match sequence.phase {
            Phase::Waiting | Phase::Finished | Phase::Rejected if held > 0 => {
                return Err(format!("{:?} with {held} blocks", sequence.phase));
            }
            Phase::Swapped => return Err("V1 has no swapped queue".to_owned()),
            Phase::Running if sequence.is_member => {
                let computed = sequence.computed_at(self.planned);
                if held != computed.div_ceil(block_size) {
                    return Err(format!("a member with {computed} computed tokens holds {held} blocks"));
                }
            }
            Phase::Running if sequence.computed.div_ceil(block_size) > held => {
                return Err(format!("{} computed tokens in {held} blocks", sequence.computed));
            }
            _ => {}
        }
        if sequence.phase != Phase::Running && sequence.is_member {
            return Err(format!("a member of the cohort is {:?}", sequence.phase));
        }
        let is_on_host = !sequence.host_blocks.is_empty();
        if is_on_host && sequence.host_blocks.len() as u32 != sequence.host_tokens.div_ceil(block_size) {
            return Err(format!("{} tokens in {} host blocks", sequence.host_tokens, sequence.host_blocks.len()));
        }
        if is_on_host && sequence.phase != Phase::Waiting {
            return Err("host blocks outside waiting".to_owned());
        }
        if self.config.dead_ends == DeadEnds::Safe && sequence.registered > held {
            return Err(format!("{} blocks registered of {held}", sequence.registered));
        }
        Ok(())
    }

    fn validate_cohort(&self) -> Result<(), String> {
        let members = || self.sequences.iter().filter(|sequence| sequence.is_member);
        if members().count() as u32 != self.cohort.len() {
            return Err(format!("the cohort counts {} members of {}", self.cohort.len(), members().count()));
        }
        let context: u64 = members().map(|sequence| u64::from(sequence.computed_at(self.planned)) + 1).sum();
        if context != self.cohort.context(self.planned) {
            return Err(format!("the cohort's context is {context}, not {}", self.cohort.context(self.planned)));
        }
        let ahead = |sequence: &Sequence| sequence.next_event.wrapping_sub(self.planned);
        if let Some(late) = members().find(|sequence| ahead(sequence) >= self.config.block_size) {
            return Err(format!("a member's next event is {} steps ahead", ahead(late)));
        }
        let loose: Vec<StepPlace> = self
            .running
            .iter()
            .map(|&id| StepPlace { ticket: self.sequences[id.index()].ticket, id })
            .filter(|turn| !self.sequences[turn.id.index()].is_member)
            .collect();
        if loose == self.loose { Ok(()) } else { Err(format!("loose are {loose:?}, listed are {:?}", self.loose)) }
    }

    fn validate_host(&self) -> Result<(), String> {
        let swapped = self.sequences.iter().flat_map(|sequence| sequence.host_blocks.iter().copied());
        self.host.validate(swapped.chain(self.held_by_cache()))?;
        self.validate_host_books()?;
        let on_host = self.sequences.iter().filter(|sequence| !sequence.host_blocks.is_empty()).count();
        if on_host == self.on_host as usize {
            Ok(())
        } else {
            Err(format!("{on_host} requests are on the host, {} are counted", self.on_host))
        }
    }
}
