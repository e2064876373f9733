//! Training end to end: environments stepped, decisions inferred, networks improved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvtide_envs::deploy::EngineKind;
use kvtide_envs::env::{Batch, EnvError, VecEnv, VectorEnv};

use super::{Throughput, environment, seconds};
use crate::agent::{AgentError, PpoConfig, Prior, Tensors, Trainer};

/// Environments stepped together.
const NUM_ENVS: usize = 64;

/// Why training cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum TrainingBenchError {
    /// The environments cannot be set up.
    #[error(transparent)]
    Environment(#[from] EnvError),
    /// The run failed.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

/// Decisions a second of one PPO iteration on all cores, as a whole and in its parts: environments, inference (with
/// normalisation and sampling) and update. 64 environments of V1 on conversations, 128 steps, networks of 64-64, four epochs
/// of four minibatches, starting as experiments do, from a prior: the engine's default.
///
/// # Errors
/// [`TrainingBenchError`].
pub fn training(
    tensors: &'static dyn Tensors,
    repeats: usize,
    each: &mut dyn FnMut(Throughput),
) -> Result<(), TrainingBenchError> {
    let spent = Arc::new(AtomicU64::new(0));
    let inner = VecEnv::new(&Arc::new(environment::config(EngineKind::V1, "chat:rate=6,duration=5m")), NUM_ENVS)?;
    let prior = Prior { choices: EngineKind::V1.default_action().indices().to_vec(), probability: 0.8 };
    let config = PpoConfig { total_decisions: u64::MAX, prior: Some(prior), ..PpoConfig::default() };
    let mut trainer = Trainer::new(config, Box::new(TimedEnv { inner, spent: Arc::clone(&spent) }), tensors)?;
    trainer.iterate()?;

    let mut parts: [Vec<f64>; 4] = Default::default();
    for _ in 0..repeats {
        spent.store(0, Ordering::Relaxed);
        let mut rollout = None;
        let act = seconds(|| rollout = Some(trainer.act()));
        let rollout = rollout.expect("it ran")?;
        let mut learned = Ok(());
        let update = seconds(|| learned = trainer.learn(rollout).map(drop));
        learned?;
        let env = spent.load(Ordering::Relaxed) as f64 * 1e-9;
        for (times, time) in parts.iter_mut().zip([act + update, env, act - env, update]) {
            times.push(time);
        }
    }
    let decisions = trainer.plan().batch as u64;
    for (part, times) in ["end to end", "environment", "inference", "update"].into_iter().zip(&parts) {
        each(Throughput::rate("training", format!("v1, chat, 64-64, {part}"), "decisions/s", decisions, times));
    }
    Ok(())
}

/// Environments that count the nanoseconds they are stepped for.
struct TimedEnv {
    inner: VecEnv,
    spent: Arc<AtomicU64>,
}

impl VectorEnv for TimedEnv {
    fn num_envs(&self) -> usize {
        self.inner.num_envs()
    }

    fn observation_size(&self) -> usize {
        self.inner.observation_size()
    }

    fn head_sizes(&self) -> &[usize] {
        self.inner.head_sizes()
    }

    fn reset(&mut self, seed: u64, batch: &mut Batch) {
        self.inner.reset(seed, batch);
    }

    fn step(&mut self, actions: &[u8], batch: &mut Batch) {
        let time = seconds(|| self.inner.step(actions, batch));
        self.spent.fetch_add((time * 1e9) as u64, Ordering::Relaxed);
    }

    fn save(&self) -> serde_json::Value {
        self.inner.save()
    }

    fn restore(&mut self, saved: &serde_json::Value, batch: &mut Batch) -> Result<(), String> {
        self.inner.restore(saved, batch)
    }
}
