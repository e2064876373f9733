//! What `vllm bench serve --save-result --save-detailed` writes: one JSON object for a run, in which request `i` is entry `i` of
//! the lists `input_lens`, `output_lens`, `start_times` (seconds of a clock that starts anywhere) and `errors` (empty where it
//! went well).
//!
//! Source: `vllm/benchmarks/serve.py`. A failed request has a length of 0 or an error, and is skipped. Releases before
//! `start_times` was written leave no trace of when a request was sent: then `request_rate` says how often they were meant to be,
//! and the error names it for `--arrival-rate`, which draws them anew. Everything else, texts above all, is passed over as it is
//! read.

use std::fmt;
use std::io::Read;
use std::marker::PhantomData;
use std::vec;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde_json::Value;

use super::entry::{Drawn, within};
use super::error::{Fault, TraceError, excerpt};
use super::reading::{Reading, Skipped};
use super::source::{Opened, read_fault};
use super::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_SESSION_REQUESTS, MAX_SPAN, Request, Row, RowSource, TimeUnit};
use crate::time::Micros;

/// Longest result read, bytes: texts of answers are in it.
const MAX_RESULT_BYTES: u64 = 16 << 30;

/// Whether keys are those of a result.
pub(super) fn recognise(keys: &[String]) -> bool {
    let has = |name: &str| keys.iter().any(|key| key == name);
    has("input_lens") || has("request_throughput") && has("duration")
}

#[derive(Deserialize)]
struct Document {
    input_lens: Option<List<i64>>,
    output_lens: Option<List<i64>>,
    start_times: Option<List<f64>>,
    errors: Option<List<Outcome>>,
    #[serde(default)]
    request_rate: Value,
    completed: Option<u64>,
    duration: Option<f64>,
}

/// Whether a request failed.
struct Outcome(bool);

impl<'de> Deserialize<'de> for Outcome {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Outcome, D::Error> {
        Ok(Outcome(match Value::deserialize(deserializer)? {
            Value::Null | Value::Bool(false) => false,
            Value::String(error) => !error.is_empty(),
            _ => true,
        }))
    }
}

/// A list with a limit.
struct List<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<List<T>, D::Error> {
        struct Limited<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Limited<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(one) = list.next_element()? {
                    if all.len() == MAX_SESSION_REQUESTS {
                        return Err(A::Error::custom(format!("a list of more than {MAX_SESSION_REQUESTS} requests")));
                    }
                    all.push(one);
                }
                Ok(all)
            }
        }

        deserializer.deserialize_seq(Limited(PhantomData)).map(List)
    }
}

/// The requests of a run, in order.
pub(super) struct Run {
    path: std::path::PathBuf,
    rows: vec::IntoIter<Row>,
    skipped: Skipped,
    late: u64,
    clock: String,
}

impl Run {
    pub(super) fn open(opened: Opened, reading: &Reading) -> Result<Run, TraceError> {
        let Opened { path, compression, reader, .. } = opened;
        let wrong = |fault| TraceError::of_file(&path, fault);
        let mut reader = reader.take(MAX_RESULT_BYTES);
        let mut documents = serde_json::Deserializer::from_reader(&mut reader).into_iter::<Document>();
        let document = documents.next().ok_or_else(|| wrong(Fault::Empty))?;
        let explained = |error: &serde_json::Error| {
            let line = TraceError::of_line(&path, error.line() as u64, Fault::Row(explain(error)));
            if !error.is_io() {
                return line;
            }
            let io = std::io::Error::new(error.io_error_kind().unwrap_or(std::io::ErrorKind::Other), error.to_string());
            wrong(read_fault(compression, &io))
        };
        let document = document.map_err(|error| explained(&error))?;
        match documents.next() {
            None => {}
            Some(Ok(_)) => return Err(wrong(Fault::SecondResult)),
            Some(Err(error)) => return Err(explained(&error)),
        }
        let (mut rows, skipped, clock) = rows(document, reading).map_err(wrong)?;
        let mut latest_ns = i128::MIN;
        let mut late = 0;
        for row in &rows {
            late += u64::from(row.time_ns < latest_ns);
            latest_ns = latest_ns.max(row.time_ns);
        }
        rows.sort_by_key(|row| row.time_ns);
        Ok(Run { path, rows: rows.into_iter(), skipped, late, clock })
    }
}

impl RowSource for Run {
    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        Ok(self.rows.next())
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError::of_file(&self.path, fault)
    }

    fn skipped(&self) -> Skipped {
        self.skipped
    }

    fn clock(&self) -> Option<String> {
        Some(self.clock.clone())
    }

    fn late(&self) -> u64 {
        self.late
    }
}

fn rows(document: Document, reading: &Reading) -> Result<(Vec<Row>, Skipped, String), Fault> {
    let lacks = |list: &str| {
        Fault::Row(format!("a result without {list}: vllm bench serve writes it with --save-result --save-detailed"))
    };
    let inputs = document.input_lens.ok_or_else(|| lacks("input_lens"))?.0;
    let outputs = document.output_lens.ok_or_else(|| lacks("output_lens"))?.0;
    let errors = document.errors.map(|list| list.0);
    same_length("output_lens", outputs.len(), inputs.len())?;
    errors.as_ref().map_or(Ok(()), |errors| same_length("errors", errors.len(), inputs.len()))?;
    let (times, clock) = match (document.start_times, reading.arrival_rate) {
        (Some(list), None) => {
            same_length("start_times", list.0.len(), inputs.len())?;
            let unit = reading.time_unit.unwrap_or(TimeUnit::Seconds);
            let times: Vec<i128> = list.0.iter().map(|time| time_ns(*time, unit)).collect::<Result<_, _>>()?;
            (times, format!("{unit} of the client's clock (start_times)"))
        }
        (None, Some(rate)) => {
            let mut drawn = Drawn::new(rate, reading.sessions.seed)?;
            let times = inputs.iter().map(|_| drawn.next_ns()).collect();
            (times, format!("drawn, by a Poisson process of {rate} requests a second"))
        }
        (Some(_), Some(_)) => {
            return Err(Fault::Row(
                "start_times says when requests arrive: --arrival-rate is for files that do not".to_owned(),
            ));
        }
        (None, None) => return Err(no_times(&document.request_rate, document.completed, document.duration)),
    };
    let mut skipped = Skipped::default();
    let mut rows = Vec::with_capacity(inputs.len());
    for (index, time_ns) in times.into_iter().enumerate() {
        let (input, output) = (inputs[index], outputs[index]);
        if errors.as_ref().is_some_and(|errors| errors[index].0) {
            skipped.failed += 1;
        } else if input == 0 || output == 0 {
            skipped.empty += 1;
        } else {
            let prompt = tokens("input_lens", index, input, MAX_PROMPT_TOKENS)?;
            let output = tokens("output_lens", index, output, MAX_OUTPUT_TOKENS)?;
            rows.push(Row { time_ns, zero_output: false, request: Request::new(Micros::ZERO, prompt, output) });
        }
    }
    Ok((rows, skipped, clock))
}

fn same_length(list: &'static str, len: usize, inputs: usize) -> Result<(), Fault> {
    if len == inputs {
        return Ok(());
    }
    Err(Fault::Lists { first: list, first_len: len, second: "input_lens", second_len: inputs })
}

fn tokens(list: &'static str, index: usize, tokens: i64, limit: u32) -> Result<u32, Fault> {
    let name = format!("{list}[{index}]");
    let count = u64::try_from(tokens).map_err(|_| Fault::Row(format!("{name} `{tokens}` is negative")))?;
    within(&name, count, limit)
}

fn time_ns(time: f64, unit: TimeUnit) -> Result<i128, Fault> {
    let time_ns = time * unit.nanos() as f64;
    // Written so that NaN is refused as well.
    if !(time_ns >= 0.0 && time_ns <= MAX_SPAN.0 as f64 * 1e3 * 100.0) {
        return Err(Fault::Row(format!("start_times `{time}` is not a time in {unit}")));
    }
    // A clock that runs for weeks is exact to less than a microsecond, which is what is kept.
    Ok((time_ns / 1e3).round() as i128 * 1_000)
}

/// When requests were sent is not known; how often they were meant to be may be.
fn no_times(request_rate: &Value, completed: Option<u64>, duration: Option<f64>) -> Fault {
    let asked = request_rate.as_f64().filter(|rate| rate.is_finite() && *rate > 0.0);
    let served = completed.zip(duration).map(|(completed, duration)| completed as f64 / duration);
    let served = served.filter(|rate| rate.is_finite() && *rate > 0.0);
    let (rate, whence) = match (asked, served) {
        (Some(rate), _) => (format!("{rate}"), "as many a second as its request_rate says"),
        (None, Some(rate)) => (format!("{rate:.3}"), "as many a second as it completed"),
        (None, None) => ("2".to_owned(), "two a second"),
    };
    Fault::Row(format!(
        "no start_times, which newer releases of vLLM write: when requests were sent is not known; kvtide trace convert \
         --arrival-rate {rate} would draw arrivals, {whence}"
    ))
}

fn explain(error: &serde_json::Error) -> String {
    let reason = error.to_string();
    let reason = excerpt(reason.split(" at line ").next().unwrap_or_default());
    if error.is_eof() { format!("cut off, at column {}", error.column()) } else { reason }
}
