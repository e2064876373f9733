//! Whether the agent learns: environments whose best policy or value is known.

mod toys;

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide::agent::inference::Inference;
use kvtide::agent::{AgentError, IterationReport, Outcome, PpoConfig, Schedule, Trainer, TrainerState, Weights};
use kvtide_envs::env::VectorEnv;
use toys::{Bandit, Broken, CartPole, Clock, Identity, Toys};

/// Settings for problems that take seconds.
fn quick() -> PpoConfig {
    PpoConfig {
        total_decisions: 8 * 32 * 60,
        num_steps: 32,
        learning_rate: 3e-3,
        gamma: 0.5,
        hidden: vec![32],
        normalise_rewards: false,
        ..PpoConfig::default()
    }
}

fn train(config: PpoConfig, env: Box<dyn VectorEnv>) -> (TrainerState, Vec<IterationReport>) {
    let mut trainer = Trainer::new(config, env).unwrap();
    let mut reports = Vec::new();
    let outcome = trainer.run(&AtomicBool::new(false), |_, report| {
        reports.push(report.clone());
        Ok::<(), AgentError>(())
    });
    assert_eq!(outcome, Ok(Outcome::Finished));
    (trainer.state(), reports)
}

/// Mean reward per decision, and per episode, over the last iterations.
fn last(reports: &[IterationReport], iterations: usize) -> (f64, f64) {
    let episodes: Vec<_> = reports[reports.len() - iterations..].iter().flat_map(|report| &report.episodes).collect();
    let sum: f64 = episodes.iter().map(|episode| episode.episode_return).sum();
    let decisions: u64 = episodes.iter().map(|episode| episode.decisions).sum();
    (sum / decisions as f64, sum / episodes.len() as f64)
}

/// One row of observations, standardised as in training.
fn standardised(state: &TrainerState, mut row: Vec<f32>) -> Vec<f32> {
    if let Some(moments) = &state.normalisers.observation {
        moments.standardiser().apply(&mut row);
    }
    row
}

fn value(state: &TrainerState, row: Vec<f32>) -> f32 {
    let mut value = [0.0];
    Inference::new(state.weights.critic()).forward(&standardised(state, row), &mut value);
    value[0]
}

#[test]
fn the_identity_is_learned_on_both_heads() {
    let (_, reports) = train(quick(), Toys::<Identity<false>>::boxed(8));
    let (first, _) = last(&reports[..2], 2);
    let (reward, _) = last(&reports, 5);
    assert!(first < 0.5 && reward > 0.95, "{first} → {reward}");
}

#[test]
fn the_identity_is_learned_under_masks() {
    let (_, reports) = train(quick(), Toys::<Identity<true>>::boxed(8));
    let (reward, _) = last(&reports, 5);
    assert!(reward > 0.95, "{reward}");
}

#[test]
fn the_best_arm_left_is_found_where_the_best_is_forbidden() {
    // The environment itself refuses forbidden choices.
    let (state, reports) = train(quick(), Toys::<Bandit>::boxed(8));
    let (reward, _) = last(&reports, 5);
    assert!(reward > 0.57, "{reward}");
    let mut logits = [0.0; 4];
    Inference::new(state.weights.actor()).forward(&standardised(&state, vec![1.0]), &mut logits);
    assert!(logits[1] > logits[0] && logits[1] > logits[3], "{logits:?}");
}

#[test]
fn a_cut_is_no_end() {
    // 1 every fourth tick at discount ½: cut short or not, v₀ = 1 + v₀/16. Where a round is all there is, v₀ = 1.
    let config = || PpoConfig { learning_rate: 0.01, total_decisions: 8 * 32 * 100, ..quick() };
    let (cut, _) = train(config(), Toys::<Clock<false>>::boxed(8));
    let (ended, _) = train(config(), Toys::<Clock<true>>::boxed(8));
    let values = |state| {
        [0, 1, 2, 3].map(|phase| value(state, (0..4).map(|index| f32::from(u8::from(index == phase))).collect()))
    };
    for (values, expected) in
        [(values(&cut), [16.0 / 15.0, 2.0 / 15.0, 4.0 / 15.0, 8.0 / 15.0]), (values(&ended), [1.0, 0.0, 0.0, 0.0])]
    {
        let close = values.iter().zip(expected).all(|(value, expected)| (value - expected).abs() < 0.04);
        assert!(close, "{values:?}, not {expected:?}");
    }
}

#[test]
fn rewards_are_scaled_where_asked() {
    let config = PpoConfig { learning_rate: 0.01, normalise_rewards: true, ..quick() };
    let (state, _) = train(config, Toys::<Clock<true>>::boxed(8));
    let deviation = state.normalisers.reward.as_ref().unwrap().moments.variance[0].sqrt() as f32;
    let worth = value(&state, vec![1.0, 0.0, 0.0, 0.0]);
    assert!((worth * deviation - 1.0).abs() < 0.05 && (worth - 1.0).abs() > 0.2, "{worth} at deviation {deviation}");
}

#[test]
fn the_bonus_keeps_entropy() {
    let entropy_coef = Schedule { start: 5.0, end: 5.0 };
    let (_, reports) = train(PpoConfig { entropy_coef, ..quick() }, Toys::<Bandit>::boxed(8));
    let entropy = reports.last().unwrap().losses.entropy;
    assert!((entropy - 3.0_f64.ln()).abs() < 0.05, "{entropy}");
}

#[test]
fn a_tiny_limit_on_the_gradient_stands_still() {
    let config = PpoConfig { max_grad_norm: 1e-12, total_decisions: 8 * 32, ..quick() };
    let mut trainer = Trainer::new(config, Toys::<Identity<false>>::boxed(8)).unwrap();
    let before = trainer.weights();
    let report = trainer.iterate().unwrap();
    assert!(report.losses.grad_norm > 1e-3, "{:?}", report.losses);
    let moved =
        before.values().iter().flatten().zip(trainer.weights().values().iter().flatten().copied().collect::<Vec<_>>());
    assert!(moved.map(|(before, after)| (before - after).abs()).fold(0.0, f32::max) < 1e-6);
}

#[test]
fn every_iteration_and_epoch_has_its_own_draws() {
    // Nothing is learned, and every rollout of this clock is the same: what differs was drawn.
    let still = PpoConfig { learning_rate: 1e-12, normalise_observations: false, num_epochs: 1, ..quick() };
    let (_, once) = train(still.clone(), Toys::<Clock<true>>::boxed(8));
    let (_, twice) = train(PpoConfig { num_epochs: 2, ..still.clone() }, Toys::<Clock<true>>::boxed(8));
    assert_ne!(once[0].losses.value_loss, once[1].losses.value_loss, "minibatches of iterations");
    assert_ne!(once[0].losses.value_loss, twice[0].losses.value_loss, "minibatches of epochs");
    let (_, reports) = train(still, Toys::<Bandit>::boxed(8));
    assert_ne!(reports[0].episodes, reports[1].episodes, "actions of iterations");
}

#[test]
fn the_ratio_starts_at_one() {
    // One minibatch: its diagnostics are of the network that acted.
    let config = PpoConfig { num_epochs: 1, num_minibatches: 1, total_decisions: 8 * 32 * 3, ..quick() };
    let (_, reports) = train(config, Toys::<Identity<true>>::boxed(8));
    for IterationReport { losses, .. } in reports {
        assert!(losses.old_approx_kl.abs() < 1e-6 && losses.approx_kl.abs() < 1e-6, "{losses:?}");
        assert_eq!((losses.clip_fraction, losses.epochs), (0.0, 1));
        // The advantages of the minibatch have mean zero and every ratio is one.
        assert!(losses.policy_loss.abs() < 1e-5, "{losses:?}");
    }
}

#[test]
fn a_large_step_ends_the_epochs() {
    let config = PpoConfig { target_kl: Some(1e-4), learning_rate: 0.01, ..quick() };
    let (_, reports) = train(config, Toys::<Identity<false>>::boxed(8));
    assert!(reports.iter().any(|report| report.losses.epochs < 4));
}

#[test]
fn schedules_reach_their_ends() {
    let config = PpoConfig { entropy_coef: Schedule { start: 0.1, end: 0.0 }, ..quick() };
    let (state, reports) = train(config, Toys::<Identity<false>>::boxed(8));
    assert_eq!((reports.len(), state.iteration, state.decisions), (60, 60, 8 * 32 * 60));
    let rates: Vec<f64> = reports.iter().map(|report| report.learning_rate).collect();
    assert_eq!(rates[0], 3e-3);
    assert!((rates[59] - 3e-3 / 60.0).abs() < 1e-12);
    assert_eq!(reports[0].entropy_coef, 0.1);
    assert!((reports[30].entropy_coef - 0.05).abs() < 1e-12);
}

#[test]
fn values_may_be_clipped() {
    let config = PpoConfig { value_clip: Some(0.2), ..quick() };
    let (_, reports) = train(config, Toys::<Identity<false>>::boxed(8));
    let (reward, _) = last(&reports, 5);
    assert!(reward > 0.95, "{reward}");
}

#[test]
fn equal_seeds_give_equal_bits_and_other_seeds_others() {
    let run = |seed| train(PpoConfig { seed, total_decisions: 2048, ..quick() }, Toys::<CartPole>::boxed(8));
    let ((first, reports), (second, again), (other, _)) = (run(1), run(1), run(2));
    let bits =
        |weights: &Weights| -> Vec<u32> { weights.values().iter().flatten().map(|value| value.to_bits()).collect() };
    assert_eq!(bits(&first.weights), bits(&second.weights));
    assert_eq!((first, reports), (second.clone(), again));
    assert_ne!(bits(&second.weights), bits(&other.weights));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    // Minibatches of several shards, the last of them short.
    let config = || PpoConfig { num_steps: 300, num_minibatches: 2, total_decisions: 2 * 8 * 300, ..quick() };
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| train(config(), Toys::<CartPole>::boxed(8)))
    };
    let (one, reports) = run(1);
    for threads in [2, 5] {
        assert_eq!(run(threads), (one.clone(), reports.clone()), "{threads} threads");
    }
}

#[test]
fn a_run_stops_between_iterations() {
    let stop = AtomicBool::new(false);
    let mut trainer = Trainer::new(quick(), Toys::<Bandit>::boxed(8)).unwrap();
    let outcome = trainer.run(&stop, |trainer, _| {
        stop.store(trainer.iteration() == 3, Ordering::Relaxed);
        Ok::<(), AgentError>(())
    });
    assert_eq!((outcome, trainer.iteration()), (Ok(Outcome::Interrupted), 3));
    assert!(!trainer.is_finished());
}

#[test]
fn what_nobody_can_learn_from_is_named() {
    let first = |env: Box<dyn VectorEnv>| Trainer::new(quick(), env).unwrap().iterate().unwrap_err();
    let text = first(Toys::<Broken<0>>::boxed(4)).to_string();
    assert_eq!(text, "iteration 1: the reward of environment 0 is NaN");
    let text = first(Toys::<Broken<1>>::boxed(4)).to_string();
    assert_eq!(text, "iteration 1: feature 0 of the observation of environment 0 is inf");
    let error = first(Toys::<Broken<2>>::boxed(4));
    assert_eq!(error, AgentError::EmptyMask { iteration: 1, env: 0, head: 1 });
}

#[test]
fn divergence_is_an_error_and_leaves_the_weights_finite() {
    let mut trainer = Trainer::new(quick(), Toys::<Broken<3>>::boxed(4)).unwrap();
    let before = trainer.weights();
    let error = trainer.iterate().unwrap_err();
    assert!(matches!(error, AgentError::NonFinite { iteration: 1, epoch: 1, .. }), "{error}");
    let after = trainer.weights();
    assert!(after.values().iter().flatten().all(|value| value.is_finite()));
    assert_eq!(before.architecture(), after.architecture());
}

#[test]
fn settings_are_checked_against_the_environment() {
    let error = Trainer::new(PpoConfig { num_minibatches: 7, ..quick() }, Toys::<Bandit>::boxed(8)).err().unwrap();
    assert!(error.to_string().starts_with("ppo.num_minibatches = 7 with 32 steps of 8 environments"), "{error}");
}

/// cleanrl's settings for `CartPole-v1`, with eight environments.
fn cartpole(seed: u64, total_decisions: u64) -> PpoConfig {
    PpoConfig { seed, total_decisions, learning_rate: 1e-3, normalise_rewards: true, ..PpoConfig::default() }
}

#[test]
fn cartpole_is_learned_in_outline() {
    let (_, reports) = train(cartpole(1, 80_000), Toys::<CartPole>::boxed(8));
    let (_, episodic) = last(&reports, 10);
    assert!(episodic >= 200.0, "mean return {episodic}");
}

/// Gymnasium calls `CartPole-v1` solved at 475.
#[test]
#[ignore = "minutes: cargo test --release --test learning -- --ignored"]
fn cartpole_is_solved_on_five_seeds() {
    let returns: Vec<f64> =
        (1..=5).map(|seed| last(&train(cartpole(seed, 400_000), Toys::<CartPole>::boxed(8)).1, 40).1).collect();
    assert!(returns.iter().all(|&episodic| episodic >= 475.0), "mean returns {returns:?}");
}
