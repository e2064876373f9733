//! One agentic session as `callanjfox/kv-cache-tester` publishes it (Apache-2.0; `docs/trace_replay_tester.md` there).
//!
//! A JSON object with `id`, `block_size`, `hash_id_scope` and `requests`; a request has `t` (seconds since the session
//! started, rising), `in`, `out` and `hash_ids`, the ids of its prompt's prefix-chained blocks. An entry with `requests`
//! of its own is a sub-agent: they run at its `t` plus theirs, as part of the session. Fields that are not named here
//! are ignored; so is which model a request went to: all are taken to be of one.
//!
//! Only full blocks are kept (see `mooncake.rs`). Ids of scope `local` mean nothing outside their session, so the number
//! of the session goes into their upper 32 bits. What sessions have in common then is not seen: of the tools and the
//! system prompt, 8,400 to 23,000 tokens, each session computes its own. Ids of scope `global` stay.

use std::fmt;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, de};

use super::error::{Fault, excerpt, excerpt_of_end};
use super::{HashIds, MAX_HASH_IDS, MAX_PROMPT_TOKENS, MAX_SPAN, Request, Row, output_tokens, tokens};
use crate::time::Micros;

/// Lists of hashes that a request is looked for in: its own agent's last context and those of agents beside it.
const RECENT_LISTS: usize = 8;

/// A session that was read.
pub(super) struct Session {
    /// Its name, if it says one.
    pub(super) id: Option<String>,
    /// Its requests in order of time, which is that since the first.
    pub(super) rows: Vec<Row>,
    /// Prefix hashes in memory, which requests share.
    pub(super) hashes: usize,
}

#[derive(Deserialize)]
struct Document {
    id: Option<String>,
    block_size: u32,
    hash_id_scope: Option<String>,
    requests: Numbered,
}

/// One request, or one sub-agent with its requests.
#[derive(Deserialize)]
struct Entry {
    #[serde(deserialize_with = "seconds")]
    t: f64,
    #[serde(rename = "in", default, deserialize_with = "prompt")]
    prompt: Option<u64>,
    #[serde(rename = "out", default, deserialize_with = "output")]
    output: Option<u64>,
    #[serde(default, deserialize_with = "ids")]
    hash_ids: Vec<u64>,
    requests: Option<Numbered>,
}

/// Whether the start of a file is that of a session.
pub(super) fn recognise(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    is_object(&text) && has("requests") && (has("block_size") || has("hash_id_scope"))
}

/// Whether text is a JSON object, judged by its start.
pub(super) fn is_object(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with('{')
}

/// What is wrong with a session, and in which of its requests: `request 3`, or `request 3: request 1` of a sub-agent.
pub(super) struct SessionFault {
    pub(super) request: Option<String>,
    pub(super) fault: Fault,
}

/// Reads a session, the `number`th of its file.
pub(super) fn parse(bytes: &[u8], number: u32) -> Result<Session, SessionFault> {
    let whole = |fault| SessionFault { request: None, fault };
    let text =
        std::str::from_utf8(bytes).map_err(|_| whole(Fault::NotText(excerpt(&String::from_utf8_lossy(bytes)))))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if !is_object(text) {
        return Err(whole(Fault::NotJson { column: 1, row: excerpt(text) }));
    }
    let session: Document = serde_json::from_str(text).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default();
        whole(if text.ends_with('}') { Fault::Row(excerpt(reason)) } else { Fault::CutOff(excerpt_of_end(text)) })
    })?;
    let block_tokens = tokens("block_size", u64::from(session.block_size), MAX_PROMPT_TOKENS).map_err(whole)?;
    let scope = match session.hash_id_scope.as_deref() {
        Some("global") => Scope::Global,
        // Before there were scopes, all were local.
        None | Some("local") => Scope::Local { base: u64::from(number) << 32 },
        Some(other) => {
            return Err(whole(Fault::Row(format!("hash_id_scope `{}` is not local or global", excerpt(other)))));
        }
    };
    let mut rows = Vec::new();
    flatten(session.requests, 0, block_tokens, &scope, &mut rows)?;
    rows.sort_by_key(|row: &Row| row.time_ns);
    let first_ns = rows.first().map_or(0, |row| row.time_ns);
    for row in &mut rows {
        row.time_ns -= first_ns;
    }
    let hashes = share_lists(&mut rows);
    Ok(Session { id: session.id, rows, hashes })
}

/// Where an id means what it means.
enum Scope {
    Local { base: u64 },
    Global,
}

impl Scope {
    fn id(&self, id: u64) -> Result<u64, Fault> {
        match self {
            Scope::Global => Ok(id),
            Scope::Local { base } if id >> 32 == 0 => Ok(base + id),
            Scope::Local { .. } => {
                let value = id.to_string();
                Err(Fault::AboveLimit { field: "local hash id", value, limit: u64::from(u32::MAX) })
            }
        }
    }
}

/// Appends the requests of a session or a sub-agent that started at `start_ns`.
fn flatten(
    entries: Numbered,
    start_ns: i128,
    block_tokens: u32,
    scope: &Scope,
    rows: &mut Vec<Row>,
) -> Result<(), SessionFault> {
    let mut last_ns = start_ns;
    for (entry, number) in entries.0.into_iter().zip(1..) {
        let wrong = |fault| SessionFault { request: Some(format!("request {number}")), fault };
        let time_ns = start_ns + time_ns(entry.t).map_err(wrong)?;
        if time_ns < last_ns {
            let earlier_by_ms = ((last_ns - time_ns) as f64 * 1e-6).to_string();
            return Err(wrong(Fault::Backwards { earlier_by_ms }));
        }
        last_ns = time_ns;
        let Some(requests) = entry.requests else {
            rows.push(row(&entry, time_ns, block_tokens, scope).map_err(wrong)?);
            continue;
        };
        flatten(requests, time_ns, block_tokens, scope, rows).map_err(|inner| {
            let within = inner.request.map_or_else(String::new, |request| format!(": {request}"));
            SessionFault { request: Some(format!("request {number}{within}")), fault: inner.fault }
        })?;
    }
    Ok(())
}

fn row(entry: &Entry, time_ns: i128, block_tokens: u32, scope: &Scope) -> Result<Row, Fault> {
    let given = |field: &str, value: Option<u64>| value.ok_or_else(|| Fault::Row(format!("missing field `{field}`")));
    let prompt_tokens = tokens("in", given("in", entry.prompt)?, MAX_PROMPT_TOKENS)?;
    let (output_tokens, zero_output) = output_tokens("out", given("out", entry.output)?)?;
    let hash_ids = entry.hash_ids.len();
    if hash_ids > MAX_HASH_IDS {
        let value = hash_ids.to_string();
        return Err(Fault::AboveLimit { field: "number of hash_ids", value, limit: MAX_HASH_IDS as u64 });
    }
    if hash_ids > prompt_tokens.div_ceil(block_tokens) as usize {
        return Err(Fault::HashIds { hash_ids, block_tokens, prompt_tokens });
    }
    let full_blocks = (prompt_tokens / block_tokens) as usize;
    let hash_ids: Result<HashIds, Fault> = entry.hash_ids.iter().take(full_blocks).map(|id| scope.id(*id)).collect();
    let mut request = Request::new(Micros::ZERO, prompt_tokens, output_tokens);
    request.hash_ids = hash_ids?;
    request.hash_block_tokens = if request.hash_ids.is_empty() { 0 } else { block_tokens };
    Ok(Row { time_ns, zero_output, request })
}

fn time_ns(seconds: f64) -> Result<i128, Fault> {
    if seconds < 0.0 {
        return Err(Fault::Negative { field: "t", value: seconds.to_string() });
    }
    if seconds > MAX_SPAN.as_secs_f64() {
        let limit = MAX_SPAN.as_secs_f64() as u64;
        return Err(Fault::AboveLimit { field: "t", value: seconds.to_string(), limit });
    }
    Ok(Micros::from_secs_f64(seconds).0 as i128 * 1_000)
}

/// Lets each request whose hashes start those of a later one have the start of its list: published sessions then take
/// a tenth of the memory. Returns how many hashes are left.
fn share_lists(rows: &mut [Row]) -> usize {
    let mut lists: Vec<HashIds> = Vec::new();
    let mut hashes = 0;
    for row in rows.iter_mut().rev() {
        let own = &mut row.request.hash_ids;
        if let Some(list) = lists.iter().find(|list| list.starts_with(own)) {
            *own = list.first(own.len());
        } else {
            hashes += own.len();
            lists.insert(0, own.clone());
            lists.truncate(RECENT_LISTS);
        }
    }
    hashes
}

/// Requests in order; what is wrong with one is said with its number.
struct Numbered(Vec<Entry>);

impl<'de> Deserialize<'de> for Numbered {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Numbered, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Numbered;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of requests")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Numbered, A::Error> {
                let mut read = Vec::new();
                loop {
                    let number = read.len() + 1;
                    match entries.next_element() {
                        Ok(Some(entry)) => read.push(entry),
                        Ok(None) => return Ok(Numbered(read)),
                        Err(error) => return Err(A::Error::custom(format_args!("request {number}: {error}"))),
                    }
                }
            }
        }

        from.deserialize_seq(Entries)
    }
}

/// A value whose error says the field it is in, which serde leaves out.
fn named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(field: &str, from: D) -> Result<T, D::Error> {
    T::deserialize(from).map_err(|error| de::Error::custom(format_args!("{field}: {error}")))
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    named("t", from)
}

fn prompt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    named("in", from)
}

fn output<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    named("out", from)
}

fn ids<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    named("hash_ids", from)
}
