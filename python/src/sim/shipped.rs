//! The scenarios of the checkpoints that ship.

use std::path::Path;

use kvtide::experiment::{Also, Episodes, Experiment};
use kvtide::world::{WorldSpec, Written};
use kvtide_envs::workload::SyntheticSpec;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// A scenario by name, the experiment it is, and what its main traffic is like where that is recorded and not to be had.
struct Shipped {
    name: &'static str,
    toml: &'static str,
    stand_in: Option<StandIn>,
}

/// A generator, and the loads at which the engine's default attains about 95 to 40 % of it.
struct StandIn {
    workload: &'static str,
    load: (f64, f64),
}

macro_rules! shipped {
    ($name:literal, $stand_in:expr) => {
        Shipped {
            name: $name,
            toml: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../experiments/", $name, ".toml")),
            stand_in: $stand_in,
        }
    };
}

/// Mean and 95th percentile of the lengths, and the rate, that `kvtide trace stats` finds in Mooncake's published
/// conversations; nothing of it is shared between requests, as there.
const LONG_CONVERSATIONS: StandIn = StandIn {
    workload: "lognormal:rate=3.26,duration=2400,in=12449,in_p95=40537,out=348,out_p95=713",
    load: (0.23, 0.42),
};

static SHIPPED: [Shipped; 8] = [
    shipped!("agentic", None),
    shipped!("chat-24g", None),
    shipped!("chat-80g", Some(LONG_CONVERSATIONS)),
    shipped!("reasoning", None),
    shipped!("reasoning-core", None),
    shipped!("reasoning-sglang", None),
    shipped!("reasoning-tier", None),
    shipped!("reasoning-watermark", None),
];

/// Their names.
pub fn names(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    PyTuple::new(py, SHIPPED.iter().map(|shipped| shipped.name))
}

/// The experiment called `name`, its recorded traffic in the folder `traces` or left out.
pub fn experiment(name: &str, traces: Option<&Path>) -> Result<Experiment, String> {
    let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name) else {
        let names: Vec<&str> = SHIPPED.iter().map(|shipped| shipped.name).collect();
        return Err(format!("no scenario {name:?}; there are {}", names.join(", ")));
    };
    let mut experiment = Experiment::parse(shipped.toml).map_err(|error| format!("{name}: {error}"))?;
    match traces {
        Some(folder) => {
            recorded_in(&mut experiment.world, folder);
            experiment.also.iter_mut().for_each(|also| recorded_in(&mut also.world, folder));
        }
        None => leave_out_recorded(&mut experiment, shipped.stand_in.as_ref())?,
    }
    Ok(experiment)
}

fn recorded_in(world: &mut WorldSpec, folder: &Path) {
    world.trace = world.trace.take().map(|trace| folder.join(trace.file_name().unwrap_or_default()));
}

fn leave_out_recorded(experiment: &mut Experiment, stand_in: Option<&StandIn>) -> Result<(), String> {
    if let (Some(_), Some(stand_in)) = (&experiment.world.trace, stand_in) {
        let workload = stand_in.workload.parse::<Written<SyntheticSpec>>();
        let workload = workload.map_err(|error| format!("{}: {error}", stand_in.workload))?;
        let world = WorldSpec { trace: None, jitter: None, workload: Some(workload), ..experiment.world.clone() };
        experiment.world = world;
        experiment.episodes = Episodes { fit: 1.0, load: stand_in.load, ..experiment.episodes.clone() };
    }
    experiment.also.retain(|also| also.world.trace.is_none());
    if experiment.world.trace.is_some() {
        if experiment.also.is_empty() {
            return Err(format!("{} has recorded traffic alone; give the folder it is in", experiment.name));
        }
        let Also { world, episodes } = experiment.also.remove(0);
        (experiment.world, experiment.episodes) = (world, episodes);
    }
    Ok(())
}
