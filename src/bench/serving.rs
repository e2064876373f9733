//! Whole workloads served to their end under the engine's default.

use kvtide_envs::deploy::{ConfigError, EngineKind};
use kvtide_envs::env::{EngineDefault, Node, NodeConfig, run};
use kvtide_envs::metrics::Collector;
use kvtide_envs::workload::Workload;

use super::{Throughput, seconds};
use crate::world::World;

/// Requests a second of `workload` on one core: `world`'s V1 with and without prefix cache, and V0.
///
/// # Errors
/// A setting the scheduler cannot work with.
pub fn requests(
    world: &World,
    workload: &Workload,
    repeats: usize,
    each: &mut dyn FnMut(Throughput),
) -> Result<(), ConfigError> {
    let v1 = world.deployment.engine(EngineKind::V1);
    let mut uncached = v1.clone();
    uncached.enable_prefix_caching = false;
    let engines = [("v0", world.deployment.engine(EngineKind::V0)), ("v1, no prefix cache", uncached), ("v1", v1)];
    for (name, engine) in engines {
        let config = NodeConfig { engine, ..world.node.clone() };
        Node::new(&config, workload.share(), Collector::default())?;
        let serve = || {
            let mut node = Node::new(&config, workload.share(), Collector::default()).expect("it worked above");
            run(&mut node, &mut EngineDefault, 8)
        };
        let seconds: Vec<f64> = (0..repeats).map(|_| seconds(serve)).collect();
        let case = format!("{name}, {} on {}", workload.name(), world.deployment.name());
        each(Throughput::rate("requests", case, "requests/s", workload.requests().len() as u64, &seconds));
    }
    Ok(())
}
