//! The references that look into the future, or at the past, in worlds small enough to know what is right.

use std::sync::Arc;

use crate::common::{chunked, engine, node_config};
use kvtide_envs::baseline::{BlockPrice, Oracle, PastFuture, Prediction, PrimalDual};
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Controller, EngineDefault, Node, run};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::Slo;
use kvtide_envs::seed;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{Admission, Controls};
use rand::RngExt;

fn request(arrival: Micros, prompt_tokens: u32, output_tokens: u32) -> Request {
    Request::new(arrival, prompt_tokens, output_tokens)
}

#[expect(clippy::needless_pass_by_value, reason = "stories are easier to read without references")]
fn v1(config: EngineConfig) -> EngineConfig {
    let num_gpu_blocks = config.num_gpu_blocks + 1;
    EngineConfig { engine: EngineKind::V1, num_gpu_blocks, ..config }
}

fn serve(config: &EngineConfig, requests: &Arc<[Request]>, controller: &mut dyn Controller, interval: u32) -> Summary {
    let config = node_config(config.clone(), Slo::default());
    let mut node = Node::new(&config, Arc::clone(requests), Collector::with_gaps()).unwrap();
    run(&mut node, controller, interval).unwrap()
}

/// Steps until everything is done, with how many ran in each.
fn running(config: &EngineConfig, requests: &[Request], controller: &mut dyn Controller) -> Vec<usize> {
    let config = node_config(config.clone(), Slo::default());
    let mut node = Node::new(&config, requests.to_vec().into(), Collector::default()).unwrap();
    let mut counts = Vec::new();
    while node.step(&controller.control(&node)).unwrap() == kvtide_envs::env::NodeStatus::Stepped {
        counts.push(node.scheduler().running().len());
    }
    counts
}

#[test]
fn the_oracle_admits_while_the_true_peak_fits() {
    // Blocks of one token, a pool of 20. Two requests of 4 + 6 end with 9 computed tokens each: 18 fit at once, a third
    // would need 27.
    let config = v1(chunked(engine(1, 20, 0), 20));
    let requests = vec![request(Micros::ZERO, 4, 6); 3];
    let counts = running(&config, &requests, &mut Oracle { controls: None });
    // The first is admitted to an idle node unasked, the second in the next step. When the first is gone, after six steps,
    // the second will have 9 tokens beside the third's 4.
    assert_eq!(counts, [1, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 0]);
    // Greedy admission takes all three and preempts; waiting for one to end is what the watermark is for.
    let shared: Arc<[Request]> = requests.into();
    assert!(serve(&config, &shared, &mut EngineDefault, 1).preemptions > 0);
    assert_eq!(serve(&config, &shared, &mut Oracle { controls: None }, 1).preemptions, 0);
}

#[test]
fn the_oracle_knows_that_one_ends_before_the_other_grows() {
    // After the first step the first has 10 computed tokens and one to go, to 11; the other takes 10 in that step and ends
    // with 18. They fit into 21, though 11 and 18 do not.
    let requests = [request(Micros::ZERO, 10, 2), request(Micros::ZERO, 10, 9)];
    let second = |pool| running(&v1(chunked(engine(1, pool, 0), 64)), &requests, &mut Oracle { controls: None })[1];
    assert_eq!((second(20), second(21)), (0, 1));
}

/// A crowd on a small pool; every request fits by itself.
fn crowd(seed: u64, config: &EngineConfig) -> Arc<[Request]> {
    let mut stream = seed::stream(seed, "baselines.crowd", 0);
    let tokens = config.num_usable_blocks() * config.block_size;
    let mut arrival = Micros::ZERO;
    let requests = (0..60).map(|_| {
        arrival += Micros::from_millis(stream.random_range(0..400));
        request(arrival, stream.random_range(1..tokens / 4), stream.random_range(1..tokens / 4))
    });
    requests.collect()
}

#[test]
fn the_oracle_preempts_nobody_where_the_default_does() {
    let (mut by_default, mut by_oracle) = (0, 0);
    for seed in 0..40 {
        for asynchronous in [false, true] {
            for base in [engine(16, 40, 0), v1(chunked(engine(16, 40, 0), 640)), v1(chunked(engine(4, 90, 0), 360))] {
                let config = EngineConfig { async_scheduling: asynchronous && base.engine == EngineKind::V1, ..base };
                let requests = crowd(seed, &config);
                // The interval is its own: one step.
                let summary = serve(&config, &requests, &mut Oracle { controls: None }, 8);
                assert_eq!(summary.completed, 60);
                // Prompts that wait for the token budget come later than the oracle thinks: once in these 240 worlds that
                // is enough, with answers whose end is known a step late.
                assert!(summary.preemptions <= u64::from(asynchronous), "seed {seed}, {:?}", config.engine);
                by_oracle += summary.preemptions;
                by_default += serve(&config, &requests, &mut EngineDefault, 1).preemptions;
            }
        }
    }
    assert!(by_default > 10_000 && by_oracle <= 2, "{by_oracle} {by_default}");
}

#[test]
fn the_oracle_follows_the_order_of_admission() {
    // First come first served, the long one runs at once and is done after the second step, which leaves one. Shortest first
    // it waits, as the head of the queue: it does not fit beside the one that runs, but the one behind it, which is next, does.
    let config = v1(chunked(engine(1, 18, 0), 64));
    let requests = [request(Micros::ZERO, 14, 2), request(Micros::ZERO, 3, 4), request(Micros::ZERO, 4, 8)];
    let default = EngineKind::V1.default_action().controls();
    let second = |admission| {
        let mut oracle = Oracle { controls: Some(Controls { admission, ..default }) };
        running(&config, &requests, &mut oracle)[1]
    };
    assert_eq!([Admission::Fcfs, Admission::ShortestOnTimeFirst].map(second), [1, 2]);
}

#[test]
fn the_past_teaches_how_long_answers_are() {
    let config = v1(chunked(engine(16, 128, 0), 2048));
    let requests: Arc<[Request]> = (0..400).map(|_| request(Micros::ZERO, 16, 64)).collect();
    let counts = running(&config, &requests, &mut PastFuture::new(Prediction::Quantile(0.5), None));
    // At first answers are taken to be of 1024 tokens, of which one or two fit; at last it knows better.
    let first = counts[..40].iter().max().unwrap();
    let last = counts[counts.len() - 80..].iter().max().unwrap();
    assert!(*first <= 2 && *last >= 7, "{first} {last}");
    let drawn = || PastFuture::new(Prediction::Drawn, None);
    let summary = serve(&config, &requests, &mut drawn(), 8);
    assert_eq!((summary.preemptions, summary.completed), (0, 400));
    assert_eq!(summary.hash, serve(&config, &requests, &mut drawn(), 8).hash, "the same seed draws the same");
}

#[test]
fn a_price_admits_less_where_more_is_asked_for() {
    // A pool of 20, blocks of one token: all four are let in and preempt each other. Then a price that has risen lets those that are
    // left in one by one, and one that never moves, at which an average request is just worth it, two at once.
    let config = v1(chunked(engine(1, 20, 0), 20));
    let requests = vec![request(Micros::ZERO, 4, 6); 4];
    let counts = |rate| {
        let mut price = PrimalDual::new(BlockPrice { rate, ..BlockPrice::USUAL }, None);
        running(&config, &requests, &mut price)
    };
    let late = |rate| counts(rate)[5..].iter().max().copied();
    assert_eq!((late(0.0), late(1.0)), (Some(2), Some(1)), "{:?} {:?}", counts(0.0), counts(1.0));
    for rate in [0.0, 1.0, 1e6] {
        let mut price = PrimalDual::new(BlockPrice { rate, ..BlockPrice::USUAL }, None);
        assert_eq!(serve(&config, &requests.clone().into(), &mut price, 8).completed, 4, "nobody starves at {rate}");
    }
}

#[test]
fn a_price_preempts_less_than_the_default() {
    let (mut by_default, mut by_price) = (0, 0);
    for seed in 0..10 {
        let config = v1(chunked(engine(16, 40, 0), 640));
        let requests = crowd(seed, &config);
        let mut price = PrimalDual::new(BlockPrice::USUAL, None);
        let summary = serve(&config, &requests, &mut price, 8);
        assert_eq!(summary.completed, 60);
        by_price += summary.preemptions;
        by_default += serve(&config, &requests, &mut EngineDefault, 1).preemptions;
    }
    // A third fewer, not none: it knows what is asked for, not what will be.
    assert!(by_price * 4 < by_default * 3, "{by_price} {by_default}");
}

#[test]
fn other_heads_are_the_engines_unless_told() {
    let config = v1(chunked(engine(16, 40, 0), 640));
    let node =
        Node::new(&node_config(config, Slo::default()), crowd(1, &engine(16, 40, 0)), Collector::default()).unwrap();
    let default = node.scheduler().default_controls();
    let told = Controls { admission: Admission::OnTimeFirst, ..default };
    for (given, expected) in [(None, default), (Some(told), told)] {
        let controllers: [Box<dyn Controller>; 3] = [
            Box::new(Oracle { controls: given }),
            Box::new(PastFuture::new(Prediction::Drawn, given)),
            Box::new(PrimalDual::new(BlockPrice::USUAL, given)),
        ];
        for mut controller in controllers {
            let controls = controller.control(&node);
            assert_eq!(Controls { watermark: 0.0, ..controls }, expected);
            // Nobody is there to be admitted, so nobody is.
            assert_eq!(controls.watermark, 1.0);
        }
    }
}
