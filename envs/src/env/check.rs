//! The environment checker: plays random episodes and tests everything the interface promises.

use kvtide_runtime::{Action, ActionMask, FEATURES, Head};
use rand::RngExt;

use super::episode::ResetOptions;
use super::serving::{EnvError, ServingEnv, Step};
use crate::seed::{self, Stream};

/// A promise the environment broke.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It failed outright.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// It broke a promise.
    #[error("episode {episode}, decision {decision}: {promise}")]
    Broken {
        /// Which episode.
        episode: u64,
        /// After how many decisions.
        decision: u64,
        /// What does not hold.
        promise: String,
    },
}

/// Longest episode the checker plays to its end, in decisions.
const MAX_DECISIONS: u64 = 100_000;

/// Plays `episodes` random episodes twice each. Checks that observations are finite and in range, masks never empty,
/// rewards finite, an episode never both terminated and truncated, stepping after its end or against the mask refused,
/// the accounts reconciled, and that the second run is the first one again.
///
/// # Errors
/// The first broken promise.
pub fn check_env(env: &mut ServingEnv, seed: u64, episodes: u64) -> Result<(), CheckError> {
    if !matches!(env.step(Action::ENGINE_DEFAULT), Err(EnvError::NeedsReset)) {
        return Err(broken(0, 0, "a step before the first reset is not refused"));
    }
    for episode in 0..episodes {
        let first = play(env, seed, episode)?;
        if play(env, seed, episode)? != first {
            return Err(broken(episode, 0, "the same seed and actions gave another episode"));
        }
    }
    Ok(())
}

/// Plays one episode; its steps.
fn play(env: &mut ServingEnv, seed: u64, episode: u64) -> Result<Vec<Step>, CheckError> {
    let mut stream = seed::stream(seed, "check", episode);
    let (observation, info) = env.reset(seed::derive(seed, "check.episode", episode), &ResetOptions::default())?;
    let mut mask = info.mask;
    in_range(&observation.values).map_err(|promise| broken(episode, 0, &promise))?;
    let mut steps = Vec::new();
    for decision in 1..=MAX_DECISIONS {
        let fail = |promise: &str| Err(broken(episode, decision, promise));
        if let Some(action) = forbidden(mask)
            && !matches!(env.step(action), Err(EnvError::Forbidden { .. }))
        {
            return fail("a forbidden action is not refused");
        }
        let step = env.step(random_action(mask, &mut stream))?;
        in_range(&step.observation.values).map_err(|promise| broken(episode, decision, &promise))?;
        if !step.reward.is_finite() {
            return fail("the reward is not finite");
        }
        if step.terminated && step.truncated {
            return fail("the episode is both terminated and truncated");
        }
        if step.info.mask.words().contains(&0) {
            return fail("a head has no allowed choice");
        }
        mask = step.info.mask;
        steps.push(step);
        if step.terminated || step.truncated {
            if !matches!(env.step(Action::ENGINE_DEFAULT), Err(EnvError::NeedsReset)) {
                return fail("a step after the end is not refused");
            }
            let unreconciled = env.node().and_then(|node| node.summary().err());
            return match unreconciled {
                Some(error) => fail(&error.to_string()),
                None => Ok(steps),
            };
        }
    }
    Err(broken(episode, MAX_DECISIONS, "the episode does not end"))
}

fn broken(episode: u64, decision: u64, promise: &str) -> CheckError {
    CheckError::Broken { episode, decision, promise: promise.to_owned() }
}

fn in_range(values: &[f32]) -> Result<(), String> {
    match FEATURES.iter().zip(values).find(|(spec, value)| !(spec.min..=spec.max).contains(value)) {
        Some((spec, value)) => Err(format!("{} is {value}, out of {}..={}", spec.name, spec.min, spec.max)),
        None => Ok(()),
    }
}

/// An action the mask forbids, if there is one.
fn forbidden(mask: ActionMask) -> Option<Action> {
    let allowed = mask.repair(Action::ENGINE_DEFAULT);
    Head::ALL.into_iter().find_map(|head| {
        let choice = (0..head.size() as u8).find(|&choice| !mask.allows(head, choice))?;
        allowed.with(head, choice)
    })
}

fn random_action(mask: ActionMask, stream: &mut Stream) -> Action {
    Head::ALL.into_iter().fold(mask.repair(Action::ENGINE_DEFAULT), |action, head| {
        let allowed: Vec<u8> = (0..head.size() as u8).filter(|&choice| mask.allows(head, choice)).collect();
        let choice = allowed[stream.random_range(0..allowed.len())];
        action.with(head, choice).expect("choices below the head's size are in range")
    })
}
