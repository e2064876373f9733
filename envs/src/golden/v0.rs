//! Logs of vLLM's V0 scheduler: driver protocol, and our step in the log's form.

use kvtide_runtime::{Action, Controls, Preemption};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Divergence, crc, first_difference, object};
use crate::deploy::{DeadEnds, EngineConfig};
use crate::kv::BlockId;
use crate::sched::v0::EngineError;
use crate::sched::{
    AllocStatus, BlockCopy, Outcome, PreemptedAs, PrefillSource, Pricing, Refusal, RequestId, Slo, StepPlan, V0,
};
use crate::tier::{Route, Tier};
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
    num_gpu_blocks: u32,
    num_cpu_blocks: u32,
    watermark: f64,
    watermark_blocks: u32,
    max_num_seqs: u32,
    max_num_batched_tokens: u32,
    max_model_len: u32,
    preemption_mode: Option<Mode>,
    chunked_prefill: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Swap,
    Recompute,
}

#[derive(Debug, Deserialize)]
pub(super) struct LoggedRequest {
    id: u32,
    arrival_step: usize,
    prompt_len: u32,
    output_len: u32,
}

/// A step in the log's form. Ids of the log are our ids: requests are submitted in id order.
#[derive(Debug, Default, Serialize)]
struct LoggedStep {
    #[serde(rename = "step")]
    index: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prefill: Vec<(RequestId, u32, &'static str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    decode: Vec<RequestId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    preempted: Vec<(RequestId, &'static str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    swapped_out: Vec<(RequestId, u32)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    swapped_in: Vec<(RequestId, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_swap_in: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    n_swap_out: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_crc: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored: Vec<RequestId>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    alloc_refused: Vec<(RequestId, u32, u32, &'static str)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    swapin_refused: Vec<(RequestId, u32, u32, &'static str)>,
    free_gpu: u32,
    free_cpu: u32,
    q: [usize; 3],
    q_crc: [u32; 3],
    tokens: u32,
    bt_crc: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    finished: Vec<RequestId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_gpu_end: Option<u32>,
}

/// Idle steps after which a run counts as stalled.
const IDLE_LIMIT: u32 = 3;

/// Drives the faithful scheduler over the log's requests; the first divergence, if any.
///
/// # Errors
/// What is wrong with the log.
pub(super) fn replay(log: &Log) -> Result<Option<Divergence>, String> {
    let params = &log.params;
    let mut order: Vec<&LoggedRequest> = log.requests.iter().collect();
    order.sort_by_key(|request| (request.arrival_step, request.id));
    if order.iter().enumerate().any(|(index, request)| request.id != index as u32) {
        return Err("requests are not numbered from 0 in order of arrival".to_owned());
    }
    if order.iter().any(|request| request.prompt_len == 0 || request.output_len == 0) {
        return Err("a request has an empty prompt or answer".to_owned());
    }
    let watermark_blocks = (params.watermark * f64::from(params.num_gpu_blocks)) as u32;
    if watermark_blocks != params.watermark_blocks {
        let (theirs, ours) = (params.watermark_blocks.into(), watermark_blocks.into());
        return Ok(Some(Divergence { step: None, field: "watermark_blocks".to_owned(), theirs, ours }));
    }
    let mut scheduler = V0::new(config(params)).map_err(|error| error.to_string())?;
    let controls = Controls {
        watermark: params.watermark,
        preemption: match params.preemption_mode {
            Some(Mode::Swap) => Preemption::Swap,
            Some(Mode::Recompute) | None => Preemption::Recompute,
        },
        ..Action::ENGINE_DEFAULT.controls()
    };
    drive(log, &order, &mut scheduler, &controls)
}

fn drive(
    log: &Log,
    order: &[&LoggedRequest],
    scheduler: &mut V0,
    controls: &Controls,
) -> Result<Option<Divergence>, String> {
    let mut plan = StepPlan::default();
    let mut outcome = Outcome::default();
    let (mut submitted, mut finished, mut idle) = (0, 0, 0);
    for index in 0.. {
        let now = Micros(index as u64);
        while let Some(request) = order.get(submitted).filter(|request| request.arrival_step <= index) {
            scheduler.submit(now, request.prompt_len, request.output_len, Slo::default());
            submitted += 1;
        }
        let end = |kind: Map<String, Value>, scheduler: &V0| end_of(log, kind, index, finished, scheduler);
        if submitted == order.len() && scheduler.is_empty() {
            return Ok(end(object(json!({"kind": "done"})), scheduler));
        }
        if let Err(error) = scheduler.schedule(now, controls, &mut plan) {
            return Ok(end(raised(index, &plan, error), scheduler));
        }
        let mut step = describe(index, &plan, scheduler);
        scheduler.complete(&plan, now, &mut outcome);
        finished += outcome.finished.len();
        step.finished.clone_from(&outcome.finished);
        step.free_gpu_end = (!outcome.finished.is_empty()).then(|| scheduler.pool(Tier::Gpu).num_free());
        let ours = object(serde_json::to_value(&step).map_err(|error| error.to_string())?);
        let Some(theirs) = log.steps.get(index) else {
            let (theirs, ours) = (json!(log.steps.len()), json!("goes on"));
            return Ok(Some(Divergence { step: None, field: "steps".to_owned(), theirs, ours }));
        };
        if let Some(divergence) = first_difference(Some(index), theirs, &ours) {
            return Ok(Some(divergence));
        }
        let stuck = plan.is_idle() && submitted == order.len() && !scheduler.is_empty();
        idle = if stuck { idle + 1 } else { 0 };
        if idle == IDLE_LIMIT {
            let queues = json!({
                "kind": "stalled",
                "waiting": scheduler.waiting().collect::<Vec<_>>(),
                "running": scheduler.running(),
                "swapped": scheduler.swapped().collect::<Vec<_>>(),
            });
            return Ok(end_of(log, object(queues), index + 1, finished, scheduler));
        }
    }
    unreachable!("the log's steps are finite")
}

fn config(params: &Params) -> EngineConfig {
    EngineConfig {
        block_size: params.block_size,
        num_gpu_blocks: params.num_gpu_blocks,
        num_cpu_blocks: params.num_cpu_blocks,
        max_num_seqs: params.max_num_seqs,
        max_num_batched_tokens: params.max_num_batched_tokens,
        max_model_len: params.max_model_len,
        enable_chunked_prefill: params.chunked_prefill,
        dead_ends: DeadEnds::Faithful,
        max_wait: Micros::MAX,
        pricing: Pricing::default(),
        ..EngineConfig::default()
    }
}

fn describe(index: usize, plan: &StepPlan, scheduler: &V0) -> LoggedStep {
    let source = |source| match source {
        PrefillSource::Waiting => "W",
        PrefillSource::Continued => "C",
        PrefillSource::Swapped => "S",
    };
    let refused = |refusals: &[Refusal]| {
        let status = |refusal: &Refusal| if refusal.status == AllocStatus::Later { "LATER" } else { "NEVER" };
        refusals.iter().map(|refusal| (refusal.id, refusal.need, refusal.free, status(refusal))).collect()
    };
    let waiting: Vec<RequestId> = scheduler.waiting().collect();
    let swapped: Vec<RequestId> = scheduler.swapped().collect();
    let copies = if plan.copies[Route::HostToGpu].is_empty() {
        &plan.copies[Route::GpuToHost]
    } else {
        &plan.copies[Route::HostToGpu]
    };
    let scheduled: Vec<RequestId> = scheduler.scheduled(plan).iter().map(|scheduled| scheduled.id).collect();
    let tables = scheduled.iter().flat_map(|&id| scheduler.table(id)).map(|block| block.0);
    LoggedStep {
        index,
        prefill: plan.prefills.iter().map(|prefill| (prefill.id, prefill.tokens, source(prefill.source))).collect(),
        decode: scheduled[plan.prefills.len()..].to_vec(),
        preempted: preempted(plan),
        swapped_out: plan.moved[Route::GpuToHost].clone(),
        swapped_in: plan.moved[Route::HostToGpu].clone(),
        n_swap_in: count(&plan.copies[Route::HostToGpu]),
        n_swap_out: count(&plan.copies[Route::GpuToHost]),
        swap_crc: count(copies)
            .map(|_| crc(copies.iter().flat_map(|&BlockCopy { src: BlockId(src), dst: BlockId(dst) }| [src, dst]))),
        ignored: plan.rejected.clone(),
        alloc_refused: refused(&plan.admissions_refused),
        swapin_refused: refused(&plan.swap_ins_refused),
        free_gpu: scheduler.pool(Tier::Gpu).num_free(),
        free_cpu: scheduler.pool(Tier::Host).num_free(),
        q: [waiting.len(), scheduler.running().len(), swapped.len()],
        q_crc: [&waiting, scheduler.running(), &swapped].map(|queue| crc(queue.iter().map(|id| id.0))),
        tokens: plan.batched_tokens(),
        bt_crc: crc(tables),
        finished: Vec::new(),
        free_gpu_end: None,
    }
}

fn preempted(plan: &StepPlan) -> Vec<(RequestId, &'static str)> {
    let letter = |how| if how == PreemptedAs::Swap { "S" } else { "R" };
    plan.preempted.iter().map(|victim| (victim.id, letter(victim.how))).collect()
}

fn raised(step: usize, plan: &StepPlan, error: EngineError) -> Map<String, Value> {
    let EngineError::HostPoolFull { victim } = error;
    let mut preempted = preempted(plan);
    preempted.push((victim, "?"));
    object(json!({
        "kind": "raised",
        "step": step,
        "preempted_before_raise": preempted,
        "swapped_out_before_raise": plan.moved[Route::GpuToHost],
    }))
}

/// Compares the ends. The exception's type and words are Python's own and not compared.
fn end_of(
    log: &Log,
    mut ours: Map<String, Value>,
    steps: usize,
    finished: usize,
    scheduler: &V0,
) -> Option<Divergence> {
    ours.extend(object(json!({
        "steps": steps,
        "finished": finished,
        "preemptions": scheduler.preemptions(),
        "free_gpu": scheduler.pool(Tier::Gpu).num_free(),
        "free_cpu": scheduler.pool(Tier::Host).num_free(),
    })));
    let mut theirs = log.end.clone();
    theirs.retain(|key, _| key != "type" && key != "message");
    let left = log.steps.len() > steps;
    let extra =
        || Divergence { step: None, field: "steps".to_owned(), theirs: log.steps.len().into(), ours: steps.into() };
    first_difference(None, &theirs, &ours).or_else(|| left.then(extra))
}

fn count(copies: &[BlockCopy]) -> Option<usize> {
    (!copies.is_empty()).then_some(copies.len())
}
