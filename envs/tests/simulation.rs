//! Worlds drawn from seeds, run under random controls with every step checked: the safe engine never loses a block, a
//! request or its way.
//!
//! `KVTIDE_SIM_SEEDS=a..b` runs other seeds.

use crate::common::sim::World;
use crate::common::{chunked, engine};
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::sched::Slo;
use kvtide_envs::time::Micros;
use rayon::prelude::*;

/// Seeds of the environment variable, or the usual ones.
fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("KVTIDE_SIM_SEEDS") else { return usual };
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.unwrap_or_else(|| panic!("KVTIDE_SIM_SEEDS is {text:?}; give a range of seeds, as in 0..200"))
}

#[track_caller]
fn run_twice(world: &World, seed: u64) -> Result<(), String> {
    let first = world.run(seed)?;
    if world.run(seed)? == first { Ok(()) } else { Err("the second run is another one".to_owned()) }
}

#[test]
fn every_seed_ends_well() {
    seeds(0..200).into_par_iter().for_each(|seed| {
        let world = World::draw(seed);
        if let Err(wrong) = run_twice(&world, seed) {
            panic!(
                "seed {seed}: {wrong}\n{:?}\nreplay with: KVTIDE_SIM_SEEDS={seed}..{} cargo test -p kvtide-envs --test all \
                 simulation::every_seed",
                world.engine,
                seed + 1
            );
        }
    });
}

/// The same settings under many controls and three kinds of traffic.
#[track_caller]
fn survives(engine: &EngineConfig) {
    let longest = engine.max_model_len;
    let mixes: [&[(u32, u32)]; 3] = [
        &[(longest, longest), (1, longest)],
        &[(longest, 1), (longest, 5), (longest + 1, 1)],
        &[(1, 3), (longest / 2 + 1, 9)],
    ];
    for (index, mix) in mixes.into_iter().enumerate() {
        let request = |at: u64| {
            let (prompt, output) = mix[at as usize % mix.len()];
            (Micros(at * 7000), prompt, output, Slo::from_millis(300, 40, 400))
        };
        let requests: Vec<_> = (0..12).map(request).collect();
        for seed in 0..20 {
            let world = World {
                engine: engine.clone(),
                requests: requests.clone(),
                fickle: [0.0, 0.3, 1.0][seed as usize % 3],
            };
            if let Err(wrong) = run_twice(&world, seed) {
                panic!("mix {index}, seed {seed}: {wrong}\n{engine:?}");
            }
        }
    }
}

#[test]
fn a_pool_of_one_block() {
    for block_size in [1, 4] {
        for host in [0, 1, 2] {
            survives(&engine(block_size, 1, host));
            survives(&chunked(engine(block_size, 1, host), 1));
        }
    }
}

#[test]
fn blocks_of_one_token() {
    survives(&engine(1, 9, 5));
    survives(&chunked(engine(1, 9, 9), 4));
}

#[test]
fn a_batch_of_one() {
    let one = EngineConfig { max_num_seqs: 1, ..engine(4, 6, 6) };
    survives(&one);
    survives(&chunked(one, 5));
}

#[test]
fn a_budget_of_one_token() {
    for host in [0, 1, 8] {
        survives(&chunked(engine(4, 5, host), 1));
    }
}

#[test]
fn sequences_of_one_token() {
    survives(&EngineConfig { max_model_len: 1, ..engine(4, 3, 3) });
    survives(&EngineConfig { max_model_len: 1, ..chunked(engine(4, 3, 3), 1) });
}

#[test]
fn no_host_and_hardly_any_host() {
    for host in [0, 1, 2, 3] {
        survives(&engine(2, 8, host));
        survives(&chunked(engine(2, 8, host), 3));
    }
}

#[test]
fn a_batch_far_above_the_budget() {
    survives(&EngineConfig { max_num_seqs: 64, max_model_len: 4, max_num_batched_tokens: 4, ..engine(1, 20, 20) });
}
