//! A measured run's requests, served by the simulator, as a client would have seen them.

use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{ClientTimes, Deployment, EngineConfig, Hardware};
use kvtide_envs::env::{Node, NodeConfig, NodeStatus};
use kvtide_envs::metrics::{Collector, Record};
use kvtide_envs::percentile::percentile;
use kvtide_envs::sched::{Phase, PromptLimit, PromptPressure, Slo};
use kvtide_envs::trace::Request;
use kvtide_runtime::Host;

use super::rows::{Latencies, MeanP95, SummaryPolicy, SummaryRun};
use super::setup::ModelRuns;
use crate::calibrate::constants::FittedConstants;
use crate::calibrate::served::CalibrateError;

/// A clock of one model, ready to serve its runs.
#[derive(Debug, Clone)]
pub(super) struct Clock<'a> {
    model: &'a ModelRuns,
    cost: CostModel,
    client: ClientTimes,
}

impl<'a> Clock<'a> {
    /// That of `model` on `hardware` with `constants`.
    pub(super) fn new(model: &'a ModelRuns, hardware: &Hardware, constants: &FittedConstants) -> Clock<'a> {
        let client = constants.client_times(hardware);
        let deployment = Deployment { hardware: constants.apply(hardware), ..model.deployment.clone() };
        Clock { model, cost: CostModel::new(&deployment, model.engine.block_size), client }
    }

    /// What clients see of `run`.
    ///
    /// # Errors
    /// The engine cannot work with the run's settings.
    pub(super) fn serve(&self, run: &SummaryRun) -> Result<Latencies, CalibrateError> {
        let engine = EngineConfig {
            max_num_batched_tokens: run.max_num_batched_tokens,
            max_num_seqs: run.max_num_seqs,
            ..self.model.engine.clone()
        };
        let request = |arrival: &_| Request::new(*arrival, run.prompt_tokens, run.output_tokens);
        let requests: Arc<[Request]> = run.arrivals.iter().map(request).collect();
        let cost = self.cost.clone();
        let config = NodeConfig { engine, cost, slo: Slo::default(), clients: None, host: Host::KVTIDE };
        let mut node = Node::new(&config, requests, Collector::default())?;
        if run.policy == SummaryPolicy::Ppas {
            node.limit_prompts(PromptLimit::Pressure(PromptPressure::PUBLISHED))?;
        }
        let controls = node.scheduler().default_controls();
        while node.step(&controls).expect("only a faithful engine dies") == NodeStatus::Stepped {}
        let records: Vec<Record> = node.collector().records().collect();
        if let Some(request) = records.iter().position(|record| record.phase != Phase::Finished) {
            return Err(CalibrateError::Unserved { line: run.line, request });
        }
        Ok(self.seen(&records, run))
    }

    /// A client sees a first token, and the end of an answer, later than the engine has them.
    fn seen(&self, records: &[Record], run: &SummaryRun) -> Latencies {
        let before_first = self.client.before_first(run.prompt_tokens);
        let whole = self.client.end_to_end(run.prompt_tokens, run.output_tokens);
        let gaps = f64::from(run.output_tokens.saturating_sub(1).max(1));
        let of = |latency: &dyn Fn(&Record) -> f64| {
            let mut values: Vec<f64> = records.iter().map(latency).collect();
            values.sort_by(f64::total_cmp);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            MeanP95 { mean, p95: percentile(&values, 95.0) }
        };
        let first = records.iter().map(|record| record.arrival).min().unwrap_or_default();
        let last = records.iter().map(|record| record.last_token).max().unwrap_or_default();
        Latencies {
            e2e: of(&|record| record.e2e().as_secs_f64() + whole),
            ttft: of(&|record| record.ttft().unwrap_or_default().as_secs_f64() + before_first),
            tpot: of(&|record| record.tpot().unwrap_or_default() + (whole - before_first) / gaps),
            makespan: last.since(first).as_secs_f64() + whole,
        }
    }
}
