//! How much is spent on finding a policy and on judging it.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::agent::{ConstantRace, CrossEntropyConfig};
use crate::distil::DistilConfig;
use crate::experiment::Validation;

/// How much is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effort {
    /// As little as takes every step: what comes of it is worth nothing. For tests.
    Smoke,
    /// About a minute on two cores.
    Quick,
    /// A few minutes.
    #[default]
    Normal,
    /// Tens of minutes: what a table should get that will serve for months.
    Thorough,
}

/// There is no such effort.
#[derive(Debug, Error)]
#[error("expected quick, normal or thorough")]
pub struct NoEffort;

impl FromStr for Effort {
    type Err = NoEffort;

    fn from_str(text: &str) -> Result<Effort, NoEffort> {
        match text {
            "smoke" => Ok(Effort::Smoke),
            "quick" => Ok(Effort::Quick),
            "normal" => Ok(Effort::Normal),
            "thorough" => Ok(Effort::Thorough),
            _ => Err(NoEffort),
        }
    }
}

/// What an effort comes to.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Longest episode, seconds.
    pub episode_s: u64,
    /// Longest stretch on which loads are looked for, and longest time judged, seconds.
    pub longest_s: u64,
    /// How the best constant is looked for.
    pub race: ConstantRace,
    /// The search.
    pub search: CrossEntropyConfig,
    /// Decisions of training by PPO instead.
    pub decisions: u64,
    /// How what is kept is chosen.
    pub validation: Validation,
    /// How it is made a table.
    pub distil: DistilConfig,
    /// Draws judged at each load.
    pub draws: u64,
    /// Drawn clocks by which the table is judged once more.
    pub clocks: u32,
    /// Whether other lengths, bursts and pools are trained on beside the traffic.
    pub has_variations: bool,
}

impl Effort {
    /// What it comes to, with every stream drawn from `seed`.
    pub fn budget(self, seed: u64) -> Budget {
        let search = |generations, population, episodes| CrossEntropyConfig {
            generations,
            population,
            episodes,
            seed,
            ..CrossEntropyConfig::default()
        };
        let race = |few, many, best| ConstantRace { few, many, best };
        let distil = |samples_per_iteration, dagger_iterations| DistilConfig {
            seed,
            dagger_iterations,
            samples_per_iteration,
            ..DistilConfig::default()
        };
        let validation = |episodes, every, samples| Validation { share: SHARE, episodes, every, samples };
        match self {
            Effort::Smoke => Budget {
                episode_s: 20,
                longest_s: 120,
                race: race(1, 2, 1),
                search: search(2, 4, 1),
                decisions: 4096,
                validation: validation(4, 2, 300),
                distil: distil(300, 1),
                draws: 2,
                clocks: 0,
                has_variations: false,
            },
            Effort::Quick => Budget {
                episode_s: 240,
                longest_s: 900,
                race: race(12, 48, 3),
                search: search(10, 32, 12),
                decisions: 500_000,
                validation: validation(48, 5, 8_000),
                distil: distil(8_000, 3),
                draws: 4,
                clocks: 0,
                has_variations: true,
            },
            Effort::Normal => Budget {
                episode_s: 300,
                longest_s: 1_800,
                race: race(24, 96, 4),
                search: search(16, 40, 16),
                decisions: 2_000_000,
                validation: validation(64, 4, 20_000),
                distil: distil(20_000, 4),
                draws: 5,
                clocks: 0,
                has_variations: true,
            },
            Effort::Thorough => Budget {
                episode_s: 300,
                longest_s: 7_200,
                race: race(48, 192, 6),
                search: search(40, 80, 32),
                decisions: 10_000_000,
                validation: validation(128, 5, 20_000),
                distil: distil(20_000, 4),
                draws: 8,
                clocks: 10,
                has_variations: true,
            },
        }
    }
}

/// Of what may be looked at, the last so much is kept apart to choose on.
pub const SHARE: f64 = 0.3;
