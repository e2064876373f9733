//! The reference that tries what it could do: what it knows helps it, and what it does not know it does not use.

use std::sync::Arc;

use crate::common::{chunked, engine, node_config};
use kvtide_envs::baseline::{Foresight, Lookahead, LookaheadPlan};
use kvtide_envs::deploy::{EngineConfig, EngineKind};
use kvtide_envs::env::{Controller, EngineDefault, Node, NodeStatus, run};
use kvtide_envs::metrics::{Collector, Summary};
use kvtide_envs::sched::Slo;
use kvtide_envs::seed;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_runtime::{Controls, Head};
use rand::RngExt;

/// Targets that a small pool misses when it takes everybody in.
const TARGETS: (u64, u64, u64) = (1500, 60, 400);

fn small_pool() -> EngineConfig {
    let engine = chunked(engine(16, 121, 0), 256);
    EngineConfig { engine: EngineKind::V1, max_num_seqs: 32, max_model_len: 1024, ..engine }
}

fn crowd(seed: u64, count: u64) -> Vec<Request> {
    let mut stream = seed::stream(seed, "lookahead.crowd", 0);
    let mut arrival = Micros::ZERO;
    let mut next = || {
        arrival += Micros(stream.random_range(0..900_000));
        Request::new(arrival, stream.random_range(20..300), stream.random_range(10..300))
    };
    (0..count).map(|_| next()).collect()
}

fn plan(knows: &str, heads: &[Head]) -> LookaheadPlan {
    let foresight = Foresight::from_name(knows).unwrap();
    LookaheadPlan { heads: heads.to_vec(), horizon: Micros(8_000_000), ..LookaheadPlan::of(foresight) }
}

fn node(requests: &[Request]) -> Node {
    let slo = Slo::from_millis(TARGETS.0, TARGETS.1, TARGETS.2);
    Node::new(&node_config(small_pool(), slo), requests.to_vec().into(), Collector::default()).unwrap()
}

fn serve(requests: &Arc<[Request]>, controller: &mut dyn Controller) -> Summary {
    run(&mut node(requests), controller, 16).unwrap()
}

#[test]
fn who_knows_everything_misses_less_than_the_engine_by_itself() {
    let (mut known, mut unaided) = (0.0, 0.0);
    for seed in 0..3 {
        let requests: Arc<[Request]> = crowd(seed, 90).into();
        let lookahead = || Lookahead::new(plan("everything", &[Head::Watermark, Head::Admission]));
        let summary = serve(&requests, &mut lookahead());
        assert_eq!(summary.hash, serve(&requests, &mut lookahead()).hash);
        known += summary.slo_attainment;
        unaided += serve(&requests, &mut EngineDefault).slo_attainment;
    }
    assert!(known > unaided + 0.1, "{known} with, {unaided} without");
}

#[test]
fn with_no_head_to_move_it_is_where_it_starts() {
    let requests: Arc<[Request]> = crowd(7, 60).into();
    let start = Controls { watermark: 0.3, ..node(&requests).scheduler().default_controls() };
    let mut held = Lookahead::new(LookaheadPlan { start: Some(start), ..plan("nothing", &[]) });
    let (mut constant, held) = (start, serve(&requests, &mut held));
    assert_eq!(held.hash, serve(&requests, &mut constant).hash);
}

/// Every control until `until` of the clock.
fn decisions(requests: &[Request], knows: &str, until: Micros) -> Vec<(Micros, Controls)> {
    let mut node = node(requests);
    let mut lookahead = Lookahead::new(plan(knows, &[Head::Watermark, Head::Budget]));
    let mut seen = Vec::new();
    while node.now() < until {
        let controls = lookahead.control(&node);
        seen.push((node.now(), controls));
        if node.advance(&controls, 16).unwrap() != NodeStatus::Stepped {
            break;
        }
    }
    seen
}

/// How many of some worlds look different before they are, to a reference that knows `knows`.
fn foreseen(knows: &str, change: impl Fn(&mut Request, Micros)) -> usize {
    let differs = |seed: &u64| {
        let mut requests = crowd(*seed, 90);
        let until = requests[60].arrival;
        // Not over by then.
        requests[57..60].iter_mut().for_each(|request| request.output_tokens = 290);
        let mut others = requests.clone();
        others[57..].iter_mut().for_each(|request| change(request, until));
        let (a, b) = (decisions(&requests, knows, until), decisions(&others, knows, until));
        assert!(a.len() > 50, "{}", a.len());
        a != b
    };
    (11..14).filter(differs).count()
}

#[test]
fn what_is_not_known_is_not_used() {
    let later = |request: &mut Request, until: Micros| {
        if request.arrival >= until {
            request.arrival = Micros(until.0 + 2 * (request.arrival.0 - until.0) + 500_000);
            request.prompt_tokens = 900;
        }
    };
    for knows in ["nothing", "hints", "lengths"] {
        assert_eq!(foreseen(knows, later), 0, "arrivals, {knows}");
    }
    assert!(foreseen("arrivals", later) > 0 && foreseen("everything", later) > 0);
    let longer = |request: &mut Request, _: Micros| request.output_tokens += 650;
    for knows in ["nothing", "hints+arrivals", "arrivals"] {
        assert_eq!(foreseen(knows, longer), 0, "answers, {knows}");
    }
    assert!(foreseen("everything", longer) > 0);
}
