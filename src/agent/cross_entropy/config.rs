//! Settings of a cross-entropy search.

use serde::{Deserialize, Serialize};

use crate::agent::config::{HyperparameterError, require};

/// Most episodes of a generation.
const MAX_EPISODES: usize = 1 << 20;

/// What a candidate is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// The share of requests that missed no target, over all requests of its episodes: what evaluation judges by.
    #[default]
    Attainment,
    /// The mean sum of rewards of its episodes: what PPO learns from.
    Return,
}

/// Settings of a cross-entropy search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CrossEntropyConfig {
    /// Rounds of drawing, judging and fitting, in `1..=1000000`.
    pub generations: u64,
    /// Candidates drawn in a generation, in `4..=65536`.
    pub population: usize,
    /// The share of them that the next generation is fitted to, in `(0, 1)`; rounded to a number, which is at least 2.
    pub elite: f64,
    /// Episodes each candidate is judged on, the same for all of a generation; at least 1, and with all candidates at most
    /// 1048576.
    pub episodes: usize,
    /// Standard deviation of every parameter in the first generation; positive. Features are standardised, watermarks
    /// counted in levels.
    pub initial_std: f64,
    /// Standard deviation added, as a variance, to what was fitted, not negative; it falls linearly and is zero after the
    /// last generation.
    pub noise: f64,
    /// What a candidate is judged by.
    pub objective: Objective,
    /// Seed of every stream.
    pub seed: u64,
}

impl Default for CrossEntropyConfig {
    fn default() -> CrossEntropyConfig {
        CrossEntropyConfig {
            generations: 50,
            population: 64,
            elite: 0.125,
            episodes: 16,
            initial_std: 0.3,
            noise: 0.1,
            objective: Objective::Attainment,
            seed: 1,
        }
    }
}

impl CrossEntropyConfig {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting outside its range.
    pub fn validate(&self) -> Result<(), HyperparameterError> {
        let whole = |field, value: usize, least, most, range| {
            require((least..=most).contains(&value), "cross_entropy", field, &value, range)
        };
        let real = |field, value: f64, allowed: bool, range| {
            require(value.is_finite() && allowed, "cross_entropy", field, &value, range)
        };
        let generations = (1..=1_000_000).contains(&self.generations);
        require(generations, "cross_entropy", "generations", &self.generations, "in 1..=1000000")?;
        whole("population", self.population, 4, 65_536, "in 4..=65536")?;
        real("elite", self.elite, self.elite > 0.0 && self.elite < 1.0, "in (0, 1)")?;
        let most = MAX_EPISODES / self.population;
        whole("episodes", self.episodes, 1, most, "at least 1, times population at most 1048576")?;
        let std = self.initial_std;
        real("initial_std", std, std > 0.0 && std <= 1e3, "above 0, at most 1000")?;
        real("noise", self.noise, (0.0..=1e3).contains(&self.noise), "in 0..=1000")
    }

    /// Candidates the next generation is fitted to.
    pub fn num_elite(&self) -> usize {
        ((self.population as f64 * self.elite).round() as usize).clamp(2, self.population - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(CrossEntropyConfig::default().validate(), Ok(()));
        assert_eq!(CrossEntropyConfig::default().num_elite(), 8);
    }

    #[test]
    fn errors_name_field_value_and_range() {
        let config = CrossEntropyConfig { elite: 1.0, ..CrossEntropyConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "cross_entropy.elite = 1: must be in (0, 1)");
        for (config, field) in [
            (CrossEntropyConfig { generations: 0, ..CrossEntropyConfig::default() }, "generations"),
            (CrossEntropyConfig { population: 3, ..CrossEntropyConfig::default() }, "population"),
            (CrossEntropyConfig { episodes: 0, ..CrossEntropyConfig::default() }, "episodes"),
            (CrossEntropyConfig { episodes: 1 << 15, ..CrossEntropyConfig::default() }, "episodes"),
            (CrossEntropyConfig { initial_std: 0.0, ..CrossEntropyConfig::default() }, "initial_std"),
            (CrossEntropyConfig { noise: f64::NAN, ..CrossEntropyConfig::default() }, "noise"),
        ] {
            assert_eq!(config.validate().unwrap_err().field, field);
        }
    }

    #[test]
    fn at_least_two_are_elite_and_never_all() {
        let of = |elite| CrossEntropyConfig { population: 4, elite, ..CrossEntropyConfig::default() }.num_elite();
        assert_eq!([0.01, 0.5, 0.99].map(of), [2, 2, 3]);
    }
}
