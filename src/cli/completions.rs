//! `kvtide completions`: what a shell offers where Tab is pressed.

use clap::builder::PossibleValuesParser;
use clap::{Args, Command};
use clap_complete::Shell;
use kvtide_envs::deploy::{Hardware, Model};
use kvtide_envs::sched::Slo;
use kvtide_runtime::Host;

use super::output::Output;
use super::{Exit, command_line, topics};

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell that reads them.
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut with_values(command_line()), "kvtide", &mut script);
    Output::new().text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// `command` with the values of its options as far as there are names for them. For completions alone: a value need not be one of
/// them.
fn with_values(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_values));
    values().into_iter().fold(command, |command, (id, values)| {
        if command.get_arguments().all(|arg| arg.get_id() != id) {
            return command;
        }
        command.mut_arg(id, |arg| arg.value_parser(PossibleValuesParser::new(values)))
    })
}

/// Values of options, by the option's field.
fn values() -> Vec<(&'static str, Vec<String>)> {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
    let of_model =
        |model: &str| Hardware::NAMES.iter().map(|hardware| format!("{model}@{hardware}")).collect::<Vec<_>>();
    let policies = topics::POLICIES.iter().map(|(name, _)| beginning(name));
    let hosts: Vec<String> = Host::ALL.iter().map(|host| host.name.to_owned()).collect();
    vec![
        ("policies", policies.clone().collect()),
        ("reference", policies.clone().collect()),
        ("versus", policies.collect()),
        ("env", Model::NAMES.iter().flat_map(|model| of_model(model)).collect()),
        ("slo", Slo::class_names().map(str::to_owned).collect()),
        ("workload", topics::WORKLOADS.iter().map(|(_, example)| (*example).to_owned()).collect()),
        ("spec", topics::WORKLOADS.iter().map(|(_, example)| (*example).to_owned()).collect()),
        ("host", hosts),
        ("engine", owned(&["v1", "v0"])),
        ("prefix_cache", owned(&["on", "off", "auto"])),
        ("scale", owned(&["thin", "stretch"])),
        ("memory", owned(&["modelled", "host", "cuda"])),
    ]
}

/// `table:` of `table:PATH`, `best-static` of `best-static[:PROFILE]`.
fn beginning(name: &str) -> String {
    let plain = name.split('[').next().unwrap_or(name);
    plain.split_once(':').map_or_else(|| plain.to_owned(), |(kind, _)| format!("{kind}:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_of_options_that_are_there() {
        let command = command_line();
        let all: Vec<&Command> =
            command.get_subcommands().flat_map(|one| one.get_subcommands().chain(std::iter::once(one))).collect();
        for (id, values) in values() {
            assert!(all.iter().any(|one| one.get_arguments().any(|arg| arg.get_id() == id)), "{id}");
            assert!(!values.is_empty(), "{id}");
        }
    }

    #[test]
    fn a_policy_is_completed_as_far_as_it_has_a_name() {
        assert_eq!(
            ["default", "table:PATH", "best-static[:PROFILE]"].map(beginning),
            ["default", "table:", "best-static"]
        );
    }
}
