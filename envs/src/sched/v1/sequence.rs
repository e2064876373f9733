//! The state of one request under V1.

use kvtide_rules::{Answer, Seat};

use super::super::{Phase, Slo};
use super::host_cache::HostPath;
use crate::kv::{BlockId, Content};
use crate::tier::Tier;
use crate::time::Micros;

/// One request. There is no prefill and no decode: a request has tokens, some of which are computed.
///
/// `tokens`, `computed`, `sampling` and `in_flight` are those of a loose or waiting request. Of a member of the cohort
/// they follow from `origin` and the step's number: see [`computed_at`](Self::computed_at).
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub(super) arrival: Micros,
    pub(super) slo: Slo,
    pub(super) prompt_tokens: u32,
    /// Length at which it is finished. Only the sampler knows; no decision may look, but that an engine which plans ahead
    /// knows `max_tokens` and does not plan beyond it.
    pub(super) limit: u32,
    /// Known tokens: prompt and generated.
    pub(super) tokens: u32,
    /// Tokens whose keys and values exist or are being written.
    pub(super) computed: u32,
    /// Tokens being sampled in steps whose outcome is not known yet.
    pub(super) sampling: u32,
    /// Computed tokens of steps whose outcome is not known yet.
    pub(super) in_flight: u32,
    /// Preempted with a step's outcome not known yet.
    pub(super) is_stale: bool,
    /// Decodes as a member of the cohort.
    pub(super) is_member: bool,
    /// Of a member: computed tokens before step `s` are `origin + s`, wrapping.
    pub(super) origin: u32,
    /// Of a member: the step in which something happens to it.
    pub(super) next_event: u32,
    /// Of a running request: its place in running.
    pub(super) ticket: u32,
    /// Of a waiting request: its place in waiting.
    pub(super) seat: Seat,
    pub(super) phase: Phase,
    /// GPU blocks.
    pub(super) blocks: Vec<BlockId>,
    /// Leading blocks entered into the prefix cache.
    pub(super) registered: u32,
    /// First block that the prefix cache holds without a key, because nobody else can ask for it; `u32::MAX` if none.
    pub(super) keyless_from: u32,
    /// No other request has any of its tokens.
    pub(super) is_unshared: bool,
    /// Keys of its leading full blocks, as far as they were needed.
    pub(super) keys: Vec<u64>,
    /// What its tokens are; `None` without a prefix cache.
    pub(super) content: Option<Content>,
    /// Host blocks, of a waiting request whose blocks were moved there.
    pub(super) host_blocks: Vec<BlockId>,
    /// Tokens in them.
    pub(super) host_tokens: u32,
    /// What the host's cache holds of it, while it is being stored.
    pub(super) host_path: HostPath,
    pub(super) first_token: Option<Micros>,
    pub(super) last_token: Option<Micros>,
    pub(super) preemptions: u32,
}

impl Sequence {
    pub(super) fn new(arrival: Micros, prompt_tokens: u32, limit: u32, slo: Slo) -> Sequence {
        Sequence {
            arrival,
            slo,
            prompt_tokens,
            limit,
            tokens: prompt_tokens,
            computed: 0,
            sampling: 0,
            in_flight: 0,
            is_stale: false,
            is_member: false,
            origin: 0,
            next_event: 0,
            ticket: 0,
            seat: Seat::default(),
            phase: Phase::Waiting,
            blocks: Vec::new(),
            registered: 0,
            keyless_from: u32::MAX,
            is_unshared: false,
            keys: Vec::new(),
            content: None,
            host_blocks: Vec::new(),
            host_tokens: 0,
            host_path: HostPath::default(),
            first_token: None,
            last_token: None,
            preemptions: 0,
        }
    }

    /// Every list of blocks it has.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Vec<BlockId>> {
        [&self.blocks, &self.host_blocks, &self.host_path.blocks].into_iter()
    }

    /// Its blocks in a tier, in order.
    pub(super) fn blocks_in(&self, tier: Tier) -> &[BlockId] {
        match tier {
            Tier::Gpu => &self.blocks,
            Tier::Host => &self.host_blocks,
        }
    }

    /// Tokens a member of the cohort has computed before step `step`.
    pub(super) fn computed_at(&self, step: u32) -> u32 {
        self.origin.wrapping_add(step)
    }

    /// Tokens of a member of the cohort that are known once `completed` steps have been counted: after the step in which
    /// a token is computed, the one sampled from it is known.
    pub(super) fn known_after(&self, completed: u32) -> u32 {
        self.origin.wrapping_add(completed) + 1
    }

    /// Tokens it still has to compute, those on their way included.
    pub(super) fn missing(&self) -> u32 {
        self.tokens + self.sampling - self.computed
    }

    /// Whether its first token is there or on its way.
    pub(super) fn has_begun(&self) -> bool {
        self.tokens + self.sampling > self.prompt_tokens
    }

    /// How far its answer is.
    pub(super) fn answer(&self) -> Answer {
        Answer::of(self.slo, self.arrival, self.first_token, self.last_token)
    }
}
