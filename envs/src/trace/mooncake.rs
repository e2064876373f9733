//! Mooncake traces: JSONL with `timestamp` in milliseconds, `input_length`, `output_length` and `hash_ids`.
//!
//! Source: `kvcache-ai/Mooncake`, traces of the FAST'25 paper. `hash_ids` are ids of the prompt's prefix-chained blocks
//! of 512 tokens, the last one not full; the same id is the same tokens with the same tokens before them. Only full
//! blocks are kept, because only they can be reused (an engine caches full blocks), so there are `input_length / 512`
//! of them.
//!
//! Traces derived in the same manner from request logs carry `session_id` and `input_chars`; there a block is 256
//! characters, taken as 64 tokens (four characters a token, as the lengths of those traces are estimated). Blocks that
//! then reach beyond the prompt are dropped. Fields that are not named here are ignored.

use serde::Deserialize;

use super::error::Fault;
use super::{
    MAX_HASH_IDS, MAX_NAME_BYTES, MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Request, Row, jsonl, output_tokens, tokens,
};
use crate::time::Micros;

/// Tokens a hash stands for in Mooncake's own traces.
const BLOCK_TOKENS: u32 = 512;

/// Tokens a hash stands for where blocks are 256 characters.
const DERIVED_BLOCK_TOKENS: u32 = 64;

/// Latest timestamp, milliseconds: far beyond any epoch, and exact in an `f64`.
const MAX_TIMESTAMP_MS: u64 = 1 << 52;

#[derive(Deserialize)]
struct MooncakeRow {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<u64>,
    session_id: Option<String>,
    input_chars: Option<u64>,
}

/// A row that is right, to find by comparison what is wrong in another.
const RIGHT: &str = r#"{"timestamp":0,"input_length":1,"output_length":1}"#;

/// Fields of a row that are counts, and their limits.
const COUNTS: [(&str, u64); 2] =
    [("input_length", MAX_PROMPT_TOKENS as u64), ("output_length", MAX_OUTPUT_TOKENS as u64)];

pub(super) fn parse(line: &str) -> Result<Row, Fault> {
    let row: MooncakeRow = jsonl::object(line, RIGHT, &COUNTS)?;
    if row.timestamp < 0.0 {
        return Err(Fault::Negative { field: "timestamp", value: row.timestamp.to_string() });
    }
    if row.timestamp > MAX_TIMESTAMP_MS as f64 {
        let value = row.timestamp.to_string();
        return Err(Fault::AboveLimit { field: "timestamp", value, limit: MAX_TIMESTAMP_MS });
    }
    let prompt_tokens = tokens("input_length", row.input_length, MAX_PROMPT_TOKENS)?;
    let (output_tokens, zero_output) = output_tokens("output_length", row.output_length)?;
    if row.hash_ids.len() > MAX_HASH_IDS {
        let value = row.hash_ids.len().to_string();
        return Err(Fault::AboveLimit { field: "number of hash_ids", value, limit: MAX_HASH_IDS as u64 });
    }
    if let Some(session) = row.session_id.as_ref().filter(|session| session.len() > MAX_NAME_BYTES) {
        let value = super::excerpt(session);
        return Err(Fault::AboveLimit { field: "bytes of session_id", value, limit: MAX_NAME_BYTES as u64 });
    }
    let derived = row.input_chars.is_some();
    let block_tokens = if derived { DERIVED_BLOCK_TOKENS } else { BLOCK_TOKENS };
    let hash_ids = row.hash_ids.len();
    if !derived && hash_ids > prompt_tokens.div_ceil(block_tokens) as usize {
        return Err(Fault::HashIds { hash_ids, block_tokens, prompt_tokens });
    }
    let mut request = Request::new(Micros::ZERO, prompt_tokens, output_tokens);
    request.session = row.session_id;
    let full_blocks = (prompt_tokens / block_tokens) as usize;
    request.hash_ids = row.hash_ids.into_iter().take(full_blocks).collect();
    request.hash_block_tokens = if request.hash_ids.is_empty() { 0 } else { block_tokens };
    // Milliseconds below 2^52 times 1e6 fit an `i128` exactly; a fraction is rounded to the nanosecond.
    let whole_ms = row.timestamp.trunc();
    let time_ns = whole_ms as i128 * 1_000_000 + ((row.timestamp - whole_ms) * 1e6).round() as i128;
    Ok(Row { time_ns, zero_output, request })
}
