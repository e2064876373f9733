//! Logs of vLLM's V1 scheduler, synchronous and asynchronous: driver protocol, and our step in the log's form.

use std::sync::Arc;

use kvtide_runtime::{Action, Controls};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Divergence, crc, first_difference, object};
use crate::deploy::{DeadEnds, EngineConfig, EngineKind};
use crate::evict::Eviction;
use crate::kv::{Content, Segment};
use crate::sched::{Outcome, PrefillSource, Refusal, RequestId, Slo, StepPlan, Test, V1};
use crate::time::Micros;

/// A decision log.
#[derive(Debug, Deserialize)]
pub(super) struct Log {
    params: Params,
    pub(super) requests: Vec<LoggedRequest>,
    pub(super) steps: Vec<Map<String, Value>>,
    pub(super) end: Map<String, Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    block_size: u32,
    num_blocks: u32,
    watermark: f64,
    watermark_blocks: u32,
    prefix_caching: bool,
    max_num_batched_tokens: u32,
    max_num_seqs: u32,
    max_model_len: u32,
    long_prefill_token_threshold: u32,
    scheduler_reserve_full_isl: bool,
    chunked_prefill: bool,
    /// Synchronous logs do not say.
    #[serde(default)]
    async_scheduling: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct LoggedRequest {
    id: u32,
    arrival_step: usize,
    prompt_len: u32,
    output_len: u32,
    /// `(stream, end)`; what follows is the request's own stream, whose number is its id.
    #[serde(default)]
    prefix: Vec<(u64, u32)>,
}

/// A step in the log's form, with the log's ids: they need not follow the order of arrival, as ours do.
#[derive(Debug, Default, Serialize)]
struct LoggedStep {
    #[serde(rename = "step")]
    index: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    running: Vec<LoggedRunning>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    new: Vec<(u32, u32, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    resumed: Vec<(u32, u32, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preempted: Vec<(u32, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    refused: Vec<(u32, &'static str, u32, u32, u32)>,
    tokens: u32,
    free: u32,
    usage: f64,
    q: [usize; 2],
    q_crc: [u32; 2],
    comp_crc: u32,
    bt_crc: u32,
    fq_crc: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached: Option<usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    finished: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_end: Option<u32>,
}

/// A scheduled request that ran before. One token goes without saying.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum LoggedRunning {
    Token(u32),
    Chunk(u32, u32),
}

/// Idle steps after which a run counts as stalled.
const IDLE_LIMIT: u32 = 3;

/// Drives the faithful scheduler over the log's requests; the first divergence, if any.
///
/// # Errors
/// What is wrong with the log.
pub(super) fn replay(log: &Log, eviction: Eviction) -> Result<Option<Divergence>, String> {
    let params = &log.params;
    check_requests(log)?;
    let watermark_blocks = (params.watermark * f64::from(params.num_blocks)) as u32;
    if watermark_blocks != params.watermark_blocks {
        let (theirs, ours) = (params.watermark_blocks.into(), watermark_blocks.into());
        return Ok(Some(Divergence { step: None, field: "watermark_blocks".to_owned(), theirs, ours }));
    }
    LogDriver::new(log, eviction)?.run()
}

fn check_requests(log: &Log) -> Result<(), String> {
    let mut ids: Vec<u32> = log.requests.iter().map(|request| request.id).collect();
    ids.sort_unstable();
    if ids.iter().enumerate().any(|(index, &id)| id != index as u32) {
        return Err("requests are not numbered from 0".to_owned());
    }
    for LoggedRequest { id, prompt_len, output_len, prefix, .. } in &log.requests {
        if *prompt_len == 0 || *output_len == 0 {
            return Err(format!("request {id} has an empty prompt or answer"));
        }
        if *prompt_len >= log.params.max_model_len {
            let longest = log.params.max_model_len;
            return Err(format!("request {id} has a prompt of {prompt_len} tokens; max_model_len is {longest}"));
        }
        let ends = || prefix.iter().map(|&(_, end)| end);
        if std::iter::once(0).chain(ends()).zip(ends()).any(|(start, end)| end <= start || end > *prompt_len) {
            return Err(format!("the prefix of request {id} does not rise within its prompt"));
        }
    }
    Ok(())
}

/// Plays the engine's part.
struct LogDriver<'a> {
    log: &'a Log,
    /// In order of arrival, which is the order of our ids.
    arrivals: Vec<&'a LoggedRequest>,
    scheduler: V1,
    controls: Controls,
    plan: StepPlan,
    /// The plan of the step before.
    before: StepPlan,
    outcome: Outcome,
    submitted: usize,
    finished: usize,
    hit_tokens: u64,
    idle: u32,
}

impl<'a> LogDriver<'a> {
    fn new(log: &'a Log, eviction: Eviction) -> Result<LogDriver<'a>, String> {
        let mut arrivals: Vec<&LoggedRequest> = log.requests.iter().collect();
        arrivals.sort_by_key(|request| (request.arrival_step, request.id));
        Ok(LogDriver {
            log,
            arrivals,
            scheduler: V1::new(EngineConfig { eviction, ..config(&log.params) }).map_err(|error| error.to_string())?,
            controls: Controls { watermark: log.params.watermark, ..Action::V1_DEFAULT.controls() },
            plan: StepPlan::default(),
            before: StepPlan::default(),
            outcome: Outcome::default(),
            submitted: 0,
            finished: 0,
            hit_tokens: 0,
            idle: 0,
        })
    }

    fn run(mut self) -> Result<Option<Divergence>, String> {
        for index in 0.. {
            self.submit(index);
            if self.all_arrived() && self.scheduler.is_empty() {
                return Ok(self.compare_ends("done", index));
            }
            let Some(theirs) = self.log.steps.get(index) else {
                // A run that would go on for ever was cut off.
                if self.log.end.get("kind").and_then(Value::as_str) == Some("max_steps") {
                    return Ok(self.compare_ends("max_steps", index));
                }
                let (theirs, ours) = (json!(index), json!("goes on"));
                return Ok(Some(Divergence { step: None, field: "steps".to_owned(), theirs, ours }));
            };
            let step = self.step(index);
            let ours = object(serde_json::to_value(&step).map_err(|error| error.to_string())?);
            if let Some(divergence) = first_difference(Some(index), theirs, &ours) {
                return Ok(Some(divergence));
            }
            if self.has_stalled(&step) {
                return Ok(self.compare_ends("stalled", index + 1));
            }
        }
        unreachable!("the log's steps are finite")
    }

    fn submit(&mut self, index: usize) {
        while let Some(request) = self.arrivals.get(self.submitted).filter(|request| request.arrival_step <= index) {
            let segments: Arc<[Segment]> =
                request.prefix.iter().map(|&(stream, end)| Segment { stream, end }).collect();
            let content = Some(Content::new(0, request.id.into(), segments));
            let (prompt, output) = (request.prompt_len, request.output_len);
            self.scheduler.submit_with(Micros(index as u64), prompt, output, Slo::default(), content);
            self.submitted += 1;
        }
    }

    fn all_arrived(&self) -> bool {
        self.submitted == self.arrivals.len()
    }

    /// Schedules a step, describes it, and counts the tokens that are known by then: its own, or if the engine plans
    /// ahead those of the step before.
    fn step(&mut self, index: usize) -> LoggedStep {
        let now = Micros(index as u64);
        std::mem::swap(&mut self.plan, &mut self.before);
        self.scheduler.schedule(now, &self.controls, &mut self.plan);
        let mut step = self.describe(index);
        self.hit_tokens += step.new.iter().chain(&step.resumed).map(|admitted| u64::from(admitted.2)).sum::<u64>();
        let plans_ahead = self.log.params.async_scheduling;
        if plans_ahead && index == 0 {
            return step;
        }
        let known = if plans_ahead { &self.before } else { &self.plan };
        self.scheduler.complete(known, now, &mut self.outcome);
        self.finished += self.outcome.finished.len();
        step.finished = self.outcome.finished.iter().map(|&id| self.name(id)).collect();
        step.free_end = (!step.finished.is_empty()).then(|| self.scheduler.pool().num_free());
        step
    }

    /// The log's id.
    fn name(&self, id: RequestId) -> u32 {
        self.arrivals[id.index()].id
    }

    /// Waiting and running, head first.
    fn queues(&self) -> [Vec<u32>; 2] {
        let running = self.scheduler.running().iter().map(|&id| self.name(id)).collect();
        [self.scheduler.waiting().map(|id| self.name(id)).collect(), running]
    }

    /// The step just planned.
    fn describe(&self, index: usize) -> LoggedStep {
        let (plan, pool, queues) = (&self.plan, self.scheduler.pool(), self.queues());
        let scheduled = self.scheduler.scheduled(plan);
        let num_admitted = plan.prefills.iter().filter(|prefill| prefill.source == PrefillSource::Waiting).count();
        let (running, admitted) = scheduled.split_at(scheduled.len() - num_admitted);
        let admissions = |is_first: bool| {
            let admitted = admitted.iter().filter(|item| (self.scheduler.view(item.id).preemptions == 0) == is_first);
            admitted.map(|item| (self.name(item.id), item.tokens, item.context)).collect()
        };
        let refusals = plan.growth_refused.iter().chain(&plan.admissions_refused);
        let tables = scheduled.iter().flat_map(|item| self.scheduler.table(item.id));
        LoggedStep {
            index,
            running: running
                .iter()
                .map(|item| match item.tokens {
                    1 => LoggedRunning::Token(self.name(item.id)),
                    tokens => LoggedRunning::Chunk(self.name(item.id), tokens),
                })
                .collect(),
            new: admissions(true),
            resumed: admissions(false),
            preempted: plan.preempted.iter().map(|victim| (self.name(victim.id), victim.lost_tokens)).collect(),
            refused: refusals.map(|refusal| self.refusal(refusal)).collect(),
            tokens: plan.batched_tokens(),
            free: pool.num_free(),
            usage: self.usage(),
            q: queues.each_ref().map(Vec::len),
            q_crc: queues.map(crc),
            comp_crc: crc(scheduled.iter().map(|item| item.context)),
            bt_crc: crc(tables.map(|block| block.0)),
            fq_crc: crc(pool.free_blocks().map(|block| block.0)),
            cached: self.log.params.prefix_caching.then(|| pool.num_keys()),
            finished: Vec::new(),
            free_end: None,
        }
    }

    fn refusal(&self, refusal: &Refusal) -> (u32, &'static str, u32, u32, u32) {
        let kind = match refusal.test {
            Test::Growth => "G",
            Test::Prompt => "F",
            Test::Chunk => "A",
        };
        (self.name(refusal.id), kind, refusal.need, refusal.reserve, refusal.free)
    }

    /// vLLM's KV usage, to 6 places as Python rounds.
    fn usage(&self) -> f64 {
        let (free, usable) = (self.scheduler.pool().num_free(), self.scheduler.pool().num_usable());
        let usage = if usable == 0 { 0.0 } else { 1.0 - f64::from(free) / f64::from(usable) };
        format!("{usage:.6}").parse().expect("a printed number is a number")
    }

    /// Counts steps in which nothing happens although all is there.
    fn has_stalled(&mut self, step: &LoggedStep) -> bool {
        let is_idle = step.tokens == 0 && step.preempted.is_empty();
        let is_stuck = is_idle && self.all_arrived() && !self.scheduler.is_empty();
        self.idle = if is_stuck { self.idle + 1 } else { 0 };
        self.idle == IDLE_LIMIT
    }

    fn compare_ends(&self, kind: &str, steps: usize) -> Option<Divergence> {
        let mut ours = object(json!({
            "kind": kind,
            "steps": steps,
            "finished": self.finished,
            "preemptions": self.scheduler.preemptions(),
            "hit_tokens": self.hit_tokens,
            "free": self.scheduler.pool().num_free(),
            "usage": self.usage(),
        }));
        if kind == "stalled" {
            let [waiting, running] = self.queues();
            ours.extend(object(json!({"waiting": waiting, "running": running})));
        }
        let logged = self.log.steps.len();
        let extra = || Divergence { step: None, field: "steps".to_owned(), theirs: logged.into(), ours: steps.into() };
        first_difference(None, &self.log.end, &ours).or_else(|| (logged > steps).then(extra))
    }
}

fn config(params: &Params) -> EngineConfig {
    EngineConfig {
        engine: EngineKind::V1,
        block_size: params.block_size,
        num_gpu_blocks: params.num_blocks,
        num_cpu_blocks: 0,
        max_num_seqs: params.max_num_seqs,
        max_num_batched_tokens: params.max_num_batched_tokens,
        max_model_len: params.max_model_len,
        enable_chunked_prefill: params.chunked_prefill,
        async_scheduling: params.async_scheduling,
        enable_prefix_caching: params.prefix_caching,
        long_prefill_token_threshold: params.long_prefill_token_threshold,
        scheduler_reserve_full_isl: params.scheduler_reserve_full_isl,
        dead_ends: DeadEnds::Faithful,
        max_wait: Micros::MAX,
        ..EngineConfig::default()
    }
}
