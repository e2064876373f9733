//! The faithful V1 scheduler against a slow model of vLLM's rules, over drawn engines and workloads: what golden logs check
//! where they are, checked where they are not.
//!
//! `KVTIDE_SIM_SEEDS=a..b` runs other seeds.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use crate::common::record_v1::Record;
use crate::common::reference_v1::Reference;
use crate::common::story::{IDLE_LIMIT, STEP};
use crate::common::world_v1::{self, World};
use kvtide_envs::sched::{Outcome, PromptLimit, PromptPressure, RequestId, Slo, StepPlan, V1};
use kvtide_envs::seed::{self, Stream};
use kvtide_runtime::{Action, Controls};
use rand::RngExt;
use rayon::prelude::*;

/// Longer runs are most likely in one of V1's endless loops.
const MAX_STEPS: usize = 500;

/// Seeds of the environment variable, or the usual ones.
fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("KVTIDE_SIM_SEEDS") else { return usual };
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.unwrap_or_else(|| panic!("KVTIDE_SIM_SEEDS is {text:?}; give a range of seeds, as in 0..200"))
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Done,
    Stalled,
    Endless,
}

/// What a run went through, so that the worlds are known not to be too kind.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    preemptions: u64,
    hits: u64,
    resumed_hits: u64,
    refusals: [u64; 3],
    /// Requests that finished while waiting, which only an asynchronous engine has.
    finished_waiting: u64,
    /// Steps in which prompts were limited.
    pressed: u64,
    /// Steps that had fewer tokens than the engine allows, and those of them in which decodes needed more than was set.
    budgeted: [u64; 2],
}

/// Both schedulers, step by step.
struct Pair<'a> {
    world: &'a World,
    ours: V1,
    theirs: Reference,
    stream: Stream,
    watermark: f64,
    /// Tokens of the next steps, where a policy sets them.
    budgets: Option<Stream>,
    /// This step's plan and the one's before.
    plans: [StepPlan; 2],
    outcome: Outcome,
    submitted: usize,
    open: BTreeSet<RequestId>,
    /// Members of the cohort as the plans tell it.
    cohort: BTreeSet<RequestId>,
    seen: Seen,
}

impl<'a> Pair<'a> {
    fn new(world: &'a World, seed: u64) -> Result<Pair<'a>, String> {
        let mut stream = seed::stream(seed, "reference_v1.controls", 0);
        Ok(Pair {
            world,
            ours: V1::new(world.engine.clone()).map_err(|error| error.to_string())?,
            theirs: Reference::new(world.params()),
            watermark: world_v1::watermark(&mut stream),
            stream,
            budgets: None,
            plans: [StepPlan::default(), StepPlan::default()],
            outcome: Outcome::default(),
            submitted: 0,
            open: BTreeSet::new(),
            cohort: BTreeSet::new(),
            seen: Seen::default(),
        })
    }

    /// Both limit prompts from now on.
    fn limit_prompts(mut self, pressure: PromptPressure) -> Result<Pair<'a>, String> {
        self.ours.limit_prompts(PromptLimit::Pressure(pressure)).map_err(|error| error.to_string())?;
        self.theirs.limit_prompts(pressure.prompts.get(), pressure.tokens.get());
        Ok(self)
    }

    fn run(&mut self) -> Result<End, String> {
        let mut idle = 0;
        for step in 0..MAX_STEPS {
            self.submit(step);
            let all_arrived = self.submitted == self.world.requests.len();
            if all_arrived && self.ours.is_empty() {
                return Ok(End::Done);
            }
            let record = self.step(step).map_err(|wrong| format!("step {step}: {wrong}"))?;
            let is_stuck = record.is_idle() && all_arrived && !self.ours.is_empty();
            idle = if is_stuck { idle + 1 } else { 0 };
            if idle == IDLE_LIMIT {
                return Ok(End::Stalled);
            }
        }
        Ok(End::Endless)
    }

    fn submit(&mut self, step: usize) {
        while let Some((_, ask)) = self.world.requests.get(self.submitted).filter(|(arrival, _)| *arrival <= step) {
            let content = Some(world_v1::content(ask));
            let now = STEP.times(step as u64);
            let (id, _) = self.ours.submit_with(now, ask.prompt, ask.output, Slo::default(), content);
            self.open.insert(id);
            self.theirs.submit(ask.clone());
            self.submitted += 1;
        }
    }

    fn step(&mut self, step: usize) -> Result<Record, String> {
        if self.stream.random_bool(self.world.fickle) {
            self.watermark = world_v1::watermark(&mut self.stream);
        }
        let now = STEP.times(step as u64);
        let mut controls = Controls { watermark: self.watermark, ..Action::V1_DEFAULT.controls() };
        if let Some(budgets) = &mut self.budgets {
            let tokens = budgets.random_range(1..=self.world.engine.max_num_batched_tokens * 5 / 4);
            let tokens = if budgets.random_bool(0.5) { tokens } else { tokens.div_ceil(8) };
            controls.budget = tokens.into();
            self.theirs.set_budget(tokens);
        }
        let expected = self.theirs.step(self.watermark);
        self.plans.swap(0, 1);
        let plan = &mut self.plans[0];
        self.ours.schedule(now, &controls, plan);
        let record = Record::of(plan, &self.ours);
        self.check_plan()?;
        let [plan, before] = &self.plans;
        let is_async = self.world.engine.async_scheduling;
        if !is_async {
            self.ours.complete(plan, now + STEP, &mut self.outcome);
        } else if step > 0 {
            self.ours.complete(before, now, &mut self.outcome);
        }
        let record = record.finish(&self.outcome, &self.ours);
        if record != expected {
            return Err(format!("watermark {}\nexpected:\n{expected}\n     got:\n{record}", self.watermark));
        }
        self.check_state()?;
        self.count(&record);
        Ok(record)
    }

    /// What a plan says of the cohort agrees with who is scheduled.
    fn check_plan(&mut self) -> Result<(), String> {
        let plan = &self.plans[0];
        for id in &plan.left {
            if !self.cohort.remove(id) {
                return Err(format!("request {} leaves the cohort without being in it", id.0));
            }
        }
        for id in &plan.joined {
            if !self.cohort.insert(*id) {
                return Err(format!("request {} joins the cohort twice", id.0));
            }
        }
        let scheduled = self.ours.scheduled(plan);
        let decodes = || scheduled.iter().filter(|turn| !plan.prefills.iter().any(|chunk| chunk.id == turn.id));
        let members: BTreeSet<RequestId> = decodes().map(|turn| turn.id).collect();
        let context: u64 = decodes().map(|turn| u64::from(turn.context) + 1).sum();
        if (members.len(), context) != (plan.cohort as usize, plan.decode_context) || members != self.cohort {
            let cohort = &self.cohort;
            let said = (plan.cohort, plan.decode_context);
            return Err(format!("{members:?} decode over {context} tokens, the plan says {said:?} and {cohort:?}"));
        }
        if let Some(turn) = decodes().find(|turn| turn.context < self.ours.view(turn.id).prompt_tokens) {
            return Err(format!("request {} decodes within its prompt", turn.id.0));
        }
        Ok(())
    }

    /// After the step: everybody is as far as in the model, and the scheduler's own recount holds.
    fn check_state(&mut self) -> Result<(), String> {
        for id in &self.outcome.finished {
            self.open.remove(id);
            self.cohort.remove(id);
        }
        for &id in &self.open {
            let view = self.ours.view(id);
            let (got, expected) = ([view.generated, view.computed], self.theirs.progress(id.0));
            if got != expected {
                return Err(format!("request {} has generated and computed {got:?}, expected {expected:?}", id.0));
            }
        }
        if self.ours.preemptions() != self.theirs.preemptions() {
            return Err(format!("{} preemptions, expected {}", self.ours.preemptions(), self.theirs.preemptions()));
        }
        self.ours.validate()
    }

    fn count(&mut self, record: &Record) {
        let seen = &mut self.seen;
        seen.pressed = self.theirs.pressed();
        seen.budgeted = self.theirs.budgeted();
        seen.preemptions += record.preempted.len() as u64;
        seen.hits += record.hits();
        seen.resumed_hits += record.resumed.iter().map(|admitted| u64::from(admitted.2)).sum::<u64>();
        for (_, kind, ..) in &record.refused {
            seen.refusals["GFA".find(*kind).expect("one of the three")] += 1;
        }
        seen.finished_waiting += record.finished.iter().filter(|id| record.queues[0].contains(id)).count() as u64;
    }
}

/// Runs every seed in its world, both schedulers made ready by `prepare`.
fn run_all(
    range: std::ops::Range<u64>,
    world: impl Fn(u64) -> World + Sync,
    prepare: impl for<'a> Fn(Pair<'a>, u64) -> Result<Pair<'a>, String> + Sync,
) -> Vec<(End, Seen)> {
    let one = |seed| {
        let world = world(seed);
        let run = Pair::new(&world, seed)
            .and_then(|pair| prepare(pair, seed))
            .and_then(|mut pair| Ok((pair.run()?, pair.seen)));
        run.unwrap_or_else(|wrong| {
            panic!(
                "seed {seed}: {wrong}\n{world:#?}\nreplay with: KVTIDE_SIM_SEEDS={seed}..{} cargo test -p \
                 kvtide-envs --test all reference_v1_random::",
                seed + 1
            )
        })
    };
    range.into_par_iter().map(one).collect()
}

#[test]
fn the_faithful_scheduler_agrees_with_the_rules() {
    let range = seeds(0..2000);
    let usual = range == (0..2000);
    let runs = run_all(range, World::draw, |pair, _| Ok(pair));
    if usual {
        check_variety(&runs);
    }
}

/// A world whose prompts can be limited.
fn chunking(seed: u64) -> World {
    let mut world = World::draw(seed);
    world.engine.enable_chunked_prefill = true;
    world
}

fn at_least(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("a limit is 1 at least")
}

#[test]
fn prompts_are_limited_as_the_rule_says() {
    let range = seeds(0..2000);
    let usual = range == (0..2000);
    let runs = run_all(range, chunking, |pair, seed| {
        let mut stream = seed::stream(seed, "reference_v1.pressure", 0);
        let budget = pair.world.engine.max_num_batched_tokens;
        // A token at a time as well, and fewer than a block has.
        let tokens = match stream.random_range(0..4) {
            0 => 1,
            1 => stream.random_range(1..=pair.world.engine.block_size),
            _ => stream.random_range(1..=budget.div_ceil(2)),
        };
        let prompts = stream.random_range(1..=4);
        pair.limit_prompts(PromptPressure { prompts: at_least(prompts), tokens: at_least(tokens) })
    });
    if usual {
        let pressed = |runs: &[(End, Seen)]| runs.iter().filter(|(_, seen)| seen.pressed >= 5).count();
        let preempting: Vec<_> = runs.iter().copied().filter(|(_, seen)| seen.preemptions > 0).collect();
        let hitting: Vec<_> = runs.iter().copied().filter(|(_, seen)| seen.hits > 0).collect();
        let counts = [&runs, &preempting, &hitting].map(|runs| pressed(runs));
        assert!(counts[0] >= 500 && counts[1] >= 100 && counts[2] >= 100, "{counts:?}");
    }
}

#[test]
fn a_step_has_the_tokens_a_policy_gives_it() {
    let range = seeds(0..2000);
    let usual = range == (0..2000);
    let runs = run_all(range, chunking, |mut pair, seed| {
        pair.budgets = Some(seed::stream(seed, "reference_v1.budget", 0));
        // With a limit of its prompts as well.
        if seed % 4 == 0 {
            let half = pair.world.engine.max_num_batched_tokens.div_ceil(2);
            return pair.limit_prompts(PromptPressure { prompts: at_least(2), tokens: at_least(half) });
        }
        Ok(pair)
    });
    if usual {
        let with = |what: &dyn Fn(&Seen) -> u64| runs.iter().filter(|(_, seen)| what(seen) >= 5).count();
        let counts = [
            with(&|seen| seen.budgeted[0]),
            with(&|seen| seen.budgeted[1]),
            with(&|seen| if seen.preemptions > 0 { seen.budgeted[0] } else { 0 }),
            with(&|seen| if seen.pressed > 0 { seen.budgeted[0] } else { 0 }),
        ];
        assert!(counts.iter().all(|&count| count >= 100), "{counts:?}");
    }
}

#[test]
fn a_limit_that_is_never_reached_changes_nothing() {
    let range = seeds(0..1000);
    // The reference is told of no limit.
    run_all(range, chunking, |mut pair, seed| {
        let budget = pair.world.engine.max_num_batched_tokens;
        let everybody = pair.world.requests.len() as u32;
        let pressure = if seed % 2 == 0 {
            PromptPressure { prompts: at_least(1), tokens: at_least(budget) }
        } else {
            PromptPressure { prompts: at_least(everybody + 1), tokens: at_least(1) }
        };
        pair.ours.limit_prompts(PromptLimit::Pressure(pressure)).map_err(|error| error.to_string())?;
        Ok(pair)
    });
}

/// Everything that can happen did happen, often enough.
fn check_variety(runs: &[(End, Seen)]) {
    let mut ends = BTreeMap::new();
    for (end, _) in runs {
        *ends.entry(*end).or_insert(0) += 1;
    }
    assert!([End::Done, End::Stalled, End::Endless].iter().all(|end| ends.get(end) >= Some(&20)), "{ends:?}");
    let runs_with = |what: &dyn Fn(&Seen) -> u64| runs.iter().filter(|(_, seen)| what(seen) > 0).count();
    let counts = [
        ("preemptions", runs_with(&|seen| seen.preemptions)),
        ("hits", runs_with(&|seen| seen.hits)),
        ("hits of resumed requests", runs_with(&|seen| seen.resumed_hits)),
        ("refused growth", runs_with(&|seen| seen.refusals[0])),
        ("refused prompts", runs_with(&|seen| seen.refusals[1])),
        ("refused chunks", runs_with(&|seen| seen.refusals[2])),
        ("requests that finished waiting", runs_with(&|seen| seen.finished_waiting)),
    ];
    assert!(counts.iter().all(|(_, count)| *count >= 20), "{counts:?}");
}
