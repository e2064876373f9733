//! The experiment a run comes to: what `kvtide train` would be given to do the same again, or longer.

use kvtide_envs::env::RewardWeights;
use kvtide_runtime::ActionProfile;

use super::effort::Budget;
use super::folder::{Progress, Settings};
use super::heads::ChosenHeads;
use super::loads::LoadRange;
use super::traffic::Cut;
use crate::agent::{CrossEntropyConfig, PpoConfig, Schedule};
use crate::experiment::{Also, Episodes, Experiment, Method};
use crate::world::WorldSpec;

/// Environments, and decisions of each in an iteration, of training by PPO.
const NUM_ENVS: usize = 32;
const NUM_STEPS: usize = 128;
/// Longest and shortest lengths, largest and smallest pool, and burstiness of the variations.
const LENGTHS: (f64, f64) = (0.7, 1.4);
const POOL: (f64, f64) = (0.8, 1.25);
const CV: f64 = 3.0;
/// What longer answers, or bursts, leave of the load that a node can serve.
const HEAVIER: f64 = 0.75;
/// How often an episode is one of the traffic itself, to once of each variation.
const WEIGHT: f64 = 3.0;

/// An experiment over the heads of `profile`, which starts from the best constants once they are known.
pub(super) fn experiment(
    settings: &Settings,
    cut: &Cut,
    range: &LoadRange,
    budget: &Budget,
    profile: ActionProfile,
) -> Experiment {
    let name = super::folder_of(&settings.world).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let world = settings.world.clone();
    let episodes = |load, weight| Episodes { weight, ..Episodes::new(cut.fit, cut.episode_s as f64, load) };
    let also = if budget.has_variations { variations(&world, range.trained, &episodes) } else { Vec::new() };
    Experiment {
        name,
        profile: profile.name().to_owned(),
        num_envs: NUM_ENVS,
        episodes: episodes(range.trained, if also.is_empty() { 1.0 } else { WEIGHT }),
        world,
        also,
        validation: Some(budget.validation),
        without: Vec::new(),
        watermarks: Vec::new(),
        without_heads: Vec::new(),
        reward: RewardWeights::default(),
        prior: None,
        start: None,
        fallback: None,
        ppo: match settings.method {
            Method::Ppo => ppo(settings.seed, budget.decisions),
            Method::CrossEntropy => PpoConfig::default(),
        },
        method: settings.method,
        cross_entropy: match settings.method {
            Method::Ppo => CrossEntropyConfig::default(),
            Method::CrossEntropy => budget.search.clone(),
        },
    }
}

/// The experiment of a run whose heads are chosen.
pub(super) fn resolved(progress: &Progress, budget: &Budget, range: &LoadRange, heads: &ChosenHeads) -> Experiment {
    let profile = ActionProfile::from_name(&heads.profile).unwrap_or(ActionProfile::Watermark);
    Experiment {
        prior: Some(heads.constant.to_string()),
        start: None,
        fallback: Some(heads.fallback),
        ..experiment(&progress.settings, &progress.cut, range, budget, profile)
    }
}

/// Other lengths and pools, and bursts, so that a table does no harm where the traffic changes a little.
fn variations(world: &WorldSpec, (low, high): (f64, f64), episodes: &dyn Fn((f64, f64), f64) -> Episodes) -> Vec<Also> {
    let lighter = |load: f64| format!("{:.2e}", load * HEAVIER).parse().unwrap_or(load);
    let loads = (lighter(low), high);
    let lengths =
        Also { world: world.clone(), episodes: Episodes { lengths: LENGTHS, pool: POOL, ..episodes(loads, 1.0) } };
    // Clients that wait for their answers send when they are done, and what was asked for stays as it was asked for.
    let is_bursty = world.clients.is_none() && world.cv.is_none() && world.jitter.is_none();
    let bursts = Also { world: WorldSpec { cv: Some(CV), ..world.clone() }, episodes: episodes(loads, 1.0) };
    std::iter::once(lengths).chain(is_bursty.then_some(bursts)).collect()
}

fn ppo(seed: u64, decisions: u64) -> PpoConfig {
    PpoConfig {
        total_decisions: decisions,
        num_steps: NUM_STEPS,
        num_minibatches: 8,
        learning_rate: 5e-4,
        entropy_coef: Schedule { start: 0.001, end: 0.0 },
        seed,
        ..PpoConfig::default()
    }
}
