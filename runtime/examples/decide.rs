//! One decision of a table from a file, and why.
//!
//! `cargo run -p kvtide-runtime --example decide -- checkpoints/chat-24g/policy.kvt`

use std::env;
use std::error::Error;
use std::fs;

use kvtide_runtime::{ActionMask, FEATURES, Feature, Host, Observation, Policy, Table};

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).ok_or("which table? Give the path of a .kvt file")?;
    let bytes = fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let table = Table::parse(&bytes).map_err(|error| format!("{path}: {error}"))?;
    // Refused here, by name, rather than by a guard that falls back for good.
    Host::VLLM.check(&table, true, 0.1).map_err(|unfit| format!("{path}: {unfit}"))?;
    println!("{} leaves, profile {}", table.leaves(), table.profile().name());

    // A pool nearly full, and somebody who has waited for half of the target.
    let mut observation = Observation::ZERO;
    observation.set(Feature::FreeFraction, 0.03);
    observation.set(Feature::OldestWait, 0.5);
    for (feature, comparison) in table.path(&observation) {
        let relation = if comparison.went_right { ">" } else { "<=" };
        println!("{} {} {relation} {}", FEATURES[feature as usize].name, comparison.value, comparison.threshold);
    }
    println!("{:?}", table.decide(&observation, ActionMask::ALL).controls());
    Ok(())
}
