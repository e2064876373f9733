//! Random play on the environments that agents train on. `python/tests/test_gym.py` plays the same from Python.

use std::fs;
use std::path::Path;

use kvtide::experiment::Experiment;
use kvtide_envs::env::{VecEnv, random_play};
use serde_json::Value;

#[test]
fn random_play_is_what_it_was() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/tests");
    let experiment = Experiment::load(&folder.join("trajectory.toml")).unwrap();
    let config = experiment.env_config(&experiment.world.world().unwrap()).unwrap();
    let kept: Value = serde_json::from_str(&fs::read_to_string(folder.join("trajectory.json")).unwrap()).unwrap();
    let number = |name: &str| kept[name].as_u64().unwrap();
    let mut envs = VecEnv::new(&config, number("num_envs") as usize).unwrap();
    let played = random_play(&mut envs, number("seed"), number("decisions") as usize);
    assert_eq!(format!("{:016x}", played.digest()), kept["digest"]);
}
