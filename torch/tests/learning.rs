//! Whether the agent learns: environments whose best policy or value is known.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::toys::{Bandit, Broken, CartPole, Clock, Delayed, Identity, Steady, Toy, Toys};
use crate::toys::{cartpole, greedy, last, logits, train, value};
use kvtide::agent::{AgentError, IterationReport, PpoConfig, RunOutcome, Schedule, Trainer, Weights};
use kvtide_envs::env::VectorEnv;
use kvtide_envs::seed;
use kvtide_torch::Torch;
use serde::Deserialize;

fn quick() -> PpoConfig {
    crate::toys::quick(1)
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
    let logits = logits(&state, vec![1.0]);
    assert!(logits[1] > logits[0] && logits[1] > logits[3], "{logits:?}");
}

#[test]
fn the_size_of_rewards_does_not_matter() {
    // Beside an entropy bonus that does not shrink with them.
    let (state, _) = train(quick(), Toys::<Bandit<1000>>::boxed(8));
    let logits = logits(&state, vec![1.0]);
    assert!(logits[1] > logits[0] + 2.0 && logits[1] > logits[3] + 2.0, "{logits:?}");
}

#[test]
fn what_is_paid_late_reaches_back_to_the_choice() {
    let config = PpoConfig { gamma: 0.99, total_decisions: 8 * 128 * 60, num_steps: 128, ..quick() };
    let (state, _) = train(config, Toys::<Delayed>::boxed(8));
    let (_, episodic) = greedy::<Delayed>(&state, 100);
    assert!(episodic > 0.95, "{episodic}");
}

#[test]
fn a_forbidden_arm_is_never_touched() {
    let mut trainer = Trainer::new(quick(), Toys::<Bandit>::boxed(8), &Torch).unwrap();
    let arm = |trainer: &Trainer, arm: usize| {
        let weights = trainer.weights();
        let (weight, bias) = weights.actor().last().unwrap();
        (weight[arm * 32..][..32].to_vec(), bias[arm])
    };
    let before = [2, 3].map(|index| arm(&trainer, index));
    (0..5).for_each(|_| drop(trainer.iterate().unwrap()));
    let [forbidden, allowed] = [2, 3].map(|index| arm(&trainer, index));
    assert_eq!(forbidden, before[0]);
    assert_ne!(allowed, before[1]);
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
fn draws_are_held_for_as_many_decisions_as_asked() {
    // One iteration of a uniform policy over four choices, in episodes of 32; a first decision has none before it.
    let repeated = |hold| {
        let config = PpoConfig { hold, total_decisions: 64 * 32, ..quick() };
        last(&train(config, Toys::<Steady>::boxed(64)).1, 1).0
    };
    for (hold, expected) in [(1, 31.0 / 4.0), (8, 28.0 + 3.0 / 4.0), (32, 31.0)] {
        assert!((repeated(hold) - expected / 32.0).abs() < 0.05, "hold {hold}: {}", repeated(hold));
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
    let mut trainer = Trainer::new(config, Toys::<Identity<false>>::boxed(8), &Torch).unwrap();
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
    let mut trainer = Trainer::new(quick(), Toys::<Bandit>::boxed(8), &Torch).unwrap();
    let outcome = trainer.run(&stop, |trainer, _| {
        stop.store(trainer.iteration() == 3, Ordering::Relaxed);
        Ok::<(), AgentError>(())
    });
    assert_eq!((outcome, trainer.iteration()), (Ok(RunOutcome::Interrupted), 3));
    assert!(!trainer.is_finished());
}

#[test]
fn what_nobody_can_learn_from_is_named() {
    let first = |env: Box<dyn VectorEnv>| Trainer::new(quick(), env, &Torch).unwrap().iterate().unwrap_err();
    let text = first(Toys::<Broken<0>>::boxed(4)).to_string();
    assert_eq!(text, "iteration 1: the reward of environment 0 is NaN");
    let text = first(Toys::<Broken<1>>::boxed(4)).to_string();
    assert_eq!(text, "iteration 1: feature 0 of the observation of environment 0 is inf");
    let error = first(Toys::<Broken<2>>::boxed(4));
    assert_eq!(error, AgentError::EmptyMask { iteration: 1, env: 0, head: 1 });
}

#[test]
fn divergence_is_an_error_and_leaves_the_weights_finite() {
    let mut trainer = Trainer::new(quick(), Toys::<Broken<3>>::boxed(4), &Torch).unwrap();
    let before = trainer.weights();
    let error = trainer.iterate().unwrap_err();
    assert!(matches!(error, AgentError::NonFinite { iteration: 1, epoch: 1, .. }), "{error}");
    let after = trainer.weights();
    assert!(after.values().iter().flatten().all(|value| value.is_finite()));
    assert_eq!(before.architecture(), after.architecture());
}

#[test]
fn settings_are_checked_against_the_environment() {
    let error =
        Trainer::new(PpoConfig { num_minibatches: 7, ..quick() }, Toys::<Bandit>::boxed(8), &Torch).err().unwrap();
    assert!(error.to_string().starts_with("ppo.num_minibatches = 7 with 32 steps of 8 environments"), "{error}");
}

/// What Gymnasium's own `CartPole-v1` did (`toys/cartpole.py`).
#[derive(Deserialize)]
struct Recorded {
    name: String,
    start: [f64; 4],
    actions: String,
    end: [f64; 4],
    total: f64,
    terminated: bool,
    truncated: bool,
}

#[test]
fn the_cart_pole_is_gymnasiums() {
    let episodes: Vec<Recorded> = serde_json::from_str(include_str!("toys/cartpole.json")).unwrap();
    assert_eq!(episodes.len(), 4);
    for Recorded { name, start, actions, end, total, terminated, truncated } in episodes {
        let mut toy = CartPole { state: start };
        let mut stream = seed::stream(1, "test", 0);
        let steps: Vec<(f32, bool)> = actions.bytes().map(|action| toy.step(&[action - b'0'], &mut stream)).collect();
        let (&(_, ended), before) = steps.split_last().unwrap();
        assert!(ended == terminated && before.iter().all(|(_, ended)| !ended), "{name}");
        assert_eq!(steps.len() as u64 >= CartPole::LIMIT, truncated, "{name}");
        assert_eq!(steps.iter().map(|(reward, _)| f64::from(*reward)).sum::<f64>(), total, "{name}");
        // A pole is unstable: over five hundred steps the last bit of a cosine grows to 1e-9.
        let close = toy.state.iter().zip(end).all(|(ours, theirs)| (ours - theirs).abs() < 1e-6);
        assert!(close, "{name}: {:?}", toy.state);
    }
    for seed in 0..1000 {
        let CartPole { state } = CartPole::new(&mut seed::stream(seed, "test", 0));
        assert!(state.iter().all(|value| value.abs() <= 0.05));
    }
}

#[test]
fn cartpole_is_learned_in_outline() {
    let (_, reports) = train(cartpole(1, 80_000), Toys::<CartPole>::boxed(8));
    let (_, episodic) = last(&reports, 10);
    assert!(episodic >= 200.0, "mean return {episodic}");
}
