//! Groups that serve the same traffic, forked states, and a start from a linear policy: what they are for, in small.

use kvtide::agent::normalise::Moments;
use kvtide::agent::{LinearStart, PpoConfig, Trainer, TrainerState};
use kvtide_envs::env::{Batch, Episode, Served, VectorEnv};
use kvtide_envs::seed;
use kvtide_torch::Torch;
use rand::RngExt;
use serde_json::{Value, json};

use crate::toys::{Identity, Toys, logits, quick, train};

/// Decisions of an episode.
const LENGTH: u64 = 16;

/// Each decision earns 1 if it is 1, and ±`NOISE` of the traffic whatever it is; what is seen is how often 1 was chosen.
const NOISE: f32 = 40.0;

/// Environments in groups of one traffic.
struct Weather {
    group: usize,
    seed: u64,
    envs: Vec<Place>,
}

#[derive(Clone)]
struct Place {
    episode: u64,
    step: u64,
    ones: f32,
    sum: f64,
}

impl Weather {
    fn boxed(num_envs: usize, group: usize) -> Box<dyn VectorEnv> {
        let envs = vec![Place { episode: 0, step: 0, ones: 0.0, sum: 0.0 }; num_envs];
        Box::new(Weather { group, seed: 0, envs })
    }

    fn traffic(&self, env: usize) -> u64 {
        seed::derive(seed::derive(self.seed, "group", (env / self.group) as u64), "episode", self.envs[env].episode)
    }

    fn write(&self, batch: &mut Batch) {
        for (env, place) in self.envs.iter().enumerate() {
            batch.observations[env] = place.ones / LENGTH as f32;
            (batch.clock_s[env], batch.traffic[env]) = (place.step as f64 * 0.5, self.traffic(env));
        }
    }
}

impl VectorEnv for Weather {
    fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn observation_size(&self) -> usize {
        1
    }

    fn head_sizes(&self) -> &[usize] {
        &[2]
    }

    fn reset(&mut self, seed: u64, batch: &mut Batch) {
        self.seed = seed;
        self.envs.fill(Place { episode: 0, step: 0, ones: 0.0, sum: 0.0 });
        self.write(batch);
    }

    fn step(&mut self, actions: &[u8], batch: &mut Batch) {
        batch.episodes.clear();
        for (env, &action) in actions.iter().enumerate() {
            let came: bool = seed::stream(self.traffic(env), "weather", self.envs[env].step).random();
            let place = &mut self.envs[env];
            let reward = f32::from(action) + if came { NOISE } else { -NOISE };
            place.ones += f32::from(action);
            place.step += 1;
            place.sum += f64::from(reward);
            (batch.rewards[env], batch.elapsed_s[env]) = (reward, 0.5);
            batch.terminated[env] = place.step == LENGTH;
            if batch.terminated[env] {
                let served = Served::default();
                batch.episodes.push(Episode { env, episode_return: place.sum, decisions: LENGTH, served });
                *place = Place { episode: place.episode + 1, step: 0, ones: 0.0, sum: 0.0 };
            }
        }
        self.write(batch);
    }

    fn gather(&mut self, leader: usize, batch: &mut Batch) -> Result<(), String> {
        self.envs.chunks_mut(self.group).for_each(|envs| envs.fill(envs[leader].clone()));
        self.write(batch);
        Ok(())
    }

    fn save(&self) -> Value {
        let places: Vec<_> = self.envs.iter().map(|place| (place.episode, place.step, place.ones, place.sum)).collect();
        json!({"seed": self.seed, "places": places})
    }

    fn restore(&mut self, saved: &Value, batch: &mut Batch) -> Result<(), String> {
        self.seed = saved["seed"].as_u64().ok_or("no seed")?;
        let places: Vec<(u64, u64, f32, f64)> =
            serde_json::from_value(saved["places"].clone()).map_err(|error| error.to_string())?;
        self.envs = places.into_iter().map(|(episode, step, ones, sum)| Place { episode, step, ones, sum }).collect();
        self.write(batch);
        Ok(())
    }
}

fn config(group: usize, fork: bool) -> PpoConfig {
    PpoConfig { group, fork, gamma: 0.9, total_decisions: 8 * 32 * 20, learning_rate: 1e-2, ..quick(1) }
}

/// By how much 1 is preferred in the end.
fn preference(state: &TrainerState) -> f32 {
    let row = logits(state, vec![0.5]);
    row[1] - row[0]
}

#[test]
fn what_the_traffic_drowns_is_found_against_others_of_the_group() {
    let (alone, reports) = train(config(1, false), Weather::boxed(8, 4));
    assert!(reports.iter().all(|report| report.losses.grouped.is_none()));
    for fork in [false, true] {
        let (state, reports) = train(config(4, fork), Weather::boxed(8, 4));
        assert!(reports.iter().all(|report| report.losses.grouped == Some(1.0)));
        let (found, drowned) = (preference(&state), preference(&alone));
        assert!(found > 3.0 && drowned < found / 2.0, "fork {fork}: {found}, without groups {drowned}");
    }
}

#[test]
fn a_resumed_run_of_forks_is_the_one_that_never_stopped() {
    let mut whole = Trainer::new(config(4, true), Weather::boxed(8, 4), &Torch).unwrap();
    for _ in 0..2 {
        whole.iterate().unwrap();
    }
    let mut resumed = Trainer::resume(whole.state(), Weather::boxed(8, 4), &Torch).unwrap();
    for _ in 0..2 {
        whole.iterate().unwrap();
        resumed.iterate().unwrap();
    }
    assert_eq!(whole.state(), resumed.state());
}

#[test]
fn environments_that_cannot_be_forked_say_so() {
    let config = PpoConfig { group: 2, fork: true, ..quick(1) };
    let mut trainer = Trainer::new(config, Toys::<Identity<false>>::boxed(8), &Torch).unwrap();
    let error = trainer.iterate().unwrap_err().to_string();
    assert_eq!(error, "iteration 1: ppo.fork: these environments cannot be forked");
}

/// Names every symbol wrongly, but surely.
fn wrong() -> (LinearStart, Moments) {
    let mut weight = vec![0.0; 7 * 7];
    for (first, size) in [(0, 3), (3, 4)] {
        (0..size).for_each(|symbol| weight[(first + (symbol + 1) % size) * 7 + first + symbol] = 2.0);
    }
    let moments = Moments { count: 9.0, mean: vec![0.25; 7], variance: vec![0.2; 7], ..Moments::new(7) };
    (LinearStart { weight, bias: vec![0.5, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0] }, moments)
}

#[test]
fn learning_begins_with_the_policy_it_starts_from_and_leaves_it() {
    let (start, moments) = wrong();
    let env = || Toys::<Identity<false>>::boxed(8);
    let config = PpoConfig { learning_rate: 1e-2, ..quick(1) };
    let begin = || Trainer::starting_from(Some(wrong()), config.clone(), env(), &Torch).unwrap();
    let mut trainer = begin();
    let state = trainer.state();
    assert_eq!(state.weights.start(), Some(&start));
    let mut row = vec![0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
    let mut first = vec![0.0; 7];
    moments.standardiser().apply(&mut row);
    state.weights.deciding().forward(&row, &mut first);
    let alone: Vec<f32> = start
        .weight
        .chunks_exact(7)
        .zip(&start.bias)
        .map(|(weights, bias)| weights.iter().zip(&row).fold(*bias, |sum, (weight, value)| sum + weight * value))
        .collect();
    assert!(first.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5), "{first:?}, not {alone:?}");
    let reward = |trainer: &mut Trainer, iterations: usize| {
        let reports: Vec<_> = (0..iterations).map(|_| trainer.iterate().unwrap()).collect();
        crate::toys::last(&reports, 3).0
    };
    let early = reward(&mut trainer, 3);
    // Half way it is saved, and goes on as if it had not been.
    let mut resumed = Trainer::resume(trainer.state(), env(), &Torch).unwrap();
    let (late, again) = (reward(&mut trainer, 57), reward(&mut resumed, 57));
    assert_eq!(late.to_bits(), again.to_bits());
    assert!(early < 0.3 && late > 0.95, "{early} → {late}");
    // Observations are looked at as the start looked at them, whatever was seen.
    assert_eq!(trainer.state().normalisers.observation, Some(moments));
    assert_eq!(trainer.state().weights.start(), Some(&start), "what is started from is not learned");
}

#[test]
fn a_start_over_something_else_is_refused() {
    let (start, moments) = wrong();
    let begin = |start, config| {
        Trainer::starting_from(Some(start), config, Toys::<Identity<false>>::boxed(8), &Torch)
            .err()
            .unwrap()
            .to_string()
    };
    let foreign = LinearStart { bias: vec![0.0; 6], ..start.clone() };
    let refused = "must be true where learning starts from a policy, which must be over this observation and action";
    assert!(begin((foreign, moments.clone()), quick(1)).ends_with(refused));
    assert!(begin((start.clone(), Moments::new(6)), quick(1)).ends_with(refused));
    let raw = PpoConfig { normalise_observations: false, ..quick(1) };
    assert!(begin((start, moments), raw).contains("normalise_observations = false"));
}
