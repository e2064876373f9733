//! Synthetic workloads: what is drawn, from which text, and that it never changes.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::traffic::{SECOND, arrivals_s, blocks, metronome};
use kvtide_envs::percentile::percentile;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{
    Draw, Extent, LengthScale, Replay, Scaling, Split, SyntheticSpec, TrafficProfile, Window, Workload, WorkloadSource,
};

fn spec(text: &str) -> SyntheticSpec {
    text.parse().unwrap()
}

/// Asserts that percentiles of what was drawn are within a share of those that were published.
fn assert_quantiles(name: &str, mut drawn: Vec<f64>, published: &[(f64, f64)], tolerance: f64) {
    drawn.sort_by(f64::total_cmp);
    for (p, expected) in published {
        let found = percentile(&drawn, *p);
        assert!((found - expected).abs() <= tolerance * expected, "{name} p{p}: {found}, published {expected}");
    }
}

fn lengths(workload: &Workload) -> (Vec<f64>, Vec<f64>) {
    let lengths = |request: &Request| (f64::from(request.prompt_tokens), f64::from(request.output_tokens));
    workload.requests().iter().map(lengths).unzip()
}

fn gap_cv(workload: &Workload) -> f64 {
    let arrivals = arrivals_s(workload);
    let gaps: Vec<f64> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt() / mean
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn chat_has_the_published_figures_of_azure_conversation() {
    let workload = spec("chat:rate=5.5,n=40000,seed=1").generate().unwrap();
    let (prompt, output) = lengths(&workload);
    assert_quantiles("prompt", prompt, &[(50.0, 1_020.0), (95.0, 4_083.0), (99.0, 4_142.0)], 0.05);
    assert_quantiles("output", output, &[(50.0, 129.0), (95.0, 451.0), (99.0, 601.0)], 0.05);
    assert!((gap_cv(&workload) - 1.09).abs() < 0.03, "{}", gap_cv(&workload));
    assert!((workload.requests().len() as f64 / arrivals_s(&workload)[39_999] - 5.5).abs() < 0.1);
}

#[test]
fn code_has_the_published_figures_of_azure_code() {
    let workload = spec("code:rate=2.5,n=40000,seed=1").generate().unwrap();
    let (prompt, output) = lengths(&workload);
    assert!((25.0..31.0).contains(&mean(&output)), "{}", mean(&output));
    assert_quantiles("prompt", prompt, &[(50.0, 1_500.0), (95.0, 7_302.0)], 0.05);
    assert_quantiles("output", output, &[(50.0, 13.0)], 0.08);
    assert!((gap_cv(&workload) - 4.0).abs() < 0.25, "{}", gap_cv(&workload));
}

#[test]
fn reasoning_generates_1500_tokens_on_average() {
    let (_, output) = lengths(&spec("reasoning:rate=1,n=40000,seed=1").generate().unwrap());
    assert!((mean(&output) - 1_500.0).abs() < 75.0, "{}", mean(&output));
}

#[test]
fn the_mix_has_the_rate_asked_for_and_changes_over_time() {
    // Thousands of phases: their mean is within some percent of what they are drawn around.
    let long = spec("mix:rate=1,duration=400000,seed=1").generate().unwrap();
    assert!((long.rate_rps() - 1.0).abs() < 0.04, "{}", long.rate_rps());
    let workload = spec("mix:rate=4,duration=40000,seed=1").generate().unwrap();
    let shares = ["chat", "code", "reasoning"].map(|kind| {
        let is_kind = |request: &&Request| request.tenant.as_deref() == Some(kind);
        workload.requests().iter().filter(is_kind).count() as f64 / workload.requests().len() as f64
    });
    assert!(shares.iter().all(|share| (0.25..0.42).contains(share)), "{shares:?}");
    // Counts in 10 s of a Poisson process at this rate vary by 40 in variance; phases and bursts make it far more.
    let mut counts = vec![0.0; 4_000];
    workload.requests().iter().for_each(|request| counts[(request.arrival.0 / 10_000_000) as usize] += 1.0);
    let variance = counts.iter().map(|count| (count - mean(&counts)).powi(2)).sum::<f64>() / counts.len() as f64;
    assert!(variance > 3.0 * mean(&counts), "variance {variance}, mean {}", mean(&counts));
}

/// The turns of each session, by its name.
fn by_session(workload: &Workload) -> BTreeMap<&str, Vec<&Request>> {
    let mut sessions: BTreeMap<&str, Vec<&Request>> = BTreeMap::new();
    for request in workload.requests() {
        sessions.entry(request.session.as_deref().unwrap()).or_default().push(request);
    }
    sessions
}

#[test]
fn agentic_has_the_figures_of_the_recorded_sessions_as_scaled() {
    let workload = spec("agentic:rate=1,n=4000,seed=1").generate().unwrap();
    let sessions = by_session(&workload);
    assert_eq!(sessions.len(), 4_000);
    let (_, output) = lengths(&workload);
    assert_quantiles("output", output, &[(50.0, 237.0), (75.0, 462.0), (95.0, 1_577.0), (99.0, 3_743.0)], 0.05);
    let turns: Vec<f64> = sessions.values().map(|turns| turns.len() as f64).collect();
    assert!((14.0..16.0).contains(&mean(&turns)), "{}", mean(&turns));
    assert_quantiles("turns", turns, &[(50.0, 8.5), (75.0, 17.5), (95.0, 50.0)], 0.1);
    let gaps = sessions.values().flat_map(|turns| turns.windows(2));
    let gaps = gaps.map(|pair| (pair[1].arrival - pair[0].arrival).as_secs_f64()).collect();
    assert_quantiles("gap", gaps, &[(25.0, 12.0), (50.0, 19.0), (75.0, 39.0), (90.0, 129.0), (99.0, 300.0)], 0.05);
}

#[test]
fn the_prompt_of_a_turn_quotes_the_turn_before_it() {
    let workload = spec("agentic:rate=1,n=600,seed=2").generate().unwrap();
    let (mut compactions, mut turns) = (0, 0);
    for session in by_session(&workload).values() {
        for pair in session.windows(2) {
            turns += 1;
            let quoted = pair[0].prompt_tokens + pair[0].output_tokens;
            if pair[1].prompt_tokens <= quoted {
                compactions += 1;
                assert!(!pair[1].hash_ids.starts_with(&pair[0].hash_ids), "another text");
            } else {
                assert!(pair[1].hash_ids.starts_with(&pair[0].hash_ids), "the same text, longer");
                assert_eq!(pair[0].hash_ids.as_ptr(), pair[1].hash_ids.as_ptr(), "in one list");
            }
        }
    }
    let share = f64::from(compactions) / f64::from(turns);
    assert!((0.01..0.1).contains(&share), "{share}");
    assert!(workload.requests().iter().all(|request| request.prompt_tokens <= 16_384));
    let is_hashed = |request: &Request| {
        request.hash_block_tokens == 64 && request.hash_ids.len() as u32 == request.prompt_tokens / 64
    };
    assert!(workload.requests().iter().all(is_hashed));
    let (all, distinct) = blocks(&workload);
    let reuse = 1.0 - distinct as f64 / all as f64;
    assert!((0.85..0.95).contains(&reuse), "{reuse}");
}

#[test]
fn agentic_sessions_have_nothing_in_common_but_system_prompts() {
    let workload = spec("agentic:rate=1,n=400,seed=3").generate().unwrap();
    let mut owners: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for request in workload.requests() {
        for hash in &request.hash_ids {
            owners.entry(*hash).or_default().insert(request.session.as_deref().unwrap());
        }
    }
    let common: BTreeSet<u64> = owners.iter().filter(|(_, of)| of.len() > 1).map(|(hash, _)| *hash).collect();
    assert_eq!(common.len(), 14 + 12 + 16 + 9 + 18 + 11 + 15 + 10, "the blocks of eight system prompts");
    for request in workload.requests() {
        let system = request.hash_ids.iter().take_while(|hash| common.contains(hash)).count();
        assert!(system >= 9 && request.hash_ids[system..].iter().all(|hash| !common.contains(hash)));
    }
}

#[test]
fn agentic_traffic_of_a_duration_is_as_heavy_at_its_start_as_at_its_end() {
    let workload = spec("agentic:rate=0.5,duration=2h,seed=1").generate().unwrap();
    assert_eq!(workload.span(), SECOND.times(7_200));
    let mut thirds = [(0_u64, 0_u64); 3];
    for request in workload.requests() {
        let third = &mut thirds[(request.arrival.0 / 2_400_000_000) as usize];
        *third = (third.0 + 1, third.1 + u64::from(request.prompt_tokens));
    }
    // 1,200 sessions a third, of 15 turns, with a deviation of 20 each: 3 % in all.
    for (requests, tokens) in thirds {
        assert!((requests as f64 / 18_000.0 - 1.0).abs() < 0.12, "{thirds:?}");
        assert!((tokens as f64 / requests as f64 / 8_000.0 - 1.0).abs() < 0.12, "{thirds:?}");
    }
    // Sessions are those of any other duration, up to its end.
    let shorter = spec("agentic:rate=0.5,duration=1h,seed=1").generate().unwrap();
    assert_eq!(
        shorter.requests().len(),
        workload.requests().iter().filter(|request| request.arrival < shorter.span()).count()
    );
    let timed = |request: &Request| (request.arrival, request.prompt_tokens, request.session.clone());
    assert!(
        shorter.requests().iter().map(timed).eq(workload.requests().iter().map(timed).take(shorter.requests().len()))
    );
}

#[test]
fn agentic_sessions_all_at_once_keep_their_gaps() {
    let workload = spec("agentic:n=50").generate().unwrap();
    assert!(by_session(&workload).values().all(|turns| turns[0].arrival == Micros::ZERO));
    assert!(!workload.is_at_once() && workload.rate_rps().is_finite());
    assert_eq!(spec("agentic:rate=0.05,duration=1h").to_string(), "agentic:rate=0.05,duration=3600s,seed=0");
    let said = |text: &str| text.parse::<SyntheticSpec>().unwrap_err().to_string();
    assert_eq!(said("agentic:rate=1,n=1000000"), "about 15000000 requests: more than 10000000");
    assert_eq!(said("agentic:rate=1000,duration=1"), "about 108015000 requests: more than 10000000");
}

#[test]
fn uniform_lengths_and_a_metronome() {
    let workload = spec("uniform:n=450,in=1000,out=5000,spread=0.2,rate=2,cv=0").generate().unwrap();
    let (prompt, output) = lengths(&workload);
    assert!(prompt.iter().all(|tokens| (800.0..=1_200.0).contains(tokens)));
    assert!(output.iter().all(|tokens| (4_000.0..=6_000.0).contains(tokens)));
    assert!((mean(&prompt) - 1_000.0).abs() < 25.0 && (mean(&output) - 5_000.0).abs() < 125.0);
    assert_eq!(arrivals_s(&workload), (1..=450).map(|index| f64::from(index) * 0.5).collect::<Vec<_>>());

    let together = spec("uniform:n=3,in=7,out=9,rate=inf").generate().unwrap();
    assert_eq!(together.requests(), vec![Request::new(Micros::ZERO, 7, 9); 3]);
}

#[test]
fn what_a_closed_loop_takes_its_requests_from_is_all_there() {
    let pool = spec("uniform:n=450,in=1000,out=5000,spread=0.2");
    assert_eq!(pool, spec("uniform:rate=inf,n=450,in=1000,out=5000,spread=0.2"));
    assert_eq!(pool.to_string(), "uniform:rate=inf,n=450,in=1000,out=5000,spread=0.2,seed=0");
    let workload = pool.generate().unwrap();
    assert_eq!(workload.requests().len(), 450);
    assert!(workload.requests().iter().all(|request| request.arrival == Micros::ZERO));
    assert!(workload.is_at_once() && workload.rate_rps().is_infinite());
    assert_eq!(workload.span(), Micros(1));
    // Requests are those of any other rate, and a window is all of them or none.
    assert_eq!(
        lengths(&workload),
        lengths(&spec("uniform:rate=3,n=450,in=1000,out=5000,spread=0.2").generate().unwrap())
    );
    assert_eq!(workload.window(Window { start: Micros::ZERO, end: Micros(1) }), Ok(workload.clone()));
    assert_eq!(Split::of(workload.span(), 0.7, 0.2).unwrap().fit.length(), Micros::ZERO);
    for profile in ["chat", "code", "reasoning", "mix"] {
        assert!(spec(&format!("{profile}:n=9")).generate().unwrap().is_at_once(), "{profile}");
    }
    assert!(!spec("chat:rate=2,n=9").generate().unwrap().is_at_once());
}

#[test]
fn a_duration_ends_before_its_end_and_a_number_is_exact() {
    let workload = spec("chat:rate=5,duration=10m,seed=2").generate().unwrap();
    assert_eq!(workload.span(), SECOND.times(600));
    assert!(workload.requests().iter().all(|request| request.arrival < workload.span()));
    assert!((2_700..3_300).contains(&workload.requests().len()));
    assert_eq!(spec("code:rate=5,n=77").generate().unwrap().requests().len(), 77);
}

#[test]
fn another_rate_brings_the_same_requests_sooner() {
    let [slow, fast] = ["chat:rate=1,n=100", "chat:rate=8,n=100"].map(|text| spec(text).generate().unwrap());
    assert_eq!(lengths(&slow), lengths(&fast));
    for (slow, fast) in arrivals_s(&slow).iter().zip(arrivals_s(&fast)) {
        assert!((slow - fast * 8.0).abs() < 1e-5);
    }
}

#[test]
fn a_salt_makes_it_other_work() {
    let fingerprint = |salt: Option<&str>| {
        let request = Request { cache_salt: salt.map(str::to_owned), ..Request::new(SECOND, 64, 1) };
        Workload::new("t", vec![request], Micros::ZERO).unwrap().fingerprint()
    };
    let (none, empty, a, b) =
        (fingerprint(None), fingerprint(Some("")), fingerprint(Some("a")), fingerprint(Some("b")));
    assert!(none != empty && empty != a && a != b && b != none);
}

/// A changed value here changes every synthetic result ever committed: bump what CHANGELOG.md names.
#[test]
fn synthetic_workloads_are_fixed_for_ever() {
    let fingerprints = ["chat", "code", "reasoning", "mix", "agentic"].map(|profile| {
        let spec = spec(&format!("{profile}:rate=5,n=1000,seed=1"));
        assert_eq!(spec.generate().unwrap(), spec.generate().unwrap());
        spec.generate().unwrap().fingerprint()
    });
    let expected = [
        7_483_927_370_869_215_492,
        13_927_359_013_866_719_675,
        13_101_644_559_570_747_083,
        5_102_268_761_686_053_281,
        17_006_240_860_016_105_522,
    ];
    assert_eq!(fingerprints, expected);
    let replay = Replay { load: 1.5, jitter: Some(SECOND), seed: 1, ..Replay::default() };
    assert_eq!(replay.apply(&metronome(1_000)).unwrap().fingerprint(), 925_368_774_106_760_755);
}

#[test]
fn seeds_make_a_difference_where_it_is_said() {
    let source = |text: &str| WorkloadSource::Synthetic(spec(text));
    let replay = |replay: Replay| WorkloadSource::Replay { trace: metronome(50), replay };
    for source in [
        source("chat:rate=1,n=50"),
        source("mix:rate=inf,n=50"),
        source("uniform:rate=1,n=50,in=5,out=5"),
        source("uniform:rate=inf,n=50,in=50,out=5,spread=0.5"),
        source("uniform:rate=inf,n=50,in=5,out=5"),
        source("uniform:rate=1,n=50,in=5,out=5,cv=0,spread=0.01"),
        replay(Replay::default()),
        replay(Replay { load: 2.0, ..Replay::default() }),
        replay(Replay { load: 0.5, ..Replay::default() }),
        replay(Replay { load: 2.5, scaling: Scaling::Stretch, ..Replay::default() }),
        replay(Replay { jitter: Some(SECOND), ..Replay::default() }),
        replay(Replay { jitter: Some(Micros(1)), ..Replay::default() }),
    ] {
        let load = if let WorkloadSource::Replay { replay, .. } = &source { replay.load } else { 1.0 };
        let draw = |seed| source.draw(&Draw { window: None, load, seed });
        let differs = draw(1).unwrap() != draw(2).unwrap();
        assert_eq!(source.depends_on_seed(load), differs, "{source:?}");
        assert_eq!(draw(1), draw(1));
    }
}

#[test]
fn specs_as_text() {
    let chat = SyntheticSpec {
        profile: TrafficProfile::Chat,
        rate_rps: 5.0,
        extent: Extent::Duration(SECOND.times(600)),
        cv: None,
        lengths: LengthScale::ONE,
        seed: 0,
    };
    assert_eq!(spec("chat:rate=5,duration=600"), chat);
    assert_eq!(spec("synthetic:chat: duration=10m , rate=5"), chat);
    assert_eq!(chat.to_string(), "chat:rate=5,duration=600s,seed=0");

    let known = "known are rate, duration, n, cv, lengths, seed";
    for (text, said) in [
        ("", "unknown profile ``: known are chat, code, reasoning, mix, agentic, day, uniform, lognormal"),
        (
            "chatt:rate=5,n=1",
            "unknown profile `chatt`: known are chat, code, reasoning, mix, agentic, day, uniform, lognormal",
        ),
        ("chat", "has no end: give duration=SECONDS or n=REQUESTS"),
        ("chat:duration=9", "rate is missing: give rate=REQUESTS_PER_SECOND"),
        ("chat:rate=5", "has no end: give duration=SECONDS or n=REQUESTS"),
        ("chat:rate=5,n=3,duration=4", "has two ends: give duration or n, not both"),
        ("chat:rate=x,n=3", "rate `x` is not a number of requests per second, or inf"),
        ("chat:rate=5,n=-3", "n `-3` is not a number of requests"),
        ("chat:rate=5,n=0", "is empty"),
        ("chat:rate=5,rate=5,n=3", "rate is given twice"),
        ("chat:rate=5,n=3,speed", "`speed` is not key=value"),
        ("chat:rate=5,n=3,sped=1", &format!("unknown setting `sped`: {known}")),
        ("chat:rate=5,n=3,in=1", &format!("unknown setting `in`: {known}")),
        ("uniform:rate=5,n=3,out=4", "in is missing: give in=a number of tokens"),
        (
            "uniform:rate=5,n=3,in=1,out=4,i=1",
            "unknown setting `i`: known are in, out, spread, rate, duration, n, cv, lengths, seed",
        ),
        ("chat:rate=0,n=3", "rate must be from 0.0001 to 100000 requests per second, or inf"),
        ("chat:rate=-inf,n=3", "rate must be from 0.0001 to 100000 requests per second, or inf"),
        ("chat:rate=nan,n=3", "rate must be from 0.0001 to 100000 requests per second, or inf"),
        ("chat:rate=inf,duration=3", "an infinite rate needs n, not duration"),
        ("chat:rate=5,n=3,cv=21", "cv must be from 0 to 20"),
        ("chat:rate=5,n=3,cv=nan", "cv must be from 0 to 20"),
        ("chat:rate=0.0001,n=100000", "lasts more than ten years"),
        ("uniform:rate=5,n=3,in=1,out=4,spread=2", "spread must be from 0 to 1"),
        ("lognormal:n=3,in=1,out=4", "in_p95 is missing: give in_p95=a number of tokens"),
        (
            "lognormal:n=3,in=10,in_p95=20,out=10,out_p95=39",
            "out_p95 must be above out, the mean, and at most 3.868 times it",
        ),
        (
            "lognormal:n=3,in=10,in_p95=10,out=1,out_p95=2",
            "in_p95 must be above in, the mean, and at most 3.868 times it",
        ),
        ("lognormal:n=3,in=0,in_p95=10,out=1,out_p95=2", "in must be from 1 to 8388608 tokens"),
        ("uniform:rate=5,n=3,in=0,out=4", "in must be from 1 to 8388608 tokens"),
        ("uniform:rate=5,n=3,in=1,out=1000000", "out must be from 1 to 524288 tokens"),
    ] {
        assert_eq!(text.parse::<SyntheticSpec>().unwrap_err().to_string(), format!("`{text}`: {said}"));
    }
    let said = |text: &str| text.parse::<SyntheticSpec>().unwrap_err().to_string();
    assert_eq!(said("chat:rate=5,n=99999999"), "about 99999999 requests: more than 10000000");
    assert_eq!(
        said("chat:rate=5,duration=9x"),
        "`9x`: is not a duration: expected 3s, 250ms, 10m, 1.5h or plain seconds"
    );
}
