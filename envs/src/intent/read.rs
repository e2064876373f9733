//! Streams of events as files: one JSON object a line, in batches.
//!
//! ```json
//! {"step": 7, "event_type": "ACCESSED", "intent": {"object_id": "r1:block:0", "request_id": "r1", "phase": "DECODE",
//!  "priority": "DECODE_CRITICAL", "current_tier": "HBM", "allowed_tiers": ["DRAM", "HBM"], "size_bytes": 16384}}
//! ```
//!
//! Those fields are needed; what else [`MemoryIntent`] has may be left out or `null`, and other fields are passed over.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use kvtide_rules::intent::{MemoryIntent, Phase, Priority, Tier, Tiers};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::draft::DraftEvent;
use super::error::{IntentError, IntentFault, shown};
use super::event::{EventBatch, EventKind, IntentEvent};
use super::lines::Lines;
use super::names::{Names, hashed};
use super::scan::Scanner;

/// Greatest step, and greatest time in microseconds (eleven days).
const MAX_STEP: u64 = 1 << 53;
const MAX_US: u64 = 1_000_000_000_000;
/// Largest block: 64 GiB.
const MAX_BYTES: u64 = 1 << 36;

/// An event as it stands in a line.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct RawEvent<'a> {
    pub(super) step: u64,
    pub(super) event_type: EventKind,
    #[serde(borrow)]
    pub(super) intent: RawIntent<'a>,
}

#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct RawIntent<'a> {
    #[serde(borrow)]
    pub(super) object_id: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) request_id: Cow<'a, str>,
    pub(super) phase: Phase,
    pub(super) priority: Priority,
    #[serde(deserialize_with = "tiers")]
    pub(super) allowed_tiers: Tiers,
    pub(super) current_tier: Tier,
    pub(super) size_bytes: u64,
    pub(super) request_priority: Option<u32>,
    pub(super) recency_score: Option<f64>,
    pub(super) deadline_us: Option<u64>,
    pub(super) slack_us: Option<i64>,
    pub(super) target_decode_step: Option<u64>,
    pub(super) expected_reuse_window_tokens: Option<u64>,
    pub(super) recompute_cost_us: Option<u64>,
    pub(super) spill_cost_us: Option<u64>,
    pub(super) last_access_step: Option<u64>,
    pub(super) compression_ok: Option<bool>,
    pub(super) recompute_ok: Option<bool>,
    pub(super) prefetch_ok: Option<bool>,
    pub(super) pin_requested: Option<bool>,
    pub(super) is_draft: Option<bool>,
    pub(super) is_committed: Option<bool>,
}

/// A list of names of tiers.
fn tiers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Tiers, D::Error> {
    struct Listed;
    impl<'de> Visitor<'de> for Listed {
        type Value = Tiers;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of tiers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Tiers, A::Error> {
            let mut tiers = Tiers::default();
            while let Some(tier) = all.next_element()? {
                tiers = tiers.with(tier);
            }
            Ok(tiers)
        }
    }
    deserializer.deserialize_seq(Listed)
}

/// Where events come from.
enum Source {
    File(Lines, Scanner),
    Made(Box<dyn Iterator<Item = DraftEvent> + Send>),
}

/// Reads a stream, batch by batch.
pub struct EventReader {
    source: Source,
    names: Names,
    batch: EventBatch,
}

impl fmt::Debug for EventReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReader").field("distinct", &self.distinct()).finish_non_exhaustive()
    }
}

impl EventReader {
    /// Opens a file, plain, gzip or zstd; `-` is standard input.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<EventReader, IntentError> {
        Ok(EventReader::of(Source::File(Lines::open(path)?, Scanner::default())))
    }

    /// Reads events that are made as they are asked for.
    pub fn made(events: impl Iterator<Item = DraftEvent> + Send + 'static) -> EventReader {
        EventReader::of(Source::Made(Box::new(events)))
    }

    fn of(source: Source) -> EventReader {
        EventReader { source, names: Names::default(), batch: EventBatch::default() }
    }

    /// The next events, at most `most`; none at the end.
    ///
    /// # Errors
    /// The line that is not an event, and the field that is not what it should be.
    pub fn next_batch(&mut self, most: usize) -> Result<&EventBatch, IntentError> {
        self.names.recycle(&mut self.batch.names);
        self.batch.events.clear();
        let (names, texts) = (&mut self.names, &mut self.batch.names);
        while self.batch.events.len() < most {
            let next = match &mut self.source {
                Source::File(lines, scanner) => {
                    match lines.next()?.map(|text| event(text, scanner, names, texts)).transpose() {
                        Ok(next) => next,
                        Err(fault) => return Err(lines.error(fault)),
                    }
                }
                Source::Made(events) => events.next().map(|made| numbered(&made, names, texts)).transpose()?,
            };
            match next {
                Some(event) => self.batch.events.push(event),
                None => break,
            }
        }
        if self.batch.events.is_empty() && self.names.distinct() == 0 {
            let empty = IntentFault::Empty("events");
            return Err(match &self.source {
                Source::File(lines, _) => lines.error_of_file(empty),
                Source::Made(_) => IntentError::new(Path::new("the profile"), None, empty),
            });
        }
        Ok(&self.batch)
    }

    /// The batch that was read last.
    pub fn batch(&self) -> &EventBatch {
        &self.batch
    }

    /// Bytes kept from one batch to the next, which grow with the blocks that are known at one time; not among them are sixteen for every
    /// different block there has been, by which they are counted.
    pub fn bytes(&self) -> usize {
        let texts = self.batch.names.iter().map(|name| size_of::<Box<str>>() + name.len()).sum::<usize>();
        self.names.bytes() + texts
    }

    /// Different blocks so far.
    pub fn distinct(&self) -> u64 {
        self.names.distinct()
    }
}

/// An event that was made, its block numbered.
fn numbered(made: &DraftEvent, names: &mut Names, texts: &mut Vec<Box<str>>) -> Result<IntentEvent, IntentError> {
    let number = names.number(&made.object_id, made.kind, texts);
    let block = number.map_err(|fault| IntentError::new(Path::new(&made.object_id), None, fault))?;
    Ok(IntentEvent { step: made.step, kind: made.kind, block, intent: made.intent })
}

fn event(
    text: &str,
    scanner: &mut Scanner,
    names: &mut Names,
    texts: &mut Vec<Box<str>>,
) -> Result<IntentEvent, IntentFault> {
    let raw: RawEvent<'_> = match scanner.event(text) {
        Some(raw) => raw,
        None => serde_json::from_str(text).map_err(|error| fault(text, &error))?,
    };
    let intent = &raw.intent;
    check(&raw)?;
    let mut declared = MemoryIntent {
        request: hashed(&intent.request_id),
        phase: intent.phase,
        priority: intent.priority,
        allowed_tiers: intent.allowed_tiers,
        current_tier: intent.current_tier,
        size_bytes: intent.size_bytes,
        request_priority: intent.request_priority.unwrap_or(50),
        recency_score: intent.recency_score.unwrap_or(0.0) + 0.0,
        deadline_us: intent.deadline_us,
        slack_us: intent.slack_us,
        target_decode_step: intent.target_decode_step,
        expected_reuse_window_tokens: intent.expected_reuse_window_tokens,
        recompute_cost_us: intent.recompute_cost_us,
        spill_cost_us: intent.spill_cost_us,
        last_access_step: intent.last_access_step.unwrap_or(raw.step),
        compression_ok: intent.compression_ok.unwrap_or(false),
        recompute_ok: intent.recompute_ok.unwrap_or(false),
        prefetch_ok: intent.prefetch_ok.unwrap_or(false),
        pin_requested: intent.pin_requested.unwrap_or(false),
        is_draft: intent.is_draft.unwrap_or(false),
        is_committed: intent.is_committed.unwrap_or(false),
    };
    declared.settle_pin();
    let block = names.number(&intent.object_id, raw.event_type, texts)?;
    Ok(IntentEvent { step: raw.step, kind: raw.event_type, block, intent: declared })
}

/// Whether every number is within what replays are exact for.
fn check(raw: &RawEvent<'_>) -> Result<(), IntentFault> {
    let intent = &raw.intent;
    let not = |field: &str, value: String, expected: &str| IntentFault::NotA {
        field: field.to_owned(),
        value,
        expected: expected.to_owned(),
    };
    if intent.object_id.is_empty() {
        return Err(not("intent.object_id", String::new(), "a name"));
    }
    if !(1..=MAX_BYTES).contains(&intent.size_bytes) {
        return Err(not("intent.size_bytes", intent.size_bytes.to_string(), "a number of bytes from 1 to 64 GiB"));
    }
    if let Some(priority) = intent.request_priority.filter(|priority| *priority > 100) {
        return Err(not("intent.request_priority", priority.to_string(), "a whole number from 0 to 100"));
    }
    if let Some(recency) = intent.recency_score.filter(|recency| !(0.0..=1.0).contains(recency)) {
        return Err(not("intent.recency_score", recency.to_string(), "a number from 0 to 1"));
    }
    let steps = [
        ("step", Some(raw.step)),
        ("intent.target_decode_step", intent.target_decode_step),
        ("intent.last_access_step", intent.last_access_step),
        ("intent.expected_reuse_window_tokens", intent.expected_reuse_window_tokens),
    ];
    if let Some((field, Some(step))) = steps.into_iter().find(|(_, step)| step.is_some_and(|step| step > MAX_STEP)) {
        return Err(not(field, step.to_string(), "a whole number up to 2^53"));
    }
    let times = [
        ("intent.deadline_us", intent.deadline_us),
        ("intent.slack_us", intent.slack_us.map(i64::unsigned_abs)),
        ("intent.recompute_cost_us", intent.recompute_cost_us),
        ("intent.spill_cost_us", intent.spill_cost_us),
    ];
    if let Some((field, Some(time))) = times.into_iter().find(|(_, time)| time.is_some_and(|time| time > MAX_US)) {
        return Err(not(field, time.to_string(), "a time in microseconds, at most eleven days"));
    }
    Ok(())
}

/// What a field has to be.
pub(super) type Expected = (&'static str, fn(&Value) -> bool, &'static str);

const IS_COUNT: (fn(&Value) -> bool, &str) = (Value::is_u64, "a whole number, not negative");

/// Fields of an event, and of its intent; those up to the given place are needed.
const EVENT: [Expected; 3] = [
    ("step", IS_COUNT.0, IS_COUNT.1),
    (
        "event_type",
        |value| named(value, EventKind::ALL.iter().map(|kind| kind.name())),
        "a type of event, such as ACCESSED",
    ),
    ("intent", Value::is_object, "an object"),
];
const NEEDED: usize = 7;
const INTENT: [Expected; 22] = [
    ("object_id", Value::is_string, "a name"),
    ("request_id", Value::is_string, "a name"),
    (
        "phase",
        |value| named(value, Phase::ALL.iter().map(|phase| phase.name())),
        "PREFILL, DECODE, VERIFY, ROLLBACK, DONE or IDLE",
    ),
    (
        "priority",
        |value| named(value, Priority::ALL.iter().map(|priority| priority.name())),
        "DECODE_CRITICAL, HOT, WARM or COLD",
    ),
    ("current_tier", is_tier, "HBM, DRAM, CXL or NVME"),
    (
        "allowed_tiers",
        |value| value.as_array().is_some_and(|all| all.iter().all(is_tier)),
        "a list of HBM, DRAM, CXL, NVME",
    ),
    ("size_bytes", IS_COUNT.0, IS_COUNT.1),
    ("request_priority", |value| value.as_u64().is_some_and(|value| value <= 100), "a whole number from 0 to 100"),
    ("recency_score", Value::is_number, "a number from 0 to 1"),
    ("deadline_us", IS_COUNT.0, IS_COUNT.1),
    ("slack_us", Value::is_i64, "a whole number"),
    ("target_decode_step", IS_COUNT.0, IS_COUNT.1),
    ("expected_reuse_window_tokens", IS_COUNT.0, IS_COUNT.1),
    ("recompute_cost_us", IS_COUNT.0, IS_COUNT.1),
    ("spill_cost_us", IS_COUNT.0, IS_COUNT.1),
    ("last_access_step", IS_COUNT.0, IS_COUNT.1),
    ("compression_ok", Value::is_boolean, "true or false"),
    ("recompute_ok", Value::is_boolean, "true or false"),
    ("prefetch_ok", Value::is_boolean, "true or false"),
    ("pin_requested", Value::is_boolean, "true or false"),
    ("is_draft", Value::is_boolean, "true or false"),
    ("is_committed", Value::is_boolean, "true or false"),
];

fn named(value: &Value, mut names: impl Iterator<Item = &'static str>) -> bool {
    value.as_str().is_some_and(|value| names.any(|name| name == value))
}

fn is_tier(value: &Value) -> bool {
    named(value, Tier::ALL.iter().map(|tier| tier.name()))
}

/// What is wrong with a line that could not be read: looked at again, field by field, since the reason alone names none.
fn fault(text: &str, error: &serde_json::Error) -> IntentFault {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return IntentFault::NotJson(error.to_string());
    };
    if !value.is_object() {
        return IntentFault::NotJson(format!("it is `{}`", shown(&value)));
    }
    let intent = value.get("intent").filter(|intent| intent.is_object()).unwrap_or(&Value::Null);
    let of_event = faulty(&value, "", &EVENT, EVENT.len());
    let of_intent = || faulty(intent, "intent.", &INTENT, NEEDED);
    // A field that is there twice, say.
    of_event.or_else(of_intent).unwrap_or_else(|| IntentFault::NotJson(error.to_string()))
}

/// The first of those fields that is not there or not what it should be.
pub(super) fn faulty(object: &Value, within: &str, fields: &[Expected], needed: usize) -> Option<IntentFault> {
    fields.iter().enumerate().find_map(|(index, (name, is_right, expected))| {
        let field = format!("{within}{name}");
        match object.get(name) {
            None if index < needed => Some(IntentFault::Missing(field)),
            Some(Value::Null) if index >= needed => None,
            Some(value) if !is_right(value) => {
                Some(IntentFault::NotA { field, value: shown(value), expected: (*expected).to_owned() })
            }
            _ => None,
        }
    })
}
