//! V0's dead ends, which the faithful setting keeps and the safe one repairs (see `stories.rs`).

use crate::common::story::{ask, check, tell};
use crate::common::{chunked, controls, engine, faithful};
use kvtide_envs::deploy::{ConfigError, DeadEnds, EngineConfig};
use kvtide_envs::sched::V0;
use kvtide_runtime::{Controls, Preemption};

fn swap(watermark: f64) -> Controls {
    Controls { watermark, preemption: Preemption::Swap, ..controls() }
}

#[test]
fn a_swapped_request_above_the_watermark_stalls_everything() {
    // Request 0 grows above 6 - 2 blocks and is swapped out; coming back it would have to leave 2 free.
    check(
        faithful(2, 6, 6),
        swap(0.34),
        &[ask(0, 6, 8), ask(6, 2, 1)],
        "
        0: prefill 0:6W | w - r 0 s - | free 3+6
        1: decode 0 | w - r 0 s - | free 2+6
        2: decode 0 | w - r 0 s - | free 2+6
        3: decode 0 | w - r 0 s - | free 1+6
        4: decode 0 | w - r 0 s - | free 1+6
        5: decode 0 | w - r 0 s - | free 0+6
        6: admit? 1 needs 1 of 0: later; preempt 0S; out 0:6 | w 1 r - s 0 | free 6+0 | to host 0>0 1>1 2>2 3>3 4>4 5>5
        7: swap-in? 0 needs 6 of 6: later | w 1 r - s 0 | free 6+0
        8: swap-in? 0 needs 6 of 6: later | w 1 r - s 0 | free 6+0
        9: swap-in? 0 needs 6 of 6: later | w 1 r - s 0 | free 6+0
        stalled
    ",
    );
}

#[test]
fn with_recompute_the_same_request_is_dropped_and_its_tokens_lost() {
    let recompute = Controls { watermark: 0.34, ..controls() };
    check(
        faithful(2, 6, 6),
        recompute,
        &[ask(0, 6, 8), ask(6, 2, 1)],
        "
        0: prefill 0:6W | w - r 0 s - | free 3+6
        1: decode 0 | w - r 0 s - | free 2+6
        2: decode 0 | w - r 0 s - | free 2+6
        3: decode 0 | w - r 0 s - | free 1+6
        4: decode 0 | w - r 0 s - | free 1+6
        5: decode 0 | w - r 0 s - | free 0+6
        6: admit? 1 needs 1 of 0: later; preempt 0R | w 0 1 r - s - | free 6+6
        7: admit? 0 needs 6 of 6: never; drop 0; prefill 1:2W | w - r 1 s - | free 5+6 | done 1
    ",
    );
}

#[test]
fn a_prefill_above_the_budget_never_comes_back() {
    check(
        chunked(faithful(4, 6, 9), 8),
        swap(0.0),
        &[ask(0, 3, 4), ask(0, 18, 1)],
        "
        0: prefill 0:3W 1:5W | w - r 0 1 s - | free 0+9
        1: preempt 1S; out 1:5; decode 0 | w - r 0 s 1 | free 5+4 | to host 1>0 2>1 3>2 4>3 5>4
        2: swap-in? 1 needs 5 of 4: later; decode 0 | w - r 0 s 1 | free 4+4
        3: swap-in? 1 needs 5 of 4: later; decode 0 | w - r 0 s 1 | free 4+4 | done 0
        4: idle | w - r - s 1 | free 6+4
        5: idle | w - r - s 1 | free 6+4
        6: idle | w - r - s 1 | free 6+4
        stalled
    ",
    );
}

#[test]
fn a_sequence_that_outgrows_the_pool_leaks_its_host_blocks() {
    let long = EngineConfig { max_model_len: 99, max_num_batched_tokens: 99, ..faithful(2, 3, 9) };
    check(
        long,
        swap(0.0),
        &[ask(0, 5, 9), ask(0, 1, 1)],
        "
        0: admit? 1 needs 1 of 0: later; prefill 0:5W | w 1 r 0 s - | free 0+9
        1: admit? 1 needs 1 of 0: later; preempt 0S; out 0:3 | w 1 r - s 0 | free 3+6 | to host 0>0 1>1 2>2
        2: in 0:3; decode 0 | w 1 r 0 s - | free 0+9 | to GPU 0>2 1>1 2>0
        3: admit? 1 needs 1 of 0: later; preempt 0S; out 0:3 | w 1 r - s 0 | free 3+6 | to host 2>2 1>1 0>0
        4: swap-in? 0 needs 4 of 3: never; drop 0 | w 1 r - s - | free 3+6
        5: prefill 1:1W | w - r 1 s - | free 2+6 | done 1
    ",
    );
}

#[test]
fn a_full_host_pool_kills_the_engine() {
    check(
        faithful(2, 4, 0),
        swap(0.0),
        &[ask(0, 4, 2), ask(0, 4, 2)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 0+0
        1: dies in preemption 1: request 1 cannot be swapped out: the host pool has no room (vLLM's V0 engine dies here)
    ",
    );
    // The first victim fits, the second in the same step does not.
    check(
        faithful(1, 4, 2),
        swap(0.0),
        &[ask(0, 1, 3), ask(0, 1, 3), ask(0, 1, 2), ask(0, 1, 2)],
        "
        0: prefill 0:1W 1:1W 2:1W 3:1W | w - r 0 1 2 3 s - | free 0+2
        1: dies in preemption 2: request 2 cannot be swapped out: the host pool has no room (vLLM's V0 engine dies here)
    ",
    );
}

#[test]
fn a_lone_sequence_that_fills_the_pool_is_preempted_for_each_token() {
    let long = EngineConfig { max_model_len: 99, max_num_batched_tokens: 99, ..faithful(4, 2, 0) };
    check(
        long,
        controls(),
        &[ask(0, 5, 9)],
        "
        0: prefill 0:5W | w - r 0 s - | free 0+0
        1: preempt 0R | w 0 r - s - | free 2+0
        2: prefill 0:6W | w - r 0 s - | free 0+0
        3: preempt 0R | w 0 r - s - | free 2+0
        4: prefill 0:7W | w - r 0 s - | free 0+0
        5: preempt 0R | w 0 r - s - | free 2+0
        6: prefill 0:8W | w - r 0 s - | free 0+0
        7: preempt 0R | w 0 r - s - | free 2+0
        8: admit? 0 needs 3 of 2: never; drop 0 | w - r - s - | free 2+0
    ",
    );
}

#[test]
fn the_safe_setting_survives_each_of_them() {
    let survives = |engine: EngineConfig, controls: &Controls, asks: &[crate::common::story::Ask]| {
        let story = tell(EngineConfig { dead_ends: DeadEnds::Safe, ..engine }, controls, asks);
        assert!(story.last().unwrap().contains("done"), "{}", story.join("\n"));
        assert!(story.iter().all(|line| !line.contains("drop")), "{}", story.join("\n"));
    };
    survives(faithful(2, 6, 6), &swap(0.34), &[ask(0, 6, 8), ask(6, 2, 1)]);
    survives(chunked(faithful(4, 6, 9), 8), &swap(0.0), &[ask(0, 3, 4), ask(0, 18, 1)]);
    survives(faithful(2, 3, 9), &swap(0.0), &[ask(0, 5, 9), ask(0, 1, 1)]);
    survives(faithful(2, 4, 0), &swap(0.0), &[ask(0, 4, 2), ask(0, 4, 2)]);
    survives(faithful(4, 2, 0), &controls(), &[ask(0, 5, 9)]);
}

#[test]
fn settings_under_which_safe_cannot_be_kept_are_refused() {
    let error = |engine: EngineConfig| V0::new(engine).map(drop).unwrap_err();
    let large = EngineConfig { max_model_len: 41, max_num_batched_tokens: 41, ..engine(4, 10, 0) };
    assert_eq!(error(large.clone()), ConfigError::Pool { max_model_len: 41, usable_blocks: 10, block_size: 4 });
    let narrow = EngineConfig { max_num_batched_tokens: 39, ..engine(4, 10, 0) };
    assert_eq!(error(narrow.clone()), ConfigError::Budget { budget: 39, max_model_len: 40 });
    assert!(V0::new(EngineConfig { enable_chunked_prefill: true, ..narrow }).is_ok());
    assert!(V0::new(EngineConfig { dead_ends: DeadEnds::Faithful, ..large }).is_ok());
    let said = error(EngineConfig { block_size: 0, ..engine(4, 10, 0) }).to_string();
    assert_eq!(said, "block_size is 0; it must be from 1 to 4096");
}
