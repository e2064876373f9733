//! What a policy may choose beyond the watermark, each choice told as a story. The notation is that of `stories.rs`.

use crate::common::story::{Ask, STEP, ask, check};
use crate::common::{controls, engine, faithful};
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::sched::{Pricing, Slo};
use kvtide_envs::time::Micros;
use kvtide_runtime::{Admission, Controls, Preemption, Victim};

mod victims {
    use super::*;

    /// In step 4, request 0 finds nothing free and has the choice of 3, 4, 5, 6 and 2, in this order. Request 3 holds the
    /// most blocks, 4 has the most patient targets, 5 holds the fewest blocks, 6 is the newest of those that have
    /// generated the least, and 2 came back last: it was preempted before and, being late, admitted after the others.
    #[track_caller]
    fn told(victim: Victim, expected: &str) {
        let hurried = Slo::from_millis(1, 100, 3000);
        let patient = Slo::from_millis(60_000, 100, 3000);
        let asks = [
            ask(0, 3, 6),
            ask(0, 30, 3),
            Ask { slo: hurried, ..ask(0, 5, 4) },
            ask(3, 12, 2),
            Ask { slo: patient, ..ask(3, 5, 2) },
            ask(3, 1, 2),
            ask(3, 5, 2),
        ];
        let controls = Controls { victim, admission: Admission::OnTimeFirst, ..controls() };
        check(faithful(4, 12, 0), controls, &asks, expected);
    }

    #[test]
    fn newest() {
        told(
            Victim::Newest,
            "
            0: prefill 0:3W 1:30W 2:5W | w - r 0 1 2 s - | free 1+0
            1: decode 0 1 2 | w - r 0 1 2 s - | free 1+0
            2: preempt 2R; decode 0 1 | w 2 r 0 1 s - | free 2+0 | done 1
            3: prefill 3:12W 4:5W 5:1W 6:5W 2:7W | w - r 0 3 4 5 6 2 s - | free 0+0
            4: preempt 2R; decode 0 3 4 5 6 | w 2 r 0 3 4 5 6 s - | free 1+0 | done 3 4 5 6
            5: prefill 2:8W | w - r 0 2 s - | free 8+0 | done 2
            6: decode 0 | w - r 0 s - | free 10+0
            7: decode 0 | w - r 0 s - | free 10+0 | done 0
        ",
        );
    }

    #[test]
    fn fewest_blocks() {
        told(
            Victim::FewestBlocks,
            "
            0: prefill 0:3W 1:30W 2:5W | w - r 0 1 2 s - | free 1+0
            1: decode 0 1 2 | w - r 0 1 2 s - | free 1+0
            2: preempt 2R; decode 0 1 | w 2 r 0 1 s - | free 2+0 | done 1
            3: prefill 3:12W 4:5W 5:1W 6:5W 2:7W | w - r 0 3 4 5 6 2 s - | free 0+0
            4: preempt 5R 2R; decode 0 3 4 6 | w 2 5 r 0 3 4 6 s - | free 2+0 | done 3 4 6
            5: prefill 5:2W 2:8W | w - r 0 5 2 s - | free 7+0 | done 5 2
            6: decode 0 | w - r 0 s - | free 10+0
            7: decode 0 | w - r 0 s - | free 10+0 | done 0
        ",
        );
    }

    #[test]
    fn most_blocks() {
        told(
            Victim::MostBlocks,
            "
            0: prefill 0:3W 1:30W 2:5W | w - r 0 1 2 s - | free 1+0
            1: decode 0 1 2 | w - r 0 1 2 s - | free 1+0
            2: preempt 2R; decode 0 1 | w 2 r 0 1 s - | free 2+0 | done 1
            3: prefill 3:12W 4:5W 5:1W 6:5W 2:7W | w - r 0 3 4 5 6 2 s - | free 0+0
            4: preempt 3R; decode 0 4 5 6 2 | w 3 r 0 4 5 6 2 s - | free 3+0 | done 4 5 6 2
            5: prefill 3:13W | w - r 0 3 s - | free 6+0 | done 3
            6: decode 0 | w - r 0 s - | free 10+0
            7: decode 0 | w - r 0 s - | free 10+0 | done 0
        ",
        );
    }

    #[test]
    fn least_progress() {
        told(
            Victim::LeastProgress,
            "
            0: prefill 0:3W 1:30W 2:5W | w - r 0 1 2 s - | free 1+0
            1: decode 0 1 2 | w - r 0 1 2 s - | free 1+0
            2: preempt 2R; decode 0 1 | w 2 r 0 1 s - | free 2+0 | done 1
            3: prefill 3:12W 4:5W 5:1W 6:5W 2:7W | w - r 0 3 4 5 6 2 s - | free 0+0
            4: preempt 6R; decode 0 3 4 5 2 | w 6 r 0 3 4 5 2 s - | free 1+0 | done 3 4 5 2
            5: prefill 6:6W | w - r 0 6 s - | free 8+0 | done 6
            6: decode 0 | w - r 0 s - | free 10+0
            7: decode 0 | w - r 0 s - | free 10+0 | done 0
        ",
        );
    }

    #[test]
    fn most_slack() {
        told(
            Victim::MostSlack,
            "
            0: prefill 0:3W 1:30W 2:5W | w - r 0 1 2 s - | free 1+0
            1: decode 0 1 2 | w - r 0 1 2 s - | free 1+0
            2: preempt 2R; decode 0 1 | w 2 r 0 1 s - | free 2+0 | done 1
            3: prefill 3:12W 4:5W 5:1W 6:5W 2:7W | w - r 0 3 4 5 6 2 s - | free 0+0
            4: preempt 4R; decode 0 3 5 6 2 | w 4 r 0 3 5 6 2 s - | free 1+0 | done 3 5 6 2
            5: prefill 4:6W | w - r 0 4 s - | free 8+0 | done 4
            6: decode 0 | w - r 0 s - | free 10+0
            7: decode 0 | w - r 0 s - | free 10+0 | done 0
        ",
        );
    }
}

mod admission {
    use super::*;

    /// One at a time: request 1 is late when 0 is done, 2 and 3 are not, and 3 is shorter.
    #[track_caller]
    fn told(admission: Admission, max_wait: Micros, expected: &str) {
        let one = EngineConfig { max_num_seqs: 1, max_wait, ..engine(4, 10, 0) };
        let late = Slo::from_millis(1, 100, 3000);
        let asks = [ask(0, 4, 2), Ask { slo: late, ..ask(0, 6, 2) }, ask(1, 8, 2), ask(1, 4, 2)];
        check(one, Controls { admission, ..controls() }, &asks, expected);
    }

    #[test]
    fn first_come_first_served() {
        told(
            Admission::Fcfs,
            Micros::MAX,
            "
            0: prefill 0:4W | w 1 r 0 s - | free 9+0
            1: decode 0 | w 1 2 3 r 0 s - | free 8+0 | done 0
            2: prefill 1:6W | w 2 3 r 1 s - | free 8+0
            3: decode 1 | w 2 3 r 1 s - | free 8+0 | done 1
            4: prefill 2:8W | w 3 r 2 s - | free 8+0
            5: decode 2 | w 3 r 2 s - | free 7+0 | done 2
            6: prefill 3:4W | w - r 3 s - | free 9+0
            7: decode 3 | w - r 3 s - | free 8+0 | done 3
        ",
        );
    }

    #[test]
    fn on_time_first() {
        told(
            Admission::OnTimeFirst,
            Micros::MAX,
            "
            0: prefill 0:4W | w 1 r 0 s - | free 9+0
            1: decode 0 | w 1 2 3 r 0 s - | free 8+0 | done 0
            2: prefill 2:8W | w 1 3 r 2 s - | free 8+0
            3: decode 2 | w 1 3 r 2 s - | free 7+0 | done 2
            4: prefill 3:4W | w 1 r 3 s - | free 9+0
            5: decode 3 | w 1 r 3 s - | free 8+0 | done 3
            6: prefill 1:6W | w - r 1 s - | free 8+0
            7: decode 1 | w - r 1 s - | free 8+0 | done 1
        ",
        );
    }

    #[test]
    fn shortest_on_time_first() {
        told(
            Admission::ShortestOnTimeFirst,
            Micros::MAX,
            "
            0: prefill 0:4W | w 1 r 0 s - | free 9+0
            1: decode 0 | w 1 2 3 r 0 s - | free 8+0 | done 0
            2: prefill 3:4W | w 1 2 r 3 s - | free 9+0
            3: decode 3 | w 1 2 r 3 s - | free 8+0 | done 3
            4: prefill 2:8W | w 1 r 2 s - | free 8+0
            5: decode 2 | w 1 r 2 s - | free 7+0 | done 2
            6: prefill 1:6W | w - r 1 s - | free 8+0
            7: decode 1 | w - r 1 s - | free 8+0 | done 1
        ",
        );
    }

    #[test]
    fn whoever_waited_too_long_comes_first() {
        // In step 4, request 1 has waited four steps and nobody else more than three.
        told(
            Admission::ShortestOnTimeFirst,
            STEP.times(3),
            "
            0: prefill 0:4W | w 1 r 0 s - | free 9+0
            1: decode 0 | w 1 2 3 r 0 s - | free 8+0 | done 0
            2: prefill 3:4W | w 1 2 r 3 s - | free 9+0
            3: decode 3 | w 1 2 r 3 s - | free 8+0 | done 3
            4: prefill 1:6W | w 2 r 1 s - | free 8+0
            5: decode 1 | w 2 r 1 s - | free 8+0 | done 1
            6: prefill 2:8W | w - r 2 s - | free 8+0
            7: decode 2 | w - r 2 s - | free 7+0 | done 2
        ",
        );
    }

    #[test]
    fn on_time_counts_the_prefill() {
        // In step 2, 40 ms are left for request 1's first token, and its prefill takes 60: it is late already.
        let pricing = Pricing { prefill_ns_per_token: 1e7, ..Pricing::default() };
        let one = EngineConfig { max_num_seqs: 1, pricing, ..engine(4, 10, 0) };
        let close = Slo::from_millis(60, 100, 3000);
        let asks = [ask(0, 4, 2), Ask { slo: close, ..ask(0, 6, 1) }, ask(0, 4, 1)];
        check(
            one,
            Controls { admission: Admission::OnTimeFirst, ..controls() },
            &asks,
            "
            0: prefill 0:4W | w 1 2 r 0 s - | free 9+0
            1: decode 0 | w 1 2 r 0 s - | free 8+0 | done 0
            2: prefill 2:4W | w 1 r 2 s - | free 9+0 | done 2
            3: prefill 1:6W | w - r 1 s - | free 8+0 | done 1
        ",
        );
    }

    #[test]
    fn a_victim_is_late_by_its_stall_target() {
        // Request 1 is preempted in step 1; nothing fits until 0 is done. In step 4 its last token is 30 ms old.
        told_stall(
            29,
            "
            0: prefill 0:8W 1:7W | w - r 0 1 s - | free 0+0
            1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+0
            2: admit? 1 needs 2 of 1: later; decode 0 | w 1 2 r 0 s - | free 1+0
            3: admit? 1 needs 2 of 1: later; decode 0 | w 1 2 r 0 s - | free 1+0 | done 0
            4: admit? 1 needs 2 of 1: later; prefill 2:9W | w 1 r 2 s - | free 1+0 | done 2
            5: prefill 1:8W | w - r 1 s - | free 2+0 | done 1
        ",
        );
        told_stall(
            30,
            "
            0: prefill 0:8W 1:7W | w - r 0 1 s - | free 0+0
            1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+0
            2: admit? 1 needs 2 of 1: later; decode 0 | w 1 2 r 0 s - | free 1+0
            3: admit? 1 needs 2 of 1: later; decode 0 | w 1 2 r 0 s - | free 1+0 | done 0
            4: admit? 2 needs 3 of 2: later; prefill 1:8W | w 2 r 1 s - | free 2+0 | done 1
            5: prefill 2:9W | w - r 2 s - | free 1+0 | done 2
        ",
        );
    }

    #[track_caller]
    fn told_stall(stall: u64, expected: &str) {
        let slo = Slo::from_millis(2000, 100, stall);
        let asks = [ask(0, 8, 4), Ask { slo, ..ask(0, 7, 2) }, ask(2, 9, 1)];
        check(engine(4, 4, 0), Controls { admission: Admission::OnTimeFirst, ..controls() }, &asks, expected);
    }
}

mod cheaper {
    use super::*;

    /// The victim has 8 tokens computed in 2 blocks: recomputing the 9 it has then costs 9 us.
    #[track_caller]
    fn told(swap_ns_per_block: f64, host: u32, expected: &str) {
        let pricing = Pricing { swap_ns_per_block, prefill_ns_per_token: 1000.0, attention_ns_per_token_pair: 0.0 };
        let priced = EngineConfig { pricing, ..engine(4, 4, host) };
        let controls = Controls { preemption: Preemption::Cheaper, ..controls() };
        check(priced, controls, &[ask(0, 8, 2), ask(0, 8, 2)], expected);
    }

    #[test]
    fn swaps_when_moving_twice_costs_less() {
        told(
            2000.0,
            8,
            "
            0: prefill 0:8W 1:8W | w - r 0 1 s - | free 0+8
            1: preempt 1S; out 1:2; decode 0 | w - r 0 s 1 | free 1+6 | done 0 | to host 2>0 3>1
            2: in 1:2; decode 1 | w - r 1 s - | free 1+8 | done 1 | to GPU 0>3 1>1
        ",
        );
    }

    #[test]
    fn recomputes_when_it_costs_no_more() {
        told(
            2250.0,
            8,
            "
            0: prefill 0:8W 1:8W | w - r 0 1 s - | free 0+8
            1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+8 | done 0
            2: prefill 1:9W | w - r 1 s - | free 1+8 | done 1
        ",
        );
    }

    #[test]
    fn recomputes_when_the_host_has_no_room() {
        told(
            2000.0,
            2,
            "
            0: prefill 0:8W 1:8W | w - r 0 1 s - | free 0+2
            1: preempt 1R; decode 0 | w 1 r 0 s - | free 1+2 | done 0
            2: prefill 1:9W | w - r 1 s - | free 1+2 | done 1
        ",
        );
    }
}
