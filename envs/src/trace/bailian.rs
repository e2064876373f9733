//! Qwen-Bailian traces: JSONL with `chat_id`, `parent_chat_id`, `timestamp` in seconds, lengths and `hash_ids`.
//!
//! Source: `alibaba-edu/qwen-bailian-usagetraces-anon` (Apache-2.0). `hash_ids` are of blocks of 16 tokens, each of what is in the block
//! alone, whatever is before it; so they are chained here, each with those before it, for blocks can be reused only as a prefix. Only full blocks are
//! kept. A request without a parent, `-1`, begins a session; others belong to that of their parent, or, where that was not read
//! before them, to one that is named after it. `type` becomes the tenant. Fields that are not named here are ignored.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::error::Fault;
use super::{
    MAX_HASH_IDS, MAX_NAME_BYTES, MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Request, Row, excerpt, jsonl, output_tokens,
    tokens,
};
use crate::seed;
use crate::time::Micros;

/// Tokens a hash stands for.
const BLOCK_TOKENS: u32 = 16;

/// Latest timestamp, seconds: far beyond any epoch, and exact to the microsecond in an `f64`.
const MAX_TIMESTAMP_S: u64 = 1 << 33;

#[derive(Deserialize)]
struct BailianRow {
    chat_id: i64,
    parent_chat_id: i64,
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    r#type: Option<String>,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// A row that is right, to find by comparison what is wrong in another.
const RIGHT: &str = r#"{"chat_id":1,"parent_chat_id":-1,"timestamp":0,"input_length":1,"output_length":1}"#;

/// Fields of a row that are counts, and their limits.
const COUNTS: [(&str, u64); 2] =
    [("input_length", MAX_PROMPT_TOKENS as u64), ("output_length", MAX_OUTPUT_TOKENS as u64)];

/// The session of each chat, by the chat it began with.
#[derive(Default)]
pub(super) struct Chats(BTreeMap<i64, i64>);

impl Chats {
    pub(super) fn parse(&mut self, line: &str) -> Result<Row, Fault> {
        let row: BailianRow = jsonl::object(line, RIGHT, &COUNTS)?;
        if row.timestamp < 0.0 {
            return Err(Fault::Negative { field: "timestamp", value: row.timestamp.to_string() });
        }
        if row.timestamp > MAX_TIMESTAMP_S as f64 {
            let value = row.timestamp.to_string();
            return Err(Fault::AboveLimit { field: "timestamp", value, limit: MAX_TIMESTAMP_S });
        }
        let prompt_tokens = tokens("input_length", row.input_length, MAX_PROMPT_TOKENS)?;
        let (output_tokens, zero_output) = output_tokens("output_length", row.output_length)?;
        let hash_ids = row.hash_ids.len();
        if hash_ids > MAX_HASH_IDS {
            let value = hash_ids.to_string();
            return Err(Fault::AboveLimit { field: "number of hash_ids", value, limit: MAX_HASH_IDS as u64 });
        }
        if hash_ids > prompt_tokens.div_ceil(BLOCK_TOKENS) as usize {
            return Err(Fault::HashIds { hash_ids, block_tokens: BLOCK_TOKENS, prompt_tokens });
        }
        if let Some(kind) = row.r#type.as_ref().filter(|kind| kind.len() > MAX_NAME_BYTES) {
            return Err(Fault::AboveLimit {
                field: "bytes of type",
                value: excerpt(kind),
                limit: MAX_NAME_BYTES as u64,
            });
        }
        let mut request = Request::new(Micros::ZERO, prompt_tokens, output_tokens);
        request.session = Some(self.session(row.chat_id, row.parent_chat_id).to_string());
        request.tenant = row.r#type;
        request.hash_ids = chained(&row.hash_ids[..hash_ids.min((prompt_tokens / BLOCK_TOKENS) as usize)]).collect();
        request.hash_block_tokens = if request.hash_ids.is_empty() { 0 } else { BLOCK_TOKENS };
        // Seconds below 2^33 times 1e9 fit an `i128` exactly; a fraction is rounded to the microsecond.
        let whole_s = row.timestamp.trunc();
        let time_ns = whole_s as i128 * 1_000_000_000 + ((row.timestamp - whole_s) * 1e6).round() as i128 * 1_000;
        Ok(Row { time_ns, zero_output, request })
    }

    fn session(&mut self, chat: i64, parent: i64) -> i64 {
        let root = if parent < 0 { chat } else { self.0.get(&parent).copied().unwrap_or(parent) };
        self.0.insert(chat, root);
        root
    }
}

/// Each hash with all before it.
fn chained(hash_ids: &[u64]) -> impl Iterator<Item = u64> {
    hash_ids.iter().scan(0, |before, hash_id| {
        *before = seed::derive(*before, "bailian.block", *hash_id);
        Some(*before)
    })
}
