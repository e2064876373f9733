//! What the policies of an experiment get used to: where a world differs from all of it, results may too.

use std::collections::BTreeMap;
use std::iter;

use kvtide_envs::deploy::{ClockKind, hardware_of, without_clock};
use kvtide_envs::sched::Slo;

use super::{Episodes, Experiment, ExperimentError};
use crate::world::{World, WorldError};

/// Between the conditions of several worlds.
const SEPARATOR: &str = "; ";

/// What names the deployments of an experiment whose kernels were measured by shape, or are a relative's that were.
const TABLED: &str = "kernels";

/// Whether a policy whose worlds had these `conditions` of that name, as [`Experiment::conditions`] writes them, was trained with
/// `value`. A card is the same one however its clock is known.
pub fn met_in_training(key: &str, conditions: &str, value: &str) -> bool {
    let plain = |value| if key == "env" { without_clock(value) } else { value };
    conditions.split(SEPARATOR).any(|known| plain(known) == plain(value))
}

impl Experiment {
    /// What was meant when a policy that says `metadata` of itself was trained: before kernels were measured, the plain name of a
    /// card was its data sheet.
    #[must_use]
    pub fn as_sealed(mut self, metadata: &BTreeMap<String, String>) -> Experiment {
        if metadata.contains_key(TABLED) {
            return self;
        }
        for world in iter::once(&mut self.world).chain(self.also.iter_mut().map(|also| &mut also.world)) {
            if let Some(sheet) = world.env.by_data_sheet() {
                world.env = sheet.into();
            }
        }
        self
    }
}

/// What steps of `deployment`, named without its clock, rested on in the worlds of a policy that says `metadata` of itself; `None`
/// where that is not known of all of them, as of a profile's file.
pub fn clocks_met_in_training(metadata: &BTreeMap<String, String>, deployment: &str) -> Option<Vec<ClockKind>> {
    let of = |key| metadata.get(key).map_or("", String::as_str).split(SEPARATOR);
    let clock = |env: &str| {
        let hardware = hardware_of(env)?;
        let is_tabled = of(TABLED).any(|tabled| tabled == env);
        // Before kernels were measured the plain name of a card was its data sheet.
        let is_older = hardware.tables.is_some() && !is_tabled;
        Some(if is_older { ClockKind::DataSheet } else { hardware.clock_kind() })
    };
    of("env").filter(|env| without_clock(env) == deployment).map(clock).collect()
}

impl Experiment {
    /// What its policies get used to, by name: [`World::conditions`] of each of its worlds, every value once, and which of them have
    /// measured kernels; see [`met_in_training`]. `world` is the first of its worlds.
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
            if world.deployment.hardware.tables.is_some() {
                let (known, name) = (met.entry(TABLED.to_owned()).or_default(), world.deployment.name());
                if !known.contains(&name) {
                    known.push(name);
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
            assert!(
                met_in_training("slo", &conditions["slo"], &class.parse::<Slo>().unwrap().to_string()),
                "{conditions:?}"
            );
        }
        assert!(met_in_training("slo", &conditions["slo"], &experiment.world.slo.to_string()));
        for same in ["rtx-4090", "rtx-4090-measured", "rtx-4090-estimated", "h100-datasheet"] {
            assert!(met_in_training("env", &conditions["env"], &format!("llama-3-8b@{same}")), "{same}");
        }
        assert!(!met_in_training("env", &conditions["env"], "llama-3-8b@2xh100-datasheet"));
        assert_eq!(conditions["kernels"], "llama-3-8b@h100");
        let clocks = |metadata, deployment| clocks_met_in_training(metadata, deployment).unwrap();
        assert_eq!(clocks(&conditions, "llama-3-8b@h100"), [ClockKind::Tables]);
        assert_eq!(clocks(&conditions, "llama-3-8b@rtx-4090"), [ClockKind::DataSheet]);
        assert_eq!(clocks(&conditions, "llama-3-8b@a10"), []);
        // What was sealed before kernels were measured says nothing of them.
        let older = BTreeMap::from([("env".to_owned(), "llama-3-8b@h100; llama-3-8b@mine".to_owned())]);
        assert_eq!(clocks(&older, "llama-3-8b@h100"), [ClockKind::DataSheet]);
        assert_eq!(clocks_met_in_training(&older, "llama-3-8b@mine"), None);
        let envs =
            |experiment: &Experiment| [&experiment.world, &experiment.also[0].world].map(|world| world.env.to_string());
        let plain = ["llama-3-8b@h100", "llama-3-8b@rtx-4090"];
        assert_eq!(envs(&experiment.clone().as_sealed(&conditions)), plain);
        let sealed = experiment.as_sealed(&older);
        assert_eq!(envs(&sealed), ["llama-3-8b@h100-datasheet", "llama-3-8b@rtx-4090"]);
        assert!(!sealed.conditions(&sealed.world.world().unwrap()).unwrap().contains_key("kernels"));
        assert!(!met_in_training("env", &conditions["env"], "llama-3-8b@a10") && !met_in_training("env", "h100", "h"));
    }
}
