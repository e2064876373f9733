//! The loads at which a policy begins to fail.

use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::workload::{Window, WorkloadError};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::matrix::{MatrixError, Watch, window_name};
use super::watch::Budget;
use crate::policy::PolicySpec;
use crate::world::{Draw, World};

/// Loads looked at lie within this factor of 1.
const MAX_FACTOR: f64 = 1024.0;
/// Halvings of the bracket, in logarithms: 2 ^ (1 / 2 ^ 6) is 1.1 %.
const HALVINGS: u32 = 6;
/// How often a search looks, about: some factors of 2, the halvings, and once at what it found.
pub(super) const LOOKS: usize = 3 + HALVINGS as usize + 1;
/// The seed of [`knee`]; results are judged on others.
const SEED: u64 = 0;

/// Shares of requests the default attains at the loads of `--loads auto`.
pub const AUTO_TARGETS: [f64; 4] = [0.95, 0.8, 0.6, 0.4];
/// Draws `--loads auto` looks at, at most.
pub const AUTO_DRAWS: usize = 3;

/// What happens at a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Probe {
    /// This share of requests is attained.
    Attained(f64),
    /// So little load that nobody comes: always served.
    Nobody,
    /// More than can be drawn: never served.
    TooMany,
}

impl Probe {
    /// What it means for a load that nothing can be drawn at it; `None` if `error` is about something else.
    pub(super) fn of_draw(error: &MatrixError, load: f64) -> Option<Probe> {
        let MatrixError::Draw { error, .. } = error else { return None };
        match error {
            WorkloadError::ThinnedToNothing { .. }
            | WorkloadError::IdleWindow(_)
            | WorkloadError::NoRequests { .. }
                if load < 1.0 =>
            {
                Some(Probe::Nobody)
            }
            WorkloadError::TooManyRequests { .. } if load > 1.0 => Some(Probe::TooMany),
            _ => None,
        }
    }

    fn at_least(self, target: f64) -> bool {
        match self {
            Probe::Attained(attained) => attained >= target,
            Probe::Nobody => true,
            Probe::TooMany => false,
        }
    }
}

/// Where attainment falls below a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crossing {
    /// At this load, to about 1 %.
    At(f64),
    /// Nowhere: it is below the target at every load down to this one.
    Below(f64),
    /// Nowhere: it is above the target at every load up to this one.
    Above(f64),
}

impl Crossing {
    /// The load of the crossing, or the last one looked at.
    pub fn load(self) -> f64 {
        match self {
            Crossing::At(load) | Crossing::Below(load) | Crossing::Above(load) => load,
        }
    }
}

/// Attainment over load, looked at where it is asked for, and nowhere twice.
pub struct AttainmentCurve<'a> {
    look: &'a mut dyn FnMut(f64) -> Result<Option<Probe>, MatrixError>,
    known: Vec<(f64, Probe)>,
}

impl<'a> AttainmentCurve<'a> {
    /// `look` says what happens at a load; `None` if interrupted.
    pub fn new(look: &'a mut dyn FnMut(f64) -> Result<Option<Probe>, MatrixError>) -> AttainmentCurve<'a> {
        AttainmentCurve { look, known: Vec::new() }
    }

    /// What happens at `load`; `None` if interrupted.
    ///
    /// # Errors
    /// Those of a run.
    pub fn at(&mut self, load: f64) -> Result<Option<Probe>, MatrixError> {
        if let Some((_, probe)) = self.known.iter().find(|(known, _)| *known == load) {
            return Ok(Some(*probe));
        }
        let probe = (self.look)(load)?;
        self.known.extend(probe.map(|probe| (load, probe)));
        Ok(probe)
    }

    /// The load at which attainment falls below `target`; `None` if interrupted.
    ///
    /// Attainment falls with load but for noise; the search takes the first crossing it finds, going from load 1 in
    /// factors of 2 and then halving the bracket in logarithms.
    ///
    /// # Errors
    /// Those of a run.
    pub fn crossing(&mut self, target: f64) -> Result<Option<Crossing>, MatrixError> {
        let Some(first) = self.at(1.0)? else { return Ok(None) };
        let up = first.at_least(target);
        let step = if up { 2.0 } else { 0.5 };
        let (mut from, mut to) = (1.0, step);
        loop {
            let Some(probe) = self.at(to)? else { return Ok(None) };
            if probe.at_least(target) != up {
                break;
            }
            if !(1.0 / MAX_FACTOR..=MAX_FACTOR).contains(&(to * step)) {
                return Ok(Some(if up { Crossing::Above(to) } else { Crossing::Below(to) }));
            }
            from = to;
            to *= step;
        }
        // `from` is on the side of load 1, `to` beyond the crossing.
        for _ in 0..HALVINGS {
            let middle = f64::sqrt(from * to);
            let Some(probe) = self.at(middle)? else { return Ok(None) };
            if probe.at_least(target) == up { from = middle } else { to = middle }
        }
        Ok(Some(Crossing::At(f64::sqrt(from * to))))
    }

    /// The highest load looked at, up to `load`, at which `target` is attained.
    fn last_attaining(&self, target: f64, load: f64) -> Option<f64> {
        let attaining = self.known.iter().filter(|(known, probe)| *known <= load && probe.at_least(target));
        attaining.map(|(known, _)| *known).max_by(f64::total_cmp)
    }
}

/// The load at which the engine's default attains `target` of the requests of `window`, to about 1 %; the highest or lowest
/// that can be looked at if there is none.
///
/// # Errors
/// Nothing can be drawn at load 1, or a faithful engine dies.
pub fn knee(world: &World, window: Option<Window>, target: f64) -> Result<f64, MatrixError> {
    let mut look = |load| attained_by_default(world, &Draw { window, load, seed: SEED }, &AtomicBool::new(false));
    let crossing = AttainmentCurve::new(&mut look).crossing(target)?;
    Ok(crossing.map_or(1.0, Crossing::load))
}

/// A load that was looked for: the `data` of a `load` line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FoundLoad {
    /// What the default should attain.
    pub target: f64,
    /// The load, to three digits; `None` where no load comes near.
    pub load: Option<f64>,
    /// What the default attains there.
    pub attained: Option<f64>,
    /// Requests offered a second there, the mean over draws; `None` in a closed loop.
    pub offered_rps: Option<f64>,
}

/// A load this far from its target is no answer.
const NEAR: f64 = 0.1;

/// Loads at which the engine's default attains each of `targets`, or a little more, of `window`, averaged over `seeds`. Two targets can have
/// the same load where attainment falls steeply. `None` if interrupted.
///
/// # Errors
/// Nothing can be drawn at load 1, or a faithful engine dies.
pub fn find_loads(
    world: &World,
    window: Option<Window>,
    seeds: &[u64],
    targets: &[f64],
    watch: &dyn Watch,
    stop: &AtomicBool,
) -> Result<Option<Vec<FoundLoad>>, MatrixError> {
    let budget = Budget::new(watch, targets.len() * LOOKS * seeds.len());
    let mut look = |load: f64| -> Result<Option<Probe>, MatrixError> {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let seeds = if world.depends_on_seed(load) { seeds } else { &seeds[..seeds.len().min(1)] };
        budget.planned(seeds.len());
        if let Some(elsewhere) = &world.elsewhere {
            let errand = |&seed: &u64| world.errand(PolicySpec::Default.to_string(), &Draw { window, load, seed });
            for seed in seeds {
                elsewhere.begin(&errand(seed));
            }
        }
        let looked = seeds.par_iter().map(|&seed| {
            let probe = attained_by_default(world, &Draw { window, load, seed }, stop);
            budget.done();
            probe
        });
        let probes = looked.collect::<Result<Option<Vec<Probe>>, MatrixError>>()?;
        Ok(probes.map(|probes| mean(&probes)))
    };
    let mut curve = AttainmentCurve::new(&mut look);
    let mut found = Vec::new();
    for &target in targets {
        let Some(crossing) = curve.crossing(target)? else { return Ok(None) };
        let load = to_three_digits(curve.last_attaining(target, crossing.load()).unwrap_or(crossing.load()));
        let Some(probe) = curve.at(load)? else { return Ok(None) };
        let attained = match probe {
            Probe::Attained(attained) => Some(attained),
            Probe::Nobody | Probe::TooMany => None,
        };
        // At a crossing it is as near as it gets; elsewhere there may be nothing to be near to.
        let is_near = |attained: &f64| matches!(crossing, Crossing::At(_)) || (attained - target).abs() <= NEAR;
        let attained = attained.filter(is_near);
        let load = attained.map(|_| load);
        let offered_rps = load.map_or(Ok(None), |load| offered_rps(world, window, seeds, load))?;
        found.push(FoundLoad { target, load, attained, offered_rps });
    }
    Ok(Some(found))
}

/// Requests offered a second, the mean over draws.
fn offered_rps(world: &World, window: Option<Window>, seeds: &[u64], load: f64) -> Result<Option<f64>, MatrixError> {
    let mut sum = 0.0;
    for &seed in seeds {
        let draw = world.draw(&Draw { window, load, seed });
        let workload = draw.map_err(|error| MatrixError::Draw { window: window_name(window), load, seed, error })?;
        let Some(rate) = world.offered_rps(&workload) else { return Ok(None) };
        sum += rate;
    }
    Ok(Some(sum / seeds.len().max(1) as f64))
}

/// What the engine's default attains on one draw.
fn attained_by_default(world: &World, draw: &Draw, stop: &AtomicBool) -> Result<Option<Probe>, MatrixError> {
    let (load, seed) = (draw.load, draw.seed);
    let drawn =
        world.draw(draw).map_err(|error| MatrixError::Draw { window: window_name(draw.window), load, seed, error });
    let workload = match drawn {
        Ok(workload) => workload,
        Err(error) => return Probe::of_draw(&error, load).map(Some).ok_or(error),
    };
    let (policy, window) = (|| PolicySpec::Default.into(), window_name(draw.window));
    if let Some(elsewhere) = &world.elsewhere {
        let served = elsewhere.finish(&world.errand(PolicySpec::Default.to_string(), draw), stop);
        let served = served.map_err(|error| {
            let error = Box::new(error);
            MatrixError::Elsewhere { policy: policy(), window, load, seed, error }
        })?;
        return Ok(served.map(|summary| Probe::Attained(summary.slo_attainment)));
    }
    let mut controls = world.node.engine.default_controls();
    let summary = world.serve(load, &workload, &mut controls).map_err(|error| MatrixError::Run {
        policy: policy(),
        window,
        load,
        seed,
        error: Box::new(error),
    })?;
    Ok(Some(Probe::Attained(summary.slo_attainment)))
}

/// The mean over draws; what cannot be drawn once is not drawn.
fn mean(probes: &[Probe]) -> Probe {
    let mut sum = 0.0;
    for probe in probes {
        match probe {
            Probe::Attained(attained) => sum += attained,
            other => return *other,
        }
    }
    Probe::Attained(sum / probes.len().max(1) as f64)
}

/// Loads are given to people, so to three digits, rounded down.
fn to_three_digits(load: f64) -> f64 {
    let unit = 10f64.powf(load.log10().floor() - 2.0);
    // Printed and read back, so that it is the very number people will give.
    format!("{:.2e}", (load / unit + 1e-9).floor() * unit).parse().unwrap_or(load)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::WorldSpec;

    /// How often a curve is looked at, and what it says of targets.
    fn search(attained: impl Fn(f64) -> Probe, targets: &[f64]) -> (usize, Vec<Crossing>) {
        let mut looks = 0;
        let mut look = |load| {
            looks += 1;
            Ok(Some(attained(load)))
        };
        let mut curve = AttainmentCurve::new(&mut look);
        let found = targets.iter().map(|&target| curve.crossing(target).unwrap().unwrap()).collect();
        (looks, found)
    }

    #[test]
    fn crossings_are_found_to_a_hundredth_on_either_side_of_one() {
        for middle in [0.013, 0.4, 1.0, 3.3, 80.0] {
            // Attains half at `middle`, 0.8 at half of it, 0.2 at twice of it.
            let attained = |load: f64| Probe::Attained(1.0 / (1.0 + (load / middle).powi(2)));
            let (looks, found) = search(attained, &[0.8, 0.5, 0.2]);
            for (crossing, factor) in found.iter().zip([0.5, 1.0, 2.0]) {
                let Crossing::At(load) = crossing else { panic!("{crossing:?}") };
                assert!((load / (middle * factor) - 1.0).abs() < 0.012, "{load} for {middle} x {factor}");
            }
            assert!(looks <= 14 + 3 * HALVINGS as usize, "{looks}");
        }
    }

    #[test]
    fn a_target_that_is_never_met_or_never_missed_says_so() {
        let (_, found) = search(|_| Probe::Attained(0.7), &[0.95, 0.4]);
        assert_eq!(found, [Crossing::Below(1.0 / MAX_FACTOR), Crossing::Above(MAX_FACTOR)]);
        // Where nothing can be drawn is no attainment, but a side.
        let bounded = |load: f64| match load {
            ..0.1 => Probe::Nobody,
            4.0.. => Probe::TooMany,
            _ => Probe::Attained(0.7),
        };
        let (_, found) = search(bounded, &[0.95, 0.4]);
        assert!(matches!(found[0], Crossing::At(load) if (0.09..0.11).contains(&load)), "{found:?}");
        assert!(matches!(found[1], Crossing::At(load) if (3.9..4.1).contains(&load)), "{found:?}");
    }

    #[test]
    fn a_search_stops_when_told() {
        let mut left = 3;
        let mut look = |_| {
            left -= 1;
            Ok((left > 0).then_some(Probe::Attained(1.0)))
        };
        assert_eq!(AttainmentCurve::new(&mut look).crossing(0.5).unwrap(), None);
    }

    struct Unwatched;

    impl Watch for Unwatched {
        fn planned(&self, _: usize) {}
        fn done(&self) {}
    }

    #[test]
    fn loads_are_found_for_the_default_unless_interrupted() {
        let spec = WorldSpec {
            workload: Some("chat:rate=3,duration=60,seed=3".parse().unwrap()),
            set: vec!["num_gpu_blocks=1500".parse().unwrap()],
            ..WorldSpec::default()
        };
        let world = spec.world().unwrap();
        let find =
            |stop: bool| find_loads(&world, None, &[1, 2], &[0.9, 0.5], &Unwatched, &AtomicBool::new(stop)).unwrap();
        assert_eq!(find(true), None);
        let found = find(false).unwrap();
        assert_eq!(find(false), Some(found.clone()));
        assert!(found[0].load < found[1].load, "{found:?}");
        for found in found {
            let attained = found.attained.unwrap();
            assert!((found.target..found.target + 0.08).contains(&attained), "{found:?}");
        }
    }

    #[test]
    fn loads_are_round() {
        assert_eq!([0.012_345, 1.0, 98.76, 123_456.0].map(to_three_digits), [0.0123, 1.0, 98.7, 123_000.0]);
        assert_eq!([0.001, 0.57, 999.9].map(to_three_digits), [0.001, 0.57, 999.0]);
    }
}
