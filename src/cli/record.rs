//! `kvtide record`.

use std::path::PathBuf;
use std::time::Duration as Time;

use anyhow::{Context, ensure};
use clap::Args;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::rates::{Counted, Header, LengthsKnown, Row};
use kvtide_envs::workload::Duration;

use super::{Exit, stop};
use crate::scrape::{Listener, Recorded, Recording, Source};

/// Looks more often than this are mostly the server's own work.
const LEAST: Micros = Micros::from_millis(100);

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// Where the server has its counters, in Prometheus' form: HOST:PORT, or http://HOST:PORT/metrics.
    url: String,
    /// Time between two looks: a row of the profile.
    #[arg(long, value_name = "TIME", default_value = "10s")]
    every: String,
    /// How long to record; Ctrl-C ends it sooner and keeps every row.
    #[arg(long = "for", value_name = "TIME", default_value = "24h")]
    lasting: String,
    /// Where to write the profile, row by row. Nothing is overwritten.
    #[arg(long, value_name = "FILE", default_value = "profile.jsonl")]
    out: PathBuf,
    /// Go on in --out if it is there; the time in between is left out.
    #[arg(long)]
    resume: bool,
    /// Only counters with this label, where a server has several: `model_name=NAME`, `engine=0`. Repeatable.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

impl RecordArgs {
    fn recording(&self) -> anyhow::Result<Recording> {
        let time = |option: &'static str, text: &str| {
            let Duration(time) = text.parse().with_context(|| option)?;
            ensure!(time >= LEAST, "{option} {text}: expected at least 100 ms");
            Ok(Time::from_micros(time.0))
        };
        let label = |text: &String| {
            let (key, value) = text.split_once('=').with_context(|| format!("--label {text:?}: expected KEY=VALUE"))?;
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        };
        let (every, lasting) = (time("--every", &self.every)?, time("--for", &self.lasting)?);
        ensure!(every <= lasting, "--every {} is longer than --for {}", self.every, self.lasting);
        Ok(Recording {
            source: self.url.parse::<Source>().with_context(|| format!("{:?}", self.url))?,
            labels: self.labels.iter().map(label).collect::<anyhow::Result<_>>()?,
            every,
            lasting,
            out: self.out.clone(),
            resume: self.resume,
        })
    }
}

pub(super) fn run(args: &RecordArgs) -> anyhow::Result<Exit> {
    let recorded = args.recording()?.run(stop::on_interrupt(), &mut Talk)?;
    let Recorded { rows, requests, completed, missed, resets, skipped, was_interrupted } = recorded;
    let out = args.out.display();
    if was_interrupted && rows == 0 {
        say!("interrupted before the first row: nothing is recorded");
        return Ok(Exit::Interrupted);
    }
    say!("{rows} rows written to {out}: {requests} requests, {completed} ended");
    for (count, what) in [
        (missed, "looks that failed"),
        (resets, "counters that began again"),
        (skipped, "lines that made no sense, and were skipped"),
    ] {
        if count > 0 {
            warn!("{what}: {count}");
        }
    }
    if was_interrupted {
        return Ok(Exit::Interrupted);
    }
    if completed == 0 {
        warn!("no request ended while it was recorded: there is nothing to draw lengths from");
        return Ok(Exit::GateFailed);
    }
    say!("next: kvtide trace stats {out}");
    Ok(Exit::Done)
}

/// Tells stderr.
struct Talk;

impl Listener for Talk {
    fn begins(&mut self, header: &Header) {
        let Header { engine, models, engines, counts, lengths, lost, every_s, .. } = header;
        say!("recording {engine} ({}), engines {engines}, a row every {every_s} s", models.join(", "));
        if *counts == Counted::Completions {
            warn!(
                "the server does not say how many requests wait and run: rows count those that end, not those that arrive"
            );
        }
        if *lengths == LengthsKnown::Means {
            warn!("the server has no histograms of lengths: only means are known (SGLang: --collect-tokens-histogram)");
        }
        say!("not in a profile: {lost}; KVTIDE_RECORD in vLLM's adapter records them");
    }

    fn row(&mut self, row: &Row) {
        detail!("{} s: {} requests, {} ended in {} s", row.start_s, row.requests, row.completed, row.seconds);
    }

    fn missed(&mut self, in_a_row: u32, why: &str) {
        // At the first of them, and ever more rarely.
        if in_a_row.is_power_of_two() {
            warn!("look failed, {in_a_row} in a row: {why}");
        }
    }
}
