//! Intervals that know how many independent traces there are.
//!
//! What is resampled is what would have been different on another day:
//!
//! - **Generated traffic** is another trace for each seed, so seeds are resampled, each with all its windows and loads: at
//!   another load a seed gives the same requests, closer together or to more clients, and is no second witness.
//! - **A recorded trace** is one trace however many seeds thin or jitter it. What can be resampled is time: whole stretches of
//!   it, because requests that wait in the same queue miss their targets together (Künsch 1989, "The jackknife and the
//!   bootstrap for general stationary observations"). Stretches overlap and go round from the end to the beginning, so
//!   that every moment is as likely as any other (Politis & Romano 1992, "A circular block-resampling procedure for
//!   stationary data"). The same moments are drawn for every policy, load and seed. Draws are resampled beside time, as
//!   rows beside columns (Owen 2007, "The pigeonhole bootstrap"), which errs on the wide side. A generator of which only
//!   one seed was run is such a trace.
//!
//! What time cannot say is how another trace would have differed: an interval of one trace is about that trace's kind of day.
//! Where clients wait for their answers a request arrives when its policy lets it, so there the same moments are of nearly the same
//! requests only.

use std::collections::BTreeSet;

use kvtide_envs::metrics::Stretches;
use kvtide_envs::seed;
use rand::RngExt;

use super::row::RunRow;
use crate::bootstrap::{Evidence, Interval, RESAMPLES};

/// Length of the stretches of time that are drawn, seconds: a little more than a queue remembers. On Azure conversations on a 24 GB
/// card (1640 s to 2340 s, V1) the correlation of violations falls to 1/e within 30 s where a tenth is late and within 100 s where
/// half is. On an autoregression of that kind over 700 s intervals hold the mean in 92 to 79 % of runs, and with 60 s in 88 to
/// 69 %; so an interval of a short window that is congested all along is still too narrow.
const STRETCH_S: u64 = 120;
/// Fewer stretches than this have no interval: resamples of two or three are nothing but these again.
const MIN_STRETCHES: usize = 4;

/// The resamples of a set of draws, the same for every policy and statistic.
#[derive(Debug, Clone)]
pub(super) struct Resampling<'a> {
    seeds: Vec<u64>,
    windows: Vec<&'a str>,
    /// Stretches of each window; `None` where it is traces that are resampled.
    stretches: Option<Vec<usize>>,
    rounds: Vec<Resample>,
}

/// What one resample is made of.
#[derive(Debug, Clone)]
struct Resample {
    /// How often each seed.
    seeds: Vec<usize>,
    /// Where the stretches drawn of each window start, as a share of its length.
    starts: Vec<Vec<f64>>,
}

/// A run, and its attainment in each resample.
#[derive(Debug, Clone)]
pub(super) struct ResampledRun<'a> {
    pub(super) row: &'a RunRow,
    /// Number of its seed.
    seed: usize,
    resampled: Vec<f64>,
}

/// A draw as a statistic sees it: what one policy attained, and another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PairedDraw {
    pub(super) load: f64,
    pub(super) mine: f64,
    pub(super) theirs: f64,
}

impl ResampledRun<'_> {
    /// As it was run, against itself.
    pub(super) fn alone(&self) -> PairedDraw {
        let attained = self.row.summary.slo_attainment;
        PairedDraw { load: self.row.load, mine: attained, theirs: attained }
    }
}

impl<'a> Resampling<'a> {
    /// Of the draws in `rows`; every policy's are the same.
    pub(super) fn new(rows: &[&'a RunRow]) -> Resampling<'a> {
        let (mut seeds, mut windows) = (Vec::new(), Vec::new());
        for row in rows {
            if !seeds.contains(&row.seed) {
                seeds.push(row.seed);
            }
            if !windows.contains(&row.window.as_str()) {
                windows.push(row.window.as_str());
            }
        }
        let is_one_trace = seeds.len() == 1 || rows.iter().any(|row| row.recorded);
        let longest = |window: &&str| {
            let of_window = rows.iter().filter(|row| row.window == *window);
            of_window.map(|row| CircularRun::of(&row.summary.stretches).drawn).max().unwrap_or(0)
        };
        let stretches = is_one_trace.then(|| windows.iter().map(longest).collect::<Vec<usize>>());
        let has_any = stretches.as_ref().is_none_or(|counts| counts.iter().sum::<usize>() >= MIN_STRETCHES);
        let mut stream = seed::stream(0, "bootstrap", 0);
        let mut round = || {
            let mut times = vec![0; seeds.len()];
            for _ in &seeds {
                times[stream.random_range(0..seeds.len())] += 1;
            }
            let counts = stretches.iter().flatten();
            let starts = counts.map(|&count| (0..count).map(|_| stream.random::<f64>()).collect()).collect();
            Resample { seeds: times, starts }
        };
        let rounds = (0..if has_any { RESAMPLES } else { 0 }).map(|_| round()).collect();
        Resampling { seeds, windows, stretches, rounds }
    }

    /// `rows` with what they come to in each resample.
    pub(super) fn served<'b>(&self, rows: &[&'b RunRow]) -> Vec<ResampledRun<'b>> {
        let served = rows.iter().map(|&row| {
            let clock = CircularRun::of(&row.summary.stretches);
            let window = self.windows.iter().position(|window| *window == row.window);
            let again = |round: &Resample| {
                let starts = window.and_then(|window| round.starts.get(window));
                starts.and_then(|starts| clock.attained(starts)).unwrap_or(row.summary.slo_attainment)
            };
            let seed =
                self.seeds.iter().position(|seed| *seed == row.seed).expect("every policy serves the same draws");
            ResampledRun { row, seed, resampled: self.rounds.iter().map(again).collect() }
        });
        served.collect()
    }

    /// A statistic of `pairs`, in order of cells, and its interval; `None` where the statistic is. Resamples without one
    /// are left out.
    pub(super) fn interval(
        &self,
        pairs: &[(&ResampledRun<'_>, &ResampledRun<'_>)],
        statistic: impl Fn(&[PairedDraw]) -> Option<f64>,
    ) -> Option<Interval> {
        let attained = |served: &ResampledRun<'_>| served.row.summary.slo_attainment;
        let pair = |(mine, theirs): &(&ResampledRun<'_>, &ResampledRun<'_>)| PairedDraw {
            load: mine.row.load,
            mine: attained(mine),
            theirs: attained(theirs),
        };
        let mean = statistic(&pairs.iter().map(pair).collect::<Vec<PairedDraw>>())?;
        let evidence = self.evidence(pairs);
        let units = evidence.stretches.unwrap_or(evidence.traces);
        if evidence.traces == 1 && evidence.stretches.is_none() {
            return Some(Interval { evidence: Some(evidence), ..Interval::single(mean) });
        }
        let mut drawn = Vec::with_capacity(pairs.len());
        let resampled = (0..self.rounds.len()).filter_map(|round| {
            self.draw(round, pairs, &mut drawn);
            statistic(&drawn)
        });
        Some(Interval { evidence: Some(evidence), ..Interval::of(mean, resampled.collect(), units) })
    }

    /// The pairs of one resample. Of a cell none of whose seeds was drawn every pair is taken once: a statistic over loads has to
    /// be of all of them.
    fn draw(&self, round: usize, pairs: &[(&ResampledRun<'_>, &ResampledRun<'_>)], drawn: &mut Vec<PairedDraw>) {
        let times = |served: &ResampledRun<'_>| self.rounds[round].seeds[served.seed];
        drawn.clear();
        for cell in pairs.chunk_by(|a, b| a.0.row.is_same_cell(b.0.row)) {
            let is_missing = cell.iter().all(|(mine, _)| times(mine) == 0);
            for (mine, theirs) in cell {
                let pair =
                    PairedDraw { load: mine.row.load, mine: mine.resampled[round], theirs: theirs.resampled[round] };
                drawn.extend(std::iter::repeat_n(pair, if is_missing { 1 } else { times(mine) }));
            }
        }
    }

    /// What a statistic of `pairs` rests on.
    fn evidence(&self, pairs: &[(&ResampledRun<'_>, &ResampledRun<'_>)]) -> Evidence {
        let draws = pairs.iter().map(|(mine, _)| mine.seed).collect::<BTreeSet<usize>>().len();
        let Some(counts) = &self.stretches else { return Evidence { traces: draws, draws, stretches: None } };
        let has = |window: &str| pairs.iter().any(|(mine, _)| mine.row.window == window);
        let windows = self.windows.iter().zip(counts).filter(|(window, _)| has(window));
        Evidence { traces: 1, draws, stretches: Some(windows.map(|(_, count)| count).sum()) }
    }
}

/// A run's requests as a circle of time, with sums from the start on, so that a stretch of it costs a difference.
struct CircularRun {
    /// `(requests, attained)` before each of the run's stretches, and of all.
    sums: Vec<(u64, u64)>,
    /// Of the run's own stretches, how many make one that is drawn.
    length: usize,
    /// How many are drawn, to make up the run's length again.
    drawn: usize,
}

impl CircularRun {
    fn of(stretches: &Stretches) -> CircularRun {
        let mut sums = vec![(0, 0)];
        sums.extend(stretches.counts.iter().scan((0, 0), |sum, stretch| {
            *sum = (sum.0 + u64::from(stretch.requests), sum.1 + u64::from(stretch.attained));
            Some(*sum)
        }));
        let count = stretches.counts.len();
        let length = (STRETCH_S / stretches.seconds.max(1)).max(1) as usize;
        CircularRun { sums, length: length.min(count), drawn: count.div_ceil(length) }
    }

    /// Attainment over stretches that start at these shares of the circle; `None` if nobody arrived in them.
    fn attained(&self, starts: &[f64]) -> Option<f64> {
        let count = self.sums.len() - 1;
        let between =
            |from: usize, to: usize| (self.sums[to].0 - self.sums[from].0, self.sums[to].1 - self.sums[from].1);
        let (mut requests, mut attained) = (0, 0);
        for start in starts.iter().take(self.drawn) {
            let from = ((start * count as f64) as usize).min(count - 1);
            let to = from + self.length;
            for (more, on_time) in [between(from, to.min(count)), between(0, to.saturating_sub(count))] {
                requests += more;
                attained += on_time;
            }
        }
        (requests > 0).then(|| attained as f64 / requests as f64)
    }
}

#[cfg(test)]
mod tests {
    use kvtide_envs::metrics::Stretch;

    use super::super::against::{gain, pairs};
    use super::super::compare::attainment;
    use super::*;

    /// A run of 10 requests every ten seconds, of which so many attained their targets.
    fn run(policy: &str, seed: u64, recorded: bool, attained: &[u32]) -> RunRow {
        let counts = attained.iter().map(|&attained| Stretch { requests: 10, attained }).collect();
        let share = f64::from(attained.iter().sum::<u32>()) / (10 * attained.len().max(1)) as f64;
        let mut row = RunRow { recorded, ..RunRow::sample(policy, 1.0, seed, share) };
        row.summary.stretches = Stretches { seconds: 10, counts };
        row
    }

    fn interval(rows: &[RunRow]) -> Interval {
        let rows: Vec<&RunRow> = rows.iter().collect();
        let resampling = Resampling::new(&rows);
        let served = resampling.served(&rows);
        resampling.interval(&pairs(&served, &served), attainment).unwrap()
    }

    fn width(interval: Interval) -> f64 {
        interval.high.unwrap() - interval.low.unwrap()
    }

    /// Requests of a queue that fills and empties again: attainment follows an autoregression of order 1, clipped, whose
    /// correlation falls to 1/e in 30 s; five draws of the one trace, each with noise of its own.
    fn congested(trace: u64) -> Vec<Vec<u32>> {
        let mut stream = seed::stream(trace, "congested", 0);
        let mut normal = || (0..12).map(|_| stream.random::<f64>()).sum::<f64>() - 6.0;
        let keep = (-1.0f64 / 3.0).exp();
        let mut level = normal();
        let levels: Vec<f64> = (0..240)
            .map(|_| {
                level = keep * level + (1.0 - keep * keep).sqrt() * normal();
                level
            })
            .collect();
        let mut noisy = |level: &f64| (5.0 + 2.0 * level + 0.5 * normal()).round().clamp(0.0, 10.0) as u32;
        (0..5).map(|_| levels.iter().map(&mut noisy).collect()).collect()
    }

    #[test]
    fn five_draws_of_one_trace_are_no_five_traces() {
        // How often an interval holds the mean of the process that its trace is one run of. Resampled as if seeds were
        // traces, it is about the trace.
        let covered = |recorded: bool| {
            let traces = 150;
            let holds = |trace: &u64| {
                let rows: Vec<RunRow> =
                    (1..).zip(congested(*trace)).map(|(seed, run_of)| run("a", seed, recorded, &run_of)).collect();
                let Interval { low, high, .. } = interval(&rows);
                (low.unwrap()..=high.unwrap()).contains(&0.5)
            };
            (0..traces).filter(holds).count() as f64 / traces as f64
        };
        let (time, seeds) = (covered(true), covered(false));
        assert!((0.88..=0.99).contains(&time) && seeds < 0.4, "{time} over time, {seeds} over seeds");
    }

    #[test]
    fn seeds_of_a_generator_are_traces_and_are_drawn_with_all_their_loads() {
        let at = |load: f64, seed: u64, share: f64| RunRow::sample("a", load, seed, share);
        // Whatever is drawn, the two loads of a seed make up one half.
        let rows = [at(1.0, 1, 0.9), at(1.0, 2, 0.7), at(2.0, 1, 0.1), at(2.0, 2, 0.3)];
        let found = interval(&rows);
        assert!(width(found) < 1e-12, "{found:?}");
        assert_eq!(found.evidence, Some(Evidence { traces: 2, draws: 2, stretches: None }));
        assert!((width(interval(&rows[..2])) - 0.2).abs() < 1e-9);
    }

    #[test]
    fn time_is_resampled_as_the_obvious_version_does() {
        // Fifty stretches, of which twelve make one that is drawn: five of those.
        let attained: Vec<u32> = (0..50).map(|at| (at * 7 + 3) % 11).collect();
        let row = run("a", 1, true, &attained);
        let resampling = Resampling::new(&[&row]);
        let served = &resampling.served(&[&row])[0];
        for (round, found) in resampling.rounds.iter().zip(&served.resampled) {
            assert_eq!(round.starts[0].len(), 5);
            let stretch = |start: &f64| {
                let from = (start * 50.0) as usize;
                (from..from + 12).map(|at| attained[at % 50]).sum::<u32>()
            };
            let expected = f64::from(round.starts[0].iter().map(stretch).sum::<u32>()) / 600.0;
            assert!((found - expected).abs() < 1e-12);
        }
        assert_eq!(resampling.rounds.len(), RESAMPLES as usize);
    }

    #[test]
    fn the_same_moments_are_drawn_for_everybody() {
        let attained = congested(1).swap_remove(0).into_iter().map(|count| count.min(9)).collect::<Vec<u32>>();
        let better: Vec<u32> = attained.iter().map(|count| count + 1).collect();
        let rows = [run("a", 1, true, &attained), run("b", 1, true, &better)];
        let resampling = Resampling::new(&rows.iter().collect::<Vec<&RunRow>>());
        let served = resampling.served(&rows.iter().collect::<Vec<&RunRow>>());
        let paired = resampling.interval(&[(&served[1], &served[0])], gain).unwrap();
        assert!((paired.mean - 0.1).abs() < 1e-12 && width(paired) < 1e-9, "{paired:?}");
        assert!(width(interval(&rows[..1])) > 0.05);
        assert_eq!(paired.evidence, Some(Evidence { traces: 1, draws: 1, stretches: Some(20) }));
    }

    #[test]
    fn too_little_time_is_no_interval() {
        let short = interval(&[run("a", 1, true, &[9, 1, 9, 1]), run("a", 2, true, &[5, 5, 5, 5])]);
        assert_eq!((short.low, short.evidence.unwrap().stretches), (None, Some(1)));
        // As is a single draw whose time nobody counted, and one in which nobody arrived.
        assert_eq!(interval(&[RunRow::sample("a", 1.0, 1, 0.5)]).low, None);
        assert_eq!(interval(&[run("a", 1, true, &[])]).low, None);
    }

    #[test]
    fn a_load_of_which_no_seed_was_drawn_stays() {
        let at = |load: f64, seed: u64, share: f64| RunRow::sample("a", load, seed, share);
        let rows = [at(1.0, 1, 0.4), at(1.0, 2, 0.4), at(2.0, 2, 0.8)];
        let rows: Vec<&RunRow> = rows.iter().collect();
        let resampling = Resampling::new(&rows);
        let served = resampling.served(&rows);
        let loads = |pairs: &[PairedDraw]| Some(if pairs.iter().any(|pair| pair.load == 2.0) { 1.0 } else { 0.0 });
        assert_eq!(resampling.interval(&pairs(&served, &served), loads).unwrap().low, Some(1.0));
    }
}
