//! Training on toys, and what came of it.

use std::sync::atomic::AtomicBool;

use kvtide::agent::heads::Heads;
use kvtide::agent::inference::Inference;
use kvtide::agent::{AgentError, IterationReport, PpoConfig, RunOutcome, Trainer, TrainerState};
use kvtide_envs::env::{Batch, Episode, VectorEnv};
use kvtide_envs::seed;
use kvtide_torch::Torch;

use super::{Toy, Toys};

/// Settings for problems that take seconds.
pub fn quick(seed: u64) -> PpoConfig {
    PpoConfig {
        seed,
        total_decisions: 8 * 32 * 60,
        num_steps: 32,
        learning_rate: 3e-3,
        gamma: 0.5,
        hidden: vec![32],
        normalise_rewards: false,
        ..PpoConfig::default()
    }
}

/// cleanrl's settings for `CartPole-v1` but for the step size, which goes with observations and rewards normalised, and
/// for eight environments instead of four.
pub fn cartpole(seed: u64, total_decisions: u64) -> PpoConfig {
    PpoConfig { seed, total_decisions, learning_rate: 1e-3, ..PpoConfig::default() }
}

/// Trains to the end.
pub fn train(config: PpoConfig, env: Box<dyn VectorEnv>) -> (TrainerState, Vec<IterationReport>) {
    let mut trainer = Trainer::new(config, env, &Torch).unwrap();
    let mut reports = Vec::new();
    let outcome = trainer.run(&AtomicBool::new(false), |_, report| {
        reports.push(report.clone());
        Ok::<(), AgentError>(())
    });
    assert_eq!(outcome, Ok(RunOutcome::Finished));
    (trainer.state(), reports)
}

/// Mean reward per decision, and per episode.
pub fn means<'a>(episodes: impl IntoIterator<Item = &'a Episode>) -> (f64, f64) {
    let (mut sum, mut decisions, mut count) = (0.0, 0, 0.0);
    for episode in episodes {
        sum += episode.episode_return;
        decisions += episode.decisions;
        count += 1.0;
    }
    (sum / decisions as f64, sum / count)
}

/// Mean reward per decision, and per episode, over the last iterations: of the policy that draws its choices.
pub fn last(reports: &[IterationReport], iterations: usize) -> (f64, f64) {
    means(reports[reports.len() - iterations..].iter().flat_map(|report| &report.episodes))
}

/// Mean reward per decision, and per episode, of the policy that takes the likeliest choice: over the first episode of
/// each of `num_episodes` environments that training never saw.
pub fn greedy<T: Toy>(state: &TrainerState, num_episodes: usize) -> (f64, f64) {
    let heads = Heads::new(T::HEADS);
    let actor = Inference::new(state.weights.actor());
    let mut env = Toys::<T>::new(num_episodes);
    let mut batch = Batch::new(num_episodes, T::OBSERVATION, heads.num_choices());
    let mut logits = vec![0.0; num_episodes * heads.num_choices()];
    let mut actions = vec![0; num_episodes * heads.len()];
    let mut first: Vec<Option<Episode>> = vec![None; num_episodes];

    env.reset(seed::derive(state.config.seed, "toy.evaluate", 0), &mut batch);
    while first.iter().any(Option::is_none) {
        actor.forward(&standardised(state, batch.observations.clone()), &mut logits);
        let rows = logits.chunks_exact(heads.num_choices()).zip(batch.masks.chunks_exact(heads.num_choices()));
        for ((logits, mask), action) in rows.zip(actions.chunks_exact_mut(heads.len())) {
            heads.greedy(logits, mask, action);
        }
        env.step(&actions, &mut batch);
        for episode in batch.episodes.drain(..) {
            let env = episode.env;
            first[env].get_or_insert(episode);
        }
    }
    means(first.iter().flatten())
}

/// Rows of observations, standardised as in training.
fn standardised(state: &TrainerState, mut rows: Vec<f32>) -> Vec<f32> {
    if let Some(moments) = &state.normalisers.observation {
        moments.standardiser().apply(&mut rows);
    }
    rows
}

/// What the actor makes of one observation.
pub fn logits(state: &TrainerState, row: Vec<f32>) -> Vec<f32> {
    let actor = Inference::new(state.weights.actor());
    let mut logits = vec![0.0; actor.outputs()];
    actor.forward(&standardised(state, row), &mut logits);
    logits
}

/// What the critic makes of one observation.
pub fn value(state: &TrainerState, row: Vec<f32>) -> f32 {
    let mut value = [0.0];
    Inference::new(state.weights.critic()).forward(&standardised(state, row), &mut value);
    value[0]
}
