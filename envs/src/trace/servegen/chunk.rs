//! The two files of a client.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::error::{Fault, excerpt, excerpt_of_end};
use super::super::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_RATE_RPS, MAX_SPAN};
use super::lengths::{LengthDistribution, MAX_PARTS, PromptPart};
use super::{Client, PERIOD, Period, ROW, Rate};
use crate::time::Micros;

/// Columns of a row.
const COLUMNS: usize = 6;

/// What a prompt may have beside text: how many pieces, and how long each.
const PIECES: [(&str, &str); 3] =
    [("image_count", "image_tokens"), ("audio_count", "audio_tokens"), ("video_count", "video_tokens")];

/// What is wrong with one of the files, and where in it.
pub(super) enum ChunkFault {
    /// In a line, counted from 1.
    Line(u64, Fault),
    /// In a place that has a name.
    Place(String, Fault),
    /// In all of it.
    Whole(Fault),
}

/// A row, before it is known what is sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateRow {
    start: Micros,
    rate_rps: f64,
    cv: f64,
}

/// Reads `chunk-N-trace.csv`.
pub(super) fn rows(bytes: &[u8]) -> Result<Vec<RateRow>, ChunkFault> {
    let mut rows: Vec<RateRow> = Vec::new();
    for (number, line) in (1..).zip(text(bytes)?.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let row = row(line).map_err(|fault| ChunkFault::Line(number, fault))?;
        if let Some(last) = rows.last().filter(|last| row.start < last.start + ROW) {
            let (start, last) = (row.start.as_secs_f64(), last.start.as_secs_f64());
            let reason =
                format!("starts at {start} s, less than {} s after the row above ({last} s)", ROW.as_secs_f64());
            return Err(ChunkFault::Line(number, Fault::Row(reason)));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn row(line: &str) -> Result<RateRow, Fault> {
    let columns: Vec<&str> = line.split(',').collect();
    if columns.len() != COLUMNS {
        return Err(Fault::Columns { expected: COLUMNS, got: columns.len(), row: excerpt(line) });
    }
    let number = |field, index: usize, most: f64| {
        let value = columns[index].trim();
        let wrong = |expected| Fault::NotA { field, value: excerpt(value), expected };
        let number: f64 = value.parse().map_err(|_| wrong("a number"))?;
        if !(number >= 0.0 && number.is_finite()) {
            return Err(wrong("a number from 0"));
        }
        if number > most {
            return Err(Fault::AboveLimit { field, value: excerpt(value), limit: most as u64 });
        }
        Ok(number)
    };
    let start_s = number("start of a row, s,", 0, MAX_SPAN.as_secs_f64())?;
    let start = Micros::from_secs_f64(start_s);
    let (rate_rps, cv) = (number("rate", 1, MAX_RATE_RPS)?, number("cv", 2, f64::MAX)?);
    Ok(RateRow { start, rate_rps, cv })
}

/// Reads `chunk-N-dataset.json`: periods of which both lengths are known, in order.
pub(super) fn periods(bytes: &[u8]) -> Result<Vec<Period>, ChunkFault> {
    let text = text(bytes)?;
    let document: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        let whole = text.trim_end().ends_with('}');
        ChunkFault::Whole(if whole { Fault::Row(excerpt(&reason)) } else { Fault::CutOff(excerpt_of_end(text)) })
    })?;
    let mut periods = Vec::new();
    for (name, fields) in &document {
        let start = start_of(name).map_err(ChunkFault::Whole)?;
        periods.extend(
            period(start, fields)
                .map_err(|(field, fault)| ChunkFault::Place(format!("{}: {field}", excerpt(name)), fault))?,
        );
    }
    periods.sort_by_key(|period| period.start);
    Ok(periods)
}

fn start_of(name: &str) -> Result<Micros, Fault> {
    let wrong = || Fault::NotA { field: "period", value: excerpt(name), expected: "its start in whole seconds" };
    let start_s: u64 = name.parse().map_err(|_| wrong())?;
    if start_s > MAX_SPAN.0 / 1_000_000 {
        return Err(wrong());
    }
    Ok(Micros(start_s * 1_000_000))
}

/// A period, if both its lengths are known.
fn period(start: Micros, fields: &BTreeMap<String, Value>) -> Result<Option<Period>, (&'static str, Fault)> {
    let lengths = |field: &'static str, most: u32| match fields.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => LengthDistribution::parse(text, most).map_err(|fault| (field, fault)),
        Some(other) => {
            Err((field, Fault::NotA { field: "distribution", value: excerpt(&other.to_string()), expected: "text" }))
        }
    };
    let prompt = match lengths("input_tokens", MAX_PROMPT_TOKENS)? {
        Some(tokens) => Some(tokens),
        None => lengths("text_tokens", MAX_PROMPT_TOKENS)?,
    };
    let output = lengths("output_tokens", MAX_OUTPUT_TOKENS)?;
    let (Some(tokens), Some(output)) = (prompt, output) else { return Ok(None) };
    let mut prompt = vec![PromptPart { count: None, tokens }];
    for (count, tokens) in PIECES {
        if let (Some(count), Some(tokens)) = (lengths(count, MAX_PARTS)?, lengths(tokens, MAX_PROMPT_TOKENS)?) {
            prompt.extend((count.mean() > 0.0).then_some(PromptPart { count: Some(count), tokens }));
        }
    }
    Ok(Some(Period { start, prompt, output }))
}

/// A client as it is drawn from, and the requests that it cannot be drawn for.
pub(super) fn client(name: String, number: u64, rows: &[RateRow], periods: Vec<Period>) -> (Client, f64) {
    let (mut rates, mut left_out) = (Vec::new(), 0.0);
    for row in rows.iter().filter(|row| row.rate_rps > 0.0) {
        let period = periods.partition_point(|period| period.start <= row.start).checked_sub(1);
        match period.filter(|period| row.start < periods[*period].start + PERIOD) {
            Some(period) => rates.push(Rate { start: row.start, rate_rps: row.rate_rps, cv: row.cv, period }),
            None => left_out += row.rate_rps * ROW.as_secs_f64(),
        }
    }
    (Client { name, number, rates, periods }, left_out)
}

fn text(bytes: &[u8]) -> Result<&str, ChunkFault> {
    let text = std::str::from_utf8(bytes).map_err(|_| {
        ChunkFault::Whole(Fault::NotText(excerpt(&String::from_utf8_lossy(&bytes[..bytes.len().min(200)]))))
    })?;
    Ok(text.trim_start_matches('\u{feff}'))
}
