//! How much of each client's ten minutes lies in a stretch of time, and what they come to.

use std::ops::Range;

use super::{Client, ROW, Rate, ServeGen};
use crate::time::Micros;

impl ServeGen {
    /// Mean number of requests that arrive in `time` at load 1.
    pub fn expected_requests(&self, time: Range<Micros>) -> f64 {
        self.parts(time).map(|(_, rate, share_s)| rate.rate_rps * share_s).sum()
    }

    /// Mean answer of the requests of `time`, tokens; 0 where none arrive.
    pub fn mean_output(&self, time: Range<Micros>) -> f64 {
        let tokens = self
            .parts(time.clone())
            .map(|(client, rate, share_s)| rate.rate_rps * share_s * client.periods[rate.period].output.mean());
        tokens.sum::<f64>() / self.expected_requests(time).max(f64::MIN_POSITIVE)
    }

    /// Each client's ten minutes that `time` has a part of, and how many seconds of them.
    pub fn parts(&self, time: Range<Micros>) -> impl Iterator<Item = (&Client, &Rate, f64)> {
        let Range { start, end } = time;
        self.clients().iter().flat_map(move |client| {
            let first = client.rates.partition_point(|rate| rate.start + ROW <= start);
            let rates = client.rates[first..].iter().take_while(move |rate| rate.start < end);
            rates.map(move |rate| {
                let part = (rate.start + ROW).min(end).since(rate.start.max(start));
                (client, rate, part.as_secs_f64())
            })
        })
    }
}
