//! What is known of one request.

use super::Group;
use crate::sched::{Phase, Slo};
use crate::time::Micros;

/// What is known of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When it arrived.
    pub arrival: Micros,
    /// Its targets.
    pub slo: Slo,
    /// Its class and tenant.
    pub group: Group,
    /// When its first token appeared.
    pub first_token: Option<Micros>,
    /// When its latest token appeared.
    pub last_token: Micros,
    /// Tokens so far.
    pub tokens: u32,
    /// Longest gap between two tokens.
    pub longest_stall: Micros,
    /// Whether it is still open, finished, or was dropped.
    pub phase: Phase,
    /// A target is missed for certain.
    pub violated: bool,
}

impl Record {
    /// Of a request that has just arrived.
    pub(super) fn new(arrival: Micros, slo: Slo, group: Group) -> Record {
        Record {
            arrival,
            slo,
            group,
            first_token: None,
            last_token: arrival,
            tokens: 0,
            longest_stall: Micros::ZERO,
            phase: Phase::Waiting,
            violated: false,
        }
    }

    /// Time to first token.
    pub fn ttft(&self) -> Option<Micros> {
        Some(self.first_token? - self.arrival)
    }

    /// Mean time per token after the first; `None` with fewer than two tokens.
    pub fn tpot(&self) -> Option<f64> {
        let gaps = self.tokens.checked_sub(1).filter(|&gaps| gaps > 0)?;
        Some((self.last_token - self.first_token?).as_secs_f64() / f64::from(gaps))
    }

    /// Arrival to last token.
    pub fn e2e(&self) -> Micros {
        self.last_token.since(self.arrival)
    }

    /// Finished with every target met.
    pub fn attained(&self) -> bool {
        self.phase == Phase::Finished && !self.violated
    }

    /// By when its next token must appear, or its TTFT or stall target is missed.
    pub(super) fn limit(&self) -> Micros {
        match self.first_token {
            None => self.slo.deadline(self.arrival, 0),
            Some(_) => self.last_token + self.slo.stall,
        }
    }
}
