//! How a replay went, for charts: samples at equal distances, never more than some hundreds.

use super::account::{Counts, Used};

/// Most samples; then every second goes, and those to come are twice as far apart.
const MOST: usize = 512;

/// Counts after so many events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Events so far.
    pub events: u64,
    /// Bytes in HBM.
    pub hbm_used_bytes: u64,
    /// Deadlines missed so far.
    pub deadline_misses: u64,
    /// Misses so far.
    pub misses: u64,
}

#[derive(Debug)]
pub(super) struct Series {
    samples: Vec<Sample>,
    apart: u64,
    next: u64,
}

impl Default for Series {
    fn default() -> Series {
        Series { samples: Vec::new(), apart: 1, next: 1 }
    }
}

impl Series {
    #[inline]
    pub(super) fn is_due(&self, events: u64) -> bool {
        events >= self.next
    }

    pub(super) fn take(&mut self, counts: &Counts, used: Used) {
        if self.samples.last().is_some_and(|last| last.events == counts.events) {
            self.samples.pop();
        }
        self.samples.push(Sample {
            events: counts.events,
            hbm_used_bytes: used.hbm,
            deadline_misses: counts.deadline_misses,
            misses: counts.misses,
        });
        if self.samples.len() >= MOST {
            let mut index = 0;
            self.samples.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            self.apart *= 2;
        }
        self.next = counts.events + self.apart;
    }

    pub(super) fn samples(&self) -> &[Sample] {
        &self.samples
    }
}
