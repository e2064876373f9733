//! Accounts of the cohort: one call for all members comes to what telling each token does, and to what a list of all
//! tokens says.
//!
//! `KVTIDE_SIM_SEEDS=a..b` runs other seeds.

use hdrhistogram::Histogram;
use kvtide_envs::metrics::{Collector, Group, Record, Summary};
use kvtide_envs::sched::{Phase, RequestId, Slo};
use kvtide_envs::seed::{self, Stream};
use kvtide_envs::time::Micros;
use rand::RngExt;

/// Seeds of the environment variable, or the usual ones.
fn seeds(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("KVTIDE_SIM_SEEDS") else { return usual };
    let range = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    range.unwrap_or_else(|| panic!("KVTIDE_SIM_SEEDS is {text:?}; give a range of seeds, as in 0..200"))
}

/// A request as a list of its tokens.
#[derive(Debug, Clone)]
struct Listed {
    arrival: Micros,
    slo: Slo,
    phase: Phase,
    is_member: bool,
    tokens: Vec<Micros>,
}

impl Listed {
    fn gaps(&self) -> impl Iterator<Item = Micros> {
        self.tokens.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// Whether token `index` may appear at `at`. In 128 bits nothing overflows.
    fn in_time(&self, index: usize, at: Micros) -> bool {
        let wide = |time: Micros| u128::from(time.0);
        wide(at) <= wide(self.arrival) + wide(self.slo.ttft) + index as u128 * wide(self.slo.tpot)
    }

    /// Whether it is certain at `now` that a target is missed.
    fn violated(&self, now: Micros) -> bool {
        let late_start = !self.in_time(0, *self.tokens.first().unwrap_or(&now));
        let stalled = self.gaps().any(|gap| gap > self.slo.stall);
        let (first, last) = (self.tokens.first(), self.tokens.last());
        let stalls = last.is_some_and(|&last| now - last > self.slo.stall);
        let slow = first.zip(last).is_some_and(|(&first, &last)| {
            u128::from((last - first).0) > (self.tokens.len() as u128 - 1) * u128::from(self.slo.tpot.0)
        });
        match self.phase {
            Phase::Rejected => true,
            Phase::Finished => late_start || stalled || slow,
            _ => late_start || stalled || stalls,
        }
    }

    fn record(&self, now: Micros) -> Record {
        Record {
            arrival: self.arrival,
            slo: self.slo,
            group: Group::default(),
            first_token: self.tokens.first().copied(),
            last_token: self.tokens.last().copied().unwrap_or(self.arrival),
            tokens: self.tokens.len() as u32,
            longest_stall: self.gaps().max().unwrap_or_default(),
            phase: self.phase,
            violated: self.violated(now),
        }
    }
}

/// The same run told three times: by cohort, token by token, and as lists.
struct Run {
    stream: Stream,
    now: Micros,
    cohort: Collector,
    single: Collector,
    listed: Vec<Listed>,
    /// Longest step but for the odd one out, microseconds.
    longest_step: u64,
    /// Chance of a request to join, leave or end in a step.
    restless: f64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut stream = seed::stream(seed, "accounts.cohort", 0);
        Run {
            longest_step: [1, 30, 1000][stream.random_range(0..3)],
            restless: [0.02, 0.1, 0.4][stream.random_range(0..3)],
            stream,
            now: Micros::ZERO,
            cohort: Collector::with_gaps(),
            single: Collector::with_gaps(),
            listed: Vec::new(),
        }
    }

    fn arrive(&mut self) {
        let id = RequestId(self.listed.len() as u32);
        let s = &mut self.stream;
        let scale = self.longest_step * [1, 4, 40][s.random_range(0..3)];
        let mut target = || match s.random_range(0..12) {
            0 => Micros::ZERO,
            1 => Micros::MAX,
            2..6 => Micros(scale / 2),
            _ => Micros(s.random_range(0..=scale)),
        };
        let slo = Slo { ttft: target(), tpot: target(), stall: target() };
        // Nobody is told of an arrival before the step in which it came is over.
        let arrival = Micros(self.now.0 - s.random_range(0..=self.now.0.min(self.longest_step)));
        let phase = if s.random_bool(0.03) { Phase::Rejected } else { Phase::Waiting };
        for collector in [&mut self.cohort, &mut self.single] {
            collector.arrived(id, arrival, 8, slo, phase, Group::default());
        }
        self.listed.push(Listed { arrival, slo, phase, is_member: false, tokens: Vec::new() });
    }

    fn ids(&self, wanted: impl Fn(&Listed) -> bool) -> Vec<RequestId> {
        (0..self.listed.len() as u32).map(RequestId).filter(|id| wanted(&self.listed[id.index()])).collect()
    }

    fn some(&mut self, ids: Vec<RequestId>, chance: f64) -> Vec<RequestId> {
        ids.into_iter().filter(|_| self.stream.random_bool(chance)).collect()
    }

    fn step(&mut self) {
        while self.listed.len() < 60 && self.stream.random_bool(0.2) {
            self.arrive();
        }
        let gap = match self.stream.random_range(0..20) {
            0 => 0,
            1 => 10 * self.longest_step,
            2..8 => self.longest_step / 2,
            _ => self.stream.random_range(0..=self.longest_step),
        };
        self.now += Micros(gap);
        let now = self.now;

        // Everybody leaves now and then; who is done is among those said to have left, once more.
        let chance = if self.stream.random_bool(0.03) { 1.0 } else { self.restless };
        let left = self.some(self.ids(|request| request.is_member), chance);
        let done = self.some(self.ids(|request| request.phase == Phase::Finished), 0.1);
        self.cohort.left(&[done, left.clone()].concat());
        for id in &left {
            self.listed[id.index()].is_member = false;
        }

        let pauses = self.stream.random_bool(0.15);
        if !pauses {
            self.cohort.advance(now);
            for id in self.ids(|request| request.is_member) {
                self.single.token(id, now);
                self.listed[id.index()].tokens.push(now);
            }
        }
        // Those who have left may get a token, and come back at once.
        let chance = [0.1, 0.9][self.stream.random_range(0..2)];
        let tokens = self.some(self.ids(|request| !request.is_member && request.phase == Phase::Waiting), chance);
        for &id in &tokens {
            self.cohort.token(id, now);
            self.single.token(id, now);
            self.listed[id.index()].tokens.push(now);
        }
        let joined = self.some(tokens.clone(), if pauses { 0.0 } else { 0.5 });
        self.cohort.joined(&joined);
        for id in &joined {
            self.listed[id.index()].is_member = true;
        }

        let served = self.ids(|request| request.phase == Phase::Waiting && request.tokens.last() == Some(&now));
        for id in self.some(served, self.restless / 2.0) {
            self.end(id, Phase::Finished);
        }
        let open = self.ids(|request| request.phase == Phase::Waiting);
        for id in self.some(open, self.restless / 50.0) {
            self.end(id, Phase::Rejected);
        }
        self.cohort.expire(now);
        self.single.expire(now);
    }

    fn end(&mut self, id: RequestId, phase: Phase) {
        for collector in [&mut self.cohort, &mut self.single] {
            if phase == Phase::Finished { collector.finished(id) } else { collector.dropped(id) }
        }
        let request = &mut self.listed[id.index()];
        (request.phase, request.is_member) = (phase, false);
    }

    fn check(&self) {
        let expected: Vec<Record> = self.listed.iter().map(|request| request.record(self.now)).collect();
        for collector in [&self.single, &self.cohort] {
            assert!(collector.records().eq(expected.iter().copied()), "{}", differences(collector, &expected));
            let sum = |count: &dyn Fn(&Listed) -> usize| self.listed.iter().map(count).sum::<usize>() as u64;
            assert_eq!(collector.output_tokens, sum(&|request| request.tokens.len()));
            let on_time = |request: &Listed| {
                request.tokens.iter().enumerate().filter(|&(index, &at)| request.in_time(index, at)).count()
            };
            assert_eq!(collector.on_time_tokens, sum(&on_time), "tokens on time");
            let ended = |phase: Phase| self.listed.iter().filter(move |request| request.phase == phase);
            assert_eq!(collector.completed, ended(Phase::Finished).count() as u64);
            assert_eq!(collector.rejected, ended(Phase::Rejected).count() as u64);
            let completed_tokens: usize = ended(Phase::Finished).map(|request| request.tokens.len()).sum();
            assert_eq!(collector.completed_tokens, completed_tokens as u64);
            assert_eq!(collector.violations, expected.iter().filter(|record| record.violated).count() as u64);
        }
        for id in (0..self.listed.len() as u32).map(RequestId) {
            assert_eq!(self.cohort.record(id), expected[id.index()]);
        }
    }

    /// What is too slow for every step.
    fn check_distributions(&self) {
        let mut gaps = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3).unwrap();
        for gap in self.listed.iter().flat_map(Listed::gaps) {
            gaps.saturating_record(gap.0);
        }
        assert_eq!(self.cohort.gaps().cloned().unwrap_or_else(|| gaps.clone()), gaps);
        assert_eq!(self.cohort.gaps(), self.single.gaps());
        let summary = |collector| Summary::of(collector, self.now, 10, 0);
        assert_eq!(summary(&self.cohort), summary(&self.single));
    }
}

fn differences(collector: &Collector, expected: &[Record]) -> String {
    let differs = collector.records().zip(expected).enumerate().find(|(_, (found, expected))| found != *expected);
    differs.map_or_else(
        || "another number of requests".to_owned(),
        |(id, (found, expected))| format!("request {id}: {found:?}\nexpected: {expected:?}"),
    )
}

#[test]
fn one_call_for_all_comes_to_one_call_each() {
    for seed in seeds(0..300) {
        let replay = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            for step in 0..200 {
                run.step();
                run.check();
                if step % 20 == 0 {
                    run.check_distributions();
                }
            }
            run.check_distributions();
        });
        assert!(
            replay.is_ok(),
            "replay with: KVTIDE_SIM_SEEDS={seed}..{} cargo test -p kvtide-envs --test all cohort_accounts::one_call",
            seed + 1
        );
    }
}

/// One request that arrived at 0 and got its first token at 10 µs.
fn joined(slo: Slo) -> Collector {
    let mut collector = Collector::with_gaps();
    collector.arrived(ID, Micros::ZERO, 8, slo, Phase::Waiting, Group::default());
    collector.advance(Micros(10));
    collector.token(ID, Micros(10));
    collector.joined(&[ID]);
    collector
}

const ID: RequestId = RequestId(0);
const PATIENT: Slo = Slo::from_millis(1, 1, 1);

#[test]
fn a_member_by_hand() {
    // Deadlines: 10, 15, 20, 25, 30.
    let slo = Slo { ttft: Micros(10), tpot: Micros(5), stall: Micros(9) };
    let mut collector = joined(slo);
    let mut seen = Vec::new();
    for now in [14, 21, 24, 34] {
        collector.advance(Micros(now));
        collector.expire(Micros(now));
        let record = collector.record(ID);
        seen.push((record.tokens, record.longest_stall.0, collector.on_time_tokens, collector.violations));
    }
    // The last gap is longer than its stall target, and what that makes late is on time no more.
    assert_eq!(seen, [(2, 4, 2, 0), (3, 7, 2, 0), (4, 7, 3, 0), (5, 10, 3, 1)]);
    collector.finished(ID);
    let record = collector.record(ID);
    assert_eq!((record.phase, record.last_token, record.violated), (Phase::Finished, Micros(34), true));
    assert_eq!((collector.completed, collector.completed_tokens, collector.violations), (1, 5, 1));
    // It is a member no more.
    collector.advance(Micros(40));
    collector.left(&[ID]);
    assert_eq!((collector.record(ID), collector.output_tokens), (record, 5));
    assert_eq!(collector.gaps().unwrap().len(), 4);
}

#[test]
fn a_member_that_leaves_is_watched_again() {
    let mut collector = joined(Slo { stall: Micros(20), ..PATIENT });
    collector.advance(Micros(25));
    collector.left(&[ID]);
    for (now, violations) in [(45, 0), (46, 1), (47, 1)] {
        collector.advance(Micros(now));
        collector.expire(Micros(now));
        assert_eq!(collector.violations, violations, "at {now}");
    }
    // The token that comes after all is a violation no more.
    collector.token(ID, Micros(50));
    assert_eq!((collector.violations, collector.record(ID).longest_stall), (1, Micros(25)));
}

#[test]
#[should_panic(expected = "joins without a token in this step")]
fn a_member_needs_a_token_to_count_from() {
    let mut collector = joined(PATIENT);
    collector.left(&[ID]);
    collector.advance(Micros(20));
    collector.joined(&[ID]);
}

#[test]
#[should_panic(expected = "is a member, or done")]
fn nobody_joins_twice() {
    joined(PATIENT).joined(&[ID]);
}
