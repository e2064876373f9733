//! What requests declare of the blocks that they leave to a cache, where the pool or the host's cache goes by it.
//!
//! What is known of a request is noted at its admission and when it gives its blocks back, as a serving node can; what follows
//! for each block is `kvtide_rules::intent`. On the host, blocks are declared when they become idle there:
//!
//! - **written through**, when all that is to be stored of their request is. That request mostly runs on, and holds the same
//!   blocks on the GPU: for the host it is as one that is over.
//! - **written back**, when the GPU evicts them, as what their last holder declared when it gave them back. Which text branches
//!   off from them on the host is not known then.

use kvtide_rules::intent::{Leaving, PathStanding, RequestIntent, Scoring, Standing};
use kvtide_rules::lateness::late_at;
use kvtide_rules::reuse::Comeback;
use kvtide_rules::{Micros, Reuse, Visit};
use kvtide_runtime::Stop;

use super::super::RequestId;
use super::V1;
use super::sequence::Sequence;
use crate::deploy::EngineConfig;
use crate::kv::BlockId;
use crate::tier::HostCache;

/// Everything that intent follows from.
#[derive(Debug, Clone)]
pub(super) struct IntentDesk {
    reuse: Reuse,
    /// By request.
    known: Vec<Known>,
    /// By which score the pool goes, and the host's cache.
    pool: Option<Scoring>,
    host: Option<Scoring>,
    /// Of each GPU block, how its last holder would have it stand on a host that is written back.
    written_back: Vec<Option<Standing>>,
}

/// What is kept of a request from its arrival on.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// Stands for its tenant.
    kind: u64,
    /// Blocks that were cached when it was first admitted.
    head_blocks: u32,
    visit: Option<Visit>,
}

impl IntentDesk {
    /// Where anything goes by what is declared.
    pub(super) fn new(config: &EngineConfig) -> Option<Box<IntentDesk>> {
        let pool = config.eviction.scoring().filter(|_| config.enable_prefix_caching);
        let host = config.host_cache_order.scoring().filter(|_| !config.host_cache.is_off());
        let is_written_back = host.is_some() && config.host_cache == HostCache::WriteBack;
        (pool.is_some() || host.is_some()).then(|| {
            Box::new(IntentDesk {
                reuse: Reuse::new(config.num_gpu_blocks),
                known: Vec::new(),
                pool,
                host,
                written_back: vec![None; if is_written_back { config.num_gpu_blocks as usize } else { 0 }],
            })
        })
    }

    fn known(&mut self, id: RequestId) -> &mut Known {
        if self.known.len() <= id.index() {
            self.known.resize(id.index() + 1, Known::default());
        }
        &mut self.known[id.index()]
    }

    pub(super) fn set_kind(&mut self, id: RequestId, kind: u64) {
        self.known(id).kind = kind;
    }

    /// A request is admitted, of whose blocks the first `hits` were cached.
    pub(super) fn admitted(&mut self, id: RequestId, sequence: &Sequence, hits: u32, now: Micros, block_size: u32) {
        let known = *self.known(id);
        if sequence.preemptions > 0 {
            if let Some(visit) = &known.visit {
                self.reuse.resumed(visit, now);
            }
            return;
        }
        // The last token is never taken from the cache.
        let asked = (sequence.prompt_tokens - 1) / block_size;
        let keys = &sequence.keys[..sequence.keys.len().min(asked as usize)];
        // Evictions date nothing here.
        let visit = self.reuse.admitted(keys, asked, hits, known.kind, now, 0);
        *self.known(id) = Known { head_blocks: hits, visit: Some(visit), ..known };
    }

    /// What a request declares that leaves its blocks to a cache.
    fn intent(
        &mut self,
        id: RequestId,
        sequence: &Sequence,
        stop: Stop,
        now: Micros,
        config: &EngineConfig,
    ) -> RequestIntent {
        let Known { head_blocks, visit, .. } = *self.known(id);
        let comeback = visit.map_or(Comeback::default(), |visit| self.reuse.comeback(&visit, stop));
        RequestIntent::of(Leaving {
            slo: sequence.slo,
            stop,
            has_begun: sequence.first_token.is_some(),
            until_late: late_at(sequence.slo, sequence.arrival, sequence.answer()).since(now),
            tokens: sequence.registered * config.block_size,
            block_tokens: config.block_size,
            head_blocks,
            visit,
            comeback,
            pricing: config.pricing,
        })
    }

    /// A request gives its blocks back.
    fn released(&mut self, id: RequestId, stop: Stop, now: Micros) {
        if let Some(visit) = self.known(id).visit {
            self.reuse.released(&visit, stop, now, 0);
        }
    }

    /// Notes how the cached blocks of a table would stand on the host, once the GPU evicts them.
    fn note_for_host(&mut self, cached: &[BlockId], intent: &RequestIntent) {
        let Some(scoring) = self.host.filter(|_| !self.written_back.is_empty()) else { return };
        let mut path = PathStanding::default();
        for (position, block) in cached.iter().enumerate().rev() {
            let standing = path.next(Standing::of(&intent.block(position as u32), scoring), None, false);
            self.written_back[block.0 as usize] = Some(standing);
        }
    }
}

impl V1 {
    /// Whether it asks of which kind requests are.
    pub fn asks_kinds(&self) -> bool {
        self.desk.is_some() || self.intents.is_some()
    }

    /// Whether the pool is to know which block lies behind which, where nobody else can ask for them too.
    pub(super) fn follows_paths(&self) -> bool {
        self.desk.is_some() || self.intents.as_ref().is_some_and(|intents| intents.pool.is_some())
    }

    /// A request is about to give its blocks back, and declares what they are for.
    pub(super) fn declare(&mut self, id: RequestId, stop: Stop, now: Micros) {
        let sequence = &self.sequences[id.index()];
        let Some(intents) = self.intents.as_mut().filter(|_| !sequence.blocks.is_empty()) else { return };
        intents.released(id, stop, now);
        let intent = intents.intent(id, sequence, stop, now, &self.config);
        if let Some(scoring) = intents.pool {
            self.pool.declare(&sequence.blocks, |at| Standing::of(&intent.block(at as u32), scoring));
        }
        intents.note_for_host(&sequence.blocks[..sequence.registered as usize], &intent);
    }

    /// What a request declares of the blocks that it leaves to the host's cache, if that goes by it.
    pub(super) fn intent_on_host(&mut self, id: RequestId, stop: Stop) -> Option<Box<RequestIntent>> {
        let intents = self.intents.as_mut().filter(|intents| intents.host.is_some())?;
        Some(Box::new(intents.intent(id, &self.sequences[id.index()], stop, self.clock, &self.config)))
    }

    /// Declares how the host's blocks of a request stand, those of its text that end before block `end`.
    pub(super) fn declare_on_host(&mut self, path: &[BlockId], end: u32, intent: Option<&RequestIntent>) {
        let scoring = self.intents.as_ref().and_then(|intents| intents.host);
        if let (Some(scoring), Some(intent)) = (scoring, intent) {
            let first = end.saturating_sub(path.len() as u32);
            self.host.declare(path, |at| Standing::of(&intent.block(first + at as u32), scoring));
        }
    }

    /// Declares how a host block stands that holds what the GPU evicted from `src`.
    pub(super) fn declare_written_back(&mut self, src: BlockId, block: BlockId) {
        let standing = self.intents.as_ref().and_then(|intents| *intents.written_back.get(src.0 as usize)?);
        if let Some(standing) = standing {
            self.host.declare(&[block], |_| standing);
        }
    }
}
