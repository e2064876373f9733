//! Cross-entropy search: it finds what is known to be best, the same at any number of threads, and goes on as if it had
//! never stopped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide::agent::{
    AgentError, CrossEntropy, CrossEntropyConfig, GenerationReport, NetworkPolicy, Objective, Prior, RunOutcome,
};
use kvtide::checkpoint::{self, CheckpointError, RunProvenance};
use kvtide::experiment::Experiment;
use kvtide_envs::env::{Arena, EnvError, Episode, Served, ServingArena};
use kvtide_envs::seed;
use kvtide_runtime::action::NUM_HEADS;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head, NUM_FEATURES, Observation, Policy};
use rand::RngExt;
use rayon::ThreadPoolBuilder;
use tempfile::{TempDir, tempdir};

/// Each decision is right about the watermark if it names the level nearest to `1 + 8 x`, and about the victim if it names
/// 4 where `y` is above ½ and 1 elsewhere; both are linear in what is seen. Swap is never possible.
struct Puzzle {
    decisions: u64,
}

fn mask() -> ActionMask {
    ActionProfile::Core.restrict(ActionMask::ALL.forbid(Head::Preemption, 0), Action::V1_DEFAULT)
}

fn answer(observation: &Observation) -> (u8, u8) {
    let level = (1.0 + 8.0 * observation.values[2]).round() as u8;
    (level, if observation.values[5] > 0.5 { 4 } else { 1 })
}

impl Arena for Puzzle {
    fn play(&self, seed: u64, decide: &mut dyn FnMut(&Observation, ActionMask) -> Action) -> Result<Episode, EnvError> {
        let mut stream = seed::stream(seed, "puzzle", 0);
        let mut right = 0.0;
        for _ in 0..self.decisions {
            let observation = Observation { values: std::array::from_fn(|_| stream.random()) };
            let action = decide(&observation, mask());
            if mask().repair(action) != action {
                return Err(EnvError::Forbidden { action, mask: mask() });
            }
            let (level, victim) = answer(&observation);
            // The further off, the worse, so that there is a slope to climb.
            right += (1.0 - 0.2 * f64::from(action.get(Head::Watermark).abs_diff(level))).max(0.0)
                + f64::from(u8::from(action.get(Head::Victim) == victim));
        }
        // In fifths, so that requests can be counted.
        let (requests, on_time) = (10 * self.decisions, (5.0 * right).round() as u64);
        let served = Served { requests, on_time, ..Served::default() };
        Ok(Episode { env: 0, episode_return: right, decisions: self.decisions, served })
    }

    fn choices(&self) -> [u32; NUM_HEADS] {
        mask().words()
    }

    fn default_action(&self) -> Action {
        Action::V1_DEFAULT
    }
}

fn config() -> CrossEntropyConfig {
    CrossEntropyConfig { generations: 6, population: 12, elite: 0.25, episodes: 3, ..CrossEntropyConfig::default() }
}

fn puzzle(config: CrossEntropyConfig) -> CrossEntropy {
    CrossEntropy::new(config, None, &[], ActionProfile::Core, Box::new(Puzzle { decisions: 20 })).unwrap()
}

fn run(search: &mut CrossEntropy) -> Vec<GenerationReport> {
    let mut reports = Vec::new();
    let outcome = search.run(&AtomicBool::new(false), |_, report| {
        reports.push(report.clone());
        Ok::<(), AgentError>(())
    });
    assert_eq!(outcome, Ok(RunOutcome::Finished));
    reports
}

fn policy(search: &CrossEntropy) -> NetworkPolicy {
    let state = search.state();
    NetworkPolicy::new(&state.weights().unwrap(), Some(&state.moments), ActionProfile::Core).unwrap()
}

/// A small server under more traffic than it can bear, as an experiment says it.
fn serving() -> ServingArena {
    let experiment = Experiment::parse(
        "name = \"small\"\nprofile = \"full\"\nnum_envs = 1\n\
         [world]\nworkload = \"chat:rate=4,duration=60\"\nengine = \"v1\"\nset = [\"num_gpu_blocks=600\"]\n\
         [episodes]\nfit = 1.0\nlength_s = 15.0\nload = [0.8, 1.5]\n",
    )
    .unwrap();
    ServingArena::new(&experiment.env_config(&experiment.world.world().unwrap()).unwrap()).unwrap()
}

fn provenance() -> RunProvenance {
    let (experiment, metadata) = ("name = \"toy\"\n".to_owned(), BTreeMap::new());
    RunProvenance { profile: ActionProfile::Core, commit: None, experiment, metadata }
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn saved(generations: u64) -> (TempDir, PathBuf) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let mut search = puzzle(CrossEntropyConfig { generations, ..config() });
    run(&mut search);
    checkpoint::save_search(&path, search.state(), &provenance()).unwrap();
    (folder, path)
}

#[test]
fn what_is_known_to_be_best_is_found() {
    for objective in [Objective::Attainment, Objective::Return] {
        let config = CrossEntropyConfig {
            generations: 60,
            population: 200,
            elite: 0.1,
            initial_std: 0.6,
            episodes: 2,
            objective,
            ..CrossEntropyConfig::default()
        };
        let arena = Box::new(Puzzle { decisions: 50 });
        let mut search = CrossEntropy::new(config, None, &[], ActionProfile::Core, arena).unwrap();
        let start = policy(&search);
        let reports = run(&mut search);
        let (first, last) = (&reports[0], reports.last().unwrap());
        assert_eq!(first.mean, first.start, "the first mean is the start");
        let scale = if objective == Objective::Return { 100.0 } else { 1.0 };
        assert!(last.mean / scale > 0.9 && last.start / scale < 0.35, "{objective:?} {last:?}");
        assert!(last.best >= last.elite && last.spread < first.spread, "{last:?}");

        let found = policy(&search);
        let mut stream = seed::stream(9, "test", 0);
        let mut right = [0; 2];
        for _ in 0..1000 {
            let observation = Observation { values: std::array::from_fn(|_| stream.random()) };
            assert_eq!(start.decide(&observation, mask()), mask().repair(Action::V1_DEFAULT));
            let ((level, victim), action) = (answer(&observation), found.decide(&observation, mask()));
            right[0] += u32::from(action.get(Head::Watermark).abs_diff(level) <= 1);
            right[1] += u32::from(action.get(Head::Victim) == victim);
        }
        assert!(right[0] > 950 && right[1] > 880, "{objective:?} {right:?}");
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let config = CrossEntropyConfig { generations: 2, ..config() };
    let with = |threads| {
        let prior = Prior { choices: vec![2, 0, 1, 1, 8, 0], probability: 0.8 };
        ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
            let mut search =
                CrossEntropy::new(config.clone(), Some(prior), &[], ActionProfile::Full, Box::new(serving())).unwrap();
            (run(&mut search), search.state().clone())
        })
    };
    let one = with(1);
    assert_eq!(one, with(2));
    assert_eq!(one, with(5));
    assert!(one.0[1].episodes.iter().all(|episode| episode.decisions > 10), "{:?}", one.0[1]);
    assert!(one.0[1].best > one.0[1].elite, "no candidate differs from another: {:?}", one.0[1]);
}

#[test]
fn a_generation_that_is_given_up_changes_nothing() {
    let mut search = puzzle(config());
    let before = search.state().clone();
    let outcome = search.run(&AtomicBool::new(true), |_, _| Ok::<(), AgentError>(()));
    assert_eq!((outcome, search.state()), (Ok(RunOutcome::Interrupted), &before));

    let stop = AtomicBool::new(false);
    let outcome = search.run(&stop, |search, report| {
        assert_eq!(search.state().progress.generation, report.generation);
        stop.store(report.generation == 2, Ordering::Relaxed);
        Ok::<(), AgentError>(())
    });
    assert_eq!((outcome, search.state().progress.generation), (Ok(RunOutcome::Interrupted), 2));
}

#[test]
fn a_resumed_search_is_byte_for_byte_the_one_that_never_stopped() {
    let (_whole, whole) = saved(6);
    let folder = tempdir().unwrap();
    let half = folder.path().join("half");
    let mut search = puzzle(config());
    for _ in 0..3 {
        search.advance(&AtomicBool::new(false)).unwrap();
    }
    checkpoint::save_search(&half, search.state(), &provenance()).unwrap();

    let (state, manifest) = checkpoint::load_search(&half).unwrap();
    assert_eq!(&state, search.state());
    assert_eq!((manifest.iteration, manifest.method()), (3, "cross-entropy"));
    let arena = Box::new(Puzzle { decisions: 20 });
    let mut resumed = CrossEntropy::resume(state, ActionProfile::Core, arena).unwrap();
    assert_eq!(run(&mut resumed).len(), 3);
    checkpoint::save_search(&half, resumed.state(), &manifest.provenance().unwrap()).unwrap();
    assert_eq!(
        entries(&half),
        ["manifest.b3", "manifest.json", "normaliser.json", "search.json", "weights.safetensors"]
    );
    for name in entries(&half) {
        assert_eq!(fs::read(whole.join(&name)).unwrap(), fs::read(half.join(&name)).unwrap(), "{name}");
    }
}

#[test]
fn its_checkpoint_decides_like_any_other() {
    let (_folder, path) = saved(2);
    let (state, _) = checkpoint::load_search(&path).unwrap();
    let direct = NetworkPolicy::new(&state.weights().unwrap(), Some(&state.moments), ActionProfile::Core).unwrap();
    assert_eq!(checkpoint::load_policy(&path).unwrap(), direct);
    let error = checkpoint::load(&path).unwrap_err();
    assert!(matches!(&error, CheckpointError::NotListed { name, .. } if name == "optimiser.safetensors"), "{error}");
}

#[test]
fn a_search_of_something_else_is_refused() {
    let (_folder, path) = saved(1);
    let state = checkpoint::load_search(&path).unwrap().0;
    let error = CrossEntropy::resume(state, ActionProfile::Full, Box::new(serving())).err().unwrap();
    assert!(error.to_string().contains("cannot resume"), "{error}");

    // Sealed again, as someone would who knows how.
    let forged = |name: &str, from: &str, to: &str| {
        let (_folder, path) = saved(1);
        let read = |name: &str| fs::read_to_string(path.join(name)).unwrap();
        let (old, mut manifest) = (read(name), read("manifest.json"));
        assert!(old.contains(from), "{old}");
        let new = old.replacen(from, to, 1);
        if name == "manifest.json" {
            manifest.clone_from(&new);
        } else {
            manifest = manifest.replace(
                blake3::hash(old.as_bytes()).to_hex().as_str(),
                blake3::hash(new.as_bytes()).to_hex().as_str(),
            );
            manifest = manifest.replace(&format!("\"bytes\": {}", old.len()), &format!("\"bytes\": {}", new.len()));
            fs::write(path.join(name), new).unwrap();
        }
        fs::write(path.join("manifest.b3"), format!("{}  manifest.json\n", blake3::hash(manifest.as_bytes()))).unwrap();
        fs::write(path.join("manifest.json"), manifest).unwrap();
        checkpoint::load_search(&path).unwrap_err().to_string()
    };
    for (name, from, to, part) in [
        ("manifest.json", "\"population\": 12", "\"population\": 1", "population = 1: must be"),
        ("manifest.json", "\"population\": 12", "\"population\": 13", "config_blake3"),
        ("manifest.json", "\"iteration\": 1", "\"iteration\": 2", "generation and decisions"),
        ("search.json", "\"mean\": [\n      -0", "\"mean\": [\n      -1", "is not that of the weights"),
        ("search.json", "\"std\"", "\"sdt\"", "unknown field"),
    ] {
        let error = forged(name, from, to);
        assert!(error.contains(part), "{name} {to}: {error}");
    }
}

#[test]
fn what_it_is_blind_to_decides_nothing() {
    let arena = Box::new(Puzzle { decisions: 20 });
    let mut search = CrossEntropy::new(config(), None, &[2, 5], ActionProfile::Core, arena).unwrap();
    run(&mut search);
    let policy = policy(&search);
    let mut observation = Observation { values: [0.5; NUM_FEATURES] };
    let logits = policy.logits(&observation, mask());
    (observation.values[2], observation.values[5]) = (0.9, 0.1);
    assert_eq!(policy.logits(&observation, mask()), logits);
    observation.values[3] = 0.9;
    assert_ne!(policy.logits(&observation, mask()), logits);

    let arena = Box::new(Puzzle { decisions: 1 });
    let error = CrossEntropy::new(config(), None, &[NUM_FEATURES], ActionProfile::Core, arena).err().unwrap();
    assert!(error.to_string().contains("indices of features"), "{error}");
}

#[test]
fn a_wrong_setting_or_prior_is_named() {
    let refused = |config, prior| {
        let arena = Box::new(Puzzle { decisions: 1 });
        CrossEntropy::new(config, prior, &[], ActionProfile::Core, arena).err().unwrap().to_string()
    };
    let error = refused(CrossEntropyConfig { elite: 0.0, ..config() }, None);
    assert_eq!(error, "cross_entropy.elite = 0: must be in (0, 1)");
    let error = refused(config(), Some(Prior { choices: vec![0, 9, 0, 0, 0, 0], probability: 0.8 }));
    assert!(error.contains("prior.choices = [0, 9, 0, 0, 0, 0]"), "{error}");
}
