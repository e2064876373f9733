//! Replay: what is conserved, what is drawn, what is refused.

use std::collections::BTreeMap;

use crate::common::traffic::{SECOND, arrivals_s, blocks, metronome, prompts, seconds};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{
    Extent, LengthScale, LogNormal, Replay, Scaling, Split, SyntheticSpec, TrafficProfile, Window, Workload,
    WorkloadError, to_whole_second, windows,
};
use proptest::prelude::*;

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
    let Split { fit, train, validation, test } = Split::of(span, 0.7, 0.0).unwrap();
    assert_eq!((fit, train, validation, test), (seconds(0, 70), seconds(0, 70), seconds(70, 70), seconds(70, 100)));
    let Split { fit, train, validation, test } = Split::of(span, 0.8, 0.25).unwrap();
    assert_eq!((fit, train, validation, test), (seconds(0, 80), seconds(0, 60), seconds(60, 80), seconds(80, 100)));
    // To the whole second where that leaves any, and people are told whole ones.
    assert_eq!(Split::of(Micros(9_400_000), 0.5, 0.0).unwrap().fit, seconds(0, 4));
    assert_eq!(Split::of(Micros(900_000), 0.5, 0.0).unwrap().fit.end, Micros(450_000));
    assert_eq!(
        [9_400_000, 9_000_000].map(|moment| to_whole_second(Micros(moment))),
        [SECOND.times(10), SECOND.times(9)]
    );
    for fit in [0.0, 1.5, -0.1, f64::NAN] {
        let said = Split::of(span, fit, 0.0).unwrap_err().to_string();
        assert_eq!(said, format!("split: fit {fit}: must be above 0, at most 1"));
    }
    for validation in [1.0, -0.1, f64::NAN] {
        let said = Split::of(span, 0.7, validation).unwrap_err().to_string();
        assert_eq!(said, format!("split: validation {validation}: must be at least 0, below 1"));
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
        kind in 0_usize..7, rate_rps in prop_oneof![0.001_f64..50.0, Just(f64::INFINITY)], count in 1_u64..1_000, by_count: bool,
        cv in proptest::option::of(0.0_f64..20.0), spread in 0.0_f64..1.0, factor in 0.01_f64..100.0, seed: u64,
    ) {
        let uniform = TrafficProfile::Uniform { prompt_mean: count as u32, output_mean: 7, spread };
        let tail = |mean| LogNormal { mean, p95: mean * 3 };
        let heavy = TrafficProfile::LogNormal { prompt: tail(count as u32), output: tail(9) };
        let profile =
            [TrafficProfile::Chat, TrafficProfile::Code, TrafficProfile::Reasoning, TrafficProfile::Mix, TrafficProfile::Agentic, uniform, heavy][kind];
        let lengths = LengthScale { prompt: factor, output: if by_count { factor } else { 1.0 } };
        let extent = if by_count || rate_rps.is_infinite() { Extent::Requests(count) } else { Extent::Duration(Micros(count * 977)) };
        let spec = SyntheticSpec { profile, rate_rps, extent, cv, lengths, seed };
        prop_assert_eq!(spec.to_string().parse(), Ok(spec));
    }
}
