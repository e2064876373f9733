//! Clocks that training draws from, so that a policy does not learn what one clock happens to say (domain randomisation: Tobin et
//! al. 2017).

use std::fmt;

use kvtide_envs::cost::CostModel;
use kvtide_envs::seed;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

use super::ExperimentError;
use crate::world::{MAX_CLOCK_DRAWS, World};

/// Clocks of `true`: as many as make the next one no surprise, and few enough to be made at once.
const USUAL: u32 = 64;

/// How many clocks episodes are drawn from: `true` for 64, or their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockDraws {
    /// As many as there usually are, or none but the profile's own.
    Switch(bool),
    /// So many.
    Count(u32),
}

impl ClockDraws {
    /// How many.
    pub fn count(self) -> u32 {
        match self {
            ClockDraws::Switch(is_on) => {
                if is_on {
                    USUAL
                } else {
                    0
                }
            }
            ClockDraws::Count(count) => count,
        }
    }

    pub(super) fn validate(self) -> Result<(), ExperimentError> {
        match self {
            ClockDraws::Count(count) if !(1..=MAX_CLOCK_DRAWS).contains(&count) => Err(ExperimentError::Range {
                field: "episodes.clock_spread",
                value: count.to_string(),
                expected: "true, false, or 1 to 1000 clocks",
            }),
            _ => Ok(()),
        }
    }

    /// Prices of steps by each of them. Nobody is judged by these: they are drawn under a seed of the training's own.
    pub(super) fn costs(self, world: &World, seed: u64) -> Vec<CostModel> {
        let seed = seed::derive(seed, "training.clocks", 0);
        (1..=u64::from(self.count())).map(|draw| world.drawn_cost(seed, draw)).collect()
    }
}

impl Serialize for ClockDraws {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            ClockDraws::Switch(is_on) => to.serialize_bool(*is_on),
            ClockDraws::Count(count) => to.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for ClockDraws {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ClockDraws, D::Error> {
        struct Either;

        impl Visitor<'_> for Either {
            type Value = ClockDraws;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("true, false, or 1 to 1000 clocks")
            }

            fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<ClockDraws, E> {
                Ok(ClockDraws::Switch(is_on))
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<ClockDraws, E> {
                let count =
                    u32::try_from(count).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(count), &self))?;
                Ok(ClockDraws::Count(count))
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<ClockDraws, E> {
                let unsigned =
                    u64::try_from(count).map_err(|_| E::invalid_value(de::Unexpected::Signed(count), &self))?;
                self.visit_u64(unsigned)
            }
        }

        from.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvtide_envs::env::{EnvConfig, ResetOptions};

    use super::super::Experiment;

    fn parsed(clock_spread: &str) -> Result<Experiment, String> {
        Experiment::parse(&format!(
            "name = \"clocks\"\nprofile = \"full\"\n[world]\nworkload = \"chat:rate=1,n=99\"\n[episodes]\nfit = 0.8\n\
             length_s = 9.0\nload = [1.0, 1.0]\n{clock_spread}\n[validation]\n"
        ))
    }

    fn configs(experiment: &Experiment) -> [Arc<EnvConfig>; 2] {
        let world = experiment.world.world().unwrap();
        [experiment.env_config(&world).unwrap(), experiment.validation_config(&world).unwrap().unwrap()]
    }

    #[test]
    fn training_draws_clocks_and_choosing_does_not() {
        let experiment = parsed("clock_spread = 5").unwrap();
        let [train, validate] = configs(&experiment).map(|config| config.worlds[0].clone());
        assert_eq!((train.clocks.len(), validate.clocks.len()), (5, 0));
        assert_eq!(train.node.engine, validate.node.engine, "the node is told nothing of it");
        assert!(train.clocks.iter().all(|clock| *clock != train.node.cost));
        // Each episode has one of them, the same whenever it is played, and its traffic is what it would have been.
        let drawn = |seed: u64| train.draw(seed, &ResetOptions::default()).unwrap();
        let met = |seed: u64| train.clocks.iter().position(|clock| *clock == drawn(seed).0.cost).unwrap();
        let all: Vec<usize> = (0..60).map(met).collect();
        assert_eq!(all, (0..60).map(met).collect::<Vec<usize>>());
        assert!((0..5).all(|clock| all.contains(&clock)), "{all:?}");
        for seed in 0..9 {
            assert_eq!(drawn(seed).1.requests, validate.draw(seed, &ResetOptions::default()).unwrap().1.requests);
        }
        // Nobody is trained by the clocks that judge.
        let world = experiment.world.world().unwrap();
        for draw in 1..=5 {
            assert!(!train.clocks.contains(&world.by_clock(draw).node.cost));
        }
    }

    #[test]
    fn what_can_be_said_of_clocks() {
        let count = |text: &str| parsed(text).map(|experiment| configs(&experiment)[0].worlds[0].clocks.len());
        assert_eq!(["", "clock_spread = false", "clock_spread = true"].map(|text| count(text).unwrap()), [0, 0, 64]);
        let error = |text: &str| match parsed(text) {
            Ok(experiment) => experiment.validate().unwrap_err().to_string(),
            Err(reason) => reason,
        };
        for wrong in ["0", "1001"] {
            let said = error(&format!("clock_spread = {wrong}"));
            assert_eq!(said, format!("episodes.clock_spread = {wrong}: expected true, false, or 1 to 1000 clocks"));
        }
        for wrong in ["-1", "0.5", "\"yes\""] {
            let said = error(&format!("clock_spread = {wrong}"));
            assert!(said.starts_with("line 9: clock_spread: ") && said.contains("1 to 1000 clocks"), "{said}");
        }
        // A file that does not say it is written as before.
        assert!(!parsed("").unwrap().to_toml().contains("clock_spread"));
        for said in ["clock_spread = true", "clock_spread = 7"] {
            assert!(parsed(said).unwrap().to_toml().contains(said));
        }
    }
}
