//! Nothing a policy sees, and nothing a scheduler decides, depends on the future: worlds that will differ look the same
//! until they do.

use crate::common::sim::any_controls;
use crate::common::{chunked, engine, node_config};
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::env::{Node, NodeStatus, mask, snapshot};
use kvtide_envs::metrics::Collector;
use kvtide_envs::sched::{Phase, RequestId, Slo};
use kvtide_envs::seed::{self, Stream};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{ActionProfile, Observation, Observer};
use rand::RngExt;

/// A node, what a policy was shown of it, and the controls both worlds obey.
struct World {
    node: Node,
    observer: Observer,
    controls: Stream,
    is_over: bool,
}

impl World {
    fn new(engine: &EngineConfig, requests: &[Request], seed: u64) -> World {
        let config = node_config(engine.clone(), Slo::from_millis(1000, 60, 800));
        let node = Node::new(&config, requests.to_vec().into(), Collector::default()).unwrap();
        let controls = seed::stream(seed, "honesty.controls", 0);
        World { node, observer: Observer::new(), controls, is_over: false }
    }

    /// What is seen now, bit for bit.
    fn look(&mut self) -> [u32; kvtide_runtime::NUM_FEATURES] {
        let Observation { values } = self.observer.observe(&snapshot(&self.node));
        values.map(f32::to_bits)
    }

    fn step(&mut self) {
        let controls = any_controls(&mut self.controls);
        self.is_over = self.node.step(&controls).unwrap() != NodeStatus::Stepped;
    }
}

/// A crowd on a small pool.
fn crowd(s: &mut Stream, count: u64) -> Vec<Request> {
    let mut arrival = Micros::ZERO;
    let mut draw = || {
        arrival += Micros(s.random_range(0..300_000));
        Request::new(arrival, s.random_range(1..400), s.random_range(2..200))
    };
    (0..count).map(|_| draw()).collect()
}

fn engines() -> [EngineConfig; 2] {
    let small = EngineConfig { max_num_seqs: 32, max_model_len: 1024, ..engine(16, 80, 30) };
    [small.clone(), chunked(small, 128)]
}

/// Steps both worlds until `differ` says that they may look different; they must not before, and must some time after.
#[track_caller]
fn look_the_same(mut a: World, mut b: World, differ: impl Fn(&Node, &Node) -> bool) -> u64 {
    let mut compared = 0;
    while !differ(&a.node, &b.node) {
        assert_eq!(a.look(), b.look(), "after {compared} steps, at {}", a.node.now());
        assert_eq!(mask(&a.node, ActionProfile::Full), mask(&b.node, ActionProfile::Full));
        assert_eq!((a.node.now(), a.node.hash()), (b.node.now(), b.node.hash()));
        compared += 1;
        a.step();
        b.step();
        assert!(!a.is_over && !b.is_over, "the worlds never differ");
    }
    while !a.is_over && !b.is_over {
        if a.look() != b.look() {
            return compared;
        }
        a.step();
        b.step();
    }
    panic!("the worlds differ and nobody sees it");
}

#[test]
fn output_lengths_are_unknown_until_reached() {
    let mut compared = 0;
    for seed in 0..12 {
        let mut stream = seed::stream(seed, "honesty.outputs", 0);
        let requests = crowd(&mut stream, 60);
        let mut others = requests.clone();
        // Every answer from the tenth on is another one.
        for request in &mut others[10..] {
            request.output_tokens += stream.random_range(1..300);
        }
        for engine in engines() {
            let (a, b) = (World::new(&engine, &requests, seed), World::new(&engine, &others, seed));
            let ended = |node: &Node| {
                let late = (10..node.scheduler().num_requests()).map(|id| node.scheduler().view(RequestId(id as u32)));
                late.filter(|request| request.phase == Phase::Finished).count()
            };
            compared += look_the_same(a, b, |a, b| ended(a) + ended(b) > 0);
        }
    }
    assert!(compared > 500, "{compared}");
}

#[test]
fn later_arrivals_are_unknown_until_they_come() {
    let mut compared = 0;
    for seed in 0..12 {
        let mut stream = seed::stream(seed, "honesty.arrivals", 0);
        let requests = crowd(&mut stream, 60);
        let mut others = requests.clone();
        others.truncate(30);
        // The thirtieth comes as before, so that both clocks go on; then one stops and the other does not.
        let parts = others[29].arrival;
        let first = requests[30].arrival;
        assert!(first > parts);
        for engine in engines() {
            let (a, b) = (World::new(&engine, &requests, seed), World::new(&engine, &others, seed));
            compared += look_the_same(a, b, |a, b| a.now() >= first || b.now() >= first);
        }
        others.push(Request::new(first, 1, 1));
        let engine = &engines()[0];
        let (a, b) = (World::new(engine, &requests, seed), World::new(engine, &others, seed));
        compared += look_the_same(a, b, |a, b| a.now() >= first || b.now() >= first);
    }
    assert!(compared > 500, "{compared}");
}
