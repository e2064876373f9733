//! What is in statistics of clients: `kvtide trace stats`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rand::RngExt;
use serde::Serialize;

use super::super::{Compression, Format};
use super::{LeftOut, Period, ROW, ServeGen};
use crate::percentile::percentile;
use crate::seed;
use crate::time::Micros;

/// Requests that percentiles of lengths are those of.
const DRAWS: usize = 100_000;

/// Clients named.
const LARGEST: usize = 5;

/// Figures of all clients together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServeGenStats {
    /// The file or folder.
    pub path: PathBuf,
    /// What it is written in.
    pub format: Format,
    /// How it is compressed.
    pub compression: Compression,
    /// Clients who send anything that can be drawn.
    pub clients: usize,
    /// To the end of the last ten minutes in which anybody sends anything, seconds.
    pub span_s: f64,
    /// Mean number of requests at load 1.
    pub requests: f64,
    /// Requests a second, in ten minutes in which anybody sends anything.
    pub rate_rps: RateStats,
    /// Coefficient of variation of the time between arrivals, of a client in ten minutes, counted by requests.
    pub cv: CvStats,
    /// Tokens of a prompt.
    pub prompt_tokens: LengthStats,
    /// Tokens of an answer.
    pub output_tokens: LengthStats,
    /// The largest clients and their share of requests, largest first.
    pub largest: Vec<(String, f64)>,
    /// Clients whose lengths or rates are not known.
    pub left_out_clients: u64,
    /// Requests that rates promise and lengths are not known of.
    pub left_out_requests: f64,
}

/// Rates over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RateStats {
    /// Least.
    pub min: f64,
    /// Mean.
    pub mean: f64,
    /// Most.
    pub max: f64,
}

/// Burstiness of clients.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CvStats {
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Most.
    pub max: f64,
}

/// Lengths: the mean is exact, percentiles are those of requests drawn with seed 0 over the whole span.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LengthStats {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest of those drawn.
    pub max: f64,
}

impl ServeGenStats {
    /// Describes statistics.
    pub fn of(statistics: &ServeGen) -> ServeGenStats {
        let requests = statistics.expected_requests(Micros::ZERO..statistics.span());
        let LeftOut { clients: left_out_clients, requests: left_out_requests } = statistics.left_out();
        let (prompts, outputs) = drawn(statistics);
        ServeGenStats {
            path: statistics.path().to_path_buf(),
            format: Format::ServeGen,
            compression: statistics.compression(),
            clients: statistics.clients().len(),
            span_s: statistics.span().as_secs_f64(),
            requests,
            rate_rps: rates(statistics),
            cv: burstiness(statistics),
            prompt_tokens: LengthStats::of(prompts, mean(statistics, Period::prompt_mean)),
            output_tokens: LengthStats::of(outputs, mean(statistics, |period| period.output.mean())),
            largest: largest(statistics, requests),
            left_out_clients,
            left_out_requests,
        }
    }
}

impl LengthStats {
    /// Of lengths drawn, whose true mean is known.
    pub(in crate::trace) fn of(mut tokens: Vec<f64>, mean: f64) -> LengthStats {
        tokens.sort_by(f64::total_cmp);
        let at = |p| percentile(&tokens, p);
        LengthStats { mean, p50: at(50.0), p90: at(90.0), p95: at(95.0), p99: at(99.0), max: at(100.0) }
    }
}

/// Each client's ten minutes: expected requests, its CV, and what it sends then.
fn parts(statistics: &ServeGen) -> impl Iterator<Item = (f64, f64, &Period)> {
    statistics.clients().iter().flat_map(|client| {
        let part = |rate: &super::Rate| (rate.rate_rps * ROW.as_secs_f64(), rate.cv, &client.periods[rate.period]);
        client.rates.iter().map(part)
    })
}

fn mean(statistics: &ServeGen, of_period: impl Fn(&Period) -> f64) -> f64 {
    let (mut total, mut weighted) = (0.0, 0.0);
    for (requests, _, period) in parts(statistics) {
        total += requests;
        weighted += requests * of_period(period);
    }
    weighted / total
}

fn rates(statistics: &ServeGen) -> RateStats {
    let mut rates: BTreeMap<u64, f64> = BTreeMap::new();
    for rate in statistics.clients().iter().flat_map(|client| &client.rates) {
        *rates.entry(rate.start.0 / ROW.0).or_default() += rate.rate_rps;
    }
    let (min, max) = rates.values().fold((f64::MAX, 0.0_f64), |(min, max), rate| (min.min(*rate), max.max(*rate)));
    RateStats { min, mean: rates.values().sum::<f64>() / rates.len() as f64, max }
}

fn burstiness(statistics: &ServeGen) -> CvStats {
    let mut cvs: Vec<(f64, f64)> = parts(statistics).map(|(requests, cv, _)| (cv, requests)).collect();
    cvs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: f64 = cvs.iter().map(|(_, requests)| requests).sum();
    let at = |share: f64| {
        let mut left = share * total;
        let reached = cvs.iter().find(|(_, requests)| {
            left -= requests;
            left <= 0.0
        });
        reached.or(cvs.last()).map_or(0.0, |(cv, _)| *cv)
    };
    CvStats { p50: at(0.5), p95: at(0.95), max: at(1.0) }
}

fn largest(statistics: &ServeGen, requests: f64) -> Vec<(String, f64)> {
    let share = |client: &super::Client| {
        client.rates.iter().map(|rate| rate.rate_rps * ROW.as_secs_f64()).sum::<f64>() / requests
    };
    let mut clients: Vec<(String, f64)> =
        statistics.clients().iter().map(|client| (client.name.clone(), share(client))).collect();
    clients.sort_by(|a, b| b.1.total_cmp(&a.1));
    clients.truncate(LARGEST);
    clients
}

/// Prompts and answers of requests drawn from the whole span.
fn drawn(statistics: &ServeGen) -> (Vec<f64>, Vec<f64>) {
    let mut passed = 0.0;
    let parts: Vec<(f64, &Period)> = parts(statistics)
        .map(|(requests, _, period)| {
            passed += requests;
            (passed, period)
        })
        .collect();
    let mut stream = seed::stream(0, "trace.stats", 0);
    let draw = |_| {
        let at = stream.random::<f64>() * passed;
        let (_, period) = parts[parts.partition_point(|(passed, _)| *passed <= at).min(parts.len() - 1)];
        let prompt: u64 = period.prompt.iter().map(|part| part.draw(&mut stream)).sum();
        (prompt.max(1) as f64, f64::from(period.output.draw(&mut stream).max(1)))
    };
    (0..DRAWS).map(draw).unzip()
}

impl fmt::Display for ServeGenStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServeGenStats { rate_rps, cv, .. } = self;
        writeln!(f, "{}", self.path.display())?;
        writeln!(f, "format         {}, {}", self.format, self.compression)?;
        writeln!(f, "clients        {}", self.clients)?;
        writeln!(f, "span           {:.0} s", self.span_s)?;
        writeln!(f, "requests       {:.0} expected at load 1", self.requests)?;
        let RateStats { min, mean, max } = rate_rps;
        writeln!(f, "rate           {mean:.3} req/s, {min:.3} to {max:.3} in ten minutes")?;
        let CvStats { p50, p95, max } = cv;
        writeln!(f, "inter-arrival  CV of a client {p50:.2} in the median, p95 {p95:.2}, up to {max:.2}")?;
        writeln!(f, "tokens         {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}", "mean", "p50", "p90", "p95", "p99", "max")?;
        for (name, lengths) in [("prompt", &self.prompt_tokens), ("output", &self.output_tokens)] {
            let LengthStats { mean, p50, p90, p95, p99, max } = lengths;
            writeln!(f, "  {name:<12} {mean:>10.1} {p50:>8.0} {p90:>8.0} {p95:>8.0} {p99:>8.0} {max:>8.0}")?;
        }
        let largest = self.largest.iter().map(|(name, share)| format!("{name} {:.1} %", share * 100.0));
        write!(f, "largest        {}", largest.collect::<Vec<_>>().join(", "))?;
        if self.left_out_requests > 0.0 || self.left_out_clients > 0 {
            let share = self.left_out_requests / (self.left_out_requests + self.requests) * 100.0;
            let (clients, requests) = (self.left_out_clients, self.left_out_requests);
            write!(
                f,
                "\nwarning: lengths or rates are missing, left out: {clients} clients, {requests:.0} requests ({share:.1} %)"
            )?;
        }
        Ok(())
    }
}
