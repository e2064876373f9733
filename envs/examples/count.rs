//! The work of a scheduler step, of a decision and of the prefix cache's operations, a fixed amount of each, to be counted
//! in instructions: `scripts/instructions.sh` runs every case under callgrind, which counts inside [`counted`] alone.
//!
//! `count` lists the cases; `count CASE` runs one and prints how many units it counted.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Setting};
use kvtide_envs::env::{EnvConfig, EpisodeSource, NodeConfig, ResetOptions, RewardWeights, ServingEnv, WorldDraw};
use kvtide_envs::kv::{BlockId, PrefixPool};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::sched::{Outcome, Prefill, PrefillSource, RequestId, Slo, StepPlan, V1};
use kvtide_envs::time::Micros;
use kvtide_envs::workload::{Window, WorkloadSource};
use kvtide_runtime::{Action, ActionMask, ActionProfile, Host};

/// What is counted, and nothing else is. One function for all cases, and one that has something to do after `work`: a
/// jump into it instead of a call would be the end of this function to callgrind. Returns the number that it was given.
#[inline(never)]
fn counted(units: u64, work: &mut dyn FnMut()) -> u64 {
    work();
    black_box(units)
}

/// A case: what it is called, what its units are, and the run that says how many there were.
type Case = (&'static str, &'static str, fn() -> u64);

const CASES: [Case; 15] = [
    ("step-1", "step", || steps(1)),
    ("step-64", "step", || steps(64)),
    ("step-256", "step", || steps(256)),
    ("serve-lru", "step", || serve("lru")),
    ("serve-radix", "step", || serve("radix")),
    ("decision", "decision", || decisions("llama-3-8b@rtx-4090")),
    ("decision-tables", "decision", || decisions("llama-3-8b@h100")),
    ("price-roofline", "step", || prices("llama-3-8b@rtx-4090")),
    ("price-tables", "step", || prices("llama-3-8b@h100")),
    ("lru-give-back", "block", || Cache::new("lru").give_back()),
    ("lru-hit", "block", || Cache::new("lru").hit()),
    ("lru-evict", "block", || Cache::new("lru").evict()),
    ("radix-give-back", "block", || Cache::new("radix").give_back()),
    ("radix-hit", "block", || Cache::new("radix").hit()),
    ("radix-evict", "block", || Cache::new("radix").evict()),
];

fn main() -> ExitCode {
    let Some(name) = std::env::args().nth(1) else {
        for case in &CASES {
            println!("{}", case.0);
        }
        return ExitCode::SUCCESS;
    };
    let Some((_, unit, run)) = CASES.iter().find(|case| case.0 == name) else {
        eprintln!("{name:?} is no case; `count` lists them");
        return ExitCode::from(2);
    };
    println!("{} {unit}", run());
    ExitCode::SUCCESS
}

fn engine(settings: &[&str]) -> EngineConfig {
    let deployment: Deployment = "llama-3-8b@rtx-4090".parse().expect("a known deployment");
    let settings: Vec<Setting> = settings.iter().map(|text| text.parse().expect("a known setting")).collect();
    deployment.engine(EngineKind::V1).with(&settings).expect("the settings work together")
}

fn turn(scheduler: &mut V1, step: u64, plan: &mut StepPlan, outcome: &mut Outcome) {
    let now = Micros(1000 * step);
    scheduler.schedule(now, &Action::V1_DEFAULT.controls(), plan);
    scheduler.complete(black_box(plan), now, outcome);
}

/// Steady decoding: what a step costs in which most requests need nothing.
fn steps(batch: u32) -> u64 {
    let pool = ["num_gpu_blocks=40000", "enable_prefix_caching=true", "async_scheduling=false"];
    let mut scheduler = V1::new(engine(&pool)).expect("the settings are valid");
    for _ in 0..batch {
        scheduler.submit(Micros::ZERO, 256, 1900, Slo::default());
    }
    let (mut plan, mut outcome) = (StepPlan::default(), Outcome::default());
    for step in 0..100 {
        turn(&mut scheduler, step, &mut plan, &mut outcome);
    }
    counted(1000, &mut || (100..1100).for_each(|step| turn(&mut scheduler, step, &mut plan, &mut outcome)))
}

/// Steps of a crowded pool that serves a shared prefix: requests come, hit, wait, are preempted and finish in them.
fn serve(eviction: &str) -> u64 {
    use kvtide_envs::kv::{Content, Segment};
    let eviction = format!("eviction={eviction}");
    let settings = ["num_gpu_blocks=2000", "enable_prefix_caching=true", "async_scheduling=false", &eviction];
    let mut scheduler = V1::new(engine(&settings)).expect("the settings are valid");
    let submit = |scheduler: &mut V1, number: u64| {
        let segments: Arc<[Segment]> =
            [(number % 7, 320), (7 + number % 31, 560)].map(|(stream, end)| Segment { stream, end }).into();
        let output = 60 + 37 * (number as u32 % 5);
        scheduler.submit_with(
            Micros::ZERO,
            700,
            output,
            Slo::default(),
            Some(Content::new(0, 1000 + number, segments)),
        );
    };
    let (mut plan, mut outcome) = (StepPlan::default(), Outcome::default());
    let mut run = |scheduler: &mut V1, steps: std::ops::Range<u64>| {
        for step in steps {
            if step % 4 == 0 {
                submit(scheduler, step);
            }
            turn(scheduler, step, &mut plan, &mut outcome);
        }
    };
    run(&mut scheduler, 0..1000);
    counted(3000, &mut || run(&mut scheduler, 1000..4000))
}

/// Prices of steps in which all decode, and of such with one prompt and with three.
fn prices(env: &str) -> u64 {
    let deployment: Deployment = env.parse().expect("a known deployment");
    let cost = CostModel::new(&deployment, 16).under(&deployment.engine(EngineKind::V1));
    let plan = |number: u32| {
        let chunk = |place: u32| Prefill {
            id: RequestId(place),
            tokens: 100 + 37 * (number % 50),
            context: 512 * (number % 7) * place,
            source: PrefillSource::Waiting,
            samples: true,
        };
        let cohort = 8 + number % 240;
        let decode_context = u64::from(cohort) * u64::from(300 + 11 * (number % 97));
        StepPlan {
            prefills: (0..[0, 1, 0, 3][number as usize % 4]).map(chunk).collect(),
            cohort,
            decode_context,
            ..StepPlan::default()
        }
    };
    let plans: Vec<StepPlan> = (0..4000).map(plan).collect();
    counted(4000, &mut || {
        for plan in &plans {
            black_box(cost.step_time(plan));
        }
    })
}

/// Decisions over eight steps each of a served world.
fn decisions(env: &str) -> u64 {
    let deployment: Deployment = env.parse().expect("a known deployment");
    let length = Micros::from_millis(600_000);
    let node = NodeConfig {
        engine: engine(&["enable_prefix_caching=true"]),
        cost: CostModel::new(&deployment, 16),
        slo: Slo::default(),
        clients: None,
        host: Host::KVTIDE,
    };
    let traffic = EpisodeSource {
        source: WorkloadSource::Synthetic("chat:rate=8,duration=600".parse().expect("a known profile")),
        range: Window { start: Micros::ZERO, end: length },
        length,
        load: (1.0, 1.0),
    };
    let config = EnvConfig {
        worlds: vec![WorldDraw::new(node, traffic)],
        profile: ActionProfile::Watermark,
        reward: RewardWeights::default(),
        decision_interval: 8,
        allowed: ActionMask::ALL,
        memory: MemorySource::Modelled,
    };
    let mut env = ServingEnv::new(Arc::new(config)).expect("the settings are valid");
    env.reset(0, &ResetOptions::default()).expect("an episode can be drawn");
    let mut decide = |count: u32| {
        for _ in 0..count {
            env.step(Action::V1_DEFAULT).expect("a safe engine does not die");
        }
    };
    decide(50);
    counted(500, &mut || decide(500))
}

/// Blocks of a table, and of those the ones that all tables begin with.
const TABLE: u32 = 40;
const SHARED: u32 = 10;
/// Tables in the cache, all idle but for what is counted.
const TABLES: u32 = 100;

/// A cache that holds [`TABLES`] tables, of which none is in use and no block is unregistered.
struct Cache {
    pool: PrefixPool,
    keys: Vec<Vec<u64>>,
}

impl Cache {
    fn new(eviction: &str) -> Cache {
        let config = engine(&[&format!("eviction={eviction}")]);
        let blocks = SHARED + TABLES * (TABLE - SHARED);
        let key = |table: u32, place: u32| {
            let text = if place < SHARED { 0 } else { table + 1 };
            u64::from(text * 1000 + place).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let keys = (0..TABLES).map(|table| (0..TABLE).map(|place| key(table, place)).collect()).collect();
        let mut cache = Cache { pool: PrefixPool::new(blocks + 1, true, config.eviction), keys };
        let mut tables = cache.admit();
        cache.finish(&mut tables);
        cache
    }

    /// Every table takes what is cached of it and computes the rest.
    fn admit(&mut self) -> Vec<Vec<BlockId>> {
        let mut tables = Vec::new();
        for keys in &self.keys {
            let mut table = Vec::with_capacity(keys.len());
            self.pool.lookup(keys.iter().copied(), &mut table);
            self.pool.touch(&table);
            let hits = table.len();
            self.pool.take((keys.len() - hits) as u32, &mut table);
            for place in hits..keys.len() {
                self.pool.register(table[place], keys[place], place.checked_sub(1).map(|before| table[before]));
            }
            tables.push(table);
        }
        tables
    }

    fn finish(&mut self, tables: &mut [Vec<BlockId>]) {
        for table in tables.iter_mut() {
            self.pool.give_back(table);
        }
    }

    /// All tables are given back: shared blocks are let go, the last holder's become idle.
    fn give_back(mut self) -> u64 {
        let mut tables = self.admit();
        counted(u64::from(TABLES * TABLE), &mut || self.finish(&mut tables))
    }

    /// All tables are found again and held: idle blocks leave the order of eviction.
    fn hit(mut self) -> u64 {
        let mut tables = Vec::new();
        let units = counted(u64::from(TABLES * TABLE), &mut || tables = self.admit());
        assert!(tables.iter().all(|table| table.len() == TABLE as usize), "every table has its blocks");
        units
    }

    /// Blocks are taken that others could still have hit.
    fn evict(mut self) -> u64 {
        let count = self.pool.num_free() / 10;
        let mut taken = Vec::with_capacity(10 * count as usize);
        counted(10 * u64::from(count), &mut || (0..count).for_each(|_| self.pool.take(10, &mut taken)))
    }
}
