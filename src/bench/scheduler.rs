//! Scheduler steps in steady decode: nothing is admitted, nobody finishes, blocks are taken as sequences grow.

use kvtide_envs::deploy::{DeadEnds, EngineConfig, EngineKind};
use kvtide_envs::sched::{Outcome, Scheduler, Slo, StepPlan};
use kvtide_envs::time::Micros;

use super::{Throughput, seconds};

/// Steps of one repeat.
const STEPS: u32 = 4000;
/// Steps before the first.
const WARM_UP: u32 = 200;
/// Prompts are of this length and a few tokens more each, so that block boundaries are spread over the steps.
const PROMPT: u32 = 200;

/// An engine with room for `batch` sequences that decode throughout.
fn engine(engine: EngineKind, is_default: bool, batch: u32, repeats: usize) -> EngineConfig {
    let longest = PROMPT + 16 + WARM_UP + STEPS * (repeats as u32 + 1);
    let max_model_len = longest.next_multiple_of(16);
    EngineConfig {
        engine,
        num_gpu_blocks: batch * max_model_len / 16 + 1,
        max_num_seqs: batch,
        max_num_batched_tokens: batch.max(16) * (PROMPT + 16) + max_model_len,
        max_model_len,
        enable_chunked_prefill: engine == EngineKind::V1,
        async_scheduling: is_default && engine == EngineKind::V1,
        enable_prefix_caching: is_default && engine == EngineKind::V1,
        dead_ends: DeadEnds::Safe,
        ..EngineConfig::default()
    }
}

/// A scheduler and what drives it.
struct SchedulerLoop {
    scheduler: Scheduler,
    plans: [StepPlan; 2],
    outcome: Outcome,
    step: u64,
}

impl SchedulerLoop {
    /// `batch` requests that have computed their prompts and decode from now on.
    fn decoding(engine: EngineConfig, batch: u32) -> SchedulerLoop {
        let longest = engine.max_model_len;
        let mut scheduler = Scheduler::new(engine).expect("the settings are valid");
        for index in 0..batch {
            let prompt = PROMPT + index % 16;
            scheduler.submit(Micros::ZERO, prompt, longest - prompt - 1, Slo::default(), None);
        }
        let mut driver = SchedulerLoop { scheduler, plans: Default::default(), outcome: Outcome::default(), step: 0 };
        driver.turn(WARM_UP);
        driver
    }

    fn turn(&mut self, steps: u32) {
        let controls = self.scheduler.default_controls();
        let is_async = self.scheduler.is_async();
        for _ in 0..steps {
            let now = Micros(self.step);
            let [previous, plan] = &mut self.plans;
            self.scheduler.schedule(now, &controls, plan).expect("a safe engine does not die");
            if !is_async {
                self.scheduler.complete(plan, now, &mut self.outcome);
            } else if self.step > 0 {
                self.scheduler.complete(previous, now, &mut self.outcome);
            }
            self.plans.swap(0, 1);
            self.step += 1;
        }
    }
}

/// Which engines are measured: V1 as it starts by default, and without prefix cache and asynchronous scheduling.
const ENGINES: [(&str, EngineKind, bool); 3] =
    [("v0", EngineKind::V0, true), ("v1 sync, no prefix cache", EngineKind::V1, false), ("v1", EngineKind::V1, true)];

/// Steps a second of each engine at batch 1, 64 and 256.
pub fn steps(repeats: usize, each: &mut dyn FnMut(Throughput)) {
    for (name, kind, is_default) in ENGINES {
        for batch in [1, 64, 256] {
            let mut driver = SchedulerLoop::decoding(engine(kind, is_default, batch, repeats), batch);
            let seconds: Vec<f64> = (0..repeats).map(|_| seconds(|| driver.turn(STEPS))).collect();
            let case = format!("{name}, batch {batch}");
            each(Throughput::rate("scheduler_steps", case, "steps/s", u64::from(STEPS), &seconds));
        }
    }
}

/// Heap bytes a scheduler holds for each of 256 decoding requests, pools not counted.
pub fn bytes_per_request(each: &mut dyn FnMut(Throughput)) {
    for (name, kind, is_default) in ENGINES {
        let batch = 256;
        let driver = SchedulerLoop::decoding(engine(kind, is_default, batch, 1), batch);
        let bytes = driver.scheduler.request_bytes() as f64 / f64::from(batch);
        let tokens = driver.scheduler.view(kvtide_envs::sched::RequestId(0)).len();
        let case = format!("{name}, {tokens} tokens each");
        each(Throughput::count("request_bytes", case, "bytes/request", bytes));
    }
}
