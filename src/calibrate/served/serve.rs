//! The same requests, served by the simulator.

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, Hardware};
use kvtide_envs::env::{Node, NodeConfig, NodeStatus};
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::{Phase, RequestId, Slo};
use kvtide_envs::tier::Tier;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::Host;
use serde::Serialize;

use super::error::CalibrateError;
use super::seen::{ObservedRun, Stamps, Tick};

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Model and accelerator, before anything is fitted.
    pub deployment: Deployment,
    /// The engine's settings, as measured.
    pub engine: EngineConfig,
    /// How many such engines serve beside each other.
    pub replicas: u32,
    /// What the run did not say, and what is taken for it, in sentences.
    pub assumed: Vec<String>,
}

/// What is fitted. Times are seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FittedConstants {
    /// See [`Hardware::compute_efficiency`].
    pub compute_efficiency: f64,
    /// See [`Hardware::bandwidth_efficiency`].
    pub bandwidth_efficiency: f64,
    /// See [`Hardware::step_overhead`].
    pub step_overhead: f64,
    /// See [`Hardware::sequence_overhead`].
    pub sequence_overhead: f64,
    /// What the first step takes beyond that. Of the run, not of the hardware: whatever is initialised late.
    pub cold_start: f64,
}

impl FittedConstants {
    /// Those of `hardware`, and no cold start.
    pub fn of(hardware: &Hardware) -> FittedConstants {
        FittedConstants {
            compute_efficiency: hardware.compute_efficiency,
            bandwidth_efficiency: hardware.bandwidth_efficiency,
            step_overhead: hardware.step_overhead,
            sequence_overhead: hardware.sequence_overhead,
            cold_start: 0.0,
        }
    }

    /// `hardware` with these, which stand for any kernels it has.
    pub fn apply(&self, hardware: &Hardware) -> Hardware {
        Hardware {
            compute_efficiency: self.compute_efficiency,
            bandwidth_efficiency: self.bandwidth_efficiency,
            step_overhead: self.step_overhead,
            sequence_overhead: self.sequence_overhead,
            kernels: None,
            tables: None,
            host: None,
            spread: None,
            ..hardware.clone()
        }
    }
}

/// What came of the requests in the simulation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SimulatedRun {
    /// As in [`ObservedRun`]; `None` for what was not awaited.
    pub stamps: Vec<Stamps>,
    /// How often each request was preempted.
    pub preempted: Vec<u32>,
    /// At the moments of [`ObservedRun::ticks`].
    pub ticks: Vec<Tick>,
    /// Last token of all, seconds.
    pub end_s: f64,
    /// When the simulation stopped.
    pub stopped_s: f64,
    /// Tokens dropped by preemptions.
    pub recomputed_tokens: u64,
    /// Tokens found in the prefix cache, those of resumed requests included.
    pub prefix_hit_tokens: u64,
}

/// Longest wait for what was measured by a moment, as a multiple of that moment.
const PATIENCE: f64 = 2.0;

impl Setup {
    /// Serves what is in `seen` with `constants`, until all that had happened by then has, and all ticks are over, or
    /// until twice that time.
    ///
    /// # Errors
    /// The engine cannot work with its settings.
    pub fn serve(&self, constants: &FittedConstants, seen: &ObservedRun) -> Result<SimulatedRun, CalibrateError> {
        if self.replicas == 1 {
            return self.serve_by_one(constants, seen);
        }
        let run = |replica| self.serve_by_one(constants, &seen.of_replica(replica));
        let runs: Vec<SimulatedRun> = (0..self.replicas).map(run).collect::<Result<_, _>>()?;
        Ok(SimulatedRun::together(seen, &runs))
    }

    fn serve_by_one(&self, constants: &FittedConstants, seen: &ObservedRun) -> Result<SimulatedRun, CalibrateError> {
        let mut node = self.node(constants, &seen.requests)?;
        let mut awaited = Awaited::new(seen);
        let mut recorder = TickRecorder::new(&seen.ticks);
        let limit = Micros::from_secs_f64(seen.until_s * PATIENCE);
        let controls = node.scheduler().default_controls();
        let mut is_first = true;
        loop {
            let progress = node.step(&controls).expect("only a faithful engine dies");
            if std::mem::take(&mut is_first) {
                // The first step has been planned, and priced; no other has.
                let hardware = constants.apply(&self.deployment.hardware);
                node.set_cost(self.cost(hardware));
            }
            recorder.watch(&node);
            if progress != NodeStatus::Stepped || node.now() >= limit {
                break;
            }
            if node.now().as_secs_f64() >= seen.until_s && awaited.is_over(&node) {
                break;
            }
        }
        Ok(served(&node, seen.requests.len(), recorder))
    }

    fn node(&self, constants: &FittedConstants, requests: &Arc<[Request]>) -> Result<Node, CalibrateError> {
        let mut cold = constants.apply(&self.deployment.hardware);
        cold.step_overhead += constants.cold_start;
        let cost = self.cost(cold);
        let config =
            NodeConfig { engine: self.engine.clone(), cost, slo: Slo::default(), clients: None, host: Host::KVTIDE };
        Ok(Node::new(&config, Arc::clone(requests), Collector::default())?)
    }

    fn cost(&self, hardware: Hardware) -> CostModel {
        let deployment = Deployment { hardware, ..self.deployment.clone() };
        CostModel::new(&deployment, self.engine.block_size)
    }
}

fn served(node: &Node, requests: usize, recorder: TickRecorder<'_>) -> SimulatedRun {
    let collector = node.collector();
    let records: Vec<_> = collector.records().collect();
    let seconds = |time: Micros| time.as_secs_f64();
    let mut stamps: Vec<Stamps> = records
        .iter()
        .map(|record| Stamps {
            first_s: record.first_token.map(seconds),
            last_s: (record.phase == Phase::Finished).then(|| seconds(record.last_token)),
        })
        .collect();
    let view = |id: usize| node.scheduler().view(RequestId(id as u32));
    let mut preempted: Vec<u32> = (0..records.len()).map(|id| view(id).preemptions).collect();
    stamps.resize(requests, Stamps::default());
    preempted.resize(requests, 0);
    SimulatedRun {
        preempted,
        end_s: stamps.iter().filter_map(|stamps| stamps.last_s).fold(0.0, f64::max),
        stopped_s: seconds(node.now()),
        stamps,
        ticks: recorder.finish(),
        recomputed_tokens: collector.recomputed_tokens,
        prefix_hit_tokens: collector.prefix_hit_tokens,
    }
}

/// First and last tokens that were seen and have not appeared yet.
struct Awaited {
    /// Request, and whether its last token is meant.
    left: Vec<(RequestId, bool)>,
}

impl Awaited {
    fn new(seen: &ObservedRun) -> Awaited {
        let ids = (0..).map(RequestId).zip(&seen.stamps);
        let left = ids.filter(|(_, stamps)| stamps.first_s.is_some()).map(|(id, stamps)| (id, stamps.last_s.is_some()));
        Awaited { left: left.collect() }
    }

    fn is_over(&mut self, node: &Node) -> bool {
        let is_over = |(id, wants_last): (RequestId, bool)| {
            id.index() < node.arrived() && {
                let record = node.collector().record(id);
                record.first_token.is_some() && (!wants_last || record.phase == Phase::Finished)
            }
        };
        while self.left.pop_if(|last| is_over(*last)).is_some() {}
        self.left.is_empty()
    }
}

/// Looks at a node as the recorder of the measured run looked at its server: at the same moments, each time at what
/// came of the last step that had been computed.
struct TickRecorder<'a> {
    moments: std::iter::Peekable<std::slice::Iter<'a, Tick>>,
    state: Tick,
    ticks: Vec<Tick>,
}

impl<'a> TickRecorder<'a> {
    fn new(moments: &'a [Tick]) -> TickRecorder<'a> {
        TickRecorder {
            moments: moments.iter().peekable(),
            state: Tick::default(),
            ticks: Vec::with_capacity(moments.len()),
        }
    }

    fn watch(&mut self, node: &Node) {
        let now = node.now().as_secs_f64();
        while let Some(moment) = self.moments.next_if(|moment| moment.at_s < now) {
            self.ticks.push(Tick { at_s: moment.at_s, ..self.state });
        }
        let scheduler = node.scheduler();
        let blocks = f64::from(scheduler.num_blocks(Tier::Gpu));
        self.state = Tick {
            at_s: now,
            output_tokens: node.collector().output_tokens as f64,
            running: scheduler.running().len() as f64,
            waiting: scheduler.num_waiting() as f64,
            kv_usage: (blocks - f64::from(scheduler.free_blocks(Tier::Gpu))) / blocks,
        };
    }

    fn finish(mut self) -> Vec<Tick> {
        self.ticks.extend(self.moments.map(|moment| Tick { at_s: moment.at_s, ..self.state }));
        self.ticks
    }
}
