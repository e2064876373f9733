//! What is in a profile: `kvtide trace stats`.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::super::servegen::LengthStats;
use super::super::{Compression, Format};
use super::{Counted, Header, LengthsKnown, RateProfile, Totals};
use crate::seed;

/// Requests that percentiles of lengths are those of.
const DRAWS: usize = 100_000;

/// Figures of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RateProfileStats {
    /// The file.
    pub path: PathBuf,
    /// What it is written in.
    pub format: Format,
    /// How it is compressed.
    pub compression: Compression,
    /// Its first line.
    pub header: Header,
    /// Rows.
    pub windows: usize,
    /// Time that they cover, seconds.
    pub span_s: f64,
    /// Requests at load 1: see [`Counted`].
    pub requests: u64,
    /// Requests that ended while it was recorded.
    pub completed: u64,
    /// Requests a second, over rows.
    pub rate_rps: RateSpread,
    /// Tokens of a prompt.
    pub prompt_tokens: LengthStats,
    /// Tokens of an answer.
    pub output_tokens: LengthStats,
    /// Looks at the counters that failed.
    pub missed: u64,
    /// Counters that began again.
    pub resets: u64,
    /// Time that no row covers, seconds.
    pub uncovered_s: f64,
}

/// Rates over rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RateSpread {
    /// Least.
    pub min: f64,
    /// Requests over time.
    pub mean: f64,
    /// Most.
    pub max: f64,
    /// Variance of the requests of a row over their mean, rows of one length: 1 for a Poisson process.
    pub dispersion: Option<f64>,
}

impl RateProfileStats {
    /// Describes a profile.
    pub fn of(profile: &RateProfile) -> RateProfileStats {
        let Totals { requests, completed, missed, resets, uncovered_s } = profile.totals();
        let (prompts, outputs) = drawn(profile);
        let mean = |of: fn(&super::Lengths) -> f64| {
            let parts = profile.windows().iter().map(|window| window.requests as f64 * of(profile.lengths(window)));
            parts.sum::<f64>() / requests as f64
        };
        RateProfileStats {
            path: profile.path().to_path_buf(),
            format: Format::Profile,
            compression: profile.compression(),
            header: profile.header().clone(),
            windows: profile.windows().len(),
            span_s: profile.span().as_secs_f64(),
            requests,
            completed,
            rate_rps: spread(profile),
            prompt_tokens: LengthStats::of(prompts, mean(|lengths| lengths.prompt.mean())),
            output_tokens: LengthStats::of(outputs, mean(|lengths| lengths.output.mean())),
            missed,
            resets,
            uncovered_s,
        }
    }
}

fn spread(profile: &RateProfile) -> RateSpread {
    let (mut min, mut max) = (f64::MAX, 0.0_f64);
    for window in profile.windows() {
        let rate = window.requests as f64 / window.end.since(window.start).as_secs_f64();
        (min, max) = (min.min(rate), max.max(rate));
    }
    let (windows, requests) = (profile.windows().len() as f64, profile.totals().requests as f64);
    let mean = requests / windows;
    let squares: f64 = profile.windows().iter().map(|window| (window.requests as f64 - mean).powi(2)).sum();
    let dispersion = (windows > 1.0).then(|| squares / (windows - 1.0) / mean);
    RateSpread { min, mean: requests / profile.span().as_secs_f64(), max, dispersion }
}

/// Prompts and answers of requests drawn from the whole profile.
fn drawn(profile: &RateProfile) -> (Vec<f64>, Vec<f64>) {
    use rand::RngExt;
    let mut passed = 0;
    let ends: Vec<u64> = profile
        .windows()
        .iter()
        .map(|window| {
            passed += window.requests;
            passed
        })
        .collect();
    let mut stream = seed::stream(0, "trace.stats", 0);
    let draw = |_| {
        let at = stream.random_range(0..passed);
        let lengths = profile.lengths(&profile.windows()[ends.partition_point(|end| *end <= at)]);
        (f64::from(lengths.prompt.draw(&mut stream)), f64::from(lengths.output.draw(&mut stream)))
    };
    (0..DRAWS).map(draw).unzip()
}

impl fmt::Display for RateProfileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RateProfileStats { header, rate_rps, .. } = self;
        writeln!(f, "{}", self.path.display())?;
        writeln!(f, "format         {}, {}", self.format, self.compression)?;
        writeln!(f, "recorded of    {} ({}), engines {}", header.engine, header.models.join(", "), header.engines)?;
        writeln!(f, "span           {:.0} s in {} rows of about {} s", self.span_s, self.windows, header.every_s)?;
        let what = if header.counts == Counted::Arrivals { "arrived" } else { "ended (arrivals are not known)" };
        writeln!(f, "requests       {} {what}, {} ended", self.requests, self.completed)?;
        let RateSpread { min, mean, max, dispersion } = rate_rps;
        write!(f, "rate           {mean:.3} req/s, {min:.3} to {max:.3} in a row")?;
        match dispersion {
            Some(dispersion) => writeln!(f, ", variance over mean {dispersion:.2}")?,
            None => writeln!(f)?,
        }
        writeln!(f, "tokens         {:>10} {:>8} {:>8} {:>8} {:>8} {:>8}", "mean", "p50", "p90", "p95", "p99", "max")?;
        for (name, lengths) in [("prompt", &self.prompt_tokens), ("output", &self.output_tokens)] {
            let LengthStats { mean, p50, p90, p95, p99, max } = lengths;
            writeln!(f, "  {name:<12} {mean:>10.1} {p50:>8.0} {p90:>8.0} {p95:>8.0} {p99:>8.0} {max:>8.0}")?;
        }
        write!(f, "not known      {}", header.lost)?;
        if header.lengths == LengthsKnown::Means {
            write!(f, "\nwarning: of lengths only means are known: they are drawn geometrically")?;
        }
        if header.engines > 1 {
            let share = 1.0 / f64::from(header.engines);
            write!(f, "\nwarning: requests of {} engines: one of them is --load {share:.4}", header.engines)?;
        }
        for (count, what) in [(self.missed, "looks at the counters failed"), (self.resets, "counters began again")] {
            if count > 0 {
                write!(f, "\nwarning: {what}: {count}")?;
            }
        }
        if self.uncovered_s >= 1.0 {
            write!(f, "\nwarning: {:.0} s are not covered and left out", self.uncovered_s)?;
        }
        Ok(())
    }
}
