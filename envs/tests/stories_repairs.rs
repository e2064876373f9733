//! The repairs of the safe setting, each told as a story. The notation is that of `stories.rs`.

use crate::common::story::{Ask, ask, check};
use crate::common::{chunked, controls, engine};
use kvtide_envs::deploy::EngineConfig;
use kvtide_runtime::{Controls, Preemption};

fn swap() -> Controls {
    Controls { preemption: Preemption::Swap, ..controls() }
}

#[test]
fn while_nothing_runs_the_watermark_is_zero() {
    let all = Controls { watermark: 1.0, ..controls() };
    check(
        engine(4, 10, 0),
        all,
        &[ask(0, 12, 2), ask(0, 4, 2), ask(0, 40, 1)],
        "
        0: admit? 1 needs 1 of 7: later; prefill 0:12W | w 1 2 r 0 s - | free 7+0
        1: admit? 1 needs 1 of 7: later; decode 0 | w 1 2 r 0 s - | free 6+0 | done 0
        2: admit? 2 needs 10 of 9: later; prefill 1:4W | w 2 r 1 s - | free 9+0
        3: admit? 2 needs 10 of 9: later; decode 1 | w 2 r 1 s - | free 8+0 | done 1
        4: prefill 2:40W | w - r 2 s - | free 0+0 | done 2
    ",
    );
    let chunks = chunked(engine(4, 10, 0), 8);
    check(
        chunks,
        all,
        &[ask(0, 12, 2), ask(0, 4, 1)],
        "
        0: admit? 1 needs 1 of 7: later; prefill 0:8W | w 1 r 0 s - | free 7+0
        1: admit? 1 needs 1 of 7: later; prefill 0:4C | w 1 r 0 s - | free 7+0
        2: admit? 1 needs 1 of 6: later; decode 0 | w 1 r 0 s - | free 6+0 | done 0
        3: prefill 1:4W | w - r 1 s - | free 9+0 | done 1
    ",
    );
}

#[test]
fn a_swapped_request_above_the_watermark_comes_back_to_an_idle_engine() {
    // In step 8 request 1 needs 3 blocks, and 4 of 6 are to stay free: vLLM would wait for ever.
    let w = Controls { watermark: 0.7, ..swap() };
    check(
        engine(2, 6, 6),
        w,
        &[ask(0, 2, 8), ask(0, 2, 8)],
        "
        0: prefill 0:2W 1:2W | w - r 0 1 s - | free 4+6
        1: decode 0 1 | w - r 0 1 s - | free 2+6
        2: decode 0 1 | w - r 0 1 s - | free 2+6
        3: decode 0 1 | w - r 0 1 s - | free 0+6
        4: preempt 1S; out 1:3; decode 0 | w - r 0 s 1 | free 3+3 | to host 1>0 3>1 5>2
        5: swap-in? 1 needs 3 of 2: later; decode 0 | w - r 0 s 1 | free 2+3
        6: swap-in? 1 needs 3 of 2: later; decode 0 | w - r 0 s 1 | free 2+3
        7: swap-in? 1 needs 3 of 1: later; decode 0 | w - r 0 s 1 | free 1+3 | done 0
        8: in 1:3; decode 1 | w - r 1 s - | free 3+6 | to GPU 0>3 1>5 2>4
        9: decode 1 | w - r 1 s - | free 2+6
        10: decode 1 | w - r 1 s - | free 2+6
        11: decode 1 | w - r 1 s - | free 1+6 | done 1
    ",
    );
}

#[test]
fn what_the_host_cannot_hold_is_recomputed() {
    check(
        engine(2, 4, 2),
        swap(),
        &[ask(0, 4, 2), ask(0, 4, 2)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 0+2
        1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+2 | done 0
        2: prefill 1:5W | w - r 1 s - | free 1+2 | done 1
    ",
    );
    check(
        engine(2, 4, 0),
        swap(),
        &[ask(0, 4, 2), ask(0, 4, 2)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 0+0
        1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+0 | done 0
        2: prefill 1:5W | w - r 1 s - | free 1+0 | done 1
    ",
    );
}

#[test]
fn a_prefill_above_the_budget_is_swapped_in_by_chunks() {
    check(
        chunked(engine(4, 5, 8), 4),
        swap(),
        &[ask(0, 3, 4), ask(0, 15, 1)],
        "
        0: prefill 0:3W 1:1W | w - r 0 1 s - | free 0+8
        1: preempt 1S; out 1:4; decode 0 | w - r 0 s 1 | free 4+4 | to host 1>0 2>1 3>2 4>3
        2: swap-in? 1 needs 4 of 3: later; decode 0 | w - r 0 s 1 | free 3+4
        3: swap-in? 1 needs 4 of 3: later; decode 0 | w - r 0 s 1 | free 3+4 | done 0
        4: in 1:4; prefill 1:4S | w - r 1 s - | free 1+8 | to GPU 0>4 1>0 2>3 3>2
        5: prefill 1:4C | w - r 1 s - | free 1+8
        6: prefill 1:4C | w - r 1 s - | free 1+8
        7: prefill 1:2C | w - r 1 s - | free 1+8 | done 1
    ",
    );
}

#[test]
fn whoever_runs_alone_is_asked_for_what_it_needs() {
    check(
        engine(4, 1, 0),
        controls(),
        &[ask(0, 1, 3)],
        "
        0: prefill 0:1W | w - r 0 s - | free 0+0
        1: decode 0 | w - r 0 s - | free 0+0
        2: decode 0 | w - r 0 s - | free 0+0 | done 0
    ",
    );
    check(
        engine(4, 1, 1),
        swap(),
        &[ask(0, 1, 3)],
        "
        0: prefill 0:1W | w - r 0 s - | free 0+1
        1: decode 0 | w - r 0 s - | free 0+1
        2: decode 0 | w - r 0 s - | free 0+1 | done 0
    ",
    );
}

#[test]
fn whoever_was_swapped_in_first_is_not_nobody() {
    // In step 4 the engine was idle until request 1 came back; for request 2 the watermark of one block holds.
    let w = Controls { watermark: 0.2, ..swap() };
    let asks = [ask(0, 4, 4), ask(0, 15, 1), ask(4, 5, 1)];
    check(
        chunked(engine(4, 6, 8), 10),
        w,
        &asks,
        "
        0: prefill 0:4W 1:6W | w - r 0 1 s - | free 1+8
        1: preempt 1S; out 1:4; decode 0 | w - r 0 s 1 | free 4+4 | to host 1>0 2>1 3>2 4>3
        2: swap-in? 1 needs 4 of 4: later; decode 0 | w - r 0 s 1 | free 4+4
        3: swap-in? 1 needs 4 of 4: later; decode 0 | w - r 0 s 1 | free 4+4 | done 0
        4: admit? 2 needs 2 of 2: later; in 1:4; prefill 1:9S | w 2 r 1 s - | free 2+8 | done 1 | to GPU 0>5 1>0 2>4 3>3
        5: prefill 2:5W | w - r 2 s - | free 4+8 | done 2
    ",
    );
}

#[test]
fn the_last_in_line_is_not_alone() {
    // In step 1 request 0 takes the last block; request 1 has room in its own, and still has to go.
    check(
        engine(4, 4, 0),
        controls(),
        &[ask(0, 4, 3), ask(0, 5, 2)],
        "
        0: prefill 0:4W 1:5W | w - r 0 1 s - | free 1+0
        1: preempt 1R; decode 0 | w 1 r 0 s - | free 2+0
        2: prefill 1:6W | w - r 0 1 s - | free 0+0 | done 1
        3: decode 0 | w - r 0 s - | free 2+0 | done 0
    ",
    );
}

#[test]
fn a_prompt_that_never_fits_is_refused_on_arrival() {
    let short = EngineConfig { max_model_len: 8, ..engine(4, 10, 0) };
    check(
        short,
        controls(),
        &[ask(0, 9, 1), ask(0, 8, 1)],
        "
        0: refused on arrival 0
        0: prefill 1:8W | w - r 1 s - | free 8+0 | done 1
    ",
    );
}

#[test]
fn more_decodes_than_budget_do_not_break_swap_in() {
    // Without chunks nothing ties the batch to the budget. In step 3 seven decode where a prompt may have four tokens.
    let tight = EngineConfig { max_model_len: 4, max_num_batched_tokens: 4, ..engine(4, 8, 8) };
    let asks: Vec<Ask> = (0..8).map(|_| ask(0, 1, 4)).collect();
    check(
        tight,
        swap(),
        &asks,
        "
        0: prefill 0:1W 1:1W 2:1W 3:1W | w 4 5 6 7 r 0 1 2 3 s - | free 4+8
        1: prefill 4:1W 5:1W 6:1W 7:1W | w - r 0 1 2 3 4 5 6 7 s - | free 0+8
        2: preempt 7S; out 7:1; decode 0 1 2 3 4 5 6 | w - r 0 1 2 3 4 5 6 s 7 | free 1+7 | to host 7>0
        3: decode 0 1 2 3 4 5 6 | w - r 0 1 2 3 4 5 6 s 7 | free 1+7
        4: decode 0 1 2 3 4 5 6 | w - r 0 1 2 3 4 5 6 s 7 | free 1+7 | done 0 1 2 3 4 5 6
        5: in 7:1; decode 7 | w - r 7 s - | free 7+8 | to GPU 0>6
        6: decode 7 | w - r 7 s - | free 7+8
        7: decode 7 | w - r 7 s - | free 7+8 | done 7
    ",
    );
}
