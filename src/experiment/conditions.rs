//! What the policies of an experiment get used to: where a world differs from all of it, results may too.

use std::collections::BTreeMap;

use kvtide_envs::sched::Slo;

use super::{Episodes, Experiment, ExperimentError};
use crate::world::{World, WorldError};

/// Between the conditions of several worlds.
const SEPARATOR: &str = "; ";

/// Whether a policy whose worlds had these `conditions`, as [`Experiment::conditions`] writes them, was trained with `value`.
pub fn met_in_training(conditions: &str, value: &str) -> bool {
    conditions.split(SEPARATOR).any(|known| known == value)
}

impl Experiment {
    /// What its policies get used to, by name: [`World::conditions`] of each of its worlds, every value once; see
    /// [`met_in_training`]. `world` is the first of its worlds.
    ///
    /// # Errors
    /// A further world cannot be set up.
    pub fn conditions(&self, world: &World) -> Result<BTreeMap<String, String>, ExperimentError> {
        let mut met: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut meet = |world: &World, episodes: &Episodes| -> Result<(), ExperimentError> {
            for (key, own) in world.conditions() {
                let values = if key == "slo" && !episodes.slos.is_empty() { episodes.slos()? } else { vec![own] };
                let known = met.entry(key.to_owned()).or_default();
                for value in values {
                    if !known.contains(&value) {
                        known.push(value);
                    }
                }
            }
            Ok(())
        };
        meet(world, &self.episodes)?;
        for also in &self.also {
            // Decisions are taken as in the first world.
            meet(&World { decision_interval: world.decision_interval, ..also.world.world()? }, &also.episodes)?;
        }
        Ok(met.into_iter().map(|(key, values)| (key, values.join(SEPARATOR))).collect())
    }
}

impl Experiment {
    /// The clocks that its worlds drew from, in words; `None` if none of them did. `world` is the first.
    ///
    /// # Errors
    /// A further world cannot be set up.
    pub fn clocks(&self, world: &World) -> Result<Option<String>, ExperimentError> {
        let mut told: Vec<String> = Vec::new();
        let mut tell = |world: &World, episodes: &Episodes| {
            if episodes.clocks() > 0 {
                let text = format!("{} {}", episodes.clocks(), world.spread_text());
                told.extend((!told.contains(&text)).then_some(text));
            }
        };
        tell(world, &self.episodes);
        for also in self.also.iter().filter(|also| also.episodes.clocks() > 0) {
            tell(&also.world.world()?, &also.episodes);
        }
        Ok((!told.is_empty()).then(|| told.join(SEPARATOR)))
    }
}

impl Episodes {
    /// The targets that are drawn from, as results name them.
    fn slos(&self) -> Result<Vec<String>, ExperimentError> {
        let named = |slo: &String| Ok(slo.parse::<Slo>().map_err(WorldError::from)?.to_string());
        self.slos.iter().map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conditions_are_those_of_every_world() {
        let text = "name = \"two\"\nprofile = \"full\"\n[world]\nworkload = \"chat:rate=1,n=9\"\nenv = \"llama-3-8b@h100\"\n\
                    [episodes]\nfit = 0.8\nlength_s = 60.0\nload = [0.5, 1.0]\n\
                    [[also]]\n[also.world]\nworkload = \"chat:rate=1,n=9\"\nenv = \"llama-3-8b@rtx-4090\"\ninterval = 4\n\
                    [also.episodes]\nfit = 0.8\nlength_s = 60.0\nload = [0.5, 1.0]\nslos = [\"chat\", \"agent\"]\n";
        let experiment = Experiment::parse(text).unwrap();
        let conditions = experiment.conditions(&experiment.world.world().unwrap()).unwrap();
        assert_eq!(conditions["env"], "llama-3-8b@h100; llama-3-8b@rtx-4090");
        assert_eq!((conditions["engine"].as_str(), conditions["host"].as_str()), ("v1", "vllm-0.33"));
        assert_eq!(conditions["interval"], "8");
        for class in ["chat", "agent"] {
            assert!(met_in_training(&conditions["slo"], &class.parse::<Slo>().unwrap().to_string()), "{conditions:?}");
        }
        assert!(met_in_training(&conditions["slo"], &experiment.world.slo.to_string()));
        assert!(met_in_training(&conditions["env"], "llama-3-8b@rtx-4090"));
        assert!(!met_in_training(&conditions["env"], "llama-3-8b@a10") && !met_in_training("h100", "h"));
    }
}
