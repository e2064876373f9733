//! What values of options are written like: `kvtide help env`, or `--env help` where the option is.

use std::fmt::Write;

use kvtide_envs::deploy::{describe_deployments, describe_settings};
use kvtide_envs::sched::Slo;
use kvtide_runtime::{Choices, Head, Host};

use crate::text::{labelled, wrapped};

/// The topics there are.
pub(super) const TOPICS: [&str; 6] = ["env", "host", "policy", "set", "slo", "workload"];

/// Profiles of generated traffic, with an example each.
pub(super) const WORKLOADS: [(&str, &str); 8] = [
    ("chat", "chat:rate=2,duration=600"),
    ("code", "code:rate=2,duration=10m"),
    ("reasoning", "reasoning:rate=0.5,duration=30m,seed=3"),
    ("agentic", "agentic:rate=0.05,duration=1h"),
    ("mix", "mix:rate=3,duration=600,cv=2"),
    ("day", "day:rate=4,duration=2h,peak=1.84,mix=50:20:20:10"),
    ("uniform", "uniform:n=450,in=1000,out=5000,spread=0.2,rate=2"),
    ("lognormal", "lognormal:n=1200,in=1000,in_p95=2500,out=3000,out_p95=9000"),
];

/// Policies that stand for themselves, and beginnings of the others.
pub(super) const POLICIES: [(&str, &str); 15] = [
    ("default", "the engine as it comes"),
    ("fixed:W", "a constant watermark, the share of blocks admission leaves free; other heads as below"),
    ("best-fixed", "the best constant watermark in hindsight, anew for each load"),
    (
        "best-static[:PROFILE]",
        "the best constant choice of every head of watermark, core, full or cache, in hindsight, anew for each load",
    ),
    ("best-static-once[:PROFILE]", "the same, one for everything that is evaluated"),
    (
        "best-train[:PATH]",
        "the best constant choice on the training traffic of an experiment or checkpoint: what an operator could have had",
    ),
    ("table:PATH", "a decision table, behind the guard of a node"),
    ("checkpoint:PATH", "a trained policy, as it was trained"),
    ("opt-factor:A", "a watermark by formula, from the growth of what runs over A steps"),
    ("avg-blocks:T", "a watermark by formula, T blocks for each running request"),
    ("past-future[:Q]", "LightLLM's: admit while the peak predicted from recent answers fits"),
    ("primal-dual[:R,E]", "admit while a request is worth its blocks, at a price learnt on line: RISK (0), RATE (1)"),
    ("oracle", "past-future's rule with the true lengths; nobody can run it"),
    (
        "lookahead:KNOWS",
        "tries every choice on copies of the node that know of the future KNOWS: nothing, hints, lengths, arrivals, \
         hints+arrivals or everything; slow; ,over=HEAD+HEAD ,horizon=SECONDS (60) ,watermark=W; V1",
    ),
    ("ppas[:N,CAP]", "P-PAS: CAP prompt tokens a step (2048) while N prompts (2) press upon decodes; V1"),
];

/// What is to be known of a topic, at most `width` columns wide; `None` if it is none.
pub(super) fn text(topic: &str, width: usize) -> Option<String> {
    let text = match topic {
        // These lists are tables of their own.
        "set" => return Some(describe_settings()),
        "env" => return Some(describe_deployments()),
        "host" => Some(hosts()),
        "policy" => Some(policies(width)),
        "slo" => Some(slo()),
        "workload" => Some(workloads()),
        _ => None,
    };
    // What stands in columns is as wide as it may be already.
    text.map(|text| wrapped(&text, width, 0))
}

fn hosts() -> String {
    let mut text = String::from("--host HOST: the engine that a policy is made for and judged in.\n\n");
    for host in Host::ALL {
        let heads: Vec<&str> = Head::ALL.into_iter().filter(|&head| host.decides(head)).map(Head::name).collect();
        let tier = if host.has_host_tier { "a host tier" } else { "no host tier" };
        let _ = writeln!(text, "  {:12}{}; {tier}", host.name, heads.join(", "));
    }
    text
}

fn policies(width: usize) -> String {
    let mut text = String::from("--policy POLICY: who decides. Repeatable.\n\n");
    for (name, meaning) in POLICIES {
        text.push_str(&labelled(&format!("  {name}"), meaning, 25, width));
    }
    text.push_str("\nfixed, past-future, primal-dual, oracle and lookahead take heads after commas:\n\n");
    for head in Head::ALL.into_iter().filter(|&head| head != Head::Watermark) {
        if let Choices::Named(names) = head.choices() {
            let _ = writeln!(text, "  {}={}", head.key(), names.join("|"));
        }
    }
    text.push_str("\nas in fixed:0.05,victim=most-blocks,admission=on-time-first\n");
    text
}

fn slo() -> String {
    format!(
        "--slo TARGETS: a request is attained if it meets all of them at once.\n\n\
         ttft:MS,tpot:MS[,stall:MS]: time to the first token, mean time per token after it, longest gap between tokens, in \
         milliseconds, as in ttft:2000,tpot:100,stall:3000. Or a class: {}.\n",
        Slo::class_names().collect::<Vec<_>>().join(", ")
    )
}

fn workloads() -> String {
    let mut text = String::from("--workload PROFILE:KEY=VALUE,…: generated traffic.\n\n");
    for (_, example) in WORKLOADS {
        let _ = writeln!(text, "  {example}");
    }
    text.push_str(
        "\n  rate=R       requests a second (agentic: sessions that start)\n  \
           duration=D   how long: 600, 600s, 10m, 1h; or\n  \
           n=N          how many requests\n  \
           cv=CV        burstiness: coefficient of variation of gaps, 0 to 20\n  \
           lengths=F    what lengths are multiplied by: 0.5, or PROMPT:OUTPUT\n  \
           seed=S       another draw\n  \
           peak=P       day: the highest hour over the mean, 1 to 8; a day lasts 2h if no duration is given\n  \
           mix=A:B:C:D  day: parts of chat, code, reasoning and agents' requests\n  \
           in, out, spread; in_p95, out_p95   mean tokens, and how they vary, of uniform and lognormal\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use kvtide_envs::workload::SyntheticSpec;

    use super::*;
    use crate::policy::PolicySpec;

    #[test]
    fn what_is_listed_is_taken() {
        for (name, example) in WORKLOADS {
            assert!(example.starts_with(name) && example.parse::<SyntheticSpec>().is_ok(), "{example}");
        }
        for (name, _) in POLICIES {
            let name = name.split('[').next().unwrap();
            let written = [":W", ":A", ":T"].iter().fold(name.to_owned(), |name, ending| name.replace(ending, ":0.5"));
            let written = written.replace(":KNOWS", ":nothing");
            assert!(written.parse::<PolicySpec>().is_ok(), "{written}");
        }
    }

    #[test]
    fn every_topic_has_a_text() {
        for topic in TOPICS.iter().filter(|topic| !["env", "set"].contains(*topic)) {
            let text = text(topic, 80).unwrap();
            assert!(text.ends_with('\n') && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        assert!(text("set", 80).is_some_and(|text| text.contains("num_gpu_blocks")));
        assert_eq!(text("weather", 80), None);
    }
}
