//! What is said of a command line that cannot be read.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use kvtide_envs::deploy::describe_settings;

use super::one_line;

/// Ends the process's work on a command line that clap did not take. A wrong value is an error as any other: one line that says
/// which option, what stood there and what would do. `--set help` lists what can be set; the rest is clap's.
pub(super) fn end(error: &clap::Error) -> ExitCode {
    if error.kind() != ErrorKind::ValueValidation {
        error.exit();
    }
    let (option, value) = (context(error, ContextKind::InvalidArg), context(error, ContextKind::InvalidValue));
    // `--set <KEY=VALUE>`
    let option = option.split_whitespace().next().unwrap_or_default();
    if (option, value) == ("--set", "help") {
        print!("{}", describe_settings());
        return ExitCode::SUCCESS;
    }
    let reason = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    eprintln!("error: {}", one_line(&anyhow::anyhow!(named(option, value, reason))));
    ExitCode::from(2)
}

fn context(error: &clap::Error, kind: ContextKind) -> &str {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text,
        _ => "",
    }
}

/// The reason, with the option and its value where it names neither.
fn named(option: &str, value: &str, reason: String) -> String {
    let key = option.trim_start_matches('-');
    // `SLO target …`, and of a setting the setting.
    let lower = reason.to_lowercase();
    let names_setting = value.split_once('=').is_some_and(|(setting, _)| reason.contains(setting));
    let names_option = lower.contains(key) || lower.contains(&key.replace('-', "_")) || names_setting;
    let names_value = [format!("{value:?}"), format!("`{value}`")].iter().any(|written| reason.contains(written));
    match (names_option, names_value) {
        (true, _) => reason,
        (false, true) => format!("{option}: {reason}"),
        (false, false) => format!("{option} {value:?}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn a_reason_is_given_what_it_lacks() {
        let said = |option: &str, value: &str, reason: &str| named(option, value, reason.to_owned());
        assert_eq!(said("--policy", "lru", "unknown policy \"lru\""), "unknown policy \"lru\"");
        assert_eq!(said("--jitter", "x", "`x`: is not a duration"), "--jitter: `x`: is not a duration");
        assert_eq!(said("--host", "vllm", "expected vllm-0.33"), "--host \"vllm\": expected vllm-0.33");
        let setting = "max_num_seqs=\"x\": expected a whole number";
        assert_eq!(said("--set", "max_num_seqs=x", setting), setting);
        assert_eq!(said("--slo", "ttft:0", "SLO target ttft:\"0\""), "SLO target ttft:\"0\"");
        assert_eq!(said("--clients", "many", "invalid digit"), "--clients \"many\": invalid digit");
    }
}
