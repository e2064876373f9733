//! One draw served once more by every policy, watched closely.

use std::cell::RefCell;

use kvtide_envs::env::{Controller, EngineDefault, Guarded, Node, PolicyController, run};
use kvtide_envs::sched::{Phase, PromptLimit, Retain};
use kvtide_envs::tier::Tier;
use kvtide_envs::workload::Window;
use kvtide_runtime::{Action, ActionMask, Controls, Observation, Policy};
use rayon::prelude::*;

use super::insight::Insight;
use super::{ReportError, ReportInput};
use crate::evaluate::Comparison;
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::world::Draw;

/// The draw, and how each policy served it.
#[derive(Debug, Clone)]
pub(super) struct CloseUp {
    pub(super) window: Option<Window>,
    pub(super) load: f64,
    pub(super) seed: u64,
    /// In the order of the comparisons.
    pub(super) served: Vec<ServedPolicy>,
    /// The best policy that learned, and whom it is shown beside; indices into `served`.
    pub(super) pair: (Option<usize>, usize),
}

/// How one policy served it.
#[derive(Debug, Clone)]
pub(super) struct ServedPolicy {
    pub(super) policy: PolicyName,
    /// Time to first token of every request that finished, milliseconds, ascending.
    pub(super) ttft_ms: Vec<f64>,
    /// Arrival to last token, likewise.
    pub(super) e2e_ms: Vec<f64>,
    /// Gaps between tokens: milliseconds, ascending, and how many.
    pub(super) itl_ms: Vec<(f64, u64)>,
    pub(super) timeline: Vec<Moment>,
    /// Of a policy that learned.
    pub(super) insight: Option<Insight>,
}

/// The node at a decision, and what was decided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Moment {
    pub(super) seconds: f64,
    pub(super) watermark: f64,
    /// Share of GPU blocks in use.
    pub(super) kv_usage: f64,
    pub(super) waiting: usize,
    pub(super) running: usize,
    /// Since the start.
    pub(super) preemptions: u64,
}

/// A state a policy was asked about.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct VisitedState {
    pub(super) observation: Observation,
    pub(super) mask: ActionMask,
    pub(super) action: Action,
}

/// The share of requests the default attains at the load that is looked at closely, as near as there is.
const TYPICAL: f64 = 0.8;

impl CloseUp {
    /// Serves the first window with the first seed, at the load where the default attains about 80 %.
    pub(super) fn of(material: &ReportInput<'_>) -> Result<CloseUp, ReportError> {
        let ReportInput { world, matrix, rows, comparisons, .. } = *material;
        let load = typical_load(comparisons);
        let (window, seed) = (matrix.windows[0], matrix.seeds[0]);
        let workload = world.draw(&Draw { window, load, seed })?;
        // A policy of hindsight is what it was found to be on this draw.
        let chosen = |name: &PolicyName| {
            let row = rows.iter().find(|row| row.policy == *name && row.load == load)?;
            Subject::load(row.chosen.as_ref()?).ok()
        };
        let serve = |comparison: &Comparison| -> Result<ServedPolicy, ReportError> {
            let name = &comparison.policy;
            let named = matrix.policies.iter().find(|(known, _)| known == name).map(|(_, subject)| subject);
            let subject = chosen(name).or_else(|| named.cloned()).unwrap_or(Subject::Default);
            let visits = RefCell::new(Vec::new());
            let mut timeline = Vec::new();
            let mut controller: Box<dyn Controller + '_> = match (&subject, subject.policy()) {
                (Subject::Table(table), _) => Box::new(WatchedTable { guarded: Guarded::new(*table), visits: &visits }),
                (_, Some((policy, profile))) => {
                    Box::new(PolicyController::new(Watched { policy, visits: &visits }, profile))
                }
                _ => subject.controller().unwrap_or_else(|| Box::new(EngineDefault)),
            };
            let retain = subject.controller().map_or(Retain::NORMAL, |controller| controller.retain());
            let mut node = world.start(load, &workload, &retain);
            let mut timed = TimelineController { controller: controller.as_mut(), retain, timeline: &mut timeline };
            let served = run(&mut node, &mut timed, world.decision_interval);
            drop(controller);
            served.map_err(|error| ReportError::Run { policy: name.clone(), error: Box::new(error) })?;
            let insight = Insight::of(&subject, &visits.into_inner());
            Ok(ServedPolicy { timeline, insight, ..times(name, &node) })
        };
        let served = comparisons.par_iter().map(serve).collect::<Result<Vec<ServedPolicy>, ReportError>>()?;
        let pair = (best_learned(comparisons, &served), beside(comparisons));
        Ok(CloseUp { window, load, seed, served, pair })
    }
}

fn times(policy: &PolicyName, node: &Node) -> ServedPolicy {
    let collector = node.collector();
    let finished: Vec<_> = collector.records().filter(|record| record.phase == Phase::Finished).collect();
    let sorted = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times
    };
    let gaps = collector.gaps().map(|gaps| {
        gaps.iter_recorded().map(|gap| (gap.value_iterated_to() as f64 * 1e-3, gap.count_at_value())).collect()
    });
    ServedPolicy {
        policy: policy.clone(),
        ttft_ms: sorted(finished.iter().filter_map(|record| Some(record.ttft()?.as_millis_f64())).collect()),
        e2e_ms: sorted(finished.iter().map(|record| record.e2e().as_millis_f64()).collect()),
        itl_ms: gaps.unwrap_or_default(),
        timeline: Vec::new(),
        insight: None,
    }
}

/// The load at which the default, or the reference, attains about 80 %.
fn typical_load(comparisons: &[Comparison]) -> f64 {
    let yardstick = comparisons.iter().find(|line| *line.policy.spec() == PolicySpec::Default);
    let yardstick = yardstick.or_else(|| comparisons.iter().find(|line| line.policy == line.reference));
    let loads = yardstick.map_or(&[][..], |line| &line.loads);
    let distance = |attained: f64| (attained - TYPICAL).abs();
    let near = loads.iter().filter_map(|at| Some((at.load, distance(at.slo_attainment?.mean))));
    near.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(1.0, |(load, _)| load)
}

/// The learned policy that attains most.
fn best_learned(comparisons: &[Comparison], served: &[ServedPolicy]) -> Option<usize> {
    let learned = (0..served.len()).filter(|&index| served[index].insight.is_some());
    // Of equals the first: a network before the table made from it, if it was named so.
    learned.rev().max_by(|&a, &b| comparisons[a].slo_attainment.total_cmp(&comparisons[b].slo_attainment))
}

/// Whom a learned policy is shown beside: the best fixed watermark, or else the reference.
fn beside(comparisons: &[Comparison]) -> usize {
    let best = comparisons.iter().position(|line| *line.policy.spec() == PolicySpec::BestFixed);
    best.or_else(|| comparisons.iter().position(|line| line.policy == line.reference)).unwrap_or(0)
}

/// Notes every state a policy is asked about.
struct Watched<'a> {
    policy: &'a dyn Policy,
    visits: &'a RefCell<Vec<VisitedState>>,
}

impl Policy for Watched<'_> {
    fn decide(&self, observation: &Observation, mask: ActionMask) -> Action {
        let action = self.policy.decide(observation, mask);
        self.visits.borrow_mut().push(VisitedState { observation: *observation, mask, action });
        action
    }
}

/// Notes what the table of a guard decides, and not what is decided in its place.
struct WatchedTable<'a> {
    guarded: Guarded<'static>,
    visits: &'a RefCell<Vec<VisitedState>>,
}

impl Controller for WatchedTable<'_> {
    fn control(&mut self, node: &Node) -> Controls {
        let controls = self.guarded.control(node);
        if let Some((observation, mask)) = self.guarded.seen() {
            let action = self.guarded.table().decide(&observation, mask);
            self.visits.borrow_mut().push(VisitedState { observation, mask, action });
        }
        controls
    }
}

/// Notes the node at every decision.
struct TimelineController<'a> {
    controller: &'a mut dyn Controller,
    /// The subject's, of whom `controller` is only what steers.
    retain: Retain,
    timeline: &'a mut Vec<Moment>,
}

impl Controller for TimelineController<'_> {
    fn control(&mut self, node: &Node) -> Controls {
        let controls = self.controller.control(node);
        let scheduler = node.scheduler();
        self.timeline.push(Moment {
            seconds: node.now().as_secs_f64(),
            watermark: controls.watermark,
            kv_usage: 1.0 - f64::from(scheduler.free_blocks(Tier::Gpu)) / f64::from(scheduler.num_blocks(Tier::Gpu)),
            waiting: scheduler.num_waiting() + scheduler.num_on_host(),
            running: scheduler.running().len(),
            preemptions: node.collector().preemptions,
        });
        controls
    }

    fn interval(&self) -> Option<u32> {
        self.controller.interval()
    }

    fn prompt_limit(&self) -> PromptLimit {
        self.controller.prompt_limit()
    }

    fn retain(&self) -> Retain {
        self.retain.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::atomic::AtomicBool;

    use kvtide_envs::percentile::percentile;

    use super::*;
    use crate::evaluate::{Matrix, Watch, compare, run_matrix};
    use crate::world::WorldSpec;

    struct Unwatched;

    impl Watch for Unwatched {
        fn planned(&self, _: usize) {}
        fn done(&self) {}
    }

    #[test]
    fn what_is_watched_is_what_was_judged() {
        let spec = WorldSpec {
            workload: Some("chat:rate=3,duration=60,seed=3".parse().unwrap()),
            set: vec!["num_gpu_blocks=1500".parse().unwrap()],
            ..WorldSpec::default()
        };
        let world = spec.world().unwrap();
        let policies = ["default", "best-fixed", "oracle"].map(|name| {
            let spec: PolicySpec = name.parse().unwrap();
            let subject = Subject::load(&spec).unwrap();
            (PolicyName::from(spec), subject)
        });
        let matrix = Matrix { policies: policies.to_vec(), windows: vec![None], loads: vec![1.0, 1.3], seeds: vec![5] };
        let mut rows = Vec::new();
        run_matrix(&world, &matrix, &Unwatched, &AtomicBool::new(false), &mut |finished| {
            rows.extend_from_slice(finished);
            ControlFlow::Continue(())
        })
        .unwrap();
        let comparisons = compare(&rows, &PolicySpec::Default.into(), &[]);
        let command = String::new();
        let material = ReportInput {
            command,
            made_on: String::new(),
            world: &world,
            matrix: &matrix,
            found: &[],
            rows: &rows,
            versus: &[],
            comparisons: &comparisons,
            clocks: &[],
        };
        let close_up = CloseUp::of(&material).unwrap();
        assert_eq!((close_up.pair, close_up.seed), ((None, 1), 5));
        for served in &close_up.served {
            let row = rows.iter().find(|row| row.policy == served.policy && row.load == close_up.load).unwrap();
            let judged = row.summary.ttft_ms.unwrap();
            assert_eq!(percentile(&served.ttft_ms, 99.0), judged.p99, "{}", served.policy);
            assert_eq!(percentile(&served.e2e_ms, 50.0), row.summary.e2e_ms.unwrap().p50);
            let gaps: u64 = served.itl_ms.iter().map(|(_, count)| count).sum();
            assert!(gaps > 1000 && served.itl_ms.is_sorted());
            if let Some(chosen) = &row.chosen {
                assert_ne!(chosen.to_string(), "fixed:0.01", "the default would prove nothing");
                let watermark: f64 = chosen.to_string().trim_start_matches("fixed:").parse().unwrap();
                assert!(served.timeline.iter().all(|moment| moment.watermark == watermark), "{chosen}");
            }
            assert!(served.timeline.is_sorted_by_key(|moment| (moment.preemptions, (moment.seconds * 1e6) as u64)));
        }
    }
}
