//! One request of a recorded workload.

use serde::{Deserialize, Serialize};

use super::HashIds;
use crate::time::Micros;

/// A request as it was recorded, in kvtide's canonical form: one JSON object a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Arrival, microseconds since the trace started. Rows are in arrival order.
    #[serde(rename = "arrival_us")]
    pub arrival: Micros,
    /// Prompt length in tokens, at least 1.
    pub prompt_tokens: u32,
    /// Tokens generated before the request finished, at least 1.
    pub output_tokens: u32,
    /// Hashes of the prompt's full prefix blocks, each binding everything before it; empty where unknown.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub hash_ids: HashIds,
    /// Tokens per entry of `hash_ids`; 0 where there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hash_block_tokens: u32,
    /// Conversation or agent session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Who sent it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Larger is more urgent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Name of its SLO class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slo_class: Option<String>,
    /// Requests with different salts never share prefix blocks, whatever their hashes; none is a salt of its own.
    /// vLLM's `cache_salt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
}

impl Request {
    /// A request of which only arrival and lengths are known.
    pub fn new(arrival: Micros, prompt_tokens: u32, output_tokens: u32) -> Request {
        Request {
            arrival,
            prompt_tokens,
            output_tokens,
            hash_ids: HashIds::default(),
            hash_block_tokens: 0,
            session: None,
            tenant: None,
            priority: None,
            slo_class: None,
            cache_salt: None,
        }
    }
}

fn is_empty(hash_ids: &HashIds) -> bool {
    hash_ids.is_empty()
}

// serde's `skip_serializing_if` passes a reference.
#[expect(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}
