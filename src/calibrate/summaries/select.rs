//! Some of the runs of a file: `gpu=A100,model=qwen2.5-3b,budget=2048`.

use std::str::FromStr;

use kvtide_envs::deploy::Model;
use thiserror::Error;

use super::rows::SummaryRun;

/// Which runs are meant: of each key named any of its values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selection {
    wanted: Vec<(Key, String)>,
}

/// Why a selection cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{part:?}: expected KEY=VALUE,… with the keys gpu, model, budget, policy, peak, seed, prompt and output")]
pub struct SelectionError {
    part: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Gpu,
    Model,
    Budget,
    Policy,
    Peak,
    Seed,
    Prompt,
    Output,
}

impl Key {
    const ALL: [(&'static str, Key); 8] = [
        ("gpu", Key::Gpu),
        ("model", Key::Model),
        ("budget", Key::Budget),
        ("policy", Key::Policy),
        ("peak", Key::Peak),
        ("seed", Key::Seed),
        ("prompt", Key::Prompt),
        ("output", Key::Output),
    ];

    /// Whether `run` has `value`.
    fn is_of(self, run: &SummaryRun, value: &str) -> bool {
        let is_number = |number: f64| value.parse::<f64>().is_ok_and(|wanted| wanted == number);
        match self {
            Key::Gpu => run.gpu.eq_ignore_ascii_case(value),
            Key::Model => {
                let is_ours = Model::published_as(&run.model).is_some_and(|name| name.eq_ignore_ascii_case(value));
                is_ours || run.model.eq_ignore_ascii_case(value)
            }
            Key::Budget => is_number(f64::from(run.max_num_batched_tokens)),
            Key::Policy => run.policy.name() == value,
            Key::Peak => is_number(run.peak_rps),
            Key::Seed => is_number(run.seed as f64),
            Key::Prompt => is_number(f64::from(run.prompt_tokens)),
            Key::Output => is_number(f64::from(run.output_tokens)),
        }
    }
}

impl FromStr for Selection {
    type Err = SelectionError;

    fn from_str(text: &str) -> Result<Selection, SelectionError> {
        let part = |part: &str| {
            let wrong = || SelectionError { part: part.to_owned() };
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let (_, key) = Key::ALL.into_iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
            if value.is_empty() { Err(wrong()) } else { Ok((key, value.to_owned())) }
        };
        Ok(Selection { wanted: text.split(',').map(part).collect::<Result<_, _>>()? })
    }
}

impl Selection {
    /// The same as one selection of all that `others` say.
    pub fn of_all(others: &[Selection]) -> Selection {
        Selection { wanted: others.iter().flat_map(|other| other.wanted.clone()).collect() }
    }

    /// Whether `run` is meant.
    pub fn takes(&self, run: &SummaryRun) -> bool {
        let named = |key: Key| self.wanted.iter().filter(move |(other, _)| *other == key);
        let is_met = |key: Key| named(key).next().is_none() || named(key).any(|(_, value)| key.is_of(run, value));
        Key::ALL.into_iter().all(|(_, key)| is_met(key))
    }
}
