//! Events that are made here: with the names that files have, before their blocks have numbers.

use std::io::{self, Write};

use kvtide_rules::intent::{MemoryIntent, Phase, Priority, Tier, Tiers};
use serde::Serialize;

use super::event::EventKind;

/// An event as it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftEvent {
    /// When, in steps of the stream.
    pub step: u64,
    /// What happens.
    pub kind: EventKind,
    /// To which block.
    pub object_id: String,
    /// Whose it is.
    pub request_id: String,
    /// Which of its request's it is, from 0.
    pub block_id: u32,
    /// When its request came: a step, or milliseconds where requests were recorded.
    pub arrival_step: u64,
    /// Step at which this was declared first.
    pub created_step: u64,
    /// Why it happens, in words.
    pub reason: &'static str,
    /// What is declared.
    pub intent: MemoryIntent,
}

/// The same, its keys in order.
#[derive(Serialize)]
struct Written<'a> {
    event_type: EventKind,
    intent: WrittenIntent<'a>,
    latency_us: Option<u64>,
    reason: &'a str,
    step: u64,
}

#[derive(Serialize)]
struct WrittenIntent<'a> {
    #[serde(serialize_with = "listed")]
    allowed_tiers: Tiers,
    arrival_step: u64,
    block_id: u32,
    compression_ok: bool,
    created_step: u64,
    current_tier: Tier,
    deadline_us: Option<u64>,
    expected_reuse_window_tokens: Option<u64>,
    is_committed: bool,
    is_draft: bool,
    last_access_step: u64,
    object_id: &'a str,
    object_type: &'static str,
    phase: Phase,
    pin_requested: bool,
    prefetch_ok: bool,
    priority: Priority,
    recency_score: f64,
    recompute_cost_us: Option<u64>,
    recompute_ok: bool,
    request_id: &'a str,
    request_priority: u32,
    size_bytes: u64,
    slack_us: Option<i64>,
    spill_cost_us: Option<u64>,
    target_decode_step: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn listed<S: serde::Serializer>(tiers: &Tiers, serializer: S) -> Result<S::Ok, S::Error> {
    let mut names: Vec<&str> = tiers.iter().map(Tier::name).collect();
    names.sort_unstable();
    serializer.collect_seq(names)
}

impl DraftEvent {
    /// Writes it as a line.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write(&self, sink: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let from = &self.intent;
        let intent = WrittenIntent {
            allowed_tiers: from.allowed_tiers,
            arrival_step: self.arrival_step,
            block_id: self.block_id,
            compression_ok: from.compression_ok,
            created_step: self.created_step,
            current_tier: from.current_tier,
            deadline_us: from.deadline_us,
            expected_reuse_window_tokens: from.expected_reuse_window_tokens,
            is_committed: from.is_committed,
            is_draft: from.is_draft,
            last_access_step: from.last_access_step,
            object_id: &self.object_id,
            object_type: "KV_CACHE",
            phase: from.phase,
            pin_requested: from.pin_requested,
            prefetch_ok: from.prefetch_ok,
            priority: from.priority,
            recency_score: from.recency_score,
            recompute_cost_us: from.recompute_cost_us,
            recompute_ok: from.recompute_ok,
            request_id: &self.request_id,
            request_priority: from.request_priority,
            size_bytes: from.size_bytes,
            slack_us: from.slack_us,
            spill_cost_us: from.spill_cost_us,
            target_decode_step: from.target_decode_step,
        };
        let written = Written { event_type: self.kind, intent, latency_us: None, reason: self.reason, step: self.step };
        serde_json::to_writer(&mut *sink, &written)?;
        sink.write_all(b"\n")
    }
}
