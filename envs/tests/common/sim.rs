//! A scheduler run drawn from a seed: pool, settings, workload and the controls of every step.

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{DeadEnds, Deployment, EngineConfig};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::{Outcome, Phase, Pricing, RequestId, Scheduler, Slo, StepPlan, V0};
use kvtide_envs::seed::{self, RunHash, Stream};
use kvtide_envs::tier::{Route, Tier};
use kvtide_envs::time::Micros;
use kvtide_runtime::action::{BUDGET_LEVELS, Eviction, WATERMARK_LEVELS};
use kvtide_runtime::{Admission, Controls, Preemption, Victim};
use rand::RngExt;

use super::rules;

/// What a seed stands for.
#[derive(Debug, Clone)]
pub struct World {
    pub engine: EngineConfig,
    /// `(arrival, prompt, output, targets)`, in arrival order.
    pub requests: Vec<(Micros, u32, u32, Slo)>,
    /// Chance of new controls in each step.
    pub fickle: f64,
}

/// How a run went.
#[derive(Debug, PartialEq)]
pub struct Run {
    pub hash: u64,
    pub summary: Summary,
}

fn pick<T: Copy>(stream: &mut Stream, choices: &[T]) -> T {
    choices[stream.random_range(0..choices.len())]
}

impl World {
    /// Small pools and lengths, extremes often.
    pub fn draw(seed: u64) -> World {
        let mut stream = seed::stream(seed, "simulation.world", 0);
        let s = &mut stream;
        let block_size = pick(s, &[1, 1, 2, 3, 4, 7, 16]);
        let num_gpu_blocks = if s.random_bool(0.1) { 1 } else { s.random_range(2..=48) };
        let tokens = block_size * num_gpu_blocks;
        let max_model_len = if s.random_bool(0.5) { tokens } else { s.random_range(1..=tokens) };
        let enable_chunked_prefill = s.random_bool(0.5);
        let max_num_batched_tokens = if enable_chunked_prefill {
            if s.random_bool(0.3) { s.random_range(1..=3) } else { s.random_range(1..=tokens + 8) }
        } else {
            max_model_len + if s.random_bool(0.5) { 0 } else { s.random_range(0..=tokens) }
        };
        let scale = |s: &mut Stream| if s.random_bool(0.3) { 0.0 } else { s.random_range(0.0..1e5) };
        let engine = EngineConfig {
            block_size,
            num_gpu_blocks,
            num_cpu_blocks: pick(s, &[0, 1, 2, num_gpu_blocks / 2, num_gpu_blocks, 2 * num_gpu_blocks]),
            max_num_seqs: pick(s, &[1, 2, 3, 8, 64]),
            max_num_batched_tokens,
            max_model_len,
            enable_chunked_prefill,
            dead_ends: DeadEnds::Safe,
            max_wait: pick(s, &[Micros(0), Micros::from_millis(100), Micros::from_millis(5000), Micros::MAX]),
            pricing: Pricing {
                swap_ns_per_block: scale(s),
                prefill_ns_per_token: scale(s),
                attention_ns_per_token_pair: scale(s),
            },
            ..EngineConfig::default()
        };
        World { requests: requests(s, &engine), engine, fickle: pick(s, &[0.0, 0.1, 0.5, 1.0]) }
    }

    /// Runs to the end, checking everything after each step.
    ///
    /// # Errors
    /// What does not hold, and when.
    pub fn run(&self, seed: u64) -> Result<Run, String> {
        let mut simulation = Simulation::new(self, seed)?;
        let mut step = 0;
        while simulation.step().map_err(|wrong| format!("step {step}: {wrong}"))? {
            step += 1;
        }
        simulation.finish()
    }
}

fn requests(s: &mut Stream, engine: &EngineConfig) -> Vec<(Micros, u32, u32, Slo)> {
    let longest = engine.max_model_len;
    let count = s.random_range(1..=40);
    let gap_us = pick(s, &[0, 1000, 20_000, 300_000]);
    let long_outputs = s.random_bool(0.3);
    let mut arrival = Micros::ZERO;
    let mut draw = || {
        arrival += Micros(s.random_range(0..=gap_us));
        let prompt = match s.random_range(0..10) {
            0 => longest,
            1 => longest + 1,
            2 => 1,
            3..6 => s.random_range(1..=longest),
            _ => s.random_range(1..=longest.div_ceil(4)),
        };
        let most = if long_outputs { longest + 2 } else { 12 };
        let output = s.random_range(1..=most);
        let slo = Slo::from_millis(s.random_range(1..3000), s.random_range(1..200), s.random_range(1..2000));
        (arrival, prompt, output, slo)
    };
    (0..count).map(|_| draw()).collect()
}

/// Any controls, watermarks between the levels included.
pub fn any_controls(s: &mut Stream) -> Controls {
    Controls {
        watermark: if s.random_bool(0.8) { pick(s, &WATERMARK_LEVELS[..15]) } else { s.random::<f64>() },
        victim: pick(s, Victim::ALL),
        preemption: pick(s, Preemption::ALL),
        admission: pick(s, Admission::ALL),
        // Most worlds here have small budgets of their own.
        budget: if s.random_bool(0.9) { pick(s, &BUDGET_LEVELS) } else { f64::from(s.random_range(1..100_u32)) },
        eviction: pick(s, Eviction::ALL),
    }
}

struct Simulation<'a> {
    world: &'a World,
    cost: CostModel,
    scheduler: V0,
    collector: Collector,
    plan: StepPlan,
    outcome: Outcome,
    stream: Stream,
    controls: Controls,
    now: Micros,
    submitted: usize,
    /// Steps since anybody got a token.
    barren: u32,
    hash: RunHash,
}

impl<'a> Simulation<'a> {
    fn new(world: &'a World, seed: u64) -> Result<Simulation<'a>, String> {
        let deployment: Deployment = "llama-3-8b@rtx-4090".parse().map_err(|error| format!("{error}"))?;
        let mut stream = seed::stream(seed, "simulation.controls", 0);
        Ok(Simulation {
            world,
            cost: CostModel::new(&deployment, world.engine.block_size),
            scheduler: V0::new(world.engine.clone()).map_err(|error| error.to_string())?,
            collector: Collector::with_gaps(),
            plan: StepPlan::default(),
            outcome: Outcome::default(),
            controls: any_controls(&mut stream),
            stream,
            now: Micros::ZERO,
            submitted: 0,
            barren: 0,
            hash: RunHash::default(),
        })
    }

    /// One step; false once everything is done.
    fn step(&mut self) -> Result<bool, String> {
        self.deliver();
        if self.scheduler.is_empty() {
            let Some(next) = self.world.requests.get(self.submitted) else { return Ok(false) };
            self.now = next.0;
            self.deliver();
            // Refused on arrival, all of them.
            if self.scheduler.is_empty() {
                return Ok(true);
            }
        }
        if self.stream.random_bool(self.world.fickle) {
            self.controls = any_controls(&mut self.stream);
        }
        let before = self.scheduler.clone();
        self.scheduler.schedule(self.now, &self.controls, &mut self.plan).map_err(|error| error.to_string())?;
        rules::check_step(&before, &self.plan, &self.scheduler, &self.controls)?;
        let duration = self.cost.step_time(&self.plan);
        let used = self.scheduler.pool(Tier::Gpu).num_blocks() - self.scheduler.pool(Tier::Gpu).num_free();
        self.now += duration;
        self.scheduler.complete(&self.plan, self.now, &mut self.outcome);
        self.scheduler.validate()?;
        self.collector.stepped(&self.plan, duration, used);
        self.collector.left(&self.plan.left);
        if self.plan.cohort > 0 {
            self.collector.advance(self.now);
        }
        for &id in &self.outcome.tokens {
            self.collector.token(id, self.now);
        }
        self.collector.joined(&self.plan.joined);
        for &id in &self.outcome.finished {
            self.collector.finished(id);
        }
        self.collector.expire(self.now);
        let scheduler = Scheduler::V0(self.scheduler.clone());
        self.collector.reconcile(&scheduler).map_err(|error| error.to_string())?;
        self.absorb();
        self.live()?;
        Ok(true)
    }

    fn deliver(&mut self) {
        while let Some(&(arrival, prompt, output, slo)) =
            self.world.requests.get(self.submitted).filter(|request| request.0 <= self.now)
        {
            let (id, phase) = self.scheduler.submit(arrival, prompt, output, slo);
            let group = self.collector.group(None, None);
            self.collector.arrived(id, arrival, prompt, slo, phase, group);
            self.submitted += 1;
        }
    }

    /// A prompt takes at most so many steps, and only one is ever in the middle of its chunks; every other step gives
    /// somebody a token.
    fn live(&mut self) -> Result<(), String> {
        let engine = &self.world.engine;
        let longest = if engine.enable_chunked_prefill {
            engine.max_model_len.div_ceil(engine.max_num_batched_tokens)
        } else {
            1
        };
        self.barren = if self.plan.cohort == 0 && self.outcome.tokens.is_empty() { self.barren + 1 } else { 0 };
        if self.barren > 2 * longest { Err(format!("{} steps gave nobody a token", self.barren)) } else { Ok(()) }
    }

    fn absorb(&mut self) {
        self.hash.absorb(self.now.0);
        for queue in [self.scheduler.running().to_vec(), self.scheduler.waiting().collect()] {
            for id in queue {
                self.hash.absorb(u64::from(id.0));
            }
        }
        for copy in self.plan.copies[Route::HostToGpu].iter().chain(&self.plan.copies[Route::GpuToHost]) {
            self.hash.absorb(u64::from(copy.src.0) << 32 | u64::from(copy.dst.0));
        }
    }

    /// Everything accepted has finished with all its tokens, and both pools are whole again.
    fn finish(self) -> Result<Run, String> {
        let engine = &self.world.engine;
        let (gpu, cpu) = (self.scheduler.pool(Tier::Gpu), self.scheduler.pool(Tier::Host));
        if (gpu.num_free(), cpu.num_free()) != (engine.num_gpu_blocks, engine.num_cpu_blocks) {
            return Err(format!("{} and {} blocks are free at the end", gpu.num_free(), cpu.num_free()));
        }
        for (index, &(_, prompt, output, _)) in self.world.requests.iter().enumerate() {
            let request = self.scheduler.view(RequestId(index as u32));
            let expected = if prompt > engine.max_model_len {
                (Phase::Rejected, 0)
            } else {
                (Phase::Finished, output.min(engine.max_model_len + 1 - prompt))
            };
            if (request.phase, request.generated) != expected {
                return Err(format!("request {index} ended {:?} with {}", request.phase, request.generated));
            }
        }
        let hash = self.hash.value();
        Ok(Run { hash, summary: Summary::of(&self.collector, self.now, engine.num_gpu_blocks, hash) })
    }
}
