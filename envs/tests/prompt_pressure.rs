//! Prompts that are limited while they press upon decodes, in schedules small enough to be worked out by hand.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::common::node_config;
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Controller, EngineDefault, Node, RunError, run};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::{Outcome, PromptLimit, PromptLimitError, PromptPressure, Scheduler, Slo, StepPlan, V1};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::SyntheticSpec;
use kvtide_runtime::Action;

/// 100 tokens a step, and blocks for everybody.
fn engine() -> EngineConfig {
    EngineConfig {
        engine: EngineKind::V1,
        block_size: 4,
        num_gpu_blocks: 1001,
        max_num_batched_tokens: 100,
        max_model_len: 4000,
        enable_chunked_prefill: true,
        max_wait: Micros::MAX,
        ..EngineConfig::default()
    }
}

fn pressure(prompts: u32, tokens: u32) -> PromptPressure {
    PromptPressure { prompts: NonZeroU32::new(prompts).unwrap(), tokens: NonZeroU32::new(tokens).unwrap() }
}

/// What each step computes, as `0+30 1 2*`: tokens of a prompt's chunk, a decode, and a prompt's last chunk. The requests are
/// `(step of arrival, prompt, output)`.
fn tell(engine: EngineConfig, rule: PromptPressure, requests: &[(usize, u32, u32)]) -> Vec<String> {
    let is_async = engine.async_scheduling;
    let mut v1 = V1::new(engine).unwrap();
    v1.limit_prompts(PromptLimit::Pressure(rule)).unwrap();
    let (mut plan, mut before, mut outcome) = (StepPlan::default(), StepPlan::default(), Outcome::default());
    let (mut story, mut submitted) = (Vec::new(), 0);
    for step in 0..400 {
        let now = Micros(1000 * step as u64);
        while let Some(&(_, prompt, output)) = requests.get(submitted).filter(|(arrival, ..)| *arrival <= step) {
            v1.submit(now, prompt, output, Slo::default());
            submitted += 1;
        }
        if submitted == requests.len() && v1.is_empty() {
            return story;
        }
        std::mem::swap(&mut plan, &mut before);
        v1.schedule(now, &Action::V1_DEFAULT.controls(), &mut plan);
        let turns = v1.scheduled(&plan).into_iter().map(|turn| {
            let chunk = plan.prefills.iter().find(|chunk| chunk.id == turn.id);
            let last = |samples| if samples { "*" } else { "" };
            chunk.map_or(turn.id.0.to_string(), |chunk| {
                format!("{}+{}{}", chunk.id.0, chunk.tokens, last(chunk.samples))
            })
        });
        story.push(turns.collect::<Vec<String>>().join(" "));
        let due = if is_async { &before } else { &plan };
        v1.complete(due, now, &mut outcome);
        v1.validate().unwrap();
    }
    panic!("it goes on: {story:?}");
}

#[test]
fn two_prompts_beside_a_decode_share_the_limit() {
    let requests = [(0, 50, 6), (1, 70, 1), (1, 30, 1), (2, 200, 2)];
    assert_eq!(
        tell(engine(), pressure(2, 20), &requests),
        [
            // Nobody decodes: the budget.
            "0+50*",
            // Two wait while one decodes.
            "0 1+20",
            "0 1+20",
            "0 1+20",
            // What the first leaves of the limit is the second's.
            "0 1+10* 2+10",
            // The first request's last token. 2 and 3 have prompt left.
            "0 2+20*",
            // 2's prompt ended and so did 2: only 3 is left, and nobody decodes.
            "3+100",
            "3+100*",
            "3",
        ]
    );
}

#[test]
fn one_prompt_or_no_decode_is_no_pressure() {
    // One prompt at a time beside the decode: all that the budget leaves.
    assert_eq!(
        tell(engine(), pressure(2, 1), &[(0, 10, 5), (1, 150, 1), (3, 40, 1)]),
        ["0+10*", "0 1+99", "0 1+51*", "0 2+40*", "0"]
    );
    // Any number of prompts and no decode.
    assert_eq!(tell(engine(), pressure(2, 1), &[(0, 90, 1), (0, 20, 1), (0, 80, 1)]), ["0+90* 1+10", "1+10* 2+80*"]);
    // From one prompt on.
    assert_eq!(tell(engine(), pressure(1, 3), &[(0, 10, 4), (1, 8, 1)]), ["0+10*", "0 1+3", "0 1+3", "0 1+2*"]);
}

#[test]
fn who_arrived_during_the_last_step_counts_in_this_one() {
    // 2 is there when step 2 is planned, not before.
    let story = tell(engine(), pressure(2, 5), &[(0, 10, 4), (1, 150, 1), (2, 8, 1)]);
    assert_eq!(story[..3], ["0+10*", "0 1+99", "0 1+5"]);
}

#[test]
fn a_prompt_whose_last_chunk_is_in_flight_decodes() {
    let requests = [(0, 10, 3), (0, 95, 1), (0, 40, 1)];
    let story = |async_scheduling| tell(EngineConfig { async_scheduling, ..engine() }, pressure(2, 7), &requests);
    // Synchronously and not: in step 1 request 0 decodes, or its first token is on its way; 1 and 2 have prompt left.
    assert_eq!(story(false), ["0+10* 1+90", "0 1+5* 2+2", "0 2+38*"]);
    assert_eq!(story(true), ["0+10* 1+90", "0 1+5* 2+2", "0 2+38*", ""]);
    // One token is all that 0 has to say: until it is known that it was said, 0 counts, and has no turn.
    let requests = [(0, 10, 1), (0, 95, 1), (0, 40, 1)];
    let story = |async_scheduling| tell(EngineConfig { async_scheduling, ..engine() }, pressure(2, 7), &requests);
    assert_eq!(story(false), ["0+10* 1+90", "1+5* 2+40*"]);
    assert_eq!(story(true), ["0+10* 1+90", "1+5* 2+2", "2+38*", ""]);
}

#[test]
fn the_limit_holds_beside_a_longest_chunk() {
    // Without pressure each of four prompts has a chunk of at most 30; with it the first two take what there is, and the others,
    // which run already, sit the step out.
    let engine = EngineConfig { long_prefill_token_threshold: 30, ..engine() };
    let requests = [(0, 10, 9), (0, 60, 1), (0, 60, 1), (0, 60, 1)];
    assert_eq!(
        tell(engine, pressure(3, 40), &requests),
        ["0+10* 1+30 2+30 3+30", "0 1+30* 2+10", "0 2+20* 3+30*", "0", "0", "0", "0", "0", "0"]
    );
}

#[test]
fn a_token_a_step_is_progress() {
    let requests = [(0, 3, 40), (1, 9, 2), (1, 9, 2), (1, 9, 2)];
    let story = tell(engine(), pressure(2, 1), &requests);
    let prompts: Vec<u32> = story
        .iter()
        .map(|step| step.split([' ', '*']).filter_map(|turn| turn.split_once('+')?.1.parse::<u32>().ok()).sum())
        .collect();
    // 18 steps of a token, then the last prompt alone.
    assert!(prompts[1..=18].iter().all(|&tokens| tokens == 1) && prompts[19] == 9, "{prompts:?}");
    // The decode has had its turn in every one of 40 steps.
    assert!(story[1..40].iter().all(|step| step.starts_with('0')) && story.len() == 40, "{story:?}");
}

#[test]
fn an_answer_that_is_computed_again_is_no_prompt() {
    // 7 usable blocks of 4 for two sequences that grow to 19 tokens.
    let engine = EngineConfig {
        num_gpu_blocks: 8,
        max_model_len: 28,
        long_prefill_token_threshold: 6,
        scheduler_reserve_full_isl: false,
        ..engine()
    };
    let expected = [
        vec!["0+4* 1+4*"],
        vec!["0 1"; 8],
        // Both need a fourth block and one is left: 1 goes, 13 tokens long.
        vec!["0"],
        // Its prompt of 4, two tokens a step, beside the decode.
        vec!["0 1+2"; 2],
        // What it had said is a prompt no more: the longest chunk.
        vec!["0 1+6"],
        // 0 needs its fifth block, and 1 goes again.
        vec!["0"],
        vec!["0 1+2"; 2],
        vec!["1+9*"],
        vec!["1"; 6],
    ];
    assert_eq!(tell(engine, pressure(1, 2), &[(0, 4, 16), (0, 4, 16)]), expected.concat());
}

/// Somewhat more than the engine can serve, on a small pool.
fn traffic() -> Arc<[Request]> {
    let spec: SyntheticSpec = "chat:rate=6,duration=90,seed=3".parse().unwrap();
    spec.generate().unwrap().share()
}

fn serve(engine: &EngineConfig, controller: &mut dyn Controller) -> Result<Summary, RunError> {
    let config = node_config(engine.clone(), Slo::default());
    let mut node = Node::new(&config, traffic(), Collector::with_gaps()).unwrap();
    run(&mut node, controller, 8)
}

#[test]
fn where_it_never_applies_a_run_is_that_of_the_default() {
    let engine = EngineConfig {
        block_size: 16,
        num_gpu_blocks: 3000,
        max_num_batched_tokens: 2048,
        max_model_len: 32_768,
        async_scheduling: true,
        enable_prefix_caching: true,
        ..engine()
    };
    let default = serve(&engine, &mut EngineDefault).unwrap();
    for mut idle in [pressure(2, 2048), pressure(1, u32::MAX), pressure(u32::MAX, 1)] {
        assert_eq!(serve(&engine, &mut idle).unwrap(), default);
    }
    let limited = serve(&engine, &mut pressure(2, 256)).unwrap();
    assert_ne!(limited.hash, default.hash);
    assert_eq!((limited.completed, limited.rejected), (default.completed, default.rejected));
}

#[test]
fn an_engine_that_cannot_limit_prompts_says_so() {
    let whole = EngineConfig { enable_chunked_prefill: false, max_num_batched_tokens: 4000, ..engine() };
    let v0 = EngineConfig { engine: EngineKind::V0, ..engine() };
    for (engine, expected) in [(whole, PromptLimitError::WholePrompts), (v0, PromptLimitError::V0)] {
        let mut scheduler = Scheduler::new(engine.clone()).unwrap();
        assert_eq!(scheduler.limit_prompts(PromptLimit::Pressure(PromptPressure::PUBLISHED)), Err(expected));
        assert_eq!(scheduler.limit_prompts(PromptLimit::Budget), Ok(()));
        let refused = serve(&engine, &mut pressure(2, 20)).unwrap_err();
        assert_eq!(refused, RunError::PromptLimit(expected));
    }
}
