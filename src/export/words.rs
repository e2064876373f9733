//! Features and choices in words, for who has not read what they are called.

use kvtide_runtime::action::BUDGET_LEVELS;
use kvtide_runtime::{FEATURES, Head, NUM_FEATURES};

use super::rules::short;

/// Each feature in words, in their order.
const FEATURE_WORDS: [&str; NUM_FEATURES] = [
    "free blocks",
    "cached blocks nobody uses",
    "free blocks of the host",
    "blocks needed in the next step",
    "blocks needed in the next 8 steps",
    "blocks needed in the next 32 steps",
    "blocks a running request holds",
    "running requests",
    "waiting requests",
    "swapped requests",
    "blocks the first in the queue asks for",
    "blocks the queue asks for",
    "tokens the first in the queue asks for",
    "tokens the queue asks for",
    "the oldest wait",
    "the share of the queue that is late",
    "waiting requests that can be in time",
    "blocks of those that can be in time",
    "the time left to those that can be in time",
    "the rate of arrivals",
    "the rate of completions",
    "the rate of preemptions",
    "the rate of swapping",
    "the size of recent prompts",
    "the size of recent answers",
    "the time of a step",
    "the share of running requests that is behind",
    "the slack of running requests",
    "how far running answers are",
    "prompt tokens still to compute",
    "the share of steps with a refusal",
    "requests that decode",
    "the least slack of requests that decode",
    "the slack of requests that decode",
    "the time of a token",
];

/// A feature in words, by its index.
pub(super) fn feature(index: u8) -> Option<&'static str> {
    FEATURE_WORDS.get(usize::from(index)).copied()
}

/// A feature in words, by its name.
pub(super) fn feature_named(name: &str) -> Option<&'static str> {
    let index = FEATURES.iter().position(|spec| spec.name == name)?;
    FEATURE_WORDS.get(index).copied()
}

/// A value of a feature with its unit: shares in per cent.
pub(super) fn amount(value: f32, unit: &str) -> String {
    match unit {
        "fraction" => format!("{} %", short(value * 100.0)),
        "pool" => format!("{} % of the pool", short(value * 100.0)),
        "host pool" => format!("{} % of the host's pool", short(value * 100.0)),
        "slots" => format!("{} % of max_num_seqs", short(value * 100.0)),
        "budget" => format!("{} × max_num_batched_tokens", short(value)),
        "outputs" => format!("{} × the mean answer", short(value)),
        unit => format!("{} {unit}", short(value)).trim_end().to_owned(),
    }
}

/// What a choice does: `leaves 2 % free`, `admits in order of arrival`.
pub(super) fn choice(head: Head, name: &str) -> String {
    match (head, name) {
        (Head::Watermark, level) => match level.parse::<f64>() {
            Ok(level) => format!("leaves {} % free", (level * 1000.0).round() / 10.0),
            Err(_) => format!("watermark {level}"),
        },
        (Head::Victim, "newest") => "preempts the newest".to_owned(),
        (Head::Victim, "fewest-blocks") => "preempts who holds fewest blocks".to_owned(),
        (Head::Victim, "most-blocks") => "preempts who holds most blocks".to_owned(),
        (Head::Victim, "least-progress") => "preempts who is least far".to_owned(),
        (Head::Victim, "most-slack") => "preempts who can wait longest".to_owned(),
        (Head::Preemption, "swap") => "swaps victims out".to_owned(),
        (Head::Preemption, "recompute") => "computes victims again".to_owned(),
        (Head::Preemption, "cheaper") => "swaps victims out or computes them again, whichever is cheaper".to_owned(),
        (Head::Admission, "fcfs") => "admits in order of arrival".to_owned(),
        (Head::Admission, "on-time-first") => "admits first who can be in time".to_owned(),
        (Head::Admission, "shortest-on-time-first") => "admits first the shortest that can be in time".to_owned(),
        (Head::Budget, tokens) => match tokens.parse::<f64>() {
            Ok(tokens) if BUDGET_LEVELS.last().is_some_and(|&most| tokens >= most) => {
                "gives a step all the tokens the engine allows".to_owned()
            }
            Ok(tokens) => format!("gives a step at most {tokens} tokens"),
            Err(_) => format!("budget {tokens}"),
        },
        (Head::Eviction, "lru") => "evicts what was used least recently".to_owned(),
        (Head::Eviction, "lfu") => "evicts what was used least often".to_owned(),
        (head, name) => format!("{} {name}", head.name()),
    }
}

#[cfg(test)]
mod tests {
    use kvtide_runtime::Choices;

    use super::*;

    #[test]
    fn every_choice_has_words_of_its_own() {
        let mut known: Vec<String> = Vec::new();
        for head in Head::ALL {
            if let Choices::Named(names) = head.choices() {
                for name in names {
                    let words = choice(head, name);
                    assert!(!words.starts_with(head.name()) && !known.contains(&words), "{words}");
                    known.push(words);
                }
            }
        }
        assert_eq!(choice(Head::Watermark, "0.02"), "leaves 2 % free");
        assert_eq!(choice(Head::Watermark, "0.005"), "leaves 0.5 % free");
        assert_eq!(choice(Head::Watermark, "#9"), "watermark #9");
        assert_eq!(choice(Head::Budget, "512"), "gives a step at most 512 tokens");
        assert_eq!(choice(Head::Budget, "1048576"), "gives a step all the tokens the engine allows");
        assert_eq!(choice(Head::Budget, "#2"), "budget #2");
    }

    #[test]
    fn shares_are_told_in_per_cent() {
        assert_eq!(amount(0.6202, "fraction"), "62.02 %");
        assert_eq!(amount(0.25, "TTFT targets"), "0.25 TTFT targets");
        assert_eq!(amount(0.25, ""), "0.25");
        assert!(FEATURES.iter().all(|spec| amount(0.5, spec.unit).len() > 3));
    }

    #[test]
    fn features_are_found_by_name() {
        assert_eq!(feature_named("oldest_wait"), Some("the oldest wait"));
        assert_eq!(feature_named("token_time"), FEATURE_WORDS.last().copied());
        assert_eq!((feature_named("x"), feature(35)), (None, None));
    }
}
