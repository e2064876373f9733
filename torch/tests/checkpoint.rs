//! Checkpoints: going on as if never stopped, and refusing what is not whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::toys::{Bandit, CartPole, Serving, Toy, Toys};
use kvtide::agent::{NetworkPolicy, PpoConfig, Trainer};
use kvtide::checkpoint::{self, CheckpointError, RunProvenance};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Feature, Head, Observation, Policy};
use kvtide_torch::Torch;
use tempfile::TempDir;

const FILES: [&str; 6] =
    ["manifest.b3", "manifest.json", "normaliser.json", "optimiser.safetensors", "trainer.json", "weights.safetensors"];

fn config() -> PpoConfig {
    PpoConfig { total_decisions: 4 * 16 * 8, num_steps: 16, hidden: vec![16], ..PpoConfig::default() }
}

fn provenance() -> RunProvenance {
    RunProvenance {
        profile: ActionProfile::Core,
        commit: Some("0123abc".to_owned()),
        experiment: "[workload]\nprofile = \"toy\"\n".to_owned(),
        metadata: BTreeMap::from([("machine".to_owned(), "test".to_owned())]),
    }
}

fn trained<T: Toy + 'static>(iterations: usize) -> Trainer {
    let mut trainer = Trainer::new(config(), Toys::<T>::boxed(4), &Torch).unwrap();
    for _ in 0..iterations {
        trainer.iterate().unwrap();
    }
    trainer
}

fn saved<T: Toy + 'static>(iterations: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    checkpoint::save(&path, &trained::<T>(iterations).state(), &provenance()).unwrap();
    (folder, path)
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in entries(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

/// Changes the manifest and seals it again, as someone would who knows how.
fn forge(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path.join("manifest.json")).unwrap();
    assert!(text.contains(from), "{text}");
    let text = text.replacen(from, to, 1);
    fs::write(path.join("manifest.b3"), format!("{}  manifest.json\n", blake3::hash(text.as_bytes()))).unwrap();
    fs::write(path.join("manifest.json"), text).unwrap();
}

#[test]
fn a_resumed_run_is_byte_for_byte_the_one_that_never_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, half) = (folder.path().join("whole"), folder.path().join("half"));
    let mut uninterrupted = trained::<CartPole>(3);
    checkpoint::save(&half, &uninterrupted.state(), &provenance()).unwrap();
    for _ in 0..3 {
        uninterrupted.iterate().unwrap();
    }
    checkpoint::save(&whole, &uninterrupted.state(), &provenance()).unwrap();

    let (mut resumed, manifest) = checkpoint::load_trainer(&half, Toys::<CartPole>::boxed(4), &Torch).unwrap();
    assert_eq!((manifest.iteration, manifest.decisions, manifest.seed), (3, 3 * 64, 1));
    for _ in 0..3 {
        resumed.iterate().unwrap();
    }
    checkpoint::save(&half, &resumed.state(), &manifest.provenance().unwrap()).unwrap();
    assert_eq!(entries(&half), FILES);
    for name in FILES {
        assert_eq!(fs::read(whole.join(name)).unwrap(), fs::read(half.join(name)).unwrap(), "{name}");
    }
}

#[test]
fn what_is_loaded_is_what_was_saved() {
    let trainer = trained::<CartPole>(2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deep/er/checkpoint");
    checkpoint::save(&path, &trainer.state(), &provenance()).unwrap();
    let loaded = checkpoint::load(&path).unwrap();
    assert_eq!(loaded.state, trainer.state());
    assert_eq!(loaded.manifest.provenance().unwrap(), provenance());
    assert_eq!(loaded.manifest, checkpoint::inspect(&path).unwrap());
    assert_eq!(loaded.path, path);
}

#[test]
fn a_flipped_bit_anywhere_is_named() {
    let (_folder, path) = saved::<CartPole>(1);
    for name in FILES {
        let file = path.join(name);
        let sound = fs::read(&file).unwrap();
        for at in (0..sound.len()).step_by(sound.len() / 7 + 1).chain([sound.len() - 1]) {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            fs::write(&file, bytes).unwrap();
            let error = checkpoint::load(&path).unwrap_err();
            let blamed = if name == "manifest.b3" { "manifest.json" } else { name };
            match &error {
                CheckpointError::Digest { path, .. } => assert!(path.ends_with(blamed), "{name} at {at}: {error}"),
                _ => panic!("{name} at {at}: {error}"),
            }
        }
        fs::write(&file, &sound).unwrap();
    }
    checkpoint::load(&path).unwrap();
}

#[test]
fn a_missing_or_shortened_file_is_named() {
    let (folder, path) = saved::<CartPole>(1);
    for name in FILES {
        let file = path.join(name);
        let sound = fs::read(&file).unwrap();
        fs::write(&file, &sound[..sound.len() / 2]).unwrap();
        assert!(matches!(checkpoint::load(&path).unwrap_err(), CheckpointError::Digest { .. }), "{name}");
        fs::remove_file(&file).unwrap();
        let error = checkpoint::load(&path).unwrap_err();
        assert!(matches!(&error, CheckpointError::Read { path, .. } if path.ends_with(name)), "{error}");
        fs::write(&file, sound).unwrap();
    }
    let error = checkpoint::load(&folder.path().join("nothing")).unwrap_err();
    assert!(matches!(error, CheckpointError::NotFound { .. }), "{error}");
}

#[test]
fn a_sealed_manifest_of_something_else_is_refused() {
    let refusal = |from: &str, to: &str| {
        let (_folder, path) = saved::<CartPole>(1);
        forge(&path, from, to);
        checkpoint::load(&path).unwrap_err()
    };
    let schema = format!("{:016x}", kvtide_runtime::SCHEMA_HASH);
    let error = refusal(&schema, "00000000deadbeef");
    assert!(matches!(error, CheckpointError::Schema { what: "schema_hash", .. }), "{error}");
    assert!(error.to_string().contains("00000000deadbeef") && error.to_string().contains(&schema), "{error}");
    let actions = format!("{:016x}", kvtide_runtime::ACTION_SET_HASH);
    let error = refusal(&actions, "00000000deadbeef");
    assert!(matches!(error, CheckpointError::Schema { what: "action_set_hash", .. }), "{error}");
    let error = refusal("\"format_version\": 1", "\"format_version\": 2");
    assert!(matches!(error, CheckpointError::FormatVersion { found: 2, supported: 1, .. }), "{error}");
    let error = refusal("\"core\"", "\"corn\"");
    assert!(matches!(error, CheckpointError::Profile { .. }), "{error}");
    let error = refusal("\"gamma\": 0.99", "\"gamma\": 1.99");
    assert!(matches!(error, CheckpointError::Config { .. }), "{error}");
    let error = refusal("\"gamma\": 0.99", "\"gamma\": 0.98");
    assert!(matches!(error, CheckpointError::Inconsistent { .. }), "{error}");
    let error = refusal("\"trainer.json\"", "\"../trainer.json\"");
    assert!(matches!(error, CheckpointError::UnknownFile { .. }), "{error}");
    let error = refusal("\"iteration\": 1", "\"iteration\": 2");
    assert!(matches!(error, CheckpointError::Inconsistent { .. }), "{error}");
    let error = refusal("\"observation_size\": 4", "\"observation_size\": 5");
    assert!(matches!(error, CheckpointError::Tensor { .. }), "{error}");
    let error = refusal("\"commit\"", "\"comet\"");
    assert!(matches!(error, CheckpointError::Json { .. }), "{error}");
}

#[test]
fn whenever_replacing_stops_one_whole_checkpoint_is_found() {
    let (folder, path) = saved::<CartPole>(1);
    let [new, old] = ["checkpoint.new.tmp", "checkpoint.old.tmp"].map(|name| folder.path().join(name));
    let newer = trained::<CartPole>(2).state();
    let found = || checkpoint::load(&path).unwrap().state.iteration;

    // Stopped while writing: the one in place counts.
    fs::create_dir(&new).unwrap();
    fs::write(new.join("weights.safetensors"), b"half").unwrap();
    assert_eq!(found(), 1);

    // Stopped before the old one was put aside.
    fs::remove_dir_all(&new).unwrap();
    checkpoint::save(&new, &newer, &provenance()).unwrap();
    assert_eq!(found(), 1);

    // Stopped between the renames: both neighbours are whole, the newer counts.
    fs::rename(&path, &old).unwrap();
    assert_eq!(found(), 2);
    assert_eq!(checkpoint::load(&path).unwrap().path, new);

    // Should the newer be damaged, the older counts.
    fs::write(new.join("trainer.json"), b"{}").unwrap();
    assert_eq!(found(), 1);

    // The next save puts things in order, whatever it finds.
    checkpoint::save(&path, &newer, &provenance()).unwrap();
    assert_eq!(found(), 2);
    assert_eq!(entries(folder.path()), ["checkpoint"]);
}

#[test]
fn nothing_is_deleted_before_something_whole_is_in_place() {
    let (folder, path) = saved::<CartPole>(1);
    let old = folder.path().join("checkpoint.old.tmp");
    fs::rename(&path, &old).unwrap();
    // Saving fails half way: a file stands where the new folder would be written.
    let new = folder.path().join("checkpoint.new.tmp");
    fs::write(&new, b"in the way").unwrap();
    let error = checkpoint::save(&path, &trained::<CartPole>(2).state(), &provenance()).unwrap_err();
    assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
    assert_eq!(checkpoint::load(&path).unwrap().state.iteration, 1);
}

#[test]
fn a_checkpoint_to_decide_with_decides_and_cannot_be_resumed() {
    let (folder, full) = saved::<Serving>(3);
    let slim = folder.path().join("slim");
    let state = checkpoint::load(&full).unwrap().state;
    checkpoint::save_policy(&slim, &state, &provenance()).unwrap();
    fs::write(slim.join("README.md"), "A model card.").unwrap();
    let error = checkpoint::load(&slim).unwrap_err();
    assert!(matches!(&error, CheckpointError::NotListed { name, .. } if name == "optimiser.safetensors"), "{error}");

    let policies = [&full, &slim].map(|path| checkpoint::load_policy(path).unwrap());
    let direct =
        NetworkPolicy::new(&state.weights, state.normalisers.observation.as_ref(), ActionProfile::Core).unwrap();
    for step in 0..100 {
        let observation =
            Observation { values: std::array::from_fn(|feature| ((step * 7 + feature * 13) % 29) as f32 / 29.0) };
        let mask = ActionMask::ALL.forbid(Head::Watermark, (step % 12) as u8);
        for policy in &policies {
            assert_eq!(policy.decide(&observation, mask), direct.decide(&observation, mask));
            assert_eq!(policy.logits(&observation, mask), direct.logits(&observation, mask));
            assert_eq!(policy.value(&observation), direct.value(&observation));
        }
        assert_eq!(direct.decide(&observation, mask).get(Head::Admission), Action::ENGINE_DEFAULT.get(Head::Admission));
    }
}

#[test]
fn another_environment_is_refused() {
    let (_folder, path) = saved::<CartPole>(1);
    for env in [Toys::<Bandit>::boxed(4), Toys::<CartPole>::boxed(8)] {
        let error = checkpoint::load_trainer(&path, env, &Torch).err().unwrap();
        assert!(matches!(error, CheckpointError::Agent { .. }), "{error}");
    }
    let error = checkpoint::load_policy(&path).unwrap_err();
    assert!(error.to_string().contains("4 features"), "{error}");
}

#[test]
fn copies_are_checkpoints() {
    let (folder, path) = saved::<CartPole>(1);
    let elsewhere = folder.path().join("elsewhere");
    copy(&path, &elsewhere);
    assert_eq!(checkpoint::load(&elsewhere).unwrap().state, checkpoint::load(&path).unwrap().state);
}

/// What ships must be of this build: a change of schema or action set asks for training again.
#[test]
fn every_checkpoint_that_ships_decides_and_so_does_its_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoints");
    let mut found = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let manifest = checkpoint::inspect(&path).unwrap();
        let table = kvtide::export::load_table(&path.join("policy.kvt")).unwrap();
        // A network is of one edition; a table outlives it.
        let policy = match checkpoint::load_policy(&path) {
            Err(CheckpointError::Schema { .. }) if !table.edition().is_today() => None,
            policy => Some(policy.unwrap()),
        };
        assert_eq!(table.profile().name(), manifest.profile, "{name}");
        let value = |key: &str| table.metadata().find(|(found, _)| *found == key).map(|(_, value)| value.to_owned());
        assert_eq!(value("experiment").as_deref(), Some(name.as_str()));
        // It was made from these weights, not from those before.
        assert_eq!(value("checkpoint"), Some(manifest.files["weights.safetensors"].blake3.clone()), "{name}");
        assert!(value("loss.points").is_some(), "{name}");
        // Heads outside the profile are the engine's, whatever is observed.
        let middle = |feature: Feature| f32::midpoint(table.range(feature).min, table.range(feature).max);
        let observation = Observation { values: Feature::ALL.map(middle) };
        let mask = table.profile().restrict(ActionMask::ALL, Action::V1_DEFAULT);
        for action in
            policy.iter().map(|policy| policy.decide(&observation, mask)).chain([table.decide(&observation, mask)])
        {
            assert_eq!(mask.repair(action), action, "{name}");
        }
        assert!(path.join("README.md").exists(), "{name} has no model card");
        found += 1;
    }
    assert!(found >= 5, "{found}");
}
