//! Examples beneath each command's help: commands as they would be typed, on files a reader can have.

use clap::Command;

/// Of each command, what it is mostly called for.
const EXAMPLES: [(&str, &[&str]); 17] = [
    ("tune", &["kvtide tune trace.csv", "kvtide tune trace.csv --env llama-3-8b@h100 --slo chat --out runs/mine"]),
    (
        "trace",
        &[
            "kvtide trace stats trace.csv",
            "kvtide trace convert trace.csv mine.jsonl.zst",
            "kvtide trace generate chat:rate=5,duration=2400,seed=3 chat.jsonl.zst",
        ],
    ),
    (
        "simulate",
        &[
            "kvtide simulate --workload chat:rate=2,duration=600 --policy default --policy fixed:0.05",
            "kvtide simulate --trace trace.csv --load 0.5,1 --env llama-3-8b@h100 --policy table:policy.kvt",
            "kvtide simulate --workload chat:rate=2,duration=600 --json",
            "kvtide simulate --trace trace.csv --set eviction=classes --releases releases.jsonl",
        ],
    ),
    (
        "train",
        &[
            "kvtide train --experiment mine.toml --out runs/mine",
            "kvtide train --resume --out runs/mine",
            "kvtide inspect runs/mine",
        ],
    ),
    (
        "variance",
        &[
            "kvtide variance --experiment mine.toml",
            "kvtide variance --experiment mine.toml --checkpoint runs/mine/policy --holds 1,64,512 --json",
        ],
    ),
    (
        "evaluate",
        &[
            "kvtide evaluate --trace trace.csv --window 1600s..2300s --loads auto --seeds 1..5 \\\n      --policy default --policy best-fixed --policy best-static --policy table:policy.kvt",
            "kvtide evaluate --workload chat:rate=5,duration=600 --loads 0.4,0.5 --seeds 1..3 \\\n      --policy default --policy table:policy.kvt --out runs.jsonl --report page.html",
        ],
    ),
    (
        "import-policy",
        &[
            "kvtide import-policy sb3.toml --out runs/sb3",
            "kvtide evaluate --workload chat:rate=2,duration=600 --policy default --policy checkpoint:runs/sb3",
        ],
    ),
    (
        "export",
        &[
            "kvtide export --checkpoint runs/mine/policy --out policy.kvt --rust policy.rs",
            "kvtide export --table policy.kvt --retention json --out rules.json",
        ],
    ),
    (
        "retain",
        &[
            "kvtide retain --table policy.kvt --experiment mine.toml --out runs/mine-retention",
            "kvtide evaluate --trace trace.csv --loads auto --seeds 1..5 --policy table:policy.kvt \\\n      --policy table:runs/mine-retention/policy.kvt",
        ],
    ),
    (
        "inspect",
        &[
            "kvtide inspect policy.kvt",
            "kvtide inspect runs/mine",
            "kvtide inspect policy.kvt --svg tree.svg --rules 200",
        ],
    ),
    (
        "explain",
        &[
            "kvtide explain policy.kvt oldest_wait=0.5 late_waiting=0.1 progress=0.2",
            "kvtide explain policy.kvt --from observation.json",
            "tail -n 1 decisions.jsonl | kvtide explain policy.kvt --from - --json",
            "kvtide explain policy.kvt --retention part=1 turn=2",
        ],
    ),
    ("replay", &["kvtide replay --golden tests/golden/vllm-v1"]),
    (
        "evict",
        &[
            "kvtide evict replay --trace trace.jsonl --capacity 1%,2%,5%,10% --report page.html",
            "kvtide evict replay --workload agentic:rate=0.2,duration=30m --capacity 3280 --policy lru,arc --json",
            "kvtide evict compare --profile deadline_pressure --report page.html",
            "kvtide evict compare --events events.jsonl.gz --hbm-mb 2,4 --dram-mb 64 --decisions why.jsonl",
            "kvtide evict explain why.jsonl --deadlines --policy lru",
            "kvtide evict import --requests requests.jsonl events.jsonl.gz --model llama-3-8b",
            "kvtide evict import --profile rag_mixed_priority:seed=7 events.jsonl.gz",
        ],
    ),
    (
        "calibrate",
        &[
            "kvtide calibrate --measured run/ --fit-fraction 0.3 --plot fit.svg --profile mine.toml",
            "kvtide calibrate --perf-db aiconfigurator_core-0.12.0-*.whl --system h100_sxm --model config.json --profile h100.toml",
            "kvtide simulate --workload chat:rate=2,duration=600 --env llama-3-8b@mine.toml",
        ],
    ),
    ("bench", &["kvtide bench", "kvtide bench --repeats 9 --json"]),
    (
        "completions",
        &[
            "kvtide completions bash > ~/.local/share/bash-completion/completions/kvtide",
            "kvtide completions zsh > ~/.zfunc/_kvtide",
            "kvtide completions fish > ~/.config/fish/completions/kvtide.fish",
        ],
    ),
    ("man", &["kvtide man | man -l -", "kvtide man --out ~/.local/share/man/man1"]),
];

/// `command` with the examples of its subcommands beneath their help.
pub(super) fn with_examples(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (name, examples)| {
        if command.find_subcommand(name).is_none() {
            return command;
        }
        command.mut_subcommand(name, |subcommand| subcommand.after_help(text(examples)))
    })
}

fn text(examples: &[&str]) -> String {
    let heading = if examples.len() == 1 { "Example" } else { "Examples" };
    format!("{heading}:\n  {}", examples.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::super::command_line;

    #[test]
    fn every_example_is_taken() {
        let mut tried = 0;
        for (name, examples) in super::EXAMPLES {
            if command_line().find_subcommand(name).is_none() {
                continue;
            }
            for example in examples {
                let words = example.replace("\\\n", " ");
                // From where the tool is called to where a shell takes over.
                let call = words.split(" | ").find(|call| call.starts_with("kvtide ")).unwrap();
                let call = call.split(" > ").next().unwrap();
                let parsed = command_line().try_get_matches_from(call.split_whitespace());
                assert!(parsed.is_ok(), "{call}: {}", parsed.unwrap_err());
                tried += 1;
            }
        }
        assert!(tried > 20, "{tried}");
    }
}
