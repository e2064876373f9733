//! The canonical form: JSONL, one [`Request`] a line, read and written.

use std::io::{self, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::{Fault, TraceError, excerpt, excerpt_of_end};
use super::{
    MAX_HASH_IDS, MAX_NAME_BYTES, MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, MAX_SPAN, Request, Row, TraceReader, tokens,
};
use crate::files::Packed;

/// A row that is right, to find by comparison what is wrong in another.
const RIGHT: &str = r#"{"arrival_us":0,"prompt_tokens":1,"output_tokens":1}"#;

/// Fields of a row that are counts, and their limits.
const COUNTS: [(&str, u64); 4] = [
    ("arrival_us", u64::MAX),
    ("prompt_tokens", MAX_PROMPT_TOKENS as u64),
    ("output_tokens", MAX_OUTPUT_TOKENS as u64),
    ("hash_block_tokens", MAX_PROMPT_TOKENS as u64),
];

pub(super) fn parse(line: &str) -> Result<Row, Fault> {
    let request: Request = object(line, RIGHT, &COUNTS)?;
    check(&request)?;
    Ok(Row { time_ns: i128::from(request.arrival.0) * 1_000, zero_output: false, request })
}

/// Whether a request keeps the limits of the canonical form.
pub(super) fn check(request: &Request) -> Result<(), Fault> {
    tokens("prompt_tokens", u64::from(request.prompt_tokens), MAX_PROMPT_TOKENS)?;
    tokens("output_tokens", u64::from(request.output_tokens), MAX_OUTPUT_TOKENS)?;
    let hash_ids = request.hash_ids.len();
    let hashed_tokens = hash_ids as u64 * u64::from(request.hash_block_tokens);
    if hash_ids > MAX_HASH_IDS {
        let value = hash_ids.to_string();
        return Err(Fault::AboveLimit { field: "number of hash_ids", value, limit: MAX_HASH_IDS as u64 });
    }
    if (hash_ids == 0) != (request.hash_block_tokens == 0) || hashed_tokens > u64::from(request.prompt_tokens) {
        let (block_tokens, prompt_tokens) = (request.hash_block_tokens, request.prompt_tokens);
        return Err(Fault::HashIds { hash_ids, block_tokens, prompt_tokens });
    }
    for (field, name) in [
        ("bytes of session", &request.session),
        ("bytes of tenant", &request.tenant),
        ("bytes of slo_class", &request.slo_class),
        ("bytes of cache_salt", &request.cache_salt),
    ] {
        if let Some(name) = name.as_ref().filter(|name| name.len() > MAX_NAME_BYTES) {
            return Err(Fault::AboveLimit { field, value: excerpt(name), limit: MAX_NAME_BYTES as u64 });
        }
    }
    Ok(())
}

/// Reads a row that is a JSON object; `right` is any row that is right, `counts` are its counts and their limits.
pub(super) fn object<T: DeserializeOwned>(line: &str, right: &str, counts: &[(&'static str, u64)]) -> Result<T, Fault> {
    // serde would take an array of the fields' values as well.
    if !line.starts_with('{') {
        return Err(Fault::NotJson { column: 1, row: excerpt(line) });
    }
    serde_json::from_str(line).map_err(|error| explain::<T>(line, &error, right, counts))
}

/// Says what is wrong with a row that did not deserialise: each of its fields is put into the row that is right, and
/// the one that spoils it is named.
fn explain<T: DeserializeOwned>(
    line: &str,
    error: &serde_json::Error,
    right: &str,
    counts: &[(&'static str, u64)],
) -> Fault {
    if error.is_eof() {
        return Fault::CutOff(excerpt_of_end(line));
    }
    let Ok(fields) = serde_json::from_str::<Map<String, Value>>(line) else {
        return Fault::NotJson { column: error.column(), row: excerpt(line) };
    };
    let right: Map<String, Value> = serde_json::from_str(right).unwrap_or_default();
    for (field, value) in fields {
        let mut probe = right.clone();
        probe.insert(field.clone(), value.clone());
        let Err(reason) = serde_json::from_value::<T>(Value::Object(probe)) else { continue };
        let Some(&(field, limit)) = counts.iter().find(|(count, _)| *count == field) else {
            let reason = reason.to_string();
            let reason = reason.split(", expected one of").next().unwrap_or_default();
            let names_it = reason.contains(&format!("`{field}`"));
            return Fault::Row(excerpt(&if names_it { reason.to_owned() } else { format!("{field}: {reason}") }));
        };
        let (number, value) = (value.as_f64(), excerpt(&value.to_string()));
        return match number {
            Some(number) if number < 0.0 => Fault::Negative { field, value },
            Some(number) if number > limit as f64 => Fault::AboveLimit { field, value, limit },
            _ => Fault::NotANumber { field, value },
        };
    }
    // No field is wrong by itself: one is missing, or there twice.
    let reason = error.to_string();
    Fault::Row(reason.split(" at line ").next().unwrap_or_default().to_owned())
}

/// Writes requests, one a line.
pub fn write(mut writer: impl Write, requests: &[Request]) -> io::Result<()> {
    for request in requests {
        serde_json::to_writer(&mut writer, request)?;
        writer.write_all(b"\n")?;
    }
    Ok(())
}

/// Writes requests to a file, compressed as its name ends (`.zst`, `.gz`): beside it first, then renamed, so that there
/// is never half a trace under the name.
///
/// # Errors
/// If the requests are not a trace (none, out of order, over a limit; the line is the request's) or cannot be written.
pub fn save(path: impl AsRef<Path>, requests: &[Request]) -> Result<(), TraceError> {
    save_each(path.as_ref(), requests.iter().cloned().map(Ok)).map(drop)
}

/// Rewrites a trace of any form in the canonical form; what was found in it, the reader says afterwards.
///
/// # Errors
/// Those of [`TraceReader`] for the input and of [`save`] for the output.
pub fn convert(reader: &mut TraceReader, output: impl AsRef<Path>) -> Result<u64, TraceError> {
    save_each(output.as_ref(), reader)
}

/// Rewrites a trace of any form in the canonical form, as it comes, uncompressed.
///
/// # Errors
/// Those of [`TraceReader`], and of `writer`, which is called `name` in them.
pub fn convert_to(reader: &mut TraceReader, writer: &mut impl Write, name: &Path) -> Result<u64, TraceError> {
    let count = write_each(writer, name, reader)?;
    writer.flush().map_err(|error| write_error(name, &error))?;
    Ok(count)
}

fn save_each(path: &Path, requests: impl Iterator<Item = Result<Request, TraceError>>) -> Result<u64, TraceError> {
    let failed = |error: io::Error| write_error(path, &error);
    let mut sink = Packed::create(path).map_err(failed)?;
    let count = write_each(&mut sink, path, requests)?;
    sink.finish().map_err(failed)?;
    Ok(count)
}

fn write_each(
    sink: &mut impl Write,
    path: &Path,
    requests: impl Iterator<Item = Result<Request, TraceError>>,
) -> Result<u64, TraceError> {
    let failed = |error: io::Error| write_error(path, &error);
    let mut count = 0;
    let mut last = None;
    for request in requests {
        let request = request?;
        count += 1;
        let wrong = |fault| TraceError::of_line(path, count, fault);
        check(&request).map_err(wrong)?;
        check_order(last, &request).map_err(wrong)?;
        last = Some(request.arrival);
        write(&mut *sink, std::slice::from_ref(&request)).map_err(failed)?;
    }
    if count == 0 {
        return Err(TraceError::of_file(path, Fault::Empty));
    }
    Ok(count)
}

fn check_order(last: Option<crate::time::Micros>, request: &Request) -> Result<(), Fault> {
    let last = last.unwrap_or_default();
    if request.arrival < last {
        return Err(Fault::Backwards { earlier_by_ms: last.since(request.arrival).as_millis_f64().to_string() });
    }
    if request.arrival > MAX_SPAN {
        let value = request.arrival.0.to_string();
        return Err(Fault::AboveLimit { field: "arrival_us", value, limit: MAX_SPAN.0 });
    }
    Ok(())
}

fn write_error(path: &Path, error: &io::Error) -> TraceError {
    TraceError::of_file(path, Fault::Write(error.to_string()))
}
