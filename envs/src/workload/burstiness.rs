//! Recorded traffic that comes in other bursts: arrivals drawn anew, everything else kept.

use super::synthetic::{Gaps, MAX_CV};
use super::{Workload, WorkloadError};
use crate::seed;
use crate::time::Micros;
use crate::trace::Request;

/// Over how long the rate of a trace is taken as constant.
const MINUTE: Micros = Micros::from_millis(60_000);

/// Refuses a coefficient of variation out of range.
pub(super) fn check(cv: Option<f64>) -> Result<(), WorkloadError> {
    match cv.filter(|cv| !(0.0..=MAX_CV).contains(cv)) {
        Some(cv) => Err(WorkloadError::Cv(cv)),
        None => Ok(()),
    }
}

/// Draws the arrivals of a workload anew, with gaps of a coefficient of variation `cv` at the rate of each minute.
///
/// The clock that gaps are drawn on runs with the workload: within a minute of it, as fast as arrivals come there, so that
/// each advances it by one. On that clock arrivals are a renewal process with gamma gaps of mean 1, scaled so that all `n`
/// requests arrive before the end. (`ServeGen` and the synthetic profiles take the same family.) Requests keep their
/// order, lengths and prefixes, and each minute its share of them but for what a burst carries across its end. Time
/// between the turns of a session is not kept, only that they follow each other. What arrives all at once stays.
pub(super) fn redraw(workload: &Workload, cv: f64, seed: u64) -> Result<Workload, WorkloadError> {
    if workload.is_at_once() {
        return Ok(workload.clone());
    }
    let mut requests = workload.requests().to_vec();
    let mut stream = seed::stream(seed, "replay.cv", 0);
    let gaps = Gaps::new(1.0, cv);
    let mut passed = 0.0;
    let moments: Vec<f64> = (0..requests.len())
        .map(|_| {
            passed += gaps.draw(&mut stream);
            passed
        })
        .collect();
    // The last gap is that from the last arrival to the end.
    let scale = requests.len() as f64 / (passed + gaps.draw(&mut stream)).max(f64::MIN_POSITIVE);
    let mut clock = Clock::new(&requests, workload.span());
    for (request, moment) in requests.iter_mut().zip(moments) {
        request.arrival = clock.time(moment * scale);
    }
    Workload::new(workload.name(), requests, workload.span())
}

/// A clock that advances by one an arrival, evenly within each minute.
struct Clock {
    /// Arrivals in each minute.
    counts: Vec<u64>,
    span: Micros,
    minute: usize,
    /// Arrivals before `minute`.
    before: u64,
}

impl Clock {
    fn new(requests: &[Request], span: Micros) -> Clock {
        let minute = |arrival: Micros| (arrival.0 / MINUTE.0) as usize;
        let mut counts = vec![0; minute(Micros(span.0 - 1)) + 1];
        for request in requests {
            counts[minute(request.arrival)] += 1;
        }
        Clock { counts, span, minute: 0, before: 0 }
    }

    /// When the clock shows `moment`; moments rise from call to call.
    fn time(&mut self, moment: f64) -> Micros {
        while self.minute + 1 < self.counts.len() && moment >= (self.before + self.counts[self.minute]) as f64 {
            self.before += self.counts[self.minute];
            self.minute += 1;
        }
        let start = MINUTE.times(self.minute as u64);
        let length = self.span.since(start).min(MINUTE);
        let share = (moment - self.before as f64) / self.counts[self.minute].max(1) as f64;
        let last = Micros(self.span.0 - 1);
        (start + Micros((length.0 as f64 * share.clamp(0.0, 1.0)) as u64)).min(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(mean, cv)` of the gaps in seconds.
    fn gaps(workload: &Workload) -> (f64, f64) {
        let arrivals = workload.requests().iter().map(|request| request.arrival.as_secs_f64());
        let arrivals: Vec<f64> = arrivals.collect();
        let gaps: Vec<f64> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    /// Four a second for half an hour, then one a second.
    fn halves() -> Workload {
        let fast = (0..7_200).map(|index| index * 250);
        let slow = (0..1_800).map(|index| 1_800_000 + index * 1_000);
        let requests = fast.chain(slow).zip(1..).map(|(ms, id)| Request::new(Micros::from_millis(ms), id, 1)).collect();
        Workload::new("halves", requests, Micros::from_millis(3_600_000)).unwrap()
    }

    #[test]
    fn gaps_vary_as_asked_and_order_and_rates_stay() {
        let trace = halves();
        for cv in [0.0, 1.0, 4.0] {
            let redrawn = redraw(&trace, cv, 1).unwrap();
            let lengths = redrawn.requests().iter().map(|request| request.prompt_tokens);
            assert!(lengths.eq(1..=9_000) && redrawn.span() == trace.span());
            let first = redrawn.window("0..1800".parse().unwrap()).unwrap();
            let share = first.requests().len() as f64 / 7_200.0;
            assert!((share - 1.0).abs() < 0.03 * cv.max(0.1), "{share} at {cv}");
            let (mean, found) = gaps(&first);
            assert!((mean * 4.0 - 1.0).abs() < 0.1 && (found - cv).abs() < 0.1 * cv.max(0.1), "{mean} {found} at {cv}");
        }
        assert_eq!(redraw(&trace, 4.0, 1), redraw(&trace, 4.0, 1));
        assert_ne!(redraw(&trace, 4.0, 1), redraw(&trace, 4.0, 2));
    }

    #[test]
    fn what_is_short_still_ends_in_time() {
        for (count, cv) in [(1, 20.0), (2, 20.0), (3, 0.0), (50, 20.0)] {
            let requests = (0..count).map(|index| Request::new(Micros(index * 100_000_000), 1, 1)).collect();
            let trace = Workload::new("short", requests, Micros::ZERO).unwrap();
            if count > 1 {
                assert_eq!(redraw(&trace, cv, 3).unwrap().span(), trace.span());
            }
        }
        let at_once = Workload::new("pool", vec![Request::new(Micros::ZERO, 1, 1); 3], Micros::ZERO).unwrap();
        assert_eq!(redraw(&at_once, 4.0, 1), Ok(at_once));
    }
}
