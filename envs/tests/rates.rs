//! Rates and lengths over time: what is drawn from them, and what is refused.

use std::fs;

use kvtide_envs::env::{EpisodeSource, ResetOptions};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::rates::{LOST, RateProfileStats};
use kvtide_envs::trace::{RateProfile, SessionArrivals, Trace, TraceReader};
use kvtide_envs::workload::{Replay, Scaling, Window, WorkloadSource};

fn header() -> String {
    format!(
        r#"{{"kvtide_profile":1,"engine":"vllm","models":["llama"],"engines":1,"counts":"arrivals","lengths":"histograms","every_s":10.0,"began_unix_s":1700000000,"lost":"{LOST}"}}"#
    )
}

fn row(start_s: f64, seconds: f64, requests: u64, completed: u64, prompt: u64) -> String {
    let prompt_tokens = completed * prompt;
    let most = prompt + 10;
    format!(
        r#"{{"start_s":{start_s},"seconds":{seconds},"requests":{requests},"completed":{completed},"prompt":{{"tokens":{prompt_tokens},"buckets":[[{low},0],[{most},{completed}]]}},"output":{{"tokens":{tokens},"buckets":[[50,{completed}]]}}}}"#,
        low = prompt - 10,
        tokens = completed * 30,
    )
}

/// Ten minutes of four requests a second, then ten minutes of one, longer ones.
fn two_paces() -> Vec<String> {
    let first = (0..60).map(|index| row(f64::from(index) * 10.0, 10.0, 40, 40, 100));
    let second = (60..120).map(|index| row(f64::from(index) * 10.0, 10.0, 10, 10, 1_000));
    std::iter::once(header()).chain(first).chain(second).collect()
}

fn read(lines: &[String]) -> Result<RateProfile, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prod.profile.jsonl");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    match Trace::open(&path, SessionArrivals::default()) {
        Ok(Trace::Profile(profile)) => {
            let said = TraceReader::open(&path).err().unwrap().to_string();
            assert!(said.contains("holds rates and lengths over time, not requests"), "{said}");
            Ok(profile)
        }
        Ok(_) => Err("another form".to_owned()),
        Err(error) => Err(error.to_string().replace(&path.display().to_string(), "t")),
    }
}

fn seconds(start_s: u64, end_s: u64) -> Window {
    Window { start: Micros(start_s * 1_000_000), end: Micros(end_s * 1_000_000) }
}

#[test]
fn as_many_requests_come_as_were_counted_and_of_the_lengths_of_their_time() {
    let profile = read(&two_paces()).unwrap();
    assert_eq!((profile.name().as_str(), profile.span()), ("prod", Micros(1_200 * 1_000_000)));
    let workload = profile.draw(&Replay { seed: 1, ..Replay::default() }).unwrap();
    let (first, second) =
        (profile.draw(&at(seconds(0, 600))).unwrap(), profile.draw(&at(seconds(600, 1_200))).unwrap());
    assert_eq!((workload.requests().len(), first.requests().len(), second.requests().len()), (3_000, 2_400, 600));
    // In every ten seconds, too; and they are no metronome.
    let third = profile.draw(&at(seconds(20, 30))).unwrap();
    assert_eq!(third.requests().len(), 40);
    assert!(third.requests().windows(2).any(|pair| (pair[1].arrival - pair[0].arrival).0 > 500_000));
    let prompt = |requests: &[kvtide_envs::trace::Request]| {
        requests.iter().map(|request| f64::from(request.prompt_tokens)).sum::<f64>() / requests.len() as f64
    };
    assert!((prompt(first.requests()) - 100.0).abs() < 1.0 && (prompt(second.requests()) - 1_000.0).abs() < 1.0);
    let output: u32 = workload.requests().iter().map(|request| request.output_tokens).sum();
    assert!((f64::from(output) / 3_000.0 - 30.0).abs() < 1.0, "{output}");
    assert!(profile.draw(&Replay { seed: 1, ..Replay::default() }) == Ok(workload.clone()));
    assert!(profile.draw(&Replay { seed: 2, ..Replay::default() }) != Ok(workload));
    assert!((profile.mean_output(seconds(5, 1_000)) - 30.0).abs() < 1e-9);
}

fn at(window: Window) -> Replay {
    Replay { window: Some(window), seed: 1, ..Replay::default() }
}

#[test]
fn a_window_is_a_part_of_any_longer_one_and_a_load_of_any_higher() {
    let profile = read(&two_paces()).unwrap();
    let all = profile.draw(&Replay { seed: 1, ..Replay::default() }).unwrap();
    let part = profile.draw(&at(seconds(15, 615))).unwrap();
    let cut: Vec<_> = all.window(seconds(15, 615)).unwrap().requests().to_vec();
    assert!(part.requests() == cut);
    let mut before = 0;
    for load in [0.05, 0.35, 1.0, 1.6] {
        let drawn = profile.draw(&Replay { load, seed: 1, ..Replay::default() }).unwrap();
        let next = profile.draw(&Replay { load: load * 1.3, seed: 1, ..Replay::default() }).unwrap();
        assert!(drawn.requests().iter().all(|request| next.requests().contains(request)), "{load}");
        let (count, expected) = (drawn.requests().len() as f64, 3_000.0 * load);
        assert!((count / expected - 1.0).abs() < 0.25 && drawn.requests().len() > before, "{count} of {expected}");
        before = drawn.requests().len();
    }
}

#[test]
fn a_profile_is_traffic_like_any_other() {
    let profile = read(&two_paces()).unwrap();
    for (replay, said) in [
        (Replay { load: f64::NAN, ..Replay::default() }, "load NaN: must be above 0 and at most 1000"),
        (Replay { scaling: Scaling::Stretch, ..Replay::default() }, "prod: arrivals are drawn, not recorded"),
        (Replay { jitter: Some(Micros(5)), ..Replay::default() }, "prod: arrivals are drawn, not recorded"),
        (at(seconds(0, 1_300)), "window 0s..1300s: reaches beyond the trace, which ends at 1200.000000s"),
    ] {
        let found = profile.draw(&replay).unwrap_err().to_string();
        assert!(found.starts_with(said), "{found}");
    }
    let busy = read(&[header(), row(0.0, 10.0, 900_000, 5, 100)]).unwrap();
    let said = busy.draw(&Replay { load: 20.0, ..Replay::default() }).unwrap_err().to_string();
    assert!(said.starts_with("window 0s..10s: about 18000000 requests, more than 10000000"), "{said}");
    let even = profile.draw(&Replay { cv: Some(0.0), ..at(seconds(0, 600)) }).unwrap();
    assert_eq!(even.requests().len(), 2_400);
    let source = WorkloadSource::Rates { profile: profile.into(), replay: Replay::default() };
    assert!(source.depends_on_seed(1.0) && !source.is_generated());
    let episodes = EpisodeSource { source, range: seconds(0, 1_200), length: Micros(60_000_000), load: (0.5, 1.5) };
    episodes.validate(false).unwrap();
    assert_eq!(episodes.mean_output(), Ok(30.0));
    let drawn = episodes.draw(3, &ResetOptions::default(), false).unwrap();
    assert!(!drawn.requests.is_empty() && drawn.requests.iter().all(|request| request.arrival.0 < 60_000_000));
}

#[test]
fn what_stats_say_is_what_was_recorded() {
    let mut lines = two_paces();
    // A recording that was resumed after a minute, past a restart.
    lines.push(row(1_260.0, 20.0, 5, 5, 1_000).replace("\"start_s\"", "\"missed\":1,\"resets\":2,\"start_s\""));
    let profile = read(&lines).unwrap();
    assert_eq!((profile.span(), profile.uncovered_s()), (Micros(1_220 * 1_000_000), 60.0));
    let stats = RateProfileStats::of(&profile);
    assert_eq!((stats.requests, stats.completed, stats.windows), (3_005, 3_005, 121));
    assert_eq!((stats.rate_rps.min, stats.rate_rps.max), (0.25, 4.0));
    let mean = (2_400.0 * 100.0 + 605.0 * 1_000.0) / 3_005.0;
    assert!((stats.prompt_tokens.mean - mean).abs() < 1e-9, "{}", stats.prompt_tokens.mean);
    let text = stats.to_string();
    for said in [
        "format         kvtide rate profile, plain",
        "requests       3005 arrived, 3005 ended",
        LOST,
        "warning: looks at the counters failed: 1",
        "warning: counters began again: 2",
        "warning: 60 s are not covered and left out",
    ] {
        assert!(text.contains(said), "{said} is not in\n{text}");
    }
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let (header, good) = (header(), row(0.0, 10.0, 3, 3, 100));
    let refused = |lines: &[&str]| read(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()).unwrap_err();
    for (line, said) in [
        (good.replace("\"start_s\":0", "\"start_s\":-1"), "t:3: start_s `-1` is not a time from 0 to ten years"),
        (good.replace("\"start_s\":0", "\"start_s\":1e300"), "is not a time from 0 to ten years"),
        (good.replace("\"start_s\":0", "\"start_s\":NaN"), "t:3: expected"),
        (good.replace("\"seconds\":10", "\"seconds\":0"), "t:3: seconds `0` is not a time from a millisecond on"),
        (good.replace("\"requests\":3", "\"requests\":-3"), "t:3: invalid value: integer `-3`"),
        (
            good.replace("\"requests\":3", "\"requests\":99000000"),
            "t:3: requests `99000000` is above the limit of 1000001",
        ),
        (good.replace("[90,0]", "[110,0]"), "t:3: prompt: the buckets' bounds must rise from 1 on"),
        (good.replace("[90,0]", "[0,0]"), "t:3: prompt: the buckets' bounds must rise from 1 on"),
        (good.clone(), "t:3: starts at 0 s, before the end of the row above (10 s)"),
        (good[..40].to_owned(), "t:3: cut off: `"),
        (good.replace("start_s", "started"), "t:3: unknown field `started`"),
    ] {
        let found = refused(&[&header, &good, &line]);
        assert!(found.contains(said), "{found}\nand not\n{said}");
    }
    assert_eq!(refused(&[&header]), "t: no requests");
    assert_eq!(refused(&[&header, &row(0.0, 10.0, 0, 0, 100)]), "t: no requests");
    assert_eq!(refused(&[&header, &row(0.0, 10.0, 5, 0, 100)]), "t: no request ended: lengths are not known");
    let newer = header.replace("\"kvtide_profile\":1", "\"kvtide_profile\":2");
    assert_eq!(refused(&[&newer, &good]), "t:1: a profile of version 2: this kvtide reads 1");
    let found = refused(&[&header.replace("arrivals", "hopes"), &good]);
    assert!(found.contains("unknown variant `hopes`"), "{found}");
}
