//! Attainment over time: what is resampled where there is one trace only, so that nothing but time varies.

use serde::{Deserialize, Serialize};

use super::Record;
use crate::time::Micros;

/// Length of a stretch, seconds, unless that makes too many.
const SHORTEST_S: u64 = 10;
/// Most stretches of a run: two hours and three quarters of the shortest.
const MAX_STRETCHES: u64 = 1000;

/// A run's requests by when they arrived, in stretches of equal length from time 0 to the last arrival.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Stretches {
    /// Length of each, seconds: 10, or so many times twice that a run has at most 1,000.
    pub seconds: u64,
    /// In order of time.
    pub counts: Vec<Stretch>,
}

/// Requests that arrived in one stretch of time; `[requests, attained]` in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub struct Stretch {
    /// How many.
    pub requests: u32,
    /// Of these, how many finished with every target met.
    pub attained: u32,
}

impl Stretches {
    /// Sorts requests into stretches.
    pub(super) fn of(records: &[&Record]) -> Stretches {
        let last = records.iter().map(|record| record.arrival).max().unwrap_or(Micros::ZERO);
        let index = |arrival: Micros, seconds: u64| arrival.0 / (seconds * 1_000_000);
        let mut seconds = SHORTEST_S;
        while index(last, seconds) >= MAX_STRETCHES {
            seconds *= 2;
        }
        let count = if records.is_empty() { 0 } else { index(last, seconds) + 1 };
        let mut counts = vec![Stretch::default(); count as usize];
        for record in records {
            let stretch = &mut counts[index(record.arrival, seconds) as usize];
            stretch.requests += 1;
            stretch.attained += u32::from(record.attained());
        }
        Stretches { seconds, counts }
    }
}

impl From<(u32, u32)> for Stretch {
    fn from((requests, attained): (u32, u32)) -> Stretch {
        Stretch { requests, attained }
    }
}

impl From<Stretch> for (u32, u32) {
    fn from(stretch: Stretch) -> (u32, u32) {
        (stretch.requests, stretch.attained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Group;
    use crate::sched::{Phase, Slo};

    fn stretches(arrivals_s: &[u64]) -> Stretches {
        let slo = Slo::from_millis(100, 100, 100);
        let records: Vec<Record> = arrivals_s
            .iter()
            .enumerate()
            .map(|(index, &at)| {
                let record = Record::new(Micros(at * 1_000_000), slo, Group::default());
                Record { phase: Phase::Finished, violated: index % 2 == 1, ..record }
            })
            .collect();
        Stretches::of(&records.iter().collect::<Vec<&Record>>())
    }

    #[test]
    fn requests_belong_to_the_stretch_they_arrived_in() {
        let found = stretches(&[0, 9, 10, 35]);
        assert_eq!(serde_json::to_string(&found).unwrap(), r#"{"seconds":10,"counts":[[2,1],[1,1],[0,0],[1,0]]}"#);
        assert_eq!(serde_json::from_str::<Stretches>(&serde_json::to_string(&found).unwrap()).unwrap(), found);
        assert_eq!(stretches(&[]).counts, []);
    }

    #[test]
    fn a_long_run_has_longer_stretches_and_no_more_of_them() {
        assert_eq!((stretches(&[9_999]).seconds, stretches(&[9_999]).counts.len()), (10, 1000));
        let day = stretches(&[0, 86_400]);
        assert_eq!((day.seconds, day.counts.len()), (160, 541));
        assert_eq!(day.counts[540], Stretch { requests: 1, attained: 0 });
    }
}
