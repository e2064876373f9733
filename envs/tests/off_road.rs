//! Traffic other than it was recorded or fitted: longer, shorter, with heavier tails, in other bursts.

use crate::common::traffic::{SECOND, arrivals_s, blocks, metronome};
use kvtide_envs::percentile::percentile;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{LengthScale, Replay, SyntheticSpec, Workload};

fn draw(text: &str) -> Workload {
    text.parse::<SyntheticSpec>().unwrap().generate().unwrap()
}

fn outputs(workload: &Workload) -> Vec<f64> {
    let mut outputs: Vec<f64> = workload.requests().iter().map(|request| f64::from(request.output_tokens)).collect();
    outputs.sort_by(f64::total_cmp);
    outputs
}

/// Standard deviation of the time between arrivals over its mean.
fn gap_cv(arrivals_s: &[f64]) -> f64 {
    let gaps: Vec<f64> = arrivals_s.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt() / mean
}

#[test]
fn a_heavy_tail_offers_as_many_tokens_as_lengths_without_one() {
    let heavy = outputs(&draw("lognormal:n=40000,in=1000,in_p95=2500,out=3000,out_p95=9000,seed=1"));
    let even = outputs(&draw("uniform:n=40000,in=1000,out=3000,spread=0.2,seed=1"));
    let total = |outputs: &[f64]| outputs.iter().sum::<f64>();
    assert!((total(&heavy) / total(&even) - 1.0).abs() < 0.02);
    assert!((percentile(&heavy, 95.0) / 9_000.0 - 1.0).abs() < 0.03, "{}", percentile(&heavy, 95.0));
    // exp(mu), with sigma = 0.932 and mu = ln 3,000 - sigma² / 2.
    assert!((percentile(&heavy, 50.0) / 1_943.0 - 1.0).abs() < 0.03, "{}", percentile(&heavy, 50.0));
    assert!(heavy[heavy.len() - 1] > 40_000.0);
}

#[test]
fn a_heavy_tail_is_the_same_in_open_and_closed_loops() {
    let lengths = "in=1000,in_p95=2500,out=3000,out_p95=9000,seed=7";
    let pool = draw(&format!("lognormal:n=100,{lengths}"));
    assert!(pool.is_at_once());
    assert_eq!(outputs(&pool), outputs(&draw(&format!("lognormal:n=100,rate=2,cv=4,{lengths}"))));
}

#[test]
fn every_profile_can_be_longer_or_shorter_at_the_same_moments() {
    let uniform = "uniform:in=100,out=60,spread=0.5,rate=4,n=300";
    let heavy = "lognormal:in=100,in_p95=250,out=60,out_p95=180,rate=4,n=300";
    for profile in ["chat:rate=4,n=300", "code:rate=4,n=300", "mix:rate=4,n=300", "agentic:rate=1,n=20", uniform, heavy]
    {
        let (plain, scaled) = (draw(profile), draw(&format!("{profile},lengths=0.5:3")));
        assert_eq!(plain.requests().len(), scaled.requests().len());
        for (before, after) in plain.requests().iter().zip(scaled.requests()) {
            assert_eq!((before.arrival, &before.session), (after.arrival, &after.session));
            assert_eq!(after.output_tokens, before.output_tokens * 3);
            assert_eq!(after.prompt_tokens, ((f64::from(before.prompt_tokens) / 2.0).round() as u32).max(1));
        }
    }
}

#[test]
fn what_a_cache_would_find_shrinks_with_the_prompts() {
    let (plain, scaled) = (draw("agentic:rate=1,n=60"), draw("agentic:rate=1,n=60,lengths=0.25"));
    assert_eq!(blocks(&plain), blocks(&scaled), "as many blocks, of a quarter of the tokens");
    assert!(plain.requests().iter().all(|request| request.hash_block_tokens == 64));
    assert!(scaled.requests().iter().all(|request| request.hash_block_tokens == 16));
}

#[test]
fn every_profile_comes_in_the_bursts_asked_for() {
    for profile in ["chat", "code", "reasoning", "uniform:in=9,out=9", "lognormal:in=9,in_p95=20,out=9,out_p95=20"] {
        for cv in [1.0, 4.0] {
            let separator = if profile.contains(':') { ',' } else { ':' };
            let found = gap_cv(&arrivals_s(&draw(&format!("{profile}{separator}rate=5,n=20000,cv={cv}"))));
            assert!((found / cv - 1.0).abs() < 0.1, "{profile}: {found} for {cv}");
        }
    }
    // Of sessions it is that of their starts: the first request of each.
    let sessions = draw("agentic:rate=1,n=4000,cv=4");
    let mut starts = std::collections::BTreeMap::new();
    for request in sessions.requests() {
        starts.entry(request.session.clone()).or_insert(request.arrival.as_secs_f64());
    }
    let mut starts: Vec<f64> = starts.into_values().collect();
    starts.sort_by(f64::total_cmp);
    assert!((gap_cv(&starts) / 4.0 - 1.0).abs() < 0.15, "{}", gap_cv(&starts));
}

#[test]
fn a_recorded_trace_in_other_bursts_keeps_its_requests_and_its_span() {
    let trace = metronome(4_000);
    let replay = Replay { cv: Some(4.0), seed: 1, ..Replay::default() };
    let bursty = replay.apply(&trace).unwrap();
    let lengths = |workload: &Workload| -> Vec<u32> {
        workload.requests().iter().map(|request: &Request| request.prompt_tokens).collect()
    };
    assert_eq!((lengths(&bursty), bursty.span()), (lengths(&trace), trace.span()));
    assert!((gap_cv(&arrivals_s(&bursty)) / 4.0 - 1.0).abs() < 0.15, "{}", gap_cv(&arrivals_s(&bursty)));
    assert!(replay.depends_on_seed() && replay.apply(&trace).unwrap() == bursty);
    assert_eq!(replay.to_string(), "load 1 (thin), cv 4, seed 1");
    // A copy, a thinned rest and bursts: what is kept is kept whatever the bursts.
    let loaded = Replay { load: 1.5, seed: 1, ..Replay::default() };
    let mut plain = lengths(&loaded.apply(&trace).unwrap());
    let mut bursts = lengths(&Replay { cv: Some(4.0), ..loaded }.apply(&trace).unwrap());
    plain.sort_unstable();
    bursts.sort_unstable();
    assert_eq!(plain, bursts);
}

#[test]
fn a_recorded_trace_can_be_longer_or_shorter() {
    let trace = metronome(40);
    let longer = Replay { lengths: LengthScale { prompt: 2.0, output: 0.1 }, ..Replay::default() };
    assert!(!longer.depends_on_seed());
    assert_eq!(longer.to_string(), "load 1 (thin), lengths 2:0.1, seed 0");
    let longer = longer.apply(&trace).unwrap();
    for (before, after) in trace.requests().iter().zip(longer.requests()) {
        assert_eq!((after.arrival, after.prompt_tokens), (before.arrival, before.prompt_tokens * 2));
        assert!(after.output_tokens >= 1);
    }
    assert_eq!(longer.span(), SECOND.times(40));
}

#[test]
fn what_is_out_of_range_is_refused() {
    let trace = metronome(4);
    let said = |replay: Replay| replay.apply(&trace).unwrap_err().to_string();
    assert_eq!(said(Replay { cv: Some(21.0), ..Replay::default() }), "cv 21: must be from 0 to 20");
    assert_eq!(said(Replay { cv: Some(f64::NAN), ..Replay::default() }), "cv NaN: must be from 0 to 20");
    let lengths = LengthScale::both(f64::INFINITY);
    assert_eq!(said(Replay { lengths, ..Replay::default() }), "length factor inf: must be from 0.01 to 100");
    let said = "chat:rate=1,n=3,lengths=1000".parse::<SyntheticSpec>().unwrap_err().to_string();
    assert_eq!(said, "length factor 1000: must be from 0.01 to 100");
}
