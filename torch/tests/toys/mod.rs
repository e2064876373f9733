//! Small environments with known answers, for tests and benches of the agent.

#![allow(dead_code, unused_imports, reason = "each test and bench uses some of them")]

mod cartpole;
mod small;
mod training;

use kvtide_envs::env::{Batch, Episode, Served, VectorEnv};
use kvtide_envs::seed::{self, Stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use cartpole::CartPole;
pub use small::{Bandit, Broken, Clock, Delayed, Identity, Serving, Steady};
pub use training::{cartpole, greedy, last, logits, means, quick, train, value};

/// One environment.
pub trait Toy: Serialize + DeserializeOwned + Send {
    /// Length of an observation.
    const OBSERVATION: usize;
    /// Choices of each head.
    const HEADS: &'static [usize];
    /// Decisions after which an episode is truncated.
    const LIMIT: u64;

    /// The start of an episode.
    fn new(stream: &mut Stream) -> Self;

    /// Writes the observation.
    fn observe(&self, row: &mut [f32]);

    /// Forbids what cannot be done; everything is allowed before.
    fn mask(&self, _row: &mut [bool]) {}

    /// Reward, and whether the episode terminated.
    fn step(&mut self, action: &[u8], stream: &mut Stream) -> (f32, bool);
}

/// Several of a kind. Draws come from a stream named by environment and step, so that no generator has to be saved.
pub struct Toys<T> {
    state: State<T>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State<T> {
    seed: u64,
    steps: u64,
    running: Vec<Running<T>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Running<T> {
    toy: T,
    decisions: u64,
    sum: f64,
}

impl<T: Toy> Toys<T> {
    pub fn new(num_envs: usize) -> Toys<T> {
        Toys { state: State { seed: 0, steps: 0, running: (0..num_envs).map(|env| start(0, 0, env)).collect() } }
    }

    pub fn boxed(num_envs: usize) -> Box<dyn VectorEnv>
    where
        T: 'static,
    {
        Box::new(Toys::<T>::new(num_envs))
    }

    fn write(&self, batch: &mut Batch) {
        batch.masks.fill(true);
        let rows = batch.observations.chunks_exact_mut(T::OBSERVATION);
        let masks = batch.masks.chunks_exact_mut(T::HEADS.iter().sum());
        for ((running, row), mask) in self.state.running.iter().zip(rows).zip(masks) {
            running.toy.observe(row);
            running.toy.mask(mask);
        }
    }
}

fn stream(seed: u64, name: &str, steps: u64, env: usize) -> Stream {
    seed::stream(seed, name, steps << 16 | env as u64)
}

fn start<T: Toy>(seed: u64, steps: u64, env: usize) -> Running<T> {
    Running { toy: T::new(&mut stream(seed, "toy.start", steps, env)), decisions: 0, sum: 0.0 }
}

impl<T: Toy> VectorEnv for Toys<T> {
    fn num_envs(&self) -> usize {
        self.state.running.len()
    }

    fn observation_size(&self) -> usize {
        T::OBSERVATION
    }

    fn head_sizes(&self) -> &[usize] {
        T::HEADS
    }

    fn reset(&mut self, seed: u64, batch: &mut Batch) {
        let running = (0..self.num_envs()).map(|env| start(seed, 0, env)).collect();
        self.state = State { seed, steps: 0, running };
        self.write(batch);
    }

    fn step(&mut self, actions: &[u8], batch: &mut Batch) {
        let State { seed, steps, running } = &mut self.state;
        *steps += 1;
        batch.episodes.clear();
        let num_choices: usize = T::HEADS.iter().sum();
        for (env, (running, action)) in running.iter_mut().zip(actions.chunks_exact(T::HEADS.len())).enumerate() {
            let mask = &batch.masks[env * num_choices..][..num_choices];
            let offsets = T::HEADS.iter().scan(0, |end, size| {
                *end += size;
                Some(*end - size)
            });
            assert!(
                offsets.zip(action).all(|(offset, &choice)| mask[offset + usize::from(choice)]),
                "forbidden choice"
            );

            let (reward, terminated) = running.toy.step(action, &mut stream(*seed, "toy.step", *steps, env));
            running.decisions += 1;
            running.sum += f64::from(reward);
            let truncated = !terminated && running.decisions >= T::LIMIT;
            batch.rewards[env] = reward;
            batch.terminated[env] = terminated;
            batch.truncated[env] = truncated;
            if terminated || truncated {
                running.toy.observe(&mut batch.final_observations[env * T::OBSERVATION..][..T::OBSERVATION]);
                let Running { decisions, sum, .. } = *running;
                let served = Served::default();
                batch.episodes.push(Episode { env, episode_return: sum, decisions, served });
                *running = start(*seed, *steps, env);
            }
        }
        self.write(batch);
    }

    fn save(&self) -> Value {
        serde_json::to_value(&self.state).unwrap()
    }

    fn restore(&mut self, saved: &Value, batch: &mut Batch) -> Result<(), String> {
        let state: State<T> = serde_json::from_value(saved.clone()).map_err(|error| error.to_string())?;
        if state.running.len() != self.num_envs() {
            return Err(format!("{} environments were saved, there are {}", state.running.len(), self.num_envs()));
        }
        self.state = state;
        self.write(batch);
        Ok(())
    }
}
