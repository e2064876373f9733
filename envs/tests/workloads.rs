//! Replay and synthetic workloads: what is conserved, what is drawn, what is refused.

use std::collections::{BTreeMap, BTreeSet};

use kvtide_envs::percentile::percentile;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{
    Extent, Profile, Replay, Scaling, SyntheticSpec, Window, Workload, WorkloadError, WorkloadSource, windows,
};
use proptest::prelude::*;

const SECOND: Micros = Micros(1_000_000);

/// A request a second, its number as its prompt.
fn metronome(count: u64) -> Workload {
    let requests = (0..count).map(|index| Request::new(SECOND.times(index), index as u32 + 1, 10)).collect();
    Workload::new("metronome", requests, SECOND.times(count)).unwrap()
}

fn prompts(workload: &Workload) -> Vec<u32> {
    workload.requests().iter().map(|request| request.prompt_tokens).collect()
}

fn arrivals_s(workload: &Workload) -> Vec<f64> {
    workload.requests().iter().map(|request| request.arrival.as_secs_f64()).collect()
}

fn seconds(start: u64, end: u64) -> Window {
    Window { start: SECOND.times(start), end: SECOND.times(end) }
}

#[test]
fn a_replay_without_changes_shares_the_trace() {
    let trace = metronome(5);
    let replayed = Replay::default().apply(&trace).unwrap();
    assert_eq!(replayed, trace);
    assert!(std::ptr::eq(replayed.requests(), trace.requests()), "no copy is made");
    assert!(!Replay::default().depends_on_seed());
}

#[test]
fn a_window_starts_its_own_clock() {
    let part = Replay { window: Some(seconds(2, 5)), ..Replay::default() }.apply(&metronome(10)).unwrap();
    assert_eq!((prompts(&part), arrivals_s(&part)), (vec![3, 4, 5], vec![0.0, 1.0, 2.0]));
    assert_eq!(part.span(), SECOND.times(3));
    // Half way between two arrivals, the clock starts there too.
    let window = Window { start: Micros(2_500_000), end: Micros(4_000_001) };
    let part = metronome(10).window(window).unwrap();
    assert_eq!((prompts(&part), arrivals_s(&part)), (vec![4, 5], vec![0.5, 1.5]));
}

#[test]
fn a_window_may_reach_a_second_beyond_the_end() {
    let trace = metronome(10);
    assert_eq!(prompts(&trace.window(seconds(8, 11)).unwrap()), [9, 10]);
    let said = trace.window(seconds(8, 12)).unwrap_err().to_string();
    assert_eq!(said, "window 8s..12s: reaches beyond the trace, which ends at 10.000000s");
}

#[test]
fn stretch_divides_arrival_times() {
    let fast = Replay { load: 4.0, scaling: Scaling::Stretch, ..Replay::default() };
    let replayed = fast.apply(&metronome(4)).unwrap();
    assert_eq!((prompts(&replayed), arrivals_s(&replayed)), (vec![1, 2, 3, 4], vec![0.0, 0.25, 0.5, 0.75]));
    assert_eq!(replayed.span(), SECOND);
    assert!(!fast.depends_on_seed());
}

#[test]
fn thin_keeps_the_times_of_what_it_keeps() {
    let replay = Replay { load: 0.5, seed: 3, ..Replay::default() };
    let replayed = replay.apply(&metronome(1_000)).unwrap();
    for request in replayed.requests() {
        assert_eq!(request.arrival, SECOND.times(u64::from(request.prompt_tokens) - 1));
    }
    assert!((400..600).contains(&replayed.requests().len()));
    assert!(replay.depends_on_seed());
}

#[test]
fn whole_copies_are_rotated_and_share_nothing() {
    let mut requests = metronome(100).requests().to_vec();
    for request in &mut requests {
        (request.hash_ids, request.hash_block_tokens) = (vec![0, u64::from(request.prompt_tokens)].into(), 1);
        request.session = Some("s".into());
    }
    let trace = Workload::new("t", requests, Micros::ZERO).unwrap();
    let tripled = Replay { load: 3.0, seed: 1, ..Replay::default() }.apply(&trace).unwrap();
    assert_eq!(tripled.requests().len(), 300);

    let of = |session: &str| -> Vec<&Request> {
        tripled.requests().iter().filter(|request| request.session.as_deref() == Some(session)).collect()
    };
    assert_eq!(of("s"), trace.requests().iter().collect::<Vec<_>>(), "the first copy is as recorded");
    let span_us = trace.span().0;
    let mut offsets = Vec::new();
    for session in ["s#1", "s#2"] {
        let copy = of(session);
        let offset = |request: &Request| {
            let recorded_us = (u64::from(request.prompt_tokens) - 1) * 1_000_000;
            (request.arrival.0 + span_us - recorded_us) % span_us
        };
        assert!(copy.iter().all(|request| offset(request) == offset(copy[0])), "one offset a copy");
        assert!(copy.iter().all(|request| request.cache_salt == copy[0].cache_salt), "the common block stays common");
        offsets.push(offset(copy[0]));
    }
    assert_ne!(offsets[0], offsets[1]);

    let salts = ["s", "s#1", "s#2"].map(|session| of(session)[0].cache_salt.as_deref());
    assert_eq!(salts, [None, Some("#1"), Some("#2")]);
    assert_eq!(blocks(&tripled).1, 3 * 101, "as many different blocks in each copy, none in two");
}

/// Prefix blocks, and how many of them differ: in hash, or in salt.
fn blocks(workload: &Workload) -> (usize, usize) {
    let of = |request: &Request| request.hash_ids.iter().map(|hash| (request.cache_salt.clone(), *hash)).collect();
    let all: Vec<(Option<String>, u64)> =
        workload.requests().iter().flat_map(|request| -> Vec<_> { of(request) }).collect();
    (all.len(), all.iter().collect::<BTreeSet<_>>().len())
}

#[test]
fn load_leaves_the_share_of_reused_blocks_as_it_is() {
    // Conversations of ten turns, each a block longer, behind a system prompt of two blocks; two tenants with salts.
    let requests = (0..300_u64).map(|index| {
        let (conversation, turn) = (index / 10, index % 10);
        let own = (0..turn).map(|block| 1_000 + conversation * 100 + block);
        Request {
            hash_ids: [1, 2].into_iter().chain(own).collect(),
            hash_block_tokens: 1,
            cache_salt: (conversation % 3 > 0).then(|| format!("t{}", conversation % 3)),
            session: Some(format!("s{conversation}")),
            ..Request::new(SECOND.times(index), 20, 1)
        }
    });
    let trace = Workload::new("t", requests.collect(), Micros::ZERO).unwrap();
    let (all, distinct) = blocks(&trace);
    for copies in [2, 3, 7] {
        let loaded = Replay { load: copies as f64, seed: 4, ..Replay::default() }.apply(&trace).unwrap();
        assert_eq!(blocks(&loaded), (copies * all, copies * distinct), "at load {copies}");
    }
}

#[test]
fn sessions_are_kept_or_dropped_whole() {
    let requests = (0..600_u64).map(|index| {
        let session = Some(format!("s{}", index % 60));
        Request { session, ..Request::new(SECOND.times(index), 1, 1) }
    });
    let trace = Workload::new("t", requests.collect(), Micros::ZERO).unwrap();
    let thinned = Replay { load: 0.4, seed: 5, ..Replay::default() }.apply(&trace).unwrap();
    let mut counts = BTreeMap::new();
    for request in thinned.requests() {
        *counts.entry(request.session.clone()).or_insert(0) += 1;
    }
    assert!(counts.values().all(|count| *count == 10), "{counts:?}");
    assert!((12..36).contains(&counts.len()), "{}", counts.len());
}

#[test]
fn jitter_is_on_the_recorded_clock_and_keeps_within_its_bound() {
    let requests = (0..300).map(|index| Request::new(SECOND.times(index / 10 * 3), index as u32 + 1, 1)).collect();
    let trace = Workload::new("batches", requests, Micros::ZERO).unwrap();
    let replay =
        Replay { jitter: Some(SECOND.times(3)), load: 2.0, scaling: Scaling::Stretch, seed: 9, ..Replay::default() };
    let replayed = replay.apply(&trace).unwrap();
    let moved = |request: &Request| {
        let recorded_us = (u64::from(request.prompt_tokens) - 1) / 10 * 3_000_000;
        (request.arrival.0 * 2) as i64 - recorded_us as i64
    };
    assert!(replayed.requests().iter().all(|request| (-1..3_000_002).contains(&moved(request))));
    let mean_us = replayed.requests().iter().map(moved).sum::<i64>() / 300;
    assert!((1_300_000..1_700_000).contains(&mean_us), "{mean_us}");
    assert!(replay.depends_on_seed());
    assert!(!Replay { jitter: Some(Micros(1)), ..Replay::default() }.depends_on_seed());
}

#[test]
fn what_is_said_of_a_replay_that_cannot_be() {
    let said = |replay: Replay| replay.apply(&metronome(10)).unwrap_err().to_string();
    let at = |load: f64| said(Replay { load, ..Replay::default() });
    assert_eq!(at(0.0), "load 0: must be above 0 and at most 1000");
    assert_eq!(at(-1.5), "load -1.5: must be above 0 and at most 1000");
    assert_eq!(at(f64::NAN), "load NaN: must be above 0 and at most 1000");
    assert_eq!(at(f64::INFINITY), "load inf: must be above 0 and at most 1000");
    assert_eq!(at(1e-9), "load 0.000000001: none of 10 requests is left (seed 0)");
    let within = |window| said(Replay { window: Some(window), ..Replay::default() });
    assert_eq!(within(seconds(5, 5)), "window 5s..5s: is empty, its end must be after its start");
    assert_eq!(within(seconds(50, 60)), "window 50s..60s: reaches beyond the trace, which ends at 10.000000s");
    let idle = Window { start: Micros(100), end: Micros(200) };
    assert_eq!(within(idle), "window 100us..200us: no request arrives in it");
    let large = Workload::new("t", vec![Request::new(SECOND, 1, 1); 20_000], Micros::ZERO).unwrap();
    let said = Replay { load: 1_000.0, ..Replay::default() }.apply(&large).unwrap_err().to_string();
    assert_eq!(said, "about 20000000 requests: more than 10000000");
}

#[test]
fn what_is_said_of_requests_that_are_no_workload() {
    let said = |requests| Workload::new("w", requests, Micros::ZERO).unwrap_err().to_string();
    assert_eq!(said(vec![]), "workload w: no requests");
    let (early, late) = (Request::new(Micros(1), 1, 1), Request::new(Micros(2), 1, 1));
    assert_eq!(said(vec![late, early.clone()]), "workload w: requests are not in arrival order");
    let empty = Request { output_tokens: 0, ..early.clone() };
    assert_eq!(said(vec![early, empty]), "workload w: request 1 has a prompt or an output of 0 tokens");
}

#[test]
fn windows_as_text() {
    assert_eq!("600s..20m".parse(), Ok(seconds(600, 1_200)));
    assert_eq!("0..1.5".parse::<Window>().unwrap().to_string(), "0s..1500ms");
    let said = |text: &str| text.parse::<Window>().unwrap_err().to_string();
    assert_eq!(said("600"), "`600`: is not a window: expected 600s..1200s");
    assert_eq!(said("5..x"), "`x`: is not a duration: expected 3s, 250ms, 10m, 1.5h or plain seconds");
    assert_eq!(said("9..3"), "window 9s..3s: is empty, its end must be after its start");
}

#[test]
fn settings_are_text_in_files() {
    let replay = Replay { window: Some(seconds(60, 90)), jitter: Some(SECOND.times(3)), ..Replay::default() };
    let json = r#"{"load":1.0,"scaling":"thin","window":"60s..90s","jitter":"3s","seed":0}"#;
    assert_eq!(serde_json::to_string(&replay).unwrap(), json);
    assert_eq!(serde_json::from_str::<Replay>(json).unwrap(), replay);
    assert_eq!(serde_json::from_str::<Replay>("{}").unwrap(), Replay::default());
    assert_eq!(replay.to_string(), "load 1 (thin), window 60s..90s, jitter 3s, seed 0");
    let said = serde_json::from_str::<Replay>(r#"{"window":"9..3"}"#).unwrap_err().to_string();
    assert!(said.starts_with("window 9s..3s: is empty, its end must be after its start"), "{said}");
    let spec = serde_json::from_str::<SyntheticSpec>(r#""chat:rate=5,n=3""#).unwrap();
    assert_eq!(serde_json::to_string(&spec).unwrap(), r#""chat:rate=5,n=3,seed=0""#);
}

#[test]
fn splits_for_fitting_and_judging() {
    let span = SECOND.times(100);
    assert_eq!(windows::fit_test(span, 0.7).unwrap(), (seconds(0, 70), seconds(70, 100)));
    let (fit, validation, test) = windows::fit_validation_test(span, 0.5, 0.25).unwrap();
    assert_eq!([fit, validation, test].map(|window| window.length().0 / 1_000_000), [50, 25, 25]);
    for fractions in [&[0.0][..], &[1.0], &[0.7, 0.7], &[0.7, 0.3], &[f64::NAN], &[-0.1]] {
        let said = windows::split(span, fractions).unwrap_err().to_string();
        assert_eq!(said, format!("split: {fractions:?}: fractions must rise between 0 and 1"));
    }
    let said = windows::equal(span, 0).unwrap_err().to_string();
    assert_eq!(said, "split: 0 windows of 100.000000s: must be from 1 to 10000");
}

prop_compose! {
    fn any_workload()(gaps in proptest::collection::vec(0_u64..10_000_000, 1..200), sessions in 0_u64..5) -> Workload {
        let mut now = Micros::ZERO;
        let requests = gaps.iter().enumerate().map(|(index, gap)| {
            now += Micros(if index == 0 { 0 } else { *gap });
            let session = (gap % 5 < sessions).then(|| format!("s{}", gap % 7));
            Request { session, ..Request::new(now, index as u32 + 1, 1) }
        }).collect();
        Workload::new("any", requests, Micros::ZERO).unwrap()
    }
}

proptest! {
    #[test]
    fn stretch_keeps_count_and_order(trace in any_workload(), load in 0.01_f64..50.0) {
        let replayed = Replay { load, scaling: Scaling::Stretch, ..Replay::default() }.apply(&trace).unwrap();
        prop_assert_eq!(prompts(&replayed), prompts(&trace));
        prop_assert!(replayed.requests().iter().all(|request| request.arrival < replayed.span()));
    }

    #[test]
    fn equal_windows_partition_the_trace(trace in any_workload(), count in 1_u32..20) {
        prop_assume!(u64::from(count) <= trace.span().0);
        let parts = windows::equal(trace.span(), count).unwrap();
        prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (Micros::ZERO, trace.span()));
        let mut found = Vec::new();
        for part in parts {
            match trace.window(part) {
                Ok(workload) => found.extend(prompts(&workload)),
                Err(error) => prop_assert_eq!(error, WorkloadError::IdleWindow(part)),
            }
        }
        prop_assert_eq!(found, prompts(&trace));
    }

    #[test]
    fn every_load_has_the_requests_of_a_lower_one(trace in any_workload(), low in 0.3_f64..3.0, more in 0.0_f64..2.0, seed: u64) {
        let key = |request: &Request| (request.arrival, request.prompt_tokens, request.session.clone());
        let at = |load: f64| Replay { load, seed, ..Replay::default() }.apply(&trace);
        if let Ok(lower) = at(low) {
            let higher: Vec<_> = at(low + more).unwrap().requests().iter().map(key).collect();
            prop_assert!(lower.requests().iter().all(|request| higher.contains(&key(request))));
        }
    }

    #[test]
    fn superposition_keeps_every_request_of_every_copy(trace in any_workload(), copies in 1_u32..5, jitter in 0_u64..5_000_000, seed: u64) {
        let replay = Replay { load: f64::from(copies), jitter: Some(Micros(jitter)), seed, ..Replay::default() };
        let replayed = replay.apply(&trace).unwrap();
        let (mut found, mut expected) = (prompts(&replayed), prompts(&trace).repeat(copies as usize));
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
        prop_assert!(replayed.requests().is_sorted_by_key(|request| request.arrival));
        prop_assert_eq!(replay.apply(&trace).unwrap(), replayed);
    }

    #[test]
    fn thinning_keeps_its_share(load in 0.05_f64..0.95, seed: u64) {
        let kept = Replay { load, seed, ..Replay::default() }.apply(&metronome(4_000)).unwrap().requests().len() as f64;
        // Six standard deviations of the binomial: one failure in half a billion.
        let bound = 6.0 * (4_000.0 * load * (1.0 - load)).sqrt();
        prop_assert!((kept - 4_000.0 * load).abs() <= bound, "{} of 4000 at load {}", kept, load);
    }

    #[test]
    fn a_spec_is_written_as_it_is_read(
        kind in 0_usize..6, rate_rps in prop_oneof![0.001_f64..50.0, Just(f64::INFINITY)], count in 1_u64..1_000, by_count: bool,
        cv in proptest::option::of(0.0_f64..20.0), spread in 0.0_f64..1.0, seed: u64,
    ) {
        let uniform = Profile::Uniform { prompt_mean: count as u32, output_mean: 7, spread };
        let profile = [Profile::Chat, Profile::Code, Profile::Reasoning, Profile::Mix, Profile::Agentic, uniform][kind];
        let extent = if by_count || rate_rps.is_infinite() { Extent::Requests(count) } else { Extent::Duration(Micros(count * 977)) };
        let spec = SyntheticSpec { profile, rate_rps, extent, cv, seed };
        prop_assert_eq!(spec.to_string().parse(), Ok(spec));
    }
}

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
    let said = windows::fit_test(workload.span(), 0.7).unwrap_err().to_string();
    assert_eq!(said, "split: [0.7]: a workload of 0.000001s cannot be cut by time");
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
        let differs = source.draw(1).unwrap() != source.draw(2).unwrap();
        assert_eq!(source.depends_on_seed(), differs, "{source:?}");
        assert_eq!(source.draw(1), source.draw(1));
    }
}

#[test]
fn specs_as_text() {
    let chat = SyntheticSpec {
        profile: Profile::Chat,
        rate_rps: 5.0,
        extent: Extent::Duration(SECOND.times(600)),
        cv: None,
        seed: 0,
    };
    assert_eq!(spec("chat:rate=5,duration=600"), chat);
    assert_eq!(spec("synthetic:chat: duration=10m , rate=5"), chat);
    assert_eq!(chat.to_string(), "chat:rate=5,duration=600s,seed=0");

    let known = "known are rate, duration, n, cv, seed";
    for (text, said) in [
        ("", "unknown profile ``: known are chat, code, reasoning, mix, agentic, uniform"),
        ("chatt:rate=5,n=1", "unknown profile `chatt`: known are chat, code, reasoning, mix, agentic, uniform"),
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
            "unknown setting `i`: known are in, out, spread, rate, duration, n, cv, seed",
        ),
        ("chat:rate=0,n=3", "rate must be from 0.0001 to 100000 requests per second, or inf"),
        ("chat:rate=-inf,n=3", "rate must be from 0.0001 to 100000 requests per second, or inf"),
        ("chat:rate=nan,n=3", "rate must be from 0.0001 to 100000 requests per second, or inf"),
        ("chat:rate=inf,duration=3", "an infinite rate needs n, not duration"),
        ("chat:rate=5,n=3,cv=21", "cv must be from 0 to 20"),
        ("chat:rate=5,n=3,cv=nan", "cv must be from 0 to 20"),
        ("chat:rate=0.0001,n=100000", "lasts more than ten years"),
        ("uniform:rate=5,n=3,in=1,out=4,spread=2", "spread must be from 0 to 1"),
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
