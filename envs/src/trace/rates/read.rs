//! Reading a profile.

use serde_json::Value;

use super::super::error::{Fault, TraceError, excerpt, excerpt_of_end};
use super::super::source::{LineSource, Opened};
use super::super::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_RATE_RPS, MAX_SPAN};
use super::{
    Header, LengthCounts, Lengths, MAX_BUCKETS, MIN_COMPLETED, RateProfile, Row, Sampler, Totals, VERSION, Window,
};
use crate::time::Micros;

/// Most rows of one profile: a month of looks every three seconds.
pub const MAX_WINDOWS: usize = 1 << 20;

/// How far a row may begin before the end of the one above it, seconds: clocks are written in milliseconds.
const OVERLAP_S: f64 = 2e-3;

pub(super) fn profile(opened: Opened) -> Result<RateProfile, TraceError> {
    let (path, compression) = (opened.path.clone(), opened.compression);
    let mut source = LineSource::new(opened);
    let mut line = String::new();
    if !source.next_line(&mut line)? {
        return Err(source.file_error(Fault::Empty));
    }
    let header = header(&line).map_err(|fault| source.error(fault))?;
    let mut reading = Reading::default();
    while source.next_line(&mut line)? {
        row(&line).and_then(|row| reading.take(&row)).map_err(|fault| source.error(fault))?;
    }
    let (windows, periods, totals) = reading.finish().map_err(|fault| source.file_error(fault))?;
    Ok(RateProfile { path, compression, header, windows, periods, totals })
}

pub(super) fn header(line: &str) -> Result<Header, Fault> {
    let fields: Value = serde_json::from_str(line).map_err(|error| wrong(line, &error))?;
    let version = fields.get("kvtide_profile").unwrap_or(&Value::Null);
    if version.as_u64() != Some(u64::from(VERSION)) {
        let reason = format!("a profile of version {}: this kvtide reads {VERSION}", excerpt(&version.to_string()));
        return Err(Fault::Row(reason));
    }
    serde_json::from_value(fields).map_err(|error| Fault::Row(excerpt(&error.to_string())))
}

fn row(line: &str) -> Result<Row, Fault> {
    let row: Row = serde_json::from_str(line).map_err(|error| wrong(line, &error))?;
    let seconds = |field, value: f64, is_right: bool, expected| {
        if is_right { Ok(()) } else { Err(Fault::NotA { field, value: value.to_string(), expected }) }
    };
    let most = MAX_SPAN.as_secs_f64();
    seconds("start_s", row.start_s, (0.0..=most).contains(&row.start_s), "a time from 0 to ten years")?;
    seconds("seconds", row.seconds, row.seconds >= 1e-3 && row.seconds <= most, "a time from a millisecond on")?;
    for (field, count) in [("requests", row.requests), ("completed", row.completed)] {
        let limit = (row.seconds * MAX_RATE_RPS) as u64 + 1;
        if count > limit {
            return Err(Fault::AboveLimit { field, value: count.to_string(), limit });
        }
    }
    check("prompt", &row.prompt)?;
    check("output", &row.output)?;
    Ok(row)
}

fn check(field: &'static str, lengths: &LengthCounts) -> Result<(), Fault> {
    let is_rising = lengths.buckets.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !is_rising || lengths.buckets.first().is_some_and(|bucket| bucket.0 == 0) {
        return Err(Fault::Row(format!("{field}: the buckets' bounds must rise from 1 on")));
    }
    if lengths.buckets.len() > MAX_BUCKETS {
        let value = lengths.buckets.len().to_string();
        return Err(Fault::AboveLimit { field: "number of buckets", value, limit: MAX_BUCKETS as u64 });
    }
    Ok(())
}

fn wrong(line: &str, error: &serde_json::Error) -> Fault {
    if error.is_eof() { Fault::CutOff(excerpt_of_end(line)) } else { Fault::Row(excerpt(&error.to_string())) }
}

/// Rows read so far.
#[derive(Default)]
struct Reading {
    windows: Vec<Window>,
    periods: Vec<Period>,
    totals: Totals,
    last_end_s: Option<f64>,
    clock: Micros,
}

/// Lengths that are being added up.
#[derive(Default)]
struct Period {
    completed: u64,
    prompt: LengthCounts,
    output: LengthCounts,
}

impl Reading {
    fn take(&mut self, row: &Row) -> Result<(), Fault> {
        let before_s = self.last_end_s.unwrap_or(row.start_s);
        if row.start_s < before_s - OVERLAP_S {
            let reason = format!("starts at {} s, before the end of the row above ({before_s} s)", row.start_s);
            return Err(Fault::Row(reason));
        }
        if self.windows.len() == MAX_WINDOWS {
            return Err(Fault::TooManyLines(MAX_WINDOWS as u64));
        }
        self.totals.uncovered_s += (row.start_s - before_s).max(0.0);
        self.last_end_s = Some(row.start_s + row.seconds);
        self.totals.missed += u64::from(row.missed);
        self.totals.resets += u64::from(row.resets);
        self.totals.requests += row.requests;
        self.totals.completed += row.completed;
        let end = self.clock + Micros::from_secs_f64(row.seconds);
        let (start, limit) = (std::mem::replace(&mut self.clock, end), MAX_SPAN.0);
        if end > MAX_SPAN {
            return Err(Fault::AboveLimit { field: "time of all rows, µs,", value: end.0.to_string(), limit });
        }
        if self.periods.last().is_none_or(|period| period.completed >= MIN_COMPLETED) {
            self.periods.push(Period::default());
        }
        let period = self.periods.len() - 1;
        self.periods[period].add(row);
        self.windows.push(Window { start, end, requests: row.requests, period });
        Ok(())
    }

    fn finish(mut self) -> Result<(Vec<Window>, Vec<Lengths>, Totals), Fault> {
        if self.totals.requests == 0 {
            return Err(Fault::Empty);
        }
        // What is left at the end is too little by itself.
        if let [.., _, last] = self.periods.as_slice()
            && last.completed < MIN_COMPLETED
        {
            let last = self.periods.pop().unwrap_or_default();
            let period = self.periods.len() - 1;
            self.periods[period].merge(&last);
            self.windows.iter_mut().for_each(|window| window.period = window.period.min(period));
        }
        let lengths = self.periods.iter().map(Period::lengths).collect::<Option<Vec<_>>>();
        let lengths = lengths.ok_or_else(|| Fault::Row("no request ended: lengths are not known".to_owned()))?;
        Ok((self.windows, lengths, self.totals))
    }
}

impl Period {
    fn add(&mut self, row: &Row) {
        self.completed += row.completed;
        self.prompt.add(&row.prompt);
        self.output.add(&row.output);
    }

    fn merge(&mut self, other: &Period) {
        self.completed += other.completed;
        self.prompt.add(&other.prompt);
        self.output.add(&other.output);
    }

    fn lengths(&self) -> Option<Lengths> {
        let Period { completed, prompt, output } = self;
        let prompt = Sampler::of(prompt, *completed, MAX_PROMPT_TOKENS)?;
        let output = Sampler::of(output, *completed, MAX_OUTPUT_TOKENS)?;
        Some(Lengths { prompt, output, completed: *completed })
    }
}
