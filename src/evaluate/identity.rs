//! What runs are of: whatever their numbers depend on, by name.

use std::collections::BTreeMap;

use kvtide_envs::memory::MemorySource;
use kvtide_envs::workload::WorkloadSource;
use serde_json::Value;

use super::matrix::window_name;
use super::training::TrainedOnError;
use crate::checkpoint;
use crate::export;
use crate::policy::{PolicyName, PolicySpec};
use crate::world::World;
use kvtide_envs::workload::Window;

/// Everything the runs of `policies` in `world` depend on, by name, as text: equal for equal runs. Files are in it by what they
/// hold.
///
/// # Errors
/// A policy's file cannot be read.
pub fn identity(
    world: &World,
    policies: &[PolicyName],
    windows: &[Option<Window>],
    seeds: &[u64],
) -> Result<BTreeMap<String, String>, TrainedOnError> {
    let mut of: BTreeMap<String, String> =
        world.conditions().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let mut say = |key: &str, value: String| drop(of.insert(key.to_owned(), value));
    let commit = option_env!("KVTIDE_COMMIT").unwrap_or("of an unknown commit");
    say("kvtide", format!("{} {commit}", env!("CARGO_PKG_VERSION")));
    say("trace", world.trace.clone());
    say("traffic", world.fingerprint().unwrap_or_else(|| "generated".to_owned()));
    match &world.source {
        WorkloadSource::Replay { replay, .. }
        | WorkloadSource::Clients { replay, .. }
        | WorkloadSource::Rates { replay, .. } => {
            say("replay", format!("{replay:?}"));
        }
        WorkloadSource::Synthetic(_) => {}
    }
    say("clients", world.node.clients.map_or_else(|| "none".to_owned(), |clients| clients.to_string()));
    let memory = match &world.memory {
        MemorySource::Modelled => "modelled".to_owned(),
        MemorySource::Host { token_bytes } => format!("host:{token_bytes}"),
        MemorySource::Lent(_) => "a device".to_owned(),
    };
    say("memory", memory);
    // Of a profile that was changed, the name is the same.
    say("hardware", digest(format!("{:?} {:?}", world.deployment, world.node.cost).as_bytes()));
    if let Ok(Value::Object(settings)) = serde_json::to_value(&world.node.engine) {
        settings.into_iter().for_each(|(key, value)| say(&format!("setting {key}"), value.to_string()));
    }
    let windows: Vec<String> = windows.iter().map(|window| window_name(*window)).collect();
    say("windows", windows.join(","));
    say("seeds", seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(","));
    say("policies", policies.iter().map(PolicyName::to_string).collect::<Vec<_>>().join(" "));
    for policy in policies {
        if let Some(held) = held(policy.spec())? {
            say(&format!("the file of {policy}"), held);
        }
    }
    Ok(of)
}

/// A digest of what a policy is read from; `None` of one that is not.
fn held(policy: &PolicySpec) -> Result<Option<String>, TrainedOnError> {
    Ok(match policy.of_heads() {
        PolicySpec::Table(path) => Some(digest(&export::load(path)?)),
        // It lists the digests of its files.
        PolicySpec::Checkpoint(path) => {
            Some(digest(&serde_json::to_vec(&checkpoint::inspect(path)?).unwrap_or_default()))
        }
        _ => None,
    })
}

fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}
