//! What is said of a command line that cannot be read.

use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use thiserror::Error;

use super::output::Output;
use super::{Exit, topics};
use crate::text;

/// Ends the process's work on a command line that clap did not take. A wrong value is an error as any other: one line that says
/// which option, what stood there and what would do. `--set help` lists what can be set, `kvtide help set` as well, and so with
/// the other [topics](topics::TOPICS); the rest is clap's.
pub(super) fn end(error: &clap::Error) -> anyhow::Result<Exit> {
    if let (ErrorKind::InvalidSubcommand, Some(topic)) = (error.kind(), asked_for_help()) {
        return tell(&topic);
    }
    if error.kind() != ErrorKind::ValueValidation {
        let printed = error.print();
        if error.use_stderr() {
            // That it cannot be said is nothing that could be said.
            return Ok(Exit::Misused);
        }
        return Ok(printed.map(|()| Exit::Done)?);
    }
    let (option, value) = (context(error, ContextKind::InvalidArg), context(error, ContextKind::InvalidValue));
    // `--set <KEY=VALUE>`
    let option = option.split_whitespace().next().unwrap_or_default();
    if value == "help" && topics::TOPICS.contains(&option.trim_start_matches('-')) {
        return tell(option.trim_start_matches('-'));
    }
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let reason = in_range(&reason);
    Err(anyhow!(named(option, value, &reason)))
}

/// An error about which everything is said.
#[derive(Debug, Error)]
#[error("nothing was asked for")]
pub(super) struct Said;

/// The topic of `kvtide help TOPIC`.
fn asked_for_help() -> Option<String> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    match words.as_slice() {
        [help, topic] if help == "help" && topics::TOPICS.contains(&topic.as_str()) => Some(topic.clone()),
        _ => None,
    }
}

fn tell(topic: &str) -> anyhow::Result<Exit> {
    Output::new().text(&topics::text(topic, text::width()).unwrap_or_default())?;
    Ok(Exit::Done)
}

/// Reasons of the standard library's, which say nothing of what would do.
fn in_range(reason: &str) -> String {
    match reason {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "expected a whole number, not negative".to_owned()
        }
        "invalid float literal" | "cannot parse float from empty string" => "expected a number".to_owned(),
        other => other.to_owned(),
    }
}

fn context(error: &clap::Error, kind: ContextKind) -> &str {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text,
        _ => "",
    }
}

/// Options whose reasons name what is wrong in full.
const NAMED: [&str; 3] = ["--policy", "--reference", "--versus"];

/// The reason, after the option, and after its value where it does not name that.
fn named(option: &str, value: &str, reason: &str) -> String {
    let key = option.trim_start_matches('-').replace('-', "_");
    if NAMED.contains(&option) || reason.starts_with(&format!("{key}=")) {
        return reason.to_owned();
    }
    let names_setting = value.split_once('=').is_some_and(|(setting, _)| reason.starts_with(setting));
    let names_value = [format!("{value:?}"), format!("`{value}`")].iter().any(|written| reason.contains(written));
    if names_setting || names_value { format!("{option}: {reason}") } else { format!("{option} {value:?}: {reason}") }
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_reason_is_given_what_it_lacks() {
        assert_eq!(named("--policy", "lru", "unknown policy \"lru\""), "unknown policy \"lru\"");
        assert_eq!(named("--engine", "v2", "engine=\"v2\": expected v0"), "engine=\"v2\": expected v0");
        assert_eq!(named("--jitter", "x", "`x`: is not a duration"), "--jitter: `x`: is not a duration");
        assert_eq!(named("--workload", "talk:n=9", "`talk:n=9`: unknown"), "--workload: `talk:n=9`: unknown");
        assert_eq!(named("--host", "vllm", "expected vllm-0.33"), "--host \"vllm\": expected vllm-0.33");
        let setting = "max_num_seqs=\"x\": expected a whole number";
        assert_eq!(named("--set", "max_num_seqs=x", setting), format!("--set: {setting}"));
        assert_eq!(named("--clients", "many", "invalid digit"), "--clients \"many\": invalid digit");
    }
}
