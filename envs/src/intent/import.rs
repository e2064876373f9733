//! A log of requests as a stream of events: what blocks a request would have had, and when each mattered.
//!
//! A log says when a request came and how long it was, not what became of its blocks. The stream is an approximation by the rules
//! of the importer that is followed: requests one after the other, each allocating all of its blocks, reading the hot tail once,
//! leaving the rest cold, and freeing everything if it was completed. Only that, and no interleaving, is known.

use std::path::Path;

use kvtide_rules::intent::{MemoryIntent, Phase, Priority, Tier};
use serde_json::Value;

use super::draft::DraftEvent;
use super::error::{IntentError, IntentFault, shown};
use super::event::EventKind;
use super::lines::Lines;
use super::names::hashed;
use super::read::{Expected, faulty};

/// Tokens of a block of the hot tail.
const TAIL_TOKENS: u64 = 16;
/// Greatest number of tokens and milliseconds of a request.
const MOST: u64 = 1 << 40;

/// A request of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// Its name.
    pub request_id: String,
    /// When it came.
    pub arrival_ms: u64,
    /// When it was first served.
    pub start_ms: Option<u64>,
    /// When it ended.
    pub end_ms: Option<u64>,
    /// Tokens of its prompt.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// How important it was, 0 to 100.
    pub request_priority: u32,
    /// Time that a token of it had.
    pub deadline_ms: Option<u64>,
    /// Whether it ended as it should.
    pub is_completed: bool,
}

/// How requests become blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportSpec {
    /// Bytes of KV cache a token takes.
    pub bytes_per_token: u64,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Most blocks of a request: a longer one has larger blocks.
    pub max_blocks: u64,
}

const NEEDED: usize = 4;
const FIELDS: [Expected; 9] = [
    ("request_id", |value| value.as_str().is_some_and(|name| !name.is_empty()), "a name"),
    ("arrival_ms", is_count, COUNT),
    ("prompt_tokens", is_count, COUNT),
    ("generated_tokens", is_count, COUNT),
    ("start_ms", is_count, COUNT),
    ("end_ms", is_count, COUNT),
    ("request_priority", |value| value.as_u64().is_some_and(|value| value <= 100), "a whole number from 0 to 100"),
    ("deadline_ms", is_count, COUNT),
    ("status", Value::is_string, "a word such as completed"),
];
const COUNT: &str = "a whole number, not negative, of at most 2^40";

fn is_count(value: &Value) -> bool {
    value.as_u64().is_some_and(|value| value <= MOST)
}

/// Reads a log of requests, one JSON object a line, plain, gzip or zstd; `-` is standard input. In order of arrival.
///
/// # Errors
/// The line that is no request, and the field that is not what it should be.
pub fn read_requests(path: &Path) -> Result<Vec<LoggedRequest>, IntentError> {
    let mut lines = Lines::open(path)?;
    let mut requests: Vec<LoggedRequest> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    while let Some(text) = lines.next()? {
        match request(text) {
            Ok(request) if !names.insert(request.request_id.clone()) => {
                let value = shown(&Value::String(request.request_id));
                return Err(lines.error(IntentFault::Twice { field: "request_id", value }));
            }
            Ok(request) => requests.push(request),
            Err(fault) => return Err(lines.error(fault)),
        }
    }
    if requests.is_empty() {
        return Err(lines.error_of_file(IntentFault::Empty("requests")));
    }
    requests.sort_by(|a, b| (a.arrival_ms, &a.request_id).cmp(&(b.arrival_ms, &b.request_id)));
    Ok(requests)
}

fn request(text: &str) -> Result<LoggedRequest, IntentFault> {
    let value: Value = serde_json::from_str(text).map_err(|error| IntentFault::NotJson(error.to_string()))?;
    if !value.is_object() {
        return Err(IntentFault::NotJson(format!("it is `{}`", shown(&value))));
    }
    if let Some(fault) = faulty(&value, "", &FIELDS, NEEDED) {
        return Err(fault);
    }
    let number = |field: &str| value[field].as_u64();
    Ok(LoggedRequest {
        request_id: value["request_id"].as_str().unwrap_or_default().to_owned(),
        arrival_ms: number("arrival_ms").unwrap_or(0),
        start_ms: number("start_ms"),
        end_ms: number("end_ms"),
        prompt_tokens: number("prompt_tokens").unwrap_or(0),
        generated_tokens: number("generated_tokens").unwrap_or(0),
        request_priority: number("request_priority").unwrap_or(50) as u32,
        deadline_ms: number("deadline_ms"),
        is_completed: value["status"].as_str().is_none_or(|status| status == "completed"),
    })
}

impl ImportSpec {
    /// Blocks of a request, and the bytes of each.
    fn blocks(&self, request: &LoggedRequest) -> (u64, u64) {
        let bytes = u128::from(self.bytes_per_token) * u128::from(request.prompt_tokens + request.generated_tokens);
        let blocks = bytes.div_ceil(u128::from(self.block_bytes)).max(1);
        if blocks <= u128::from(self.max_blocks) {
            return (blocks as u64, self.block_bytes);
        }
        (self.max_blocks, bytes.div_ceil(u128::from(self.max_blocks)) as u64)
    }

    /// The events of `requests`, one after the other.
    pub fn events(self, requests: Vec<LoggedRequest>) -> impl Iterator<Item = DraftEvent> + Send {
        let mut step = 0;
        requests.into_iter().flat_map(move |request| {
            let events = self.of_request(&request, step);
            step += events.len() as u64;
            events
        })
    }

    fn of_request(self, request: &LoggedRequest, first_step: u64) -> Vec<DraftEvent> {
        let (blocks, size_bytes) = self.blocks(request);
        let tail = request.generated_tokens.max(1).div_ceil(TAIL_TOKENS).clamp(1, blocks);
        let blank = MemoryIntent::new(hashed(&request.request_id), size_bytes);
        let one = Laid { request, blank, blocks, tail_from: blocks - tail };
        let mut events = Vec::new();
        let mut add = |kind, block: u64, declared_before: u64, reason, intent: MemoryIntent| {
            let step = first_step + events.len() as u64;
            let mut intent = MemoryIntent { last_access_step: step.saturating_sub(intent.last_access_step), ..intent };
            intent.settle_pin();
            events.push(DraftEvent {
                step,
                kind,
                object_id: format!("{}:import:{block}", request.request_id),
                request_id: request.request_id.clone(),
                block_id: block as u32,
                arrival_step: request.arrival_ms,
                created_step: step - declared_before,
                reason,
                intent,
            });
        };
        for block in 0..blocks {
            add(EventKind::Allocated, block, 0, "block of an imported request", one.allocated(block));
        }
        for (index, block) in (one.tail_from..blocks).enumerate() {
            let intent = one.read(index as u64);
            add(EventKind::MarkedDecodeCritical, block, 0, "hot tail of an imported request", intent);
            add(EventKind::Accessed, block, 1, "read by an imported request", intent);
        }
        for block in 0..one.tail_from {
            add(EventKind::MarkedCold, block, 0, "behind the hot tail of an imported request", one.cold(block));
        }
        if request.is_completed {
            for block in 0..blocks {
                add(EventKind::Freed, block, 0, "end of an imported request", one.freed());
            }
        }
        events
    }
}

/// A request laid out in blocks. The last access is here how many steps ago it was.
struct Laid<'a> {
    request: &'a LoggedRequest,
    blank: MemoryIntent,
    blocks: u64,
    tail_from: u64,
}

impl Laid<'_> {
    fn start(&self) -> u64 {
        self.request.start_ms.unwrap_or(self.request.arrival_ms)
    }

    fn deadline_us(&self) -> Option<u64> {
        self.request.deadline_ms.map(|deadline| deadline * 1000)
    }

    fn allocated(&self, block: u64) -> MemoryIntent {
        let share = block as f64 / (self.blocks - 1).max(1) as f64;
        let (deadline_us, priority) = (self.deadline_us(), self.request.request_priority);
        let target_decode_step = Some(self.start() + block);
        if block >= self.tail_from {
            return MemoryIntent {
                priority: Priority::Hot,
                deadline_us,
                slack_us: deadline_us.map(|deadline| deadline as i64 - 5_000),
                recompute_cost_us: Some(5_000),
                spill_cost_us: Some(200),
                expected_reuse_window_tokens: Some(2),
                recency_score: 0.7,
                request_priority: priority,
                target_decode_step,
                ..self.blank
            };
        }
        MemoryIntent {
            priority: if share > 0.5 { Priority::Warm } else { Priority::Cold },
            recompute_cost_us: Some(200),
            spill_cost_us: Some(200),
            expected_reuse_window_tokens: Some((((1.0 - share) * 512.0) as u64).max(1)),
            recency_score: (0.6 - share).max(0.0),
            request_priority: priority.saturating_sub(15),
            target_decode_step,
            recompute_ok: true,
            compression_ok: true,
            prefetch_ok: true,
            ..self.blank
        }
    }

    fn read(&self, index: u64) -> MemoryIntent {
        let deadline_us = self.deadline_us();
        MemoryIntent {
            phase: Phase::Decode,
            priority: Priority::DecodeCritical,
            deadline_us,
            slack_us: deadline_us.map(|deadline| deadline as i64 - 2_000 * index as i64),
            recompute_cost_us: Some(6_000),
            spill_cost_us: Some(250),
            expected_reuse_window_tokens: Some(1 + index),
            recency_score: (1.0 - 0.1 * index as f64).max(0.8),
            request_priority: self.request.request_priority,
            target_decode_step: Some(self.start() + index),
            prefetch_ok: true,
            ..self.blank
        }
    }

    fn cold(&self, block: u64) -> MemoryIntent {
        MemoryIntent {
            phase: Phase::Idle,
            recompute_cost_us: Some(100),
            spill_cost_us: Some(100),
            expected_reuse_window_tokens: Some(256 + block),
            request_priority: self.request.request_priority.saturating_sub(20),
            target_decode_step: Some(self.request.end_ms.unwrap_or(self.request.arrival_ms) + 1_000),
            recompute_ok: true,
            compression_ok: true,
            prefetch_ok: true,
            last_access_step: 5,
            ..self.blank
        }
    }

    fn freed(&self) -> MemoryIntent {
        MemoryIntent {
            phase: Phase::Done,
            current_tier: Tier::Dram,
            recompute_cost_us: Some(0),
            spill_cost_us: Some(0),
            request_priority: self.request.request_priority,
            compression_ok: true,
            ..self.blank
        }
    }
}
