//! On a world whose components are known.

use std::sync::atomic::AtomicBool;

use kvtide_envs::env::EnvError;
use kvtide_envs::seed;
use kvtide_runtime::{Action, ActionMask, ActionProfile, Head, NUM_FEATURES, Observation};
use rand::RngExt;

use super::components::components;
use super::statistics::{Crossed, Squares};
use super::{Behaviour, Branch, Branches, Decomposition, Discount, Earned, Source, VarianceConfig, decompose};
use crate::agent::{Architecture, NetworkPolicy, Weights};
use crate::evaluate::Watch;

const STEPS: u64 = 30;
/// What the scene, a choice, and a choice on that traffic weigh; traffic weighs 1.
const SCENE: f64 = 0.5;
const CHOICE: f64 = 0.75;
const BOTH: f64 = 1.5;

/// Each step earns `SCENE·s + t + CHOICE·x + BOTH·t·x`, where `s` is ±1 by episode, `t` by step, and `x` by what is chosen.
struct Coins;

#[derive(Clone)]
struct Coin {
    scene: f64,
    traffic: u64,
    step: u64,
    can_fork: bool,
}

fn side(is_head: bool) -> f64 {
    if is_head { 1.0 } else { -1.0 }
}

impl Branches for Coins {
    type Branch = Coin;

    fn start(&self, seed: u64) -> Result<Coin, EnvError> {
        let scene = side(seed::stream(seed, "scene", 0).random());
        Ok(Coin { scene, traffic: seed, step: 0, can_fork: true })
    }
}

impl Branch for Coin {
    fn seen(&self) -> (&Observation, ActionMask) {
        let pinned = Head::ALL.into_iter().skip(1).fold(ActionMask::ALL, |mask, head| mask.pin(head, 0));
        let two = (2..Head::Watermark.size() as u8).fold(pinned, |mask, choice| mask.forbid(Head::Watermark, choice));
        (&Observation::ZERO, two)
    }

    fn step(&mut self, action: Action) -> Result<Earned, EnvError> {
        let coin = side(seed::stream(self.traffic, "coin", self.step).random());
        let chosen = side(action.get(Head::Watermark) == 1);
        self.step += 1;
        let reward = SCENE * self.scene + coin + CHOICE * chosen + BOTH * coin * chosen;
        Ok(Earned { reward, seconds: 0.5, has_ended: self.step == STEPS })
    }

    fn fork(&self) -> Option<Coin> {
        self.can_fork.then(|| self.clone())
    }

    fn redraw_future(&mut self, seed: u64) -> Result<(), EnvError> {
        self.traffic = seed;
        Ok(())
    }
}

struct Nobody;

impl Watch for Nobody {
    fn planned(&self, _: usize) {}
    fn done(&self) {}
}

fn measured(config: &VarianceConfig, stop: bool) -> Option<Decomposition> {
    let head_sizes = Head::ALL.map(Head::size).to_vec();
    let weights = Weights::zeros(Architecture { observation_size: NUM_FEATURES, hidden: Vec::new(), head_sizes });
    let policy = NetworkPolicy::new(&weights, None, ActionProfile::Watermark).unwrap();
    let behaviour = Behaviour { policy, hold: 1 };
    let discount = Discount { gamma: 1.0, lambda: 0.5 };
    decompose(&Coins, &behaviour, discount, config, &Nobody, &AtomicBool::new(stop)).unwrap()
}

fn config() -> VarianceConfig {
    VarianceConfig { scenes: 600, traffics: 4, actions: 4, states: 800, futures: 4, holds: vec![1, 4], seed: 3 }
}

#[test]
fn each_source_has_its_part_of_the_variance() {
    let Decomposition { components, .. } = measured(&config(), false).unwrap();
    let steps = STEPS as f64;
    let expected = [(SCENE * steps).powi(2), steps, CHOICE * CHOICE * steps, BOTH * BOTH * steps];
    let total: f64 = expected.iter().sum();
    for (component, expected) in components.iter().zip(expected) {
        let found = component.deviation.powi(2);
        assert!((found / expected - 1.0).abs() < 0.1, "{:?}: {found}, not {expected}", component.source);
        let (low, high) = (component.share.low.unwrap(), component.share.high.unwrap());
        assert!(low < expected / total && expected / total < high, "{component:?}");
    }
    assert_eq!(components.iter().map(|component| component.source).collect::<Vec<_>>(), Source::ALL);
    assert!((components.iter().map(|component| component.share.mean).sum::<f64>() - 1.0).abs() < 1e-9);
}

#[test]
fn the_advantage_is_what_the_other_side_earns_and_forks_see_it_best() {
    let Decomposition { advantages, .. } = measured(&config(), false).unwrap();
    for held in &advantages {
        let decisions = f64::from(held.decisions);
        assert!((held.signal.mean / (2.0 * CHOICE * decisions) - 1.0).abs() < 0.1, "{held:?}");
        assert!((held.fork_noise / (2.0 * BOTH * decisions.sqrt()) - 1.0).abs() < 0.05, "{held:?}");
        // λ = ½ keeps 1 + ½ + ¼ + … of the first few.
        let kept = 2.0 - 2.0 * 0.5_f64.powf(decisions);
        assert!((held.traced_signal / (2.0 * CHOICE * kept) - 1.0).abs() < 0.1, "{held:?}");
        let (chosen, came) = (CHOICE * CHOICE + BOTH * BOTH, 1.0);
        let left = (held.traffic_noise / held.state_noise).powi(2);
        assert!((left - chosen / (chosen + came)).abs() < 0.05, "{left}");
        assert!(held.fork_noise < held.traffic_noise && held.state_noise < held.return_noise, "{held:?}");
        assert_eq!((held.states, held.seconds), (800, decisions / 2.0));
        let samples = held.samples(held.fork_noise).unwrap();
        assert!((samples - (held.fork_noise / held.signal.mean).powi(2)).abs() < 1e-9);
    }
}

#[test]
fn same_seed_same_numbers_whatever_the_threads_and_nothing_if_stopped() {
    let few = VarianceConfig { scenes: 5, states: 5, ..config() };
    let of = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| measured(&few, false))
    };
    assert_eq!(of(1), of(3));
    assert_ne!(of(1), measured(&VarianceConfig { seed: 4, ..few.clone() }, false));
    assert_eq!(measured(&few, true), None);
}

#[test]
fn counts_that_tell_nothing_are_refused() {
    let error = |config: VarianceConfig| config.validate().unwrap_err().to_string();
    assert_eq!(error(VarianceConfig { scenes: 1, ..config() }), "scenes = 1: expected 2 to 100000");
    assert_eq!(error(VarianceConfig { futures: 0, ..config() }), "futures = 0: expected 2 to 100000");
    assert_eq!(
        error(VarianceConfig { holds: vec![8, 0], ..config() }),
        "holds = 0: expected 1 to 1000000 decisions each"
    );
    assert_eq!(error(VarianceConfig { holds: vec![], ..config() }), "holds = 0: expected 1 to 64 of them");
}

#[test]
fn a_crossed_table_as_computed_by_hand() {
    // Rows at 0 and 4, columns at 0 and 2, and a residual of ±1 in a pattern that cancels in every mean.
    let cells = vec![vec![1.0, 1.0], vec![3.0, 7.0]];
    let Crossed { mean, rows, columns, interaction, of_mean } = Crossed::of(&cells);
    assert_eq!((mean, interaction), (3.0, 4.0));
    // Mean squares: rows 2·Var(1, 5) = 16, columns 2·Var(2, 4) = 4.
    assert_eq!((rows, columns), (6.0, 0.0));
    assert_eq!(of_mean, 6.0 / 2.0 + 4.0 / 4.0);
}

#[test]
fn squares_are_products_of_different_draws() {
    let squares = Squares::of(&[vec![1.0, 2.0], vec![3.0, 5.0]]);
    // 1·2 and 3·5 share a future; 1·5 and 2·3 share nothing.
    assert_eq!((squares.mean, squares.square), (2.75, 39.0 / 4.0));
    assert_eq!(squares.same_future, 8.5);
    assert_eq!(squares.apart, 5.5);
}

#[test]
fn returns_that_never_vary_have_no_shares() {
    let components = components(&[vec![vec![1.0; 2]; 2], vec![vec![1.0; 2]; 2]]);
    assert!(components.iter().all(|component| component.deviation == 0.0 && component.share.mean == 0.0));
}
