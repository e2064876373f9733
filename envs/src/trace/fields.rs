//! What logs call what: one table of names, for the header of a CSV and the keys of a JSON object alike.
//!
//! Case, underscores, spaces and hyphens do not count (`Prompt Tokens` is `prompt_tokens` is `promptTokens`), and of a path
//! with dots (`usage.prompt_tokens`) the last part does. A name of a time may end in a unit: `timestamp_ms`, `arrival (ns)`.

use super::clock::TimeUnit;

/// What a column or key says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Time,
    Prompt,
    Output,
    /// Prompt tokens that Anthropic counts beside `input_tokens`.
    CachedPrompt,
    /// The prompt as text.
    PromptText,
    /// The answer as text.
    OutputText,
    /// The turns of a conversation.
    Turns,
    Session,
    Tenant,
    Priority,
    SloClass,
    CacheSalt,
    /// What went wrong; not empty where something did.
    Failure,
    /// How it ended: a word or an HTTP status.
    Status,
    /// Whether it went well.
    Success,
}

/// Names that mean the same.
pub struct Names {
    pub(super) role: Role,
    /// What they name, for people.
    pub meaning: &'static str,
    /// Where one row has several: those of a group that stands earlier in [`NAMES`] are preferred, and within a group they are
    /// a contradiction, or, where this is true, the first in the list is taken.
    pub first_wins: bool,
    /// The names.
    pub names: &'static [&'static str],
}

/// Every name that is known.
pub static NAMES: [Names; 19] = [
    group(Role::Time, "time of arrival", &["arrival", "arrival_time", "arrival_timestamp", "arrival_ts", "arrived_at"]),
    group(
        Role::Time,
        "time of arrival: the start of the request",
        &[
            "start_time",
            "start_timestamp",
            "started_at",
            "request_time",
            "request_timestamp",
            "request_start_time",
            "requested_at",
            "received_at",
            "submitted_at",
            "submit_time",
            "sent_at",
            "queued_at",
            "queued_ts",
        ],
    ),
    group(
        Role::Time,
        "time of arrival: the stamp of the row",
        &["timestamp", "time", "ts", "datetime", "event_time", "event_timestamp"],
    ),
    group(
        Role::Time,
        "time of arrival: the creation of the record",
        &["created_at", "created", "create_time", "creation_time"],
    ),
    group(
        Role::Prompt,
        "prompt length in tokens",
        &[
            "prompt_tokens",
            "input_tokens",
            "context_tokens",
            "request_tokens",
            "prefill_tokens",
            "num_prompt_tokens",
            "num_input_tokens",
            "num_prefill_tokens",
            "n_prompt_tokens",
            "n_input_tokens",
            "prompt_token_count",
            "input_token_count",
            "prompt_length",
            "input_length",
            "prompt_len",
            "input_len",
            "prompt_toks",
            "input_toks",
            "tokens_in",
            "tokens_prompt",
        ],
    ),
    group(
        Role::Output,
        "output length in tokens",
        &[
            "completion_tokens",
            "output_tokens",
            "generated_tokens",
            "response_tokens",
            "generation_tokens",
            "decode_tokens",
            "num_completion_tokens",
            "num_output_tokens",
            "num_generated_tokens",
            "num_decode_tokens",
            "n_completion_tokens",
            "n_output_tokens",
            "completion_token_count",
            "output_token_count",
            "candidates_token_count",
            "completion_length",
            "output_length",
            "response_length",
            "completion_len",
            "output_len",
            "response_len",
            "completion_toks",
            "output_toks",
            "tokens_out",
            "tokens_completion",
        ],
    ),
    group(
        Role::CachedPrompt,
        "prompt tokens that are counted beside input_tokens, and added",
        &["cache_creation_input_tokens", "cache_read_input_tokens"],
    ),
    preferred(Role::Turns, "turns of a conversation", &["conversations", "conversation", "turns", "messages"]),
    preferred(Role::PromptText, "prompt as text", &["prompt", "messages", "input", "query", "question"]),
    preferred(
        Role::OutputText,
        "answer as text",
        &["completion", "output", "response", "answer", "generated_text", "output_text", "response_text", "choices"],
    ),
    preferred(
        Role::Session,
        "session",
        &["session", "session_id", "conversation_id", "chat_id", "thread_id", "litellm_session_id"],
    ),
    preferred(
        Role::Tenant,
        "tenant",
        &["tenant", "tenant_id", "end_user", "end_user_id", "customer", "customer_id", "user", "user_id", "team_id"],
    ),
    preferred(Role::Priority, "priority, larger is more urgent", &["priority"]),
    preferred(Role::SloClass, "SLO class", &["slo_class"]),
    preferred(Role::CacheSalt, "cache salt", &["cache_salt"]),
    preferred(
        Role::Failure,
        "failed where not empty",
        &["error", "error_message", "error_str", "error_code", "exception", "exception_message"],
    ),
    preferred(Role::Status, "failed where `failure`, `failed`, `error` or an HTTP status of 400 or more", &["status"]),
    preferred(
        Role::Status,
        "failed where an HTTP status of 400 or more",
        &["status_code", "http_status", "response_code"],
    ),
    preferred(Role::Success, "failed where false", &["success", "succeeded", "is_success"]),
];

/// Objects that are looked into for names.
pub(super) const CONTAINERS: [&str; 17] = [
    "usage",
    "response",
    "request",
    "body",
    "data",
    "metadata",
    "payload",
    "record",
    "log",
    "result",
    "attributes",
    "fields",
    "standard_logging_object",
    "response_obj",
    "kwargs",
    "usage_metadata",
    "_source",
];

/// How deep they are looked into.
pub(super) const MAX_DEPTH: usize = 5;

const fn group(role: Role, meaning: &'static str, names: &'static [&'static str]) -> Names {
    Names { role, meaning, first_wins: false, names }
}

const fn preferred(role: Role, meaning: &'static str, names: &'static [&'static str]) -> Names {
    Names { role, meaning, first_wins: true, names }
}

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) role: Role,
    /// Lower is preferred; equal ones contradict each other.
    pub(super) rank: u32,
    /// Of a time, if its name says so.
    pub(super) unit: Option<TimeUnit>,
}

/// Everything a name means: `messages` are turns and a prompt.
pub(super) fn meanings(name: &str) -> Vec<Meaning> {
    let leaf = name.rsplit('.').next().unwrap_or(name);
    let (stem, unit) = TimeUnit::off(leaf);
    let mut found = Vec::new();
    for (rank, group) in (0_u32..).zip(&NAMES) {
        let (name, unit) = if group.role == Role::Time { (stem, unit) } else { (leaf, None) };
        let Some(place) = group.names.iter().position(|known| same(known, name)) else { continue };
        let place = if group.first_wins { place as u32 } else { 0 };
        found.push(Meaning { role: group.role, rank: rank << 8 | place, unit });
    }
    found
}

/// Whether a name has this role.
pub(super) fn is(role: Role, name: &str) -> bool {
    meanings(name).iter().any(|meaning| meaning.role == role)
}

/// Whether two names are one but for case and what stands between words.
pub(super) fn same(a: &str, b: &str) -> bool {
    let letters = |name: &'_ str| {
        let letters: Vec<u8> = name.bytes().filter(u8::is_ascii_alphanumeric).collect();
        letters.to_ascii_lowercase()
    };
    letters(a) == letters(b) && !b.is_empty()
}

/// What a role is, for people.
pub(super) fn meaning(role: Role) -> &'static str {
    NAMES.iter().find(|group| group.role == role).map_or("", |group| group.meaning)
}

/// A role and its most usual names, for people.
pub(super) fn wanted(role: Role) -> String {
    let groups = || NAMES.iter().filter(move |group| group.role == role);
    let meaning = meaning(role);
    // One of each group of times, the first few of a single group.
    let names: Vec<&str> = match role {
        Role::Time => groups().filter_map(|group| group.names.first().copied()).collect(),
        _ => groups().flat_map(|group| group.names).take(3).copied().collect(),
    };
    format!("{meaning} ({}, …)", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(name: &str) -> Option<Role> {
        meanings(name).first().map(|meaning| meaning.role)
    }

    #[test]
    fn names_are_told_however_they_are_written() {
        for name in ["prompt_tokens", "Prompt Tokens", "promptTokens", "PROMPT-TOKENS", "usage.prompt_tokens"] {
            assert_eq!(role(name), Some(Role::Prompt), "{name}");
        }
        for name in ["arrival_ns", "arrivalTimeMs", "Timestamp (s)", "created_at", "@timestamp", "ts_us"] {
            assert_eq!(role(name), Some(Role::Time), "{name}");
        }
        for name in ["total_tokens", "end_time", "", "tokens", "prompt_tokens_details", "é"] {
            assert_eq!(role(name), None, "{name}");
        }
    }

    #[test]
    fn no_name_means_two_lengths() {
        for group in &NAMES {
            for name in group.names {
                let lengths =
                    meanings(name).into_iter().filter(|found| [Role::Prompt, Role::Output].contains(&found.role));
                assert!(lengths.count() <= 1, "{name}");
            }
        }
    }
}
