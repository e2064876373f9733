//! Times and counts of a node: a tiny run by hand, and longer ones against a slow recount of every token.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::sim::any_controls;
use crate::common::{controls, engine, node_config};
use kvtide_envs::cost::CostModel;
use kvtide_envs::deploy::{Deployment, EngineConfig, EngineKind, Hardware, Model};
use kvtide_envs::env::{Node, NodeConfig, NodeStatus};
use kvtide_envs::metrics::{Collector, Group, GroupSummary, Percentiles, Record, Summary};
use kvtide_envs::sched::{Phase, Prefill, PrefillSource, RequestId, RequestView, Scheduler, Slo, StepPlan};
use kvtide_envs::seed;
use kvtide_envs::tier::{Route, Tier};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::SyntheticSpec;
use kvtide_runtime::{Controls, Preemption};
use rand::RngExt;

/// Every step takes 10 ms, whatever it does.
fn metronome() -> CostModel {
    let hardware = Hardware {
        name: "metronome".to_owned(),
        peak_fp8_flops: 0.0,
        peak_flops: 1e30,
        peak_bandwidth: 1e30,
        memory_bytes: 1e12,
        pcie_bandwidth: 1e30,
        link_bandwidth: 1e30,
        compute_efficiency: 1.0,
        bandwidth_efficiency: 1.0,
        step_overhead: 0.01,
        sequence_overhead: 0.0,
        swap_overhead: 0.0,
        kernels: None,
        tables: None,
        host: None,
        spread: None,
    };
    CostModel::new(&Deployment::new(Model::named("llama-3-8b").unwrap(), hardware, 1), 4)
}

fn config(engine: EngineConfig, slo: Slo) -> NodeConfig {
    NodeConfig { cost: metronome(), ..node_config(engine, slo) }
}

/// `(arrival in ms, prompt, output)`.
fn node(engine: EngineConfig, slo: Slo, requests: &[(u64, u32, u32)]) -> Node {
    let requests: Vec<Request> =
        requests.iter().map(|&(at, prompt, output)| Request::new(Micros::from_millis(at), prompt, output)).collect();
    Node::new(&config(engine, slo), requests.into(), Collector::with_gaps()).unwrap()
}

fn run(node: &mut Node, controls: &Controls) -> Summary {
    while node.step(controls).unwrap() == NodeStatus::Stepped {}
    node.summary().unwrap()
}

/// Every percentile of a list of one value.
fn all(value: f64) -> Percentiles {
    Percentiles { mean: Some(value), p50: value, p90: value, p95: value, p99: value }
}

#[test]
fn two_requests_by_hand() {
    // 0..10 prefill 0; 10..20 prefill 1; 20..30 both decode, 1 is done; 30..40 0 decodes and is done.
    let mut node = node(engine(4, 10, 0), Slo::from_millis(25, 10, 15), &[(0, 4, 3), (5, 4, 2)]);
    let summary = run(&mut node, &controls());
    let records: Vec<Record> = node.collector().records().collect();

    // Request 0: tokens at 10, 30, 40, deadlines 25, 35, 45; but a gap of 20 > 15, and 15 a token > 10.
    assert_eq!(records[0].ttft(), Some(Micros::from_millis(10)));
    assert_eq!(records[0].tpot(), Some(0.015));
    assert_eq!((records[0].longest_stall, records[0].e2e()), (Micros::from_millis(20), Micros::from_millis(40)));
    assert!(!records[0].attained());
    // Request 1: tokens at 20 and 30, arrived at 5.
    assert_eq!(records[1].ttft(), Some(Micros::from_millis(15)));
    assert_eq!(records[1].tpot(), Some(0.01));
    assert!(records[1].attained());

    assert_eq!((summary.requests, summary.completed, summary.rejected), (2, 2, 0));
    assert_eq!((summary.slo_attainment, summary.goodput_rps), (0.5, 25.0));
    assert_eq!((summary.makespan_s, summary.output_tok_s, summary.on_time_tokens), (0.04, 125.0, 1.0));
    assert_eq!(summary.ttft_ms, Some(Percentiles { mean: Some(12.5), p50: 12.5, p90: 14.5, p95: 14.75, p99: 14.95 }));
    // Gaps of 20 and 10, and of 10; 15 and 10 a token; 40 and 25 from arrival on.
    let means = [summary.itl_ms, summary.tpot_ms, summary.e2e_ms].map(|times| times.unwrap().mean.unwrap());
    assert_eq!(means, [40.0 / 3.0, 12.5, 32.5]);
    assert_eq!((summary.longest_wait_ms, summary.longest_stall_ms), (Some(15.0), Some(20.0)));
    assert_eq!(summary.e2e_ms.unwrap().p50, 32.5);
    // Blocks in use: 1, 2, 4, 2 of 10.
    assert!((summary.kv_usage_mean - 0.225).abs() < 1e-12);
    assert_eq!(summary.scheduler_steps, 4);
    assert_eq!(node.collector().violations, 1);
}

#[test]
fn a_run_cut_short_counts_its_tokens_but_no_unfinished_request() {
    let mut node = node(engine(4, 10, 0), Slo::default(), &[(0, 4, 1), (0, 4, 9)]);
    for _ in 0..4 {
        node.step(&controls()).unwrap();
    }
    let summary = node.summary().unwrap();
    // Tokens: 1 of request 0, 4 of request 1.
    assert_eq!((summary.output_tok_s, summary.on_time_tokens), (125.0, 1.0));
    assert_eq!((summary.requests, summary.completed, summary.slo_attainment), (2, 1, 0.5));
    assert_eq!((summary.e2e_ms, summary.tpot_ms), (Some(all(10.0)), None));
    assert_eq!(summary.itl_ms.map(|gaps| gaps.p50.round()), Some(10.0));
}

#[test]
fn a_token_on_its_deadline_is_on_time_and_a_target_met_exactly_is_met() {
    let exact = Slo::from_millis(10, 10, 10);
    let mut on = node(engine(4, 10, 0), exact, &[(0, 4, 3)]);
    let summary = run(&mut on, &controls());
    assert_eq!((summary.slo_attainment, summary.on_time_tokens), (1.0, 1.0));
    // One microsecond less of each target, and it is missed.
    for (slo, on_time) in [
        (Slo { ttft: Micros(9_999), ..exact }, 0.0),
        (Slo { tpot: Micros(9_999), ..exact }, 1.0 / 3.0),
        (Slo { stall: Micros(9_999), ..exact }, 1.0),
    ] {
        let mut late = node(engine(4, 10, 0), slo, &[(0, 4, 3)]);
        let summary = run(&mut late, &controls());
        assert_eq!((summary.slo_attainment, summary.on_time_tokens), (0.0, on_time), "{slo:?}");
        assert_eq!(late.collector().violations, 1);
    }
}

#[test]
fn a_missed_first_token_is_counted_when_its_time_has_passed() {
    let one = EngineConfig { max_num_seqs: 1, ..engine(4, 10, 0) };
    let mut node = node(one, Slo::from_millis(30, 100, 1000), &[(0, 4, 9), (0, 4, 1)]);
    let mut violations = Vec::new();
    while node.step(&controls()).unwrap() == NodeStatus::Stepped {
        violations.push(node.collector().violations);
    }
    // At 30 ms request 1 could still get its token; at 40 ms it is too late, and counted once.
    assert_eq!(violations, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn a_stall_is_counted_when_its_time_has_passed() {
    // Request 1 is preempted in the second step, 10 ms after its token, and gets no room until 0 is done.
    let slo = Slo::from_millis(1000, 1000, 30);
    for preemption in [Preemption::Recompute, Preemption::Swap] {
        let mut node = node(engine(4, 4, 8), slo, &[(0, 8, 7), (0, 8, 2)]);
        let mut violations = Vec::new();
        while node.step(&Controls { preemption, ..controls() }).unwrap() == NodeStatus::Stepped {
            violations.push(node.collector().violations);
        }
        assert_eq!(violations, [0, 0, 0, 0, 1, 1, 1, 1], "{preemption:?}");
    }
}

#[test]
fn a_stall_of_a_running_request_is_counted_when_its_time_has_passed() {
    // Request 0 has its token at 10 ms and keeps its blocks, but every step until 60 ms computes another prompt.
    let requests: Vec<(u64, u32, u32)> = (0..6).map(|index| (10 * index, 4, if index == 0 { 2 } else { 1 })).collect();
    let mut node = node(engine(4, 20, 0), Slo::from_millis(1000, 1000, 30), &requests);
    let mut violations = Vec::new();
    while node.step(&controls()).unwrap() == NodeStatus::Stepped {
        violations.push(node.collector().violations);
    }
    // At 40 ms the token could still have come; its own is the last of all, at 70 ms.
    assert_eq!(violations, [0, 0, 0, 0, 1, 1, 1]);
    assert_eq!(node.collector().record(RequestId(0)).longest_stall, Micros::from_millis(60));
}

#[test]
fn a_victim_that_comes_back_in_time_has_not_stalled() {
    let slo = Slo::from_millis(1000, 1000, 30);
    let mut node = node(engine(4, 4, 8), slo, &[(0, 8, 2), (0, 8, 9)]);
    let summary = run(&mut node, &controls());
    assert_eq!((summary.preemptions, summary.slo_attainment, node.collector().violations), (1, 1.0, 0));
}

#[test]
fn a_refused_request_is_a_violation_and_no_more() {
    let short = EngineConfig { max_model_len: 8, ..engine(4, 10, 0) };
    let mut node = node(short, Slo::default(), &[(0, 9, 2), (0, 8, 1)]);
    let summary = run(&mut node, &controls());
    assert_eq!((summary.requests, summary.completed, summary.rejected), (2, 1, 1));
    assert_eq!((summary.slo_attainment, node.collector().violations), (0.5, 1));
    assert_eq!(node.scheduler().view(RequestId(0)).phase, Phase::Rejected);
}

#[test]
fn a_node_with_nothing_to_do_waits_for_the_next_arrival() {
    let mut node = node(engine(4, 10, 0), Slo::default(), &[(100, 4, 1), (200, 4, 1)]);
    assert_eq!(node.step(&controls()).unwrap(), NodeStatus::Stepped);
    assert_eq!((node.now(), node.arrived()), (Micros::from_millis(110), 1));
    let summary = run(&mut node, &controls());
    assert_eq!((summary.scheduler_steps, summary.makespan_s), (2, 0.21));
    assert_eq!(summary.ttft_ms, Some(all(10.0)));
    assert_eq!((summary.tpot_ms, summary.itl_ms), (None, None));
}

#[test]
fn classes_name_their_own_targets() {
    let requests: Vec<Request> = [Some("real-time"), Some("no such class"), None]
        .into_iter()
        .map(|class| Request { slo_class: class.map(str::to_owned), ..Request::new(Micros::ZERO, 4, 1) })
        .collect();
    let mut node = Node::new(&config(engine(4, 10, 0), Slo::default()), requests.into(), Collector::default()).unwrap();
    run(&mut node, &controls());
    let slos: Vec<Slo> = node.collector().records().map(|record| record.slo).collect();
    assert_eq!(slos, [Slo::class("real-time").unwrap(), Slo::default(), Slo::default()]);
}

#[test]
fn an_account_that_does_not_add_up_is_named() {
    let mut scheduler = Scheduler::new(engine(4, 10, 0)).unwrap();
    let mut collector = Collector::default();
    let wrong = |collector: &Collector, scheduler: &Scheduler| collector.reconcile(scheduler).unwrap_err().to_string();
    let (id, phase) = scheduler.submit(Micros::ZERO, 4, 2, Slo::default(), None);
    assert_eq!(wrong(&collector, &scheduler), "the run does not reconcile: requests is 0, expected 1");
    collector.arrived(id, Micros::ZERO, 4, Slo::default(), phase, Group::default());
    assert_eq!(collector.reconcile(&scheduler), Ok(()));
    let mut told = collector.clone();
    told.token(id, Micros(1));
    assert_eq!(wrong(&told, &scheduler), "the run does not reconcile: tokens of a request is 1, expected 0");
    collector.finished(id);
    assert_eq!(wrong(&collector, &scheduler), "the run does not reconcile: open requests is 0, expected 1");
}

/// Requests that all arrive at 0 with prompts of 4 tokens: `(class, tenant, output)`.
fn mixed(requests: &[(Option<&str>, Option<&str>, u32)]) -> Summary {
    let request = |&(class, tenant, output): &(Option<&str>, Option<&str>, u32)| Request {
        slo_class: class.map(str::to_owned),
        tenant: tenant.map(str::to_owned),
        ..Request::new(Micros::ZERO, 4, output)
    };
    let requests: Vec<Request> = requests.iter().map(request).collect();
    let roomy = EngineConfig { max_num_seqs: 4, max_model_len: 8, ..engine(4, 10, 0) };
    let mut node = Node::new(&config(roomy, Slo::default()), requests.into(), Collector::default()).unwrap();
    run(&mut node, &controls())
}

fn names(groups: &BTreeMap<String, GroupSummary>) -> Vec<&str> {
    groups.keys().map(String::as_str).collect()
}

#[test]
fn classes_and_tenants_have_accounts_of_their_own() {
    // 0..10 prefills of four, the first is done; 10..20 the fifth is admitted and done; 20..30 and 30..40 decodes.
    let summary = mixed(&[
        (Some("chat"), None, 1),
        (Some("real-time"), Some("ann"), 2),
        (None, Some("bob"), 2),
        (Some("chat"), Some("ann"), 3),
        (Some("real-time"), Some("ann"), 1),
    ]);
    assert_eq!(names(&summary.by_class), ["-", "chat", "real-time"]);
    assert_eq!(names(&summary.by_tenant), ["-", "ann", "bob"]);

    let chat = &summary.by_class["chat"];
    assert_eq!((chat.requests, chat.completed, chat.rejected), (2, 2, 0));
    assert_eq!((chat.ttft_ms, chat.e2e_ms.unwrap().p50), (Some(all(10.0)), 25.0));
    assert_eq!((chat.tpot_ms, chat.longest_stall_ms), (Some(all(15.0)), Some(20.0)));
    let ann = &summary.by_tenant["ann"];
    assert_eq!((ann.requests, ann.longest_wait_ms), (3, Some(20.0)));
    assert_eq!(ann.ttft_ms.unwrap().p50, 10.0);
    // Real-time promises 15 ms a token; the second came 20 ms after the first.
    let real_time = &summary.by_class["real-time"];
    assert_eq!((real_time.slo_attainment, chat.slo_attainment, summary.slo_attainment), (0.5, 1.0, 0.8));
    assert_eq!(summary.makespan_s, 0.04);
    assert_eq!((real_time.goodput_rps, real_time.output_tok_s, chat.output_tok_s), (25.0, 75.0, 100.0));

    // Every request is in one class and with one tenant.
    for groups in [&summary.by_class, &summary.by_tenant] {
        assert_eq!(groups.values().map(|group| group.requests).sum::<u64>(), summary.requests);
        assert_eq!(groups.values().map(|group| group.output_tok_s).sum::<f64>(), summary.output_tok_s);
    }
}

#[test]
fn a_group_counts_its_refused_requests_too() {
    let mut node = {
        let tenant =
            |tenant: &str, prompt| Request { tenant: Some(tenant.to_owned()), ..Request::new(Micros::ZERO, prompt, 1) };
        let requests = vec![tenant("ann", 4), tenant("bob", 9), tenant("ann", 9)];
        let short = EngineConfig { max_model_len: 8, ..engine(4, 10, 0) };
        Node::new(&config(short, Slo::default()), requests.into(), Collector::default()).unwrap()
    };
    let summary = run(&mut node, &controls());
    let (ann, bob) = (&summary.by_tenant["ann"], &summary.by_tenant["bob"]);
    assert_eq!((ann.requests, ann.completed, ann.rejected, ann.slo_attainment), (2, 1, 1, 0.5));
    assert_eq!((bob.requests, bob.completed, bob.rejected, bob.slo_attainment), (1, 0, 1, 0.0));
    assert_eq!((bob.ttft_ms, bob.longest_wait_ms, bob.goodput_rps), (None, None, 0.0));
}

#[test]
fn groups_are_written_only_where_there_are_some() {
    let plain = mixed(&[(None, None, 1)]);
    assert!(plain.by_class.is_empty() && plain.by_tenant.is_empty());
    let json = serde_json::to_value(&plain).unwrap();
    assert!(json.get("by_class").is_none() && json.get("by_tenant").is_none());
    // A class alone makes no tenants, and who names no class is not forgotten.
    let named = mixed(&[(Some("chat"), None, 1), (Some("chat"), None, 1)]);
    assert_eq!((names(&named.by_class), named.by_tenant.len()), (vec!["chat"], 0));
    let text = serde_json::to_string(&named).unwrap();
    assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), named);
}

#[test]
fn of_too_many_tenants_the_largest_are_told_apart() {
    let tenants: Vec<String> = (0..80).map(|index| format!("t{index:02}")).collect();
    // Tenant 79 has two requests and comes last.
    let requests: Vec<_> = tenants.iter().chain(&tenants[79..]).map(|name| (None, Some(name.as_str()), 1)).collect();
    let summary = mixed(&requests);
    let expected = ["*".to_owned()].into_iter().chain(tenants[..62].to_vec()).chain(["t79".to_owned()]);
    assert!(summary.by_tenant.keys().cloned().eq(expected), "{:?}", names(&summary.by_tenant));
    assert_eq!((summary.by_tenant["t79"].requests, summary.by_tenant["*"].requests), (2, 17));
    let all_there = mixed(&requests[..64]);
    assert_eq!(all_there.by_tenant.len(), 64);
    assert!(!all_there.by_tenant.contains_key("*"));
}

#[test]
fn prompt_tokens_found_are_told_from_those_computed() {
    let prefill = |id, tokens, context, source| Prefill { id: RequestId(id), tokens, context, source, samples: false };
    let mut collector = Collector::default();
    let mut plan = StepPlan {
        prefills: vec![prefill(0, 8, 24, PrefillSource::Waiting), prefill(1, 16, 0, PrefillSource::Waiting)],
        ..StepPlan::default()
    };
    collector.stepped(&plan, Micros(10), 0);
    // A later chunk has its context from the chunks before, and what comes from the host was not found in the cache.
    plan.prefills = vec![
        prefill(1, 8, 16, PrefillSource::Continued),
        prefill(2, 1, 40, PrefillSource::Waiting),
        prefill(3, 7, 8, PrefillSource::Waiting),
        prefill(4, 8, 12, PrefillSource::Swapped),
    ];
    plan.moved[Route::HostToGpu] = vec![(RequestId(2), 3)];
    collector.stepped(&plan, Micros(10), 0);
    let summary = Summary::of(&collector, Micros(20), 10, 0);
    assert_eq!((summary.prefix_hit_tokens, summary.prefix_hit_ratio), (32, 32.0 / (32.0 + 48.0)));
    let idle = Summary::of(&Collector::default(), Micros::ZERO, 10, 0);
    assert_eq!((idle.prefix_hit_tokens, idle.prefix_hit_ratio), (0, 0.0));
}

/// Everything a summary says, from the list of tokens `(request, time)` alone.
struct Recount<'a> {
    requests: &'a [Request],
    slo: Slo,
    /// Tokens of a prompt and its longest answer.
    longest: u32,
    tokens: Vec<Vec<Micros>>,
}

impl Recount<'_> {
    fn finished(&self) -> impl Iterator<Item = (&Request, &Vec<Micros>)> {
        let done = |(request, times): &(&Request, &Vec<Micros>)| {
            let limit = self.longest.saturating_sub(request.prompt_tokens);
            !times.is_empty() && times.len() as u32 == request.output_tokens.min(limit)
        };
        self.requests.iter().zip(&self.tokens).filter(done)
    }

    fn gaps(times: &[Micros]) -> Vec<Micros> {
        times.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    fn attained(&self) -> usize {
        let slo = self.slo;
        let met = |(request, times): &(&Request, &Vec<Micros>)| {
            let (first, last) = (times[0], times[times.len() - 1]);
            let gaps = Recount::gaps(times);
            // In integers: the mean gap is above the target if their sum is above so many targets.
            first - request.arrival <= slo.ttft
                && last - first <= slo.tpot.times(gaps.len() as u64)
                && gaps.iter().all(|gap| *gap <= slo.stall)
        };
        self.finished().filter(met).count()
    }

    fn on_time(&self) -> usize {
        let on_time = |(request, times): (&Request, &Vec<Micros>)| {
            let deadline = |index: usize| request.arrival + self.slo.ttft + self.slo.tpot.times(index as u64);
            times.iter().enumerate().filter(|(index, time)| **time <= deadline(*index)).count()
        };
        self.requests.iter().zip(&self.tokens).map(on_time).sum()
    }

    /// The percentile as a sum of weights on sorted values.
    fn percentile(mut values: Vec<f64>, p: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        let position = p / 100.0 * (values.len() - 1) as f64;
        let weight = |index: usize| (1.0 - (position - index as f64).abs()).max(0.0);
        values.iter().enumerate().map(|(index, value)| weight(index) * value).sum()
    }

    fn nearest_rank(mut values: Vec<f64>, p: f64) -> f64 {
        values.sort_by(f64::total_cmp);
        values[(p / 100.0 * values.len() as f64).ceil() as usize - 1]
    }
}

/// What was seen of a run from outside, by comparing each request before and after each step.
#[derive(Default)]
struct Seen {
    tokens: Vec<Vec<Micros>>,
    preemptions: u64,
    recomputed_tokens: u64,
    swap_out_blocks: u64,
    swap_in_blocks: u64,
    /// Block-seconds after steps, which misses those of requests that finished in them.
    used: f64,
}

impl Seen {
    fn compare(&mut self, before: &RequestView, after: &RequestView) {
        let blocks = u64::from(before.held_blocks);
        // A victim whose last token was on its way has finished by the time anybody looks.
        let overtaken = after.preemptions > before.preemptions;
        match (before.phase, after.phase) {
            (Phase::Running, Phase::Waiting) => self.recomputed_tokens += u64::from(before.computed),
            (Phase::Running, Phase::Finished) if overtaken => self.recomputed_tokens += u64::from(before.computed),
            (Phase::Running, Phase::Swapped) => self.swap_out_blocks += blocks,
            (Phase::Swapped, Phase::Running | Phase::Finished) => self.swap_in_blocks += blocks,
            _ => {}
        }
        let victim = before.phase == Phase::Running && matches!(after.phase, Phase::Waiting | Phase::Swapped);
        self.preemptions += u64::from(victim || after.phase == Phase::Finished && overtaken);
    }
}

fn views(scheduler: &Scheduler) -> Vec<RequestView> {
    (0..scheduler.num_requests() as u32).map(|id| scheduler.view(RequestId(id))).collect()
}

/// Runs a workload under random controls to the end.
fn observed(requests: &Arc<[Request]>, engine: &EngineConfig, slo: Slo, seed: u64) -> (Summary, Seen) {
    let config = node_config(engine.clone(), slo);
    let mut node = Node::new(&config, Arc::clone(requests), Collector::with_gaps()).unwrap();
    let mut stream = seed::stream(seed, "accounts", 0);
    let mut seen = Seen { tokens: vec![Vec::new(); requests.len()], ..Seen::default() };
    loop {
        let (before, then) = (views(node.scheduler()), node.now());
        if node.step(&any_controls(&mut stream)).unwrap() != NodeStatus::Stepped {
            return (node.summary().unwrap(), seen);
        }
        let after = views(node.scheduler());
        before.iter().zip(&after).for_each(|(before, after)| seen.compare(before, after));
        for (times, request) in seen.tokens.iter_mut().zip(&after) {
            if request.generated as usize > times.len() {
                times.push(node.now());
            }
        }
        let used = node.scheduler().num_blocks(Tier::Gpu) - node.scheduler().free_blocks(Tier::Gpu);
        seen.used += f64::from(used) * (node.now() - then).as_secs_f64();
    }
}

/// Three workloads on 160 usable blocks, each summed up twice.
#[track_caller]
fn recounted(engine: &EngineConfig) {
    for (seed, workload) in
        ["chat:rate=6,n=150", "reasoning:rate=2,n=40", "uniform:n=60,in=200,out=60,rate=inf"].into_iter().enumerate()
    {
        let workload = workload.parse::<SyntheticSpec>().unwrap().generate().unwrap();
        let requests = workload.share();
        let slo = Slo::from_millis(3000, 60, 1500);
        let (summary, seen) = observed(&requests, engine, slo, seed as u64);
        let count = seen.tokens.iter().map(Vec::len).sum::<usize>();
        // V0 generates one token beyond the longest sequence.
        let longest = engine.max_model_len + u32::from(engine.engine == EngineKind::V0);
        let recount = Recount { requests: &requests, slo, longest, tokens: seen.tokens };
        let seconds = summary.makespan_s;

        assert_eq!(summary.completed as usize, recount.finished().count());
        assert_eq!(summary.requests, summary.completed + summary.rejected);
        let (attained, on_time) = (recount.attained(), recount.on_time());
        assert!(
            attained > 0 && attained < requests.len(),
            "{attained} of {}: the targets tell nothing",
            requests.len()
        );
        assert_eq!(summary.slo_attainment, attained as f64 / requests.len() as f64);
        assert_eq!(summary.goodput_rps, attained as f64 / seconds);
        assert_eq!(summary.on_time_tokens, on_time as f64 / count as f64);
        assert_eq!(summary.output_tok_s, count as f64 / seconds);
        assert!(
            seen.recomputed_tokens > 0 && (seen.swap_in_blocks > 0) == (engine.num_cpu_blocks > 0),
            "no preemptions: the run tells nothing"
        );
        assert_eq!(summary.preemptions, seen.preemptions);
        assert_eq!(summary.recomputed_tokens, seen.recomputed_tokens);
        assert_eq!(summary.swap_out_blocks, seen.swap_out_blocks);
        assert_eq!(summary.swap_in_blocks, seen.swap_in_blocks);
        assert!(summary.kv_usage_mean * seconds * 160.0 >= 0.9 * seen.used && summary.kv_usage_mean <= 1.0);

        let times = |time: &dyn Fn(&Request, &[Micros]) -> Option<f64>| -> Vec<f64> {
            recount.finished().filter_map(|(request, times)| time(request, times)).collect()
        };
        let ttft = times(&|request, times| Some((times[0] - request.arrival).as_millis_f64()));
        let e2e = times(&|request, times| Some((times[times.len() - 1] - request.arrival).as_millis_f64()));
        let tpot = times(&|_, times| {
            let span = times[times.len() - 1] - times[0];
            (times.len() > 1).then(|| span.as_millis_f64() / (times.len() - 1) as f64)
        });
        let gaps: Vec<f64> =
            recount.tokens.iter().flat_map(|times| Recount::gaps(times)).map(Micros::as_millis_f64).collect();
        let stalls = times(&|_, times| Recount::gaps(times).into_iter().max().map(Micros::as_millis_f64));
        assert_eq!(summary.longest_wait_ms, ttft.iter().copied().max_by(f64::total_cmp));
        assert_eq!(summary.longest_stall_ms, stalls.into_iter().max_by(f64::total_cmp));
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        for (values, said) in
            [(&ttft, summary.ttft_ms), (&e2e, summary.e2e_ms), (&tpot, summary.tpot_ms), (&gaps, summary.itl_ms)]
        {
            let (expected, said) = (mean(values), said.unwrap().mean.unwrap());
            assert!((said - expected).abs() <= 1e-9 * expected, "mean: {said}, expected {expected}");
        }
        for (values, said) in [(ttft, summary.ttft_ms), (e2e, summary.e2e_ms), (tpot, summary.tpot_ms)] {
            for (p, said) in each(said.unwrap()) {
                let expected = Recount::percentile(values.clone(), p);
                assert!((said - expected).abs() <= 1e-9 * expected, "p{p}: {said}, expected {expected}");
            }
        }
        // Gaps come from a histogram: the smallest value that p percent do not exceed, to three digits.
        for (p, said) in each(summary.itl_ms.unwrap()) {
            let expected = Recount::nearest_rank(gaps.clone(), p);
            assert!((said - expected).abs() <= 1e-3 * expected, "p{p}: {said}, expected {expected}");
        }
    }
}

#[test]
fn summaries_agree_with_a_recount_of_every_token() {
    recounted(&EngineConfig { max_num_seqs: 64, max_model_len: 2048, ..engine(16, 160, 60) });
}

#[test]
fn so_do_those_of_a_cohort() {
    for async_scheduling in [false, true] {
        recounted(&EngineConfig {
            engine: EngineKind::V1,
            async_scheduling,
            enable_chunked_prefill: true,
            max_num_seqs: 64,
            max_num_batched_tokens: 512,
            max_model_len: 2048,
            ..engine(16, 161, 0)
        });
    }
}

fn each(said: Percentiles) -> [(f64, f64); 4] {
    [(50.0, said.p50), (90.0, said.p90), (95.0, said.p95), (99.0, said.p99)]
}

#[test]
fn percentiles_of_a_known_list() {
    let mut stream = seed::stream(3, "accounts.percentiles", 0);
    let mut values: Vec<f64> = (0..=100).map(f64::from).collect();
    for index in 0..values.len() {
        values.swap(index, stream.random_range(0..=index));
    }
    assert_eq!(
        Percentiles::of(values),
        Some(Percentiles { mean: Some(50.0), p50: 50.0, p90: 90.0, p95: 95.0, p99: 99.0 })
    );
    assert_eq!(Percentiles::of(Vec::new()), None);
}
