//! Why a block left, came in, or was late: what a replay writes down when it is asked to, and costs nothing when it is not.

use std::fmt::Write;
use std::path::Path;

use kvtide_rules::intent::{MemoryIntent, Moment, Phase, Priority};
use serde::{Deserialize, Serialize};

use super::error::{IntentError, IntentFault};
use super::lines::Lines;

/// What was done with a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecisionKind {
    /// It left HBM for DRAM.
    Spill,
    /// It left HBM, and is nowhere.
    Evict,
    /// It was brought into HBM ahead of its use.
    Prefetch,
}

/// A term of a score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Term {
    /// What it is of.
    pub name: String,
    /// What it adds.
    pub value: f64,
}

/// A candidate that stayed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub object_id: String,
    /// Its score; the victim's is not less.
    pub score: f64,
    /// What is done with it.
    pub phase: Phase,
    /// How much depends on it.
    pub priority: Priority,
    /// Why it stayed, in words.
    pub why: String,
}

/// A decision of a policy, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TierDecision {
    /// The policy, as in options.
    pub policy: String,
    /// `faithful` or `corrected`.
    pub mode: String,
    /// Room in HBM.
    pub hbm_capacity_bytes: u64,
    /// Room in DRAM.
    pub dram_capacity_bytes: u64,
    /// Which decision of this replay it is, from 0.
    pub number: u64,
    /// Step of the event that asked for it.
    pub step: u64,
    /// What was done.
    pub action: DecisionKind,
    /// With which block.
    pub object_id: String,
    /// What its request was doing.
    pub phase: Phase,
    /// How much depended on it.
    pub priority: Priority,
    /// How important its request was.
    pub request_priority: u32,
    /// Time that its decode step had.
    pub deadline_us: Option<u64>,
    /// Whether the token being generated waited for it.
    pub decode_critical: bool,
    /// For which block room was made.
    pub room_for: Option<String>,
    /// Blocks there were to choose from.
    pub candidates: u64,
    /// Why, in words.
    pub reason: String,
    /// Its score, the greatest of all candidates.
    pub score: f64,
    /// What the score is the sum of, in order.
    pub terms: Vec<Term>,
    /// The best candidates that were not chosen, the next victim first.
    pub runners_up: Vec<Candidate>,
    /// Whether a block that the token being generated waited for was in HBM and stayed, while one went for which none did.
    pub spared_decode_critical: bool,
    /// The most urgent block that stayed.
    pub spared: Option<String>,
}

/// A block that a decode step had to wait for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waited {
    /// Its name.
    pub object_id: String,
    /// What having it again took.
    pub cost_us: u64,
    /// Number of the decision by which it had left, if one had.
    pub decision: Option<u64>,
    /// Step of that decision.
    pub left_at_step: Option<u64>,
}

/// A decode step that missed its deadline, and what it waited for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeadlineMiss {
    /// The policy, as in options.
    pub policy: String,
    /// `faithful` or `corrected`.
    pub mode: String,
    /// Room in HBM.
    pub hbm_capacity_bytes: u64,
    /// Room in DRAM.
    pub dram_capacity_bytes: u64,
    /// Step of its first access.
    pub first_step: u64,
    /// Step of its last.
    pub last_step: u64,
    /// Time that it had.
    pub deadline_us: u64,
    /// Time that it took.
    pub latency_us: u64,
    /// Blocks that were not in HBM.
    pub waited_for: Vec<Waited>,
}

/// A line of a log of decisions, in the envelope that all lines of JSON are in here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum LogLine {
    /// A decision.
    TierDecision(Box<TierDecision>),
    /// A missed deadline.
    TierDeadlineMiss(Box<DeadlineMiss>),
}

/// Reads a log of decisions, line by line.
pub struct LogReader(Lines);

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader").finish_non_exhaustive()
    }
}

impl LogReader {
    /// Opens a log, plain, gzip or zstd.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<LogReader, IntentError> {
        Lines::open(path).map(LogReader)
    }

    /// The next line; `None` at the end.
    ///
    /// # Errors
    /// The line that is none of a log.
    pub fn next_line(&mut self) -> Result<Option<LogLine>, IntentError> {
        let Some(text) = self.0.next()? else { return Ok(None) };
        match serde_json::from_str(text) {
            Ok(line) => Ok(Some(line)),
            Err(error) => {
                let fault = IntentFault::NotADecision(error.to_string());
                Err(self.0.error(fault))
            }
        }
    }
}

/// What a term is called in words.
fn worded(term: &str) -> &str {
    match term {
        "priority" => "its priority",
        "pin" => "being pinned",
        "phase" => "its phase",
        "request_priority" => "the priority of its request",
        "reuse_window" => "how soon it is read again",
        "recompute_ok" => "that it may be computed again",
        "compression_ok" => "that it may be compressed",
        "draft" => "being a draft",
        "recompute_cost" => "what computing it again costs",
        "recency" => "how recently it was used",
        "age" => "how long nobody accessed it",
        "risk" | "risk_again" => "what is at risk",
        "deadline" => "its deadline",
        "slack" => "its slack",
        "important_request" => "its important request",
        "dear_to_recompute" => "being dear to compute again",
        "decoding" => "its request decoding",
        "decode_critical" => "being decode-critical",
        "done" => "its request being done",
        "cold_without_deadline" => "being cold without a deadline",
        other => other,
    }
}

/// Why the block with these terms goes first.
pub(super) fn reason(terms: &[Term], intent: &MemoryIntent, at: Moment, score: f64) -> String {
    if terms.is_empty() {
        return format!("nobody has accessed it for {} steps, longer than any other", at.age);
    }
    let mut text = format!("{} in {}, score {score:.2}", intent.priority.name(), intent.phase.name());
    let mut speaking: Vec<&Term> = terms.iter().filter(|term| term.value > 0.0).collect();
    speaking.sort_by(|a, b| b.value.total_cmp(&a.value));
    for (index, term) in speaking.iter().take(3).enumerate() {
        let start = if index == 0 { ": for going speak" } else { "," };
        let _ = write!(text, "{start} {} ({:+.2})", worded(&term.name), term.value);
    }
    if speaking.is_empty() {
        let against: Vec<&Term> = terms.iter().filter(|term| term.value < 0.0).collect();
        match against.first() {
            None => {
                let _ =
                    write!(text, ": nothing speaks for keeping it, and nobody has accessed it for {} steps", at.age);
            }
            Some(term) => {
                let _ = write!(
                    text,
                    ": of all blocks least speaks for keeping it, {} ({:+.2})",
                    worded(&term.name),
                    term.value
                );
            }
        }
    }
    text
}

/// Why a candidate stayed, beside the victim: the term that speaks most for it.
pub(super) fn why_it_stayed(victim: &[Term], candidate: &[Term], age: (u64, u64)) -> String {
    let value =
        |terms: &[Term], name: &str| terms.iter().filter(|term| term.name == name).map(|term| term.value).sum::<f64>();
    let mut names: Vec<&str> = victim.iter().chain(candidate).map(|term| term.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let gap = |name: &&str| value(candidate, name) - value(victim, name);
    let least = names.into_iter().min_by(|a, b| gap(a).total_cmp(&gap(b)));
    match least {
        Some(name) if gap(&name) < 0.0 => format!("{:+.2} by {}", gap(&name), worded(name)),
        _ if age.1 < age.0 => format!("accessed {} steps later", age.0 - age.1),
        _ => "ranks alike; the order of names decides".to_owned(),
    }
}
