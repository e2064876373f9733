//! The scheduler's rules, each told as a story: steps, and the whole state after each.
//!
//! A line is what a step decided, then the waiting, running and swapped queues, then free blocks on GPU and host, then
//! who finished and which blocks were copied. `3:8W` is a prefill of 8 tokens of request 3, admitted from waiting (`C`:
//! its next chunk, `S`: swapped in).

use crate::common::story::{ask, check, tell};
use crate::common::{chunked, controls, engine, faithful};
use kvtide_envs::deploy::EngineConfig;
use kvtide_runtime::{Controls, Preemption};

fn swap() -> Controls {
    Controls { preemption: Preemption::Swap, ..controls() }
}

#[test]
fn prompts_are_admitted_before_anyone_decodes() {
    // Request 1 arrives while 0 decodes: step 1 only prefills.
    check(
        faithful(4, 10, 0),
        controls(),
        &[ask(0, 5, 3), ask(1, 4, 2)],
        "
        0: prefill 0:5W | w - r 0 s - | free 8+0
        1: prefill 1:4W | w - r 0 1 s - | free 7+0
        2: decode 0 1 | w - r 0 1 s - | free 6+0 | done 1
        3: decode 0 | w - r 0 s - | free 8+0 | done 0
    ",
    );
}

#[test]
fn a_prompt_gets_no_block_for_its_next_token() {
    check(
        faithful(4, 2, 0),
        controls(),
        &[ask(0, 8, 1)],
        "
        0: prefill 0:8W | w - r 0 s - | free 0+0 | done 0
    ",
    );
}

#[test]
fn the_watermark_lets_the_head_wait_and_nobody_skips_it() {
    // W is 2 of 10 blocks: request 1 would leave 1 free, 2 would leave 6.
    let w = Controls { watermark: 0.2, ..controls() };
    check(
        faithful(4, 10, 0),
        w,
        &[ask(0, 12, 2), ask(0, 24, 1), ask(0, 4, 1)],
        "
        0: admit? 1 needs 6 of 7: later; prefill 0:12W | w 1 2 r 0 s - | free 7+0
        1: admit? 1 needs 6 of 7: later; decode 0 | w 1 2 r 0 s - | free 6+0 | done 0
        2: prefill 1:24W 2:4W | w - r 1 2 s - | free 3+0 | done 1 2
    ",
    );
}

#[test]
fn the_watermark_is_truncated_toward_zero() {
    // 0.29 * 10 is 2.9 blocks: 2 must stay free, and exactly 2 do.
    let w = Controls { watermark: 0.29, ..controls() };
    check(
        faithful(4, 10, 0),
        w,
        &[ask(0, 16, 1), ask(0, 16, 1)],
        "
        0: prefill 0:16W 1:16W | w - r 0 1 s - | free 2+0 | done 0 1
    ",
    );
}

#[test]
fn a_prompt_that_fits_only_below_the_watermark_is_dropped() {
    let w = Controls { watermark: 0.2, ..controls() };
    check(
        faithful(4, 10, 0),
        w,
        &[ask(0, 33, 2), ask(0, 4, 1)],
        "
        0: admit? 0 needs 9 of 10: never; drop 0; prefill 1:4W | w - r 1 s - | free 9+0 | done 1
    ",
    );
}

#[test]
fn a_prompt_above_the_limits_is_dropped_and_one_at_the_limit_is_not() {
    let limits = EngineConfig { max_model_len: 8, max_num_batched_tokens: 9, ..faithful(4, 10, 0) };
    check(
        limits,
        controls(),
        &[ask(0, 9, 2), ask(0, 8, 2)],
        "
        0: drop 0; prefill 1:8W | w - r 1 s - | free 8+0 | done 1
    ",
    );
    let budget = EngineConfig { max_model_len: 16, max_num_batched_tokens: 9, ..faithful(4, 10, 0) };
    check(
        budget,
        controls(),
        &[ask(0, 10, 2), ask(0, 9, 1)],
        "
        0: drop 0; prefill 1:9W | w - r 1 s - | free 7+0 | done 1
    ",
    );
}

#[test]
fn a_full_batch_still_drops_a_prompt_that_never_fits() {
    let one = EngineConfig { max_num_seqs: 1, max_model_len: 100, max_num_batched_tokens: 100, ..faithful(4, 5, 0) };
    check(
        one,
        controls(),
        &[ask(0, 4, 2), ask(1, 24, 1), ask(1, 4, 1)],
        "
        0: prefill 0:4W | w - r 0 s - | free 4+0
        1: admit? 1 needs 6 of 4: never; drop 1; decode 0 | w 2 r 0 s - | free 3+0 | done 0
        2: prefill 2:4W | w - r 2 s - | free 4+0 | done 2
    ",
    );
}

#[test]
fn the_token_budget_ends_a_prefill_step() {
    let small = EngineConfig { max_num_batched_tokens: 9, ..faithful(4, 10, 0) };
    check(
        small,
        controls(),
        &[ask(0, 5, 1), ask(0, 5, 1), ask(0, 4, 1)],
        "
        0: prefill 0:5W | w 1 2 r 0 s - | free 8+0 | done 0
        1: prefill 1:5W 2:4W | w - r 1 2 s - | free 7+0 | done 1 2
    ",
    );
}

#[test]
fn running_requests_are_not_held_to_the_watermark() {
    let w = Controls { watermark: 0.5, ..controls() };
    check(
        faithful(2, 4, 0),
        w,
        &[ask(0, 4, 4)],
        "
        0: prefill 0:4W | w - r 0 s - | free 2+0
        1: decode 0 | w - r 0 s - | free 1+0
        2: decode 0 | w - r 0 s - | free 1+0
        3: decode 0 | w - r 0 s - | free 0+0 | done 0
    ",
    );
}

#[test]
fn recompute_victims_come_from_the_tail_and_return_in_their_old_order() {
    // Three requests of 4 tokens hold the 6 blocks of 2: the first decode needs a seventh and takes request 2's; then 1's
    // token is refused by its own touch, not by need.
    check(
        faithful(2, 6, 0),
        controls(),
        &[ask(0, 4, 4), ask(0, 4, 4), ask(0, 4, 4)],
        "
        0: prefill 0:4W 1:4W 2:4W | w - r 0 1 2 s - | free 0+0
        1: preempt 2R; decode 0 1 | w 2 r 0 1 s - | free 0+0
        2: admit? 2 needs 3 of 0: later; preempt 1R; decode 0 | w 1 2 r 0 s - | free 3+0
        3: admit? 2 needs 3 of 0: later; prefill 1:6W | w 2 r 0 1 s - | free 0+0
        4: admit? 2 needs 3 of 0: later; preempt 1R; decode 0 | w 1 2 r 0 s - | free 2+0 | done 0
        5: admit? 2 needs 3 of 2: later; prefill 1:7W | w 2 r 1 s - | free 2+0 | done 1
        6: prefill 2:5W | w - r 2 s - | free 3+0
        7: decode 2 | w - r 2 s - | free 3+0
        8: decode 2 | w - r 2 s - | free 2+0 | done 2
    ",
    );
}

#[test]
fn one_step_can_have_several_victims() {
    check(
        faithful(1, 4, 0),
        controls(),
        &[ask(0, 1, 3), ask(0, 1, 3), ask(0, 1, 2), ask(0, 1, 2)],
        "
        0: prefill 0:1W 1:1W 2:1W 3:1W | w - r 0 1 2 3 s - | free 0+0
        1: preempt 3R 2R; decode 0 1 | w 2 3 r 0 1 s - | free 0+0
        2: admit? 2 needs 2 of 0: later; preempt 1R; decode 0 | w 1 2 3 r 0 s - | free 1+0 | done 0
        3: admit? 2 needs 2 of 1: later; prefill 1:3W | w 2 3 r 1 s - | free 1+0 | done 1
        4: prefill 2:2W 3:2W | w - r 2 3 s - | free 0+0 | done 2 3
    ",
    );
}

#[test]
fn a_decode_touches_a_block_even_if_its_last_one_has_room() {
    // Both last blocks have room for three more tokens, yet with nothing free the second decode costs its own place.
    check(
        faithful(4, 2, 0),
        controls(),
        &[ask(0, 1, 3), ask(0, 1, 3)],
        "
        0: prefill 0:1W 1:1W | w - r 0 1 s - | free 0+0
        1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+0
        2: prefill 1:2W | w - r 0 1 s - | free 0+0
        3: preempt 1R; decode 0 | w 1 r 0 s - | free 1+0 | done 0
        4: prefill 1:3W | w - r 1 s - | free 1+0 | done 1
    ",
    );
}

#[test]
fn a_freed_block_is_the_next_to_be_taken() {
    // Request 0 frees 0 and 1; request 2 gets them reversed, which its swap shows.
    check(
        faithful(2, 6, 6),
        swap(),
        &[ask(0, 4, 1), ask(0, 4, 6), ask(1, 4, 6)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 2+6 | done 0
        1: prefill 2:4W | w - r 1 2 s - | free 2+6
        2: decode 1 2 | w - r 1 2 s - | free 0+6
        3: preempt 2S; out 2:3; decode 1 | w - r 1 s 2 | free 3+3 | to host 1>0 0>1 5>2
        4: swap-in? 2 needs 3 of 2: later; decode 1 | w - r 1 s 2 | free 2+3
        5: swap-in? 2 needs 3 of 2: later; decode 1 | w - r 1 s 2 | free 2+3
        6: swap-in? 2 needs 3 of 1: later; decode 1 | w - r 1 s 2 | free 1+3 | done 1
        7: in 2:3; decode 2 | w - r 2 s - | free 3+6 | to GPU 0>0 1>5 2>4
        8: decode 2 | w - r 2 s - | free 2+6
        9: decode 2 | w - r 2 s - | free 2+6
        10: decode 2 | w - r 2 s - | free 1+6 | done 2
    ",
    );
}

#[test]
fn swapped_requests_come_back_first_and_hold_up_the_waiting() {
    check(faithful(2, 6, 6), swap(), &[ask(0, 4, 5), ask(0, 4, 5), ask(0, 4, 3), ask(2, 2, 1)], "
        0: prefill 0:4W 1:4W 2:4W | w - r 0 1 2 s - | free 0+6
        1: preempt 2S; out 2:2; decode 0 1 | w - r 0 1 s 2 | free 0+4 | to host 4>0 5>1
        2: preempt 1S; out 1:3; decode 0 | w 3 r 0 s 2 1 | free 3+1 | to host 2>2 3>3 4>4
        3: swap-in? 2 needs 3 of 2: later; decode 0 | w 3 r 0 s 2 1 | free 2+1
        4: swap-in? 2 needs 3 of 2: later; decode 0 | w 3 r 0 s 2 1 | free 2+1 | done 0
        5: in 2:2 1:3; decode 2 1 | w 3 r 2 1 s - | free 0+6 | to GPU 0>4 1>5 2>0 3>3 4>2
        6: admit? 3 needs 1 of 0: later; preempt 1S; out 1:3; decode 2 | w 3 r 2 s 1 | free 3+3 | done 2 | to host 0>4 3>3 2>2
        7: in 1:3; decode 1 | w 3 r 1 s - | free 2+6 | to GPU 4>1 3>5 2>4
        8: prefill 3:2W | w - r 1 3 s - | free 1+6 | done 3
        9: decode 1 | w - r 1 s - | free 2+6 | done 1
    ");
}

#[test]
fn within_a_step_the_youngest_is_swapped_out_first_and_comes_back_first() {
    check(
        faithful(1, 5, 9),
        swap(),
        &[ask(0, 1, 4), ask(0, 1, 3), ask(0, 2, 3)],
        "
        0: prefill 0:1W 1:1W 2:2W | w - r 0 1 2 s - | free 1+9
        1: preempt 2S; out 2:2; decode 0 1 | w - r 0 1 s 2 | free 1+7 | to host 2>0 3>1
        2: preempt 1S; out 1:2; decode 0 | w - r 0 s 2 1 | free 2+5 | to host 1>2 3>3
        3: swap-in? 2 needs 3 of 1: later; decode 0 | w - r 0 s 2 1 | free 1+5 | done 0
        4: swap-in? 1 needs 3 of 2: later; in 2:2; decode 2 | w - r 2 s 1 | free 2+7 | to GPU 0>3 1>2
        5: swap-in? 1 needs 3 of 1: later; decode 2 | w - r 2 s 1 | free 1+7 | done 2
        6: in 1:2; decode 1 | w - r 1 s - | free 2+9 | done 1 | to GPU 2>0 3>4
    ",
    );
}

#[test]
fn swapping_out_asks_for_one_block_more_if_the_last_is_full() {
    // The victim holds 2 full blocks: 3 host blocks are asked for, 2 are copied.
    check(
        faithful(2, 4, 3),
        swap(),
        &[ask(0, 4, 2), ask(0, 4, 2)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 0+3
        1: preempt 1S; out 1:2; decode 0 | w - r 0 s 1 | free 1+1 | done 0 | to host 2>0 3>1
        2: in 1:2; decode 1 | w - r 1 s - | free 1+3 | done 1 | to GPU 0>3 1>1
    ",
    );
    check(
        faithful(2, 4, 2),
        swap(),
        &[ask(0, 4, 2), ask(0, 4, 2)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 0+2
        1: dies in preemption 1: request 1 cannot be swapped out: the host pool has no room (vLLM's V0 engine dies here)
    ",
    );
    // A last block with room needs no such reserve.
    check(
        faithful(4, 2, 1),
        swap(),
        &[ask(0, 3, 2), ask(0, 3, 2)],
        "
        0: prefill 0:3W 1:3W | w - r 0 1 s - | free 0+1
        1: preempt 1S; out 1:1; decode 0 | w - r 0 s 1 | free 1+0 | done 0 | to host 1>0
        2: in 1:1; decode 1 | w - r 1 s - | free 1+1 | done 1 | to GPU 0>0
    ",
    );
}

#[test]
fn swap_in_obeys_the_watermark() {
    // One block of 4 must stay free: request 1 has its two blocks and would leave none.
    let w = Controls { watermark: 0.25, ..swap() };
    check(
        faithful(4, 4, 4),
        w,
        &[ask(0, 3, 6), ask(0, 6, 4)],
        "
        0: prefill 0:3W 1:6W | w - r 0 1 s - | free 1+4
        1: decode 0 1 | w - r 0 1 s - | free 1+4
        2: preempt 1S; out 1:2; decode 0 | w - r 0 s 1 | free 2+2 | to host 1>0 2>1
        3: swap-in? 1 needs 2 of 2: later; decode 0 | w - r 0 s 1 | free 2+2
        4: swap-in? 1 needs 2 of 2: later; decode 0 | w - r 0 s 1 | free 2+2
        5: swap-in? 1 needs 2 of 2: later; decode 0 | w - r 0 s 1 | free 2+2 | done 0
        6: in 1:2; decode 1 | w - r 1 s - | free 2+4 | to GPU 0>3 1>0
        7: decode 1 | w - r 1 s - | free 1+4 | done 1
    ",
    );
}

#[test]
fn chunks_share_the_budget_with_decodes() {
    check(
        chunked(faithful(4, 10, 0), 6),
        controls(),
        &[ask(0, 10, 3), ask(0, 9, 2)],
        "
        0: prefill 0:6W | w 1 r 0 s - | free 7+0
        1: prefill 1:2W 0:4C | w - r 0 1 s - | free 4+0
        2: prefill 1:5C; decode 0 | w - r 0 1 s - | free 4+0
        3: prefill 1:2C; decode 0 | w - r 0 1 s - | free 4+0 | done 0
        4: decode 1 | w - r 1 s - | free 7+0 | done 1
    ",
    );
}

#[test]
fn a_chunked_prompt_takes_all_its_blocks_at_once() {
    check(
        chunked(faithful(4, 4, 0), 4),
        controls(),
        &[ask(0, 12, 1), ask(0, 5, 1)],
        "
        0: admit? 1 needs 2 of 1: later; prefill 0:4W | w 1 r 0 s - | free 1+0
        1: admit? 1 needs 2 of 1: later; prefill 0:4C | w 1 r 0 s - | free 1+0
        2: admit? 1 needs 2 of 1: later; prefill 0:4C | w 1 r 0 s - | free 1+0 | done 0
        3: prefill 1:4W | w - r 1 s - | free 2+0
        4: prefill 1:1C | w - r 1 s - | free 2+0 | done 1
    ",
    );
}

#[test]
fn with_chunks_waiting_overtakes_swapped() {
    check(
        chunked(faithful(2, 6, 9), 8),
        swap(),
        &[ask(0, 4, 5), ask(0, 5, 3), ask(1, 1, 2), ask(2, 1, 1)],
        "
        0: prefill 0:4W 1:4W | w - r 0 1 s - | free 1+9
        1: preempt 1S; out 1:3; prefill 2:1W; decode 0 | w - r 0 2 s 1 | free 2+6 | to host 2>0 3>1 4>2
        2: swap-in? 1 needs 3 of 2: later; prefill 3:1W; decode 0 2 | w - r 0 2 3 s 1 | free 1+6 | done 3 2
        3: swap-in? 1 needs 3 of 2: later; decode 0 | w - r 0 s 1 | free 2+6
        4: swap-in? 1 needs 3 of 2: later; decode 0 | w - r 0 s 1 | free 2+6 | done 0
        5: in 1:3; prefill 1:1S | w - r 1 s - | free 3+9 | to GPU 0>4 1>5 2>1
        6: decode 1 | w - r 1 s - | free 3+9
        7: decode 1 | w - r 1 s - | free 2+9 | done 1
    ",
    );
}

#[test]
fn those_the_budget_did_not_reach_go_first_next_time() {
    // Request 3 is swapped in with a chunk of its prompt and goes before 0 and 1; in step 3 it leaves budget for one.
    let asks = [ask(0, 3, 6), ask(0, 3, 6), ask(0, 20, 2), ask(0, 67, 2)];
    check(chunked(engine(4, 24, 24), 32), swap(), &asks, "
        0: prefill 0:3W 1:3W 2:20W 3:6W | w - r 0 1 2 3 s - | free 0+24
        1: preempt 3S; out 3:17; decode 0 1 2 | w - r 0 1 2 s 3 | free 16+7 | done 2 | to host 7>0 8>1 9>2 10>3 11>4 12>5 13>6 14>7 15>8 16>9 17>10 18>11 19>12 20>13 21>14 22>15 23>16
        2: in 3:17; prefill 3:30S; decode 0 1 | w - r 3 0 1 s - | free 3+24 | to GPU 0>5 1>4 2>3 3>2 4>22 5>21 6>20 7>19 8>18 9>17 10>16 11>15 12>14 13>13 14>12 15>11 16>10
        3: prefill 3:31C; decode 0 | w - r 1 0 3 s - | free 3+24
        4: decode 1 0 3 | w - r 1 0 3 s - | free 3+24 | done 3
        5: decode 1 0 | w - r 1 0 s - | free 20+24 | done 0
        6: decode 1 | w - r 1 s - | free 22+24 | done 1
    ");
}

#[test]
fn a_chunk_touches_a_block_only_if_the_last_has_room() {
    // All blocks are held. With the last one full the prompt goes on; with room in it, it is preempted for ever, without
    // a step that would be idle.
    check(
        chunked(faithful(4, 2, 0), 3),
        controls(),
        &[ask(0, 8, 1)],
        "
        0: prefill 0:3W | w - r 0 s - | free 0+0
        1: prefill 0:3C | w - r 0 s - | free 0+0
        2: prefill 0:2C | w - r 0 s - | free 0+0 | done 0
    ",
    );
    let story = tell(chunked(faithful(4, 2, 0), 3), &controls(), &[ask(0, 7, 1)]);
    assert_eq!(story.last().unwrap(), "goes on");
    // Repaired: whoever runs alone is asked for what it needs.
    check(
        chunked(engine(4, 2, 0), 3),
        controls(),
        &[ask(0, 7, 1)],
        "
        0: prefill 0:3W | w - r 0 s - | free 0+0
        1: prefill 0:3C | w - r 0 s - | free 0+0
        2: prefill 0:1C | w - r 0 s - | free 0+0 | done 0
    ",
    );
}

#[test]
fn a_sequence_ends_one_token_above_the_limit() {
    let limit = EngineConfig { max_model_len: 6, max_num_batched_tokens: 6, ..faithful(4, 10, 0) };
    check(
        limit,
        controls(),
        &[ask(0, 5, 9)],
        "
        0: prefill 0:5W | w - r 0 s - | free 8+0
        1: decode 0 | w - r 0 s - | free 8+0 | done 0
    ",
    );
}
