//! The faithful scheduler against a slow model of vLLM's rules, over drawn engines and workloads: what golden logs check
//! where they are, checked where they are not.

use crate::common::controls;
use crate::common::line::Line;
use crate::common::reference::{Params, Raised, Reference};
use crate::common::story::{IDLE_LIMIT, STEP};
use kvtide_envs::deploy::{DeadEnds, EngineConfig};
use kvtide_envs::sched::v0::EngineError;
use kvtide_envs::sched::{Outcome, Slo, StepPlan, V0};
use kvtide_envs::seed::{self, Stream};
use kvtide_runtime::{Controls, Preemption};
use rand::RngExt;

/// Longer runs are most likely in one of V0's endless loops.
const MAX_STEPS: usize = 400;

#[derive(Debug)]
struct World {
    engine: EngineConfig,
    watermark: f64,
    swap: bool,
    /// `(step, prompt, output)`.
    requests: Vec<(usize, u32, u32)>,
}

fn draw(seed: u64) -> World {
    let mut stream = seed::stream(seed, "reference.world", 0);
    let s: &mut Stream = &mut stream;
    let block_size = s.random_range(1..=5);
    let num_gpu_blocks = s.random_range(1..=30);
    let tokens = block_size * num_gpu_blocks;
    let engine = EngineConfig {
        num_cpu_blocks: if s.random_bool(0.2) { s.random_range(0..=num_gpu_blocks) } else { 40 * num_gpu_blocks },
        max_num_seqs: s.random_range(1..=12),
        max_num_batched_tokens: s.random_range(1..=2 * tokens),
        max_model_len: if s.random_bool(0.2) { s.random_range(1..=tokens) } else { 2 * tokens },
        enable_chunked_prefill: s.random_bool(0.5),
        dead_ends: DeadEnds::Faithful,
        ..crate::common::engine(block_size, num_gpu_blocks, 0)
    };
    let last_step = s.random_range(0..20);
    let longest = if s.random_bool(0.1) { tokens + block_size } else { tokens.div_ceil(4) };
    let count = s.random_range(1..=25);
    let mut requests: Vec<_> = (0..count)
        .map(|_| (s.random_range(0..=last_step), s.random_range(1..=longest), s.random_range(1..=20)))
        .collect();
    requests.sort_by_key(|request| request.0);
    let watermark = if s.random_bool(0.5) { 0.0 } else { s.random_range(0.0..0.5) };
    World { engine, watermark, swap: s.random_bool(0.5), requests }
}

fn params(world: &World) -> Params {
    let engine = &world.engine;
    Params {
        block_size: engine.block_size.into(),
        num_gpu_blocks: engine.num_gpu_blocks.into(),
        num_cpu_blocks: engine.num_cpu_blocks.into(),
        watermark_blocks: (world.watermark * f64::from(engine.num_gpu_blocks)).floor() as i64,
        max_num_seqs: engine.max_num_seqs.into(),
        max_num_batched_tokens: engine.max_num_batched_tokens.into(),
        max_model_len: engine.max_model_len.into(),
        swap: world.swap,
        chunked: engine.enable_chunked_prefill,
    }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Done,
    Stalled,
    Raised,
    Endless,
}

/// Steps both to the end.
fn agree(world: &World) -> Result<End, String> {
    let preemption = if world.swap { Preemption::Swap } else { Preemption::Recompute };
    let controls = Controls { watermark: world.watermark, preemption, ..controls() };
    let mut ours = V0::new(world.engine.clone()).map_err(|error| error.to_string())?;
    let mut theirs = Reference::new(params(world));
    let (mut plan, mut outcome) = (StepPlan::default(), Outcome::default());
    let (mut submitted, mut idle) = (0, 0);
    for step in 0..MAX_STEPS {
        let now = STEP.times(step as u64);
        while let Some(&(_, prompt, output)) = world.requests.get(submitted).filter(|request| request.0 <= step) {
            ours.submit(now, prompt, output, Slo::default());
            theirs.submit(prompt, output);
            submitted += 1;
        }
        if submitted == world.requests.len() && ours.is_empty() {
            return Ok(End::Done);
        }
        let ours_step = ours.schedule(now, &controls, &mut plan);
        let expected = match (ours_step, theirs.step()) {
            (Ok(()), Ok(expected)) => expected,
            (Err(EngineError::HostPoolFull { victim }), Err(Raised(expected))) if victim.0 == expected => {
                return Ok(End::Raised);
            }
            (ours, theirs) => return Err(format!("step {step}: {ours:?}, expected {theirs:?}")),
        };
        let line = Line::of(&plan, &ours);
        ours.complete(&plan, now + STEP, &mut outcome);
        let line = line.finish(&outcome);
        if line != expected {
            return Err(format!("step {step}\nexpected: {expected}\n     got: {line}"));
        }
        ours.validate().map_err(|wrong| format!("step {step}: {wrong}"))?;
        idle = if line.is_idle() && submitted == world.requests.len() { idle + 1 } else { 0 };
        if idle == IDLE_LIMIT {
            return Ok(End::Stalled);
        }
    }
    Ok(End::Endless)
}

#[test]
fn the_faithful_scheduler_agrees_with_the_rules() {
    let mut ends = std::collections::BTreeMap::new();
    for seed in 0..1000 {
        let world = draw(seed);
        match agree(&world) {
            Ok(end) => *ends.entry(end).or_insert(0) += 1,
            Err(wrong) => panic!("seed {seed}: {wrong}\n{world:?}"),
        }
    }
    // Every way to end was seen, so the worlds are not too kind.
    for end in [End::Done, End::Stalled, End::Raised, End::Endless] {
        assert!(ends.get(&end).is_some_and(|&count| count >= 5), "{ends:?}");
    }
}
