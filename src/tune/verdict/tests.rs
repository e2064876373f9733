//! Verdicts of runs that are made up.

use std::path::Path;

use kvtide_runtime::Action;

use super::*;
use crate::evaluate::{FoundLoad, RunRow, compare};
use crate::tune::words::{Place, lines};
use crate::tune::{Effort, ShippedKind};

/// Attainment of what runs today and of the table, by load, on so many seeds; seed by seed both move a little together.
fn rows(loads: &[(f64, f64, f64)], seeds: u64) -> Vec<RunRow> {
    let mut rows = Vec::new();
    for &(load, today, table) in loads {
        for (policy, attained) in
            [("default", today), ("best-fixed", today), ("best-static", table), ("fixed:0.02", today), ("table", table)]
        {
            rows.extend((1..=seeds).map(|seed| {
                let noise = 0.01 * (seed % 3) as f64;
                let mut row = RunRow::sample(policy, load, seed, attained - noise);
                row.summary.longest_wait_ms = Some(if policy == "table" { 2000.0 + load } else { 1000.0 });
                row
            }));
        }
    }
    rows
}

fn range(at_one: AtOne) -> LoadRange {
    let found = vec![FoundLoad { target: 0.95, load: Some(0.4), attained: Some(0.95), offered_rps: None }];
    LoadRange { window: "0..60".parse().unwrap(), found, at_one, judged: vec![0.4, 0.5], trained: (0.37, 0.6) }
}

fn verdict(rows: &[RunRow], at_one: AtOne, kind: ShippedKind) -> Verdict {
    let versus = PolicyName::from(PolicySpec::Default);
    let heads = ChosenHeads {
        profile: "full".to_owned(),
        constant: "fixed:0.02".parse().unwrap(),
        fallback: Action::V1_DEFAULT.controls().watermark,
        candidates: Vec::new(),
        reason: String::new(),
    };
    let shipped = Shipped { kind, reason: String::new(), gain: None, leaves: 9, bytes: 999 };
    let clock = Clock::DataSheet { hardware: "rtx-4090".to_owned() };
    let judged = Judged {
        versus: &versus,
        table: &PolicyName::sample("table"),
        comparisons: &compare(rows, &versus, std::slice::from_ref(&versus)),
        range: &range(at_one),
        heads: &heads,
        shipped: &shipped,
        clock: &clock,
    };
    let mut verdict = judged.verdict().unwrap();
    let (out, table) = (Path::new("out"), Path::new("/a b/policy.kvt"));
    let (targets, effort) = ("ttft:2000".to_owned(), Effort::Normal);
    let place = Place { out, table, host: "vllm-0.33", span_s: 90.0, judged_s: 27.0, targets, effort };
    verdict.lines = lines(&verdict, &place);
    assert_eq!(verdict.lines.len(), 5);
    assert!(verdict.lines.iter().all(|line| !line.contains('\n')), "{:?}", verdict.lines);
    assert_eq!(verdict.worth_deploying, verdict.lines[0].starts_with("worth deploying: YES"));
    verdict
}

const BUSY: AtOne = AtOne::Busy { attained: 0.7 };

#[test]
fn a_gain_at_every_load_is_worth_deploying() {
    let verdict = verdict(&rows(&[(0.4, 0.9, 0.95), (0.5, 0.6, 0.9)], 5), BUSY, ShippedKind::Learned);
    assert_eq!((verdict.reason, verdict.worth_deploying), (Reason::Gains, true));
    assert!((verdict.gain.unwrap().mean - 0.175).abs() < 1e-9);
    assert!(verdict.lines[0].contains("+17.5 points [+17.5, +17.5] over default"), "{}", verdict.lines[0]);
    assert!(
        verdict.lines[1].contains("73.8 % (default today) → 91.3 % (the table, learned, 9 leaves)"),
        "{}",
        verdict.lines[1]
    );
    assert!(verdict.lines[1].ends_with("chosen beforehand (fixed:0.02) 73.8 %"), "{}", verdict.lines[1]);
    // The worst load for those who wait is the one at which the wait grows most.
    assert!((verdict.late.unwrap().times - 2.0005).abs() < 1e-9 && verdict.late.unwrap().load == 0.5);
    assert!(verdict.lines[3].contains("; loads 0.4, 0.5;") && verdict.lines[3].contains("data sheet"));
    assert!(verdict.lines[3].starts_with("rests on: 5 traces, 5 draws, of "), "{}", verdict.lines[3]);
    assert!(
        verdict.lines[2].contains("at load 0.5, where it is worst, ")
            && verdict.lines[2].contains("2.0 × today's, 2.0 s")
    );
    assert_eq!(verdict.as_recorded, None);
    assert!(verdict.lines[4].contains("KVTIDE_TABLE='/a b/policy.kvt' KVTIDE_METRICS_PORT=9400 vllm serve"));
}

#[test]
fn a_gain_that_may_be_chance_is_not() {
    let mut rows = rows(&[(0.4, 0.9, 0.91), (0.5, 0.6, 0.62)], 5);
    // One seed of five goes the other way.
    for row in rows.iter_mut().filter(|row| row.policy.as_str() == "table" && row.seed == 2) {
        row.summary.slo_attainment -= 0.1;
    }
    let verdict = verdict(&rows, BUSY, ShippedKind::Learned);
    assert_eq!((verdict.reason, verdict.worth_deploying), (Reason::NoGain, false));
    assert!(verdict.gain.unwrap().low.unwrap() < 0.0 && verdict.lines[0].contains("not beyond chance"));
    assert!(verdict.lines[4].contains("leave default as it is"), "{}", verdict.lines[4]);
}

#[test]
fn no_gain_at_all_is_no_gain() {
    let verdict = verdict(&rows(&[(0.4, 0.9, 0.9)], 5), BUSY, ShippedKind::Constant);
    assert_eq!(verdict.reason, Reason::NoGain);
    assert!(verdict.lines[1].contains("which is the constant fixed:0.02"), "{}", verdict.lines[1]);
}

#[test]
fn a_load_that_loses_more_than_the_margin_is_a_no() {
    let lost = |points: f64| {
        let rows = rows(&[(0.4, 0.95, 0.95 - points), (0.5, 0.5, 0.9)], 5);
        verdict(&rows, BUSY, ShippedKind::Learned)
    };
    let no = lost(0.02);
    assert_eq!(no.reason, Reason::LosesAtALoad);
    assert!(no.gain.unwrap().low.unwrap() > 0.0 && no.lines[0].contains("-2.0 points at load 0.4"), "{}", no.lines[0]);
    let yes = lost(0.005);
    assert_eq!(yes.reason, Reason::Gains);
    assert!(
        yes.lines[0].ends_with("least at one load: -0.5 points at load 0.4, where -1 is allowed"),
        "{}",
        yes.lines[0]
    );
}

#[test]
fn what_loses_is_not_said_to_gain_or_to_be_chance() {
    let verdict = verdict(&rows(&[(0.4, 0.9, 0.8), (0.5, 0.6, 0.5)], 5), BUSY, ShippedKind::Learned);
    assert_eq!(verdict.reason, Reason::NoGain);
    let line = &verdict.lines[0];
    assert!(
        line.contains("NO. It loses -10.0 points [-10.0, -10.0] against default") && line.ends_with(", beyond chance")
    );
}

#[test]
fn what_becomes_of_the_traffic_as_it_is_is_said_beside_all_loads() {
    let verdict = verdict(&rows(&[(1.0, 0.9, 0.91), (1.5, 0.5, 0.9)], 5), BUSY, ShippedKind::Learned);
    assert!((verdict.as_recorded.unwrap() - 0.01).abs() < 1e-9);
    assert!(
        verdict.lines[0].contains("; +1.0 points at load 1, the traffic as it was recorded; least"),
        "{:?}",
        verdict.lines
    );
}

#[test]
fn what_to_do_next_is_nothing_that_was_done_already() {
    let none = verdict(&rows(&[(0.4, 0.9, 0.9)], 5), BUSY, ShippedKind::Constant);
    let next = |span_s, effort, verdict: &Verdict| {
        let (out, table, targets) = (Path::new("out"), Path::new("t"), String::new());
        let place = Place { out, table, host: "vllm-0.33", span_s, judged_s: 270.0, targets, effort };
        lines(verdict, &place)[4].clone()
    };
    assert!(next(90.0, Effort::Normal, &none).contains("--effort thorough"));
    assert!(!next(90.0, Effort::Thorough, &none).contains("--effort"));
    let little = verdict(&rows(&[(0.4, 0.5, 0.9)], 1), BUSY, ShippedKind::Learned);
    let long = next(1_800.0, Effort::Normal, &little);
    assert!(long.contains("270 s of 1800 s could be judged on"), "{long}");
    for verdict in [&none, &little] {
        assert!(!next(1_800.0, Effort::Normal, verdict).contains("KVTIDE_TABLE"));
    }
}

#[test]
fn one_draw_is_too_little_to_tell() {
    let verdict = verdict(&rows(&[(0.4, 0.5, 0.9)], 1), BUSY, ShippedKind::Learned);
    assert_eq!(verdict.reason, Reason::TooLittle);
    assert!(verdict.lines[4].contains("30 min of traffic (90 s were given)"), "{}", verdict.lines[4]);
}

#[test]
fn an_idle_node_has_nothing_to_gain_whatever_it_would_gain_elsewhere() {
    let idle = AtOne::Idle { attained: 1.0, fails_at: Some(0.4) };
    let verdict = verdict(&rows(&[(0.4, 0.5, 0.9)], 5), idle, ShippedKind::Learned);
    assert_eq!((verdict.reason, verdict.worth_deploying), (Reason::Idle, false));
    assert!(verdict.lines[0].contains("nothing to gain") && verdict.lines[0].contains("0.4 times the traffic"));
}

#[test]
fn a_node_that_was_idle_only_while_it_was_trained_on_is_not() {
    let idle = AtOne::Idle { attained: 1.0, fails_at: Some(1.6) };
    let busier = verdict(&rows(&[(1.0, 0.6, 0.9), (1.6, 0.3, 0.8)], 5), idle, ShippedKind::Learned);
    assert_eq!(busier.reason, Reason::Gains);
    assert!(busier.lines[3].contains("the traffic changes"), "{}", busier.lines[3]);
    let easy = verdict(&rows(&[(1.0, 1.02, 1.02), (1.6, 0.3, 0.8)], 5), idle, ShippedKind::Learned);
    assert_eq!(easy.reason, Reason::Idle);
}

#[test]
fn who_drowns_is_told_how_many_nodes_it_takes() {
    let drowned = AtOne::Drowned { attained: Some(0.02), nodes: 3 };
    let verdict = verdict(&rows(&[(0.3, 0.5, 0.9)], 5), drowned, ShippedKind::Learned);
    assert_eq!(verdict.reason, Reason::Gains);
    assert!(verdict.lines[3].contains("the traffic takes 3 such nodes"), "{}", verdict.lines[3]);
}
