//! A scheduler run told line by line, compared with what it should have been.

use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::sched::{BlockCopy, Outcome, Phase, Slo, StepPlan, V0};
use kvtide_envs::tier::Route;
use kvtide_envs::time::Micros;
use kvtide_runtime::Controls;

use super::line::Line;

/// A step starts every 10 ms and ends when the next one starts.
pub const STEP: Micros = Micros::from_millis(10);

/// No story is longer.
const MAX_STEPS: usize = 200;

/// Idle steps, with everything arrived and something left, that make a run stalled, as in golden logs.
pub const IDLE_LIMIT: usize = 3;

/// A request of a story: it arrives in `step`.
#[derive(Debug, Clone, Copy)]
pub struct Ask {
    pub step: usize,
    pub prompt: u32,
    pub output: u32,
    pub slo: Slo,
}

/// A request with patient targets.
pub fn ask(step: usize, prompt: u32, output: u32) -> Ask {
    Ask { step, prompt, output, slo: Slo::default() }
}

/// Runs to the end under constant `controls` and compares each step with a line of `expected`.
#[track_caller]
pub fn check(engine: EngineConfig, controls: Controls, requests: &[Ask], expected: &str) {
    let story = tell(engine, &controls, requests);
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if story.iter().map(String::as_str).eq(expected.iter().copied()) {
        return;
    }
    let at = story.iter().zip(&expected).take_while(|(ours, theirs)| ours.as_str() == **theirs).count();
    panic!(
        "line {at} differs\nexpected: {}\n     got: {}\nthe whole story:\n{}",
        expected.get(at).unwrap_or(&"(the end)"),
        story.get(at).map_or("(the end)", String::as_str),
        story.join("\n")
    );
}

/// The story of a run: one line a step, and how it ended if not with everything done.
pub fn tell(engine: EngineConfig, controls: &Controls, requests: &[Ask]) -> Vec<String> {
    let mut scheduler = V0::new(engine).expect("a story has a valid engine");
    let (mut plan, mut outcome) = (StepPlan::default(), Outcome::default());
    let mut story = Vec::new();
    let (mut submitted, mut idle) = (0, 0);
    for step in 0..MAX_STEPS {
        let now = STEP.times(step as u64);
        while let Some(request) = requests.get(submitted).filter(|request| request.step <= step) {
            let (id, phase) = scheduler.submit(now, request.prompt, request.output, request.slo);
            if phase == Phase::Rejected {
                story.push(format!("{step}: refused on arrival {}", id.0));
            }
            submitted += 1;
        }
        if submitted == requests.len() && scheduler.is_empty() {
            return story;
        }
        if let Err(error) = scheduler.schedule(now, controls, &mut plan) {
            story.push(format!("{step}: dies in preemption {}: {error}", scheduler.preemptions()));
            return story;
        }
        let line = Line::of(&plan, &scheduler);
        scheduler.complete(&plan, now + STEP, &mut outcome);
        idle = if line.is_idle() && submitted == requests.len() { idle + 1 } else { 0 };
        story.push(format!("{step}: {}{}", line.finish(&outcome), copies(&plan)));
        if let Err(wrong) = scheduler.validate() {
            panic!("after step {step}: {wrong}\n{}", story.join("\n"));
        }
        if idle == IDLE_LIMIT {
            story.push("stalled".to_owned());
            return story;
        }
    }
    story.push("goes on".to_owned());
    story
}

/// Physical blocks of the step's copies.
fn copies(plan: &StepPlan) -> String {
    let list = |copies: &[BlockCopy]| {
        let pairs: Vec<String> = copies.iter().map(|copy| format!("{}>{}", copy.src.0, copy.dst.0)).collect();
        pairs.join(" ")
    };
    match (plan.copies[Route::GpuToHost].is_empty(), plan.copies[Route::HostToGpu].is_empty()) {
        (true, true) => String::new(),
        (false, true) => format!(" | to host {}", list(&plan.copies[Route::GpuToHost])),
        (true, false) => format!(" | to GPU {}", list(&plan.copies[Route::HostToGpu])),
        (false, false) => panic!("copies in both directions in one step"),
    }
}
