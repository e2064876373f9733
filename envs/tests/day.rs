//! Days: rates that add up to what is asked for, shares, moves, and that they never change.

use std::collections::BTreeMap;

use kvtide_envs::env::{EpisodeSource, ResetOptions};
use kvtide_envs::time::Micros;
use kvtide_envs::workload::day::hourly;
use kvtide_envs::workload::{Draw, SyntheticSpec, Window, Workload, WorkloadSource};

fn spec(text: &str) -> SyntheticSpec {
    text.parse().unwrap()
}

fn day(text: &str, seed: u64) -> Workload {
    SyntheticSpec { seed, ..spec(text) }.generate().unwrap()
}

/// How many requests of each kind there are.
fn by_kind<'w>(workloads: impl IntoIterator<Item = &'w Workload>) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for request in workloads.into_iter().flat_map(Workload::requests) {
        *counts.entry(request.tenant.clone().unwrap()).or_insert(0.0) += 1.0;
    }
    counts
}

#[test]
fn the_mean_over_days_is_what_is_asked_for_hour_by_hour_and_kind_by_kind() {
    let days: Vec<Workload> = (1..=120).map(|seed| day("day:rate=1.5,peak=3,mix=50:20:20:10", seed)).collect();
    let all: f64 = days.iter().map(|day| day.requests().len() as f64).sum();
    // Moves and bursts of so many days leave some percent of chance.
    let wanted = 1.5 * 7_200.0 * days.len() as f64;
    assert!((all / wanted - 1.0).abs() < 0.06, "{all} of {wanted}");
    let kinds = by_kind(&days);
    for (kind, share) in [("chat", 0.5), ("code", 0.2), ("reasoning", 0.2), ("agentic", 0.1)] {
        let found = kinds[kind] / all;
        assert!((found / share - 1.0).abs() < 0.15, "{kind}: {found}");
    }
    let mut hours = [0.0; 24];
    for request in days.iter().flat_map(Workload::requests) {
        hours[(request.arrival.0 / 300_000_000) as usize] += 1.0;
    }
    for (hour, (found, wanted)) in hours.map(|count| count * 24.0 / all).iter().zip(hourly(3.0)).enumerate() {
        // Straight lines between hours cut their tips.
        assert!((found - wanted).abs() < 0.15 + 0.2 * wanted, "hour {hour}: {found}, wanted {wanted}");
    }
}

#[test]
fn the_mix_moves_and_there_are_bursts() {
    let day = day("day:rate=8,mix=1:1:1:0", 3);
    // Shares of chat in 5 minutes, an hour of the day.
    let mut shares = vec![(0.0_f64, 0.0_f64); 24];
    // Requests of a kind in 10 seconds, over those of Poisson arrivals at the mean rate.
    let mut counts = vec![0.0; 720];
    for request in day.requests() {
        let is_chat = f64::from(u8::from(request.tenant.as_deref() == Some("chat")));
        let of_hour = &mut shares[(request.arrival.0 / 300_000_000) as usize];
        *of_hour = (of_hour.0 + is_chat, of_hour.1 + 1.0);
        counts[(request.arrival.0 / 10_000_000) as usize] += is_chat;
    }
    let shares: Vec<f64> = shares.into_iter().filter(|(_, all)| *all > 50.0).map(|(chat, all)| chat / all).collect();
    let (least, most) = shares.iter().fold((1.0_f64, 0.0_f64), |(a, b), share| (a.min(*share), b.max(*share)));
    assert!(most - least > 0.3, "{shares:?}");
    let mean = counts.iter().sum::<f64>() / counts.len() as f64;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    assert!(variance > 5.0 * mean, "variance {variance}, mean {mean}");
}

#[test]
fn agents_keep_their_sessions_and_are_there_from_the_start() {
    let days: Vec<Workload> = (1..=60).map(|seed| day("day:rate=1,peak=1,mix=0:0:0:1", seed)).collect();
    let (mut first, mut all) = (0.0, 0.0);
    for request in days.iter().flat_map(Workload::requests) {
        assert!(request.session.is_some() && request.hash_block_tokens == 64 && !request.hash_ids.is_empty());
        first += f64::from(u8::from(request.arrival < Micros(1_800_000_000)));
        all += 1.0;
    }
    assert!((first / all - 0.25).abs() < 0.04, "{first} of {all}");
    assert!((all / (7_200.0 * days.len() as f64) - 1.0).abs() < 0.12, "{all}");
}

#[test]
fn days_are_fixed_for_ever_and_loads_scale() {
    let fingerprints = ["day:rate=1", "day:rate=0.5,duration=1h,peak=4,mix=1:2:3:4,cv=2,seed=7"];
    assert_eq!(fingerprints.map(|text| spec(text).generate().unwrap().fingerprint()), FINGERPRINTS);
    let source = WorkloadSource::Synthetic(spec("day:rate=1"));
    assert!(source.depends_on_seed(1.0));
    let draw = |load, seed| source.draw(&Draw { window: None, load, seed }).unwrap();
    assert_eq!(draw(1.0, 5), draw(1.0, 5));
    assert_ne!(draw(1.0, 5), draw(1.0, 6));
    // The same moves and bursts, twice as many requests.
    let times = draw(2.0, 5).requests().len() as f64 / draw(1.0, 5).requests().len() as f64;
    assert!((times - 2.0).abs() < 0.1, "{times}");
}

const FINGERPRINTS: [u64; 2] = [8_192_038_884_976_550_924, 5_798_287_200_677_963_254];

#[test]
fn an_episode_is_a_part_of_the_day() {
    let source = WorkloadSource::Synthetic(spec("day:rate=2,peak=6"));
    let range = Window { start: Micros::ZERO, end: Micros(7_200_000_000) };
    let length = Micros(600_000_000);
    let episodes = EpisodeSource { source, range, length, load: (1.0, 1.0) };
    episodes.validate(false).unwrap();
    let at = |start_s: u64, seed| {
        let options = ResetOptions { start: Some(Micros(start_s * 1_000_000)), ..ResetOptions::default() };
        episodes.draw(seed, &options, false).unwrap().requests.len() as f64
    };
    // At six and at half past twelve, twelve times as fast.
    let (night, noon): (Vec<f64>, Vec<f64>) = (1..=20).map(|seed| (at(1_800, seed), at(3_750, seed))).unzip();
    assert!(noon.iter().sum::<f64>() > 10.0 * night.iter().sum::<f64>(), "{night:?} {noon:?}");
}

#[test]
fn days_as_text() {
    let usual = spec("day:rate=4");
    assert_eq!(usual.to_string(), "day:rate=4,duration=7200s,peak=1.84,mix=50:20:20:10,seed=0");
    assert_eq!(usual.to_string().parse(), Ok(usual));
    let odd = "day:rate=0.5,duration=3600s,peak=4,mix=0:1:0:2.5,cv=2,lengths=0.5,seed=7";
    assert_eq!(spec(odd).to_string(), odd);
    for (text, said) in [
        ("day", "rate is missing: give rate=REQUESTS_PER_SECOND"),
        ("day:rate=inf", "an infinite rate needs n, not duration"),
        ("day:rate=1,n=9", "a day has a duration, which is its length, not n"),
        ("day:rate=1,n=9,duration=9", "has two ends: give duration or n, not both"),
        ("day:rate=1,peak=0.5", "peak must be from 1 to 8"),
        ("day:rate=1,peak=nan", "peak must be from 1 to 8"),
        ("day:rate=1,peak=high", "peak `high` is not a number from 1"),
        ("day:rate=1,mix=1:2:3", "mix `1:2:3` is not parts of chat, code, reasoning and agents, as in 50:20:20:10"),
        ("day:rate=1,mix=0:0:0:0", "mix `0:0:0:0` is not parts of chat, code, reasoning and agents, as in 50:20:20:10"),
        ("day:rate=1,hours=9", "unknown setting `hours`: known are peak, mix, rate, duration, n, cv, lengths, seed"),
        ("chat:rate=1,n=9,peak=2", "unknown setting `peak`: known are rate, duration, n, cv, lengths, seed"),
    ] {
        assert_eq!(text.parse::<SyntheticSpec>().unwrap_err().to_string(), format!("`{text}`: {said}"));
    }
    assert!(
        "day:rate=90000".parse::<SyntheticSpec>().is_err_and(|error| error.to_string().contains("more than 10000000"))
    );
}
