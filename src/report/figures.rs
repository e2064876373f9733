//! The charts of a report: what is drawn.

use super::ReportInput;
use super::close_up::{CloseUp, Moment, ServedPolicy};
use crate::evaluate::{CAPACITY_TARGET, Comparison};
use crate::plot::chart::{Chart, ChartAxis, Line, Pen, Unit};
use crate::plot::svg::round;

/// How policies look throughout a report, by their place: seven colours, and dashes where these come again.
pub(super) fn pen(comparisons: &[Comparison], index: usize, learned: bool) -> Pen {
    let dashes = ["", "6 3", "2 3", "8 3 2 3"];
    let policy = comparisons[index].policy.spec();
    let dash = if policy.is_hindsight() { dashes[1] } else { dashes[(index / NUM_COLOURS) % dashes.len()] };
    Pen { colour: index % NUM_COLOURS, dash, width: if learned { 2.6 } else { 1.6 } }
}

/// Colours of the page's style sheet, `--c0` onwards.
const NUM_COLOURS: usize = 8;
/// Points of a line that follows a distribution, and of one that follows time.
const DISTRIBUTION_POINTS: usize = 240;
const TIME_POINTS: usize = 260;

/// Attainment over load, with intervals, as wide and high as given.
pub(super) fn attainment(comparisons: &[Comparison], close_up: &CloseUp, (width, height): (f64, f64)) -> Chart {
    let loads: Vec<f64> = comparisons[0].loads.iter().map(|at| at.load).collect();
    let (first, last) = (loads[0], loads[loads.len() - 1]);
    let room = if last > first { (last - first) * 0.05 } else { first * 0.2 };
    // Bars of different policies stand beside each other.
    let apart = room * 0.12;
    let line = |(index, comparison): (usize, &Comparison)| {
        let aside = apart * (index as f64 - (comparisons.len() - 1) as f64 / 2.0);
        let found = comparison.loads.iter().filter_map(|at| Some((at.load + aside, at.slo_attainment?)));
        let points: Vec<_> = found.collect();
        let text = |(at, interval): &(f64, crate::evaluate::Interval)| {
            format!("{} % at load {}", round(interval.mean * 100.0, 1), round(at - aside, 4))
        };
        Line {
            name: format!("{}: {}", comparison.policy, points.iter().map(text).collect::<Vec<_>>().join(", ")),
            pen: pen(comparisons, index, close_up.served[index].insight.is_some()),
            bars: points
                .iter()
                .map(|(x, one)| (*x, one.low.unwrap_or(one.mean), one.high.unwrap_or(one.mean)))
                .collect(),
            points: points.iter().map(|(x, interval)| (*x, interval.mean)).collect(),
            filled: false,
        }
    };
    let lines: Vec<Line> = comparisons.iter().enumerate().map(line).collect();
    let lowest = lines.iter().flat_map(|line| &line.bars).map(|bar| bar.1).fold(1.0, f64::min);
    Chart {
        title: "Attained requests by load".to_owned(),
        width,
        height,
        x: ChartAxis { label: "load".to_owned(), from: first - room, to: last + room, unit: Unit::Number },
        y: ChartAxis {
            label: "attained".to_owned(),
            // A tenth below the lowest, but so that capacity's line is seen.
            from: ((lowest - 0.02) * 10.0).floor().clamp(0.0, 8.0) / 10.0,
            to: 1.0,
            unit: Unit::Percent,
        },
        lines: std::iter::once(level(first - room, last + room, CAPACITY_TARGET)).chain(lines).collect(),
        rules: Vec::new(),
        band: None,
    }
}

fn level(from: f64, to: f64, at: f64) -> Line {
    Line {
        name: format!("{} %: goodput capacity is where a line crosses it", round(at * 100.0, 0)),
        pen: Pen { colour: NUM_COLOURS, dash: "3 3", width: 1.0 },
        points: vec![(from, at), (to, at)],
        bars: Vec::new(),
        filled: false,
    }
}

/// A distribution to be drawn: title, points, lowest share shown, rules.
type Distribution<'a> = (&'a str, &'a dyn Fn(&ServedPolicy) -> Vec<(f64, f64)>, f64, Vec<(f64, String)>);

/// Distributions of TTFT, gaps between tokens, and arrival to last token.
pub(super) fn latencies(material: &ReportInput<'_>, close_up: &CloseUp) -> Vec<Chart> {
    let slo = material.world.node.slo;
    let ttft = |served: &ServedPolicy| distribution(&served.ttft_ms);
    let e2e = |served: &ServedPolicy| distribution(&served.e2e_ms);
    let itl = |served: &ServedPolicy| weighted_distribution(&served.itl_ms);
    let ms = |time: kvtide_envs::time::Micros| time.as_millis_f64();
    let target = |at: f64, name: &str| vec![(at, name.to_owned())];
    // Of gaps between tokens only the slowest fifth is of interest.
    let parts: [Distribution<'_>; 3] = [
        ("Time to first token", &ttft, 0.0, target(ms(slo.ttft), "target")),
        ("Arrival to last token", &e2e, 0.0, Vec::new()),
        ("Time between tokens, slowest fifth", &itl, 0.8, target(ms(slo.tpot), "TPOT target")),
    ];
    let drawn = |(title, points, lowest, rules): Distribution<'_>| {
        let line = |(index, served): (usize, &ServedPolicy)| Line {
            name: served.policy.to_string(),
            pen: pen(material.comparisons, index, served.insight.is_some()),
            points: points(served),
            bars: Vec::new(),
            filled: false,
        };
        let lines: Vec<Line> = close_up.served.iter().enumerate().map(line).collect();
        let (from, to) = ends(&lines);
        Chart {
            title: title.to_owned(),
            width: 345.0,
            height: 260.0,
            x: ChartAxis { label: String::new(), from, to, unit: Unit::LogMillis },
            y: ChartAxis { label: "share not above".to_owned(), from: lowest, to: 1.0, unit: Unit::Percent },
            lines,
            rules,
            band: None,
        }
    };
    let mut charts: Vec<Chart> = parts.into_iter().map(drawn).collect();
    // What counts from arrival is compared along one axis.
    let (from, to) = (charts[0].x.from.min(charts[1].x.from), charts[0].x.to.max(charts[1].x.to));
    for chart in &mut charts[..2] {
        (chart.x.from, chart.x.to) = (from, to);
    }
    for chart in &mut charts {
        let (from, to) = (chart.x.from, chart.x.to);
        chart.rules.retain(|(at, _)| (from..to).contains(at));
    }
    charts
}

/// Where an axis of times begins and ends that shows all of `lines`.
fn ends(lines: &[Line]) -> (f64, f64) {
    let all = || lines.iter().flat_map(|line| &line.points);
    // The fastest hundredth would take half of the axis.
    let from = all().filter(|(_, share)| *share >= 0.01).map(|point| point.0).fold(f64::INFINITY, f64::min);
    let to = all().map(|point| point.0).fold(1.0, f64::max);
    (if from.is_finite() { from.clamp(0.1, to / 2.0) } else { to / 10.0 }, to)
}

/// The share of `sorted` values not above each of them, thinned.
fn distribution(sorted: &[f64]) -> Vec<(f64, f64)> {
    let count = sorted.len();
    let ranks = thinned(count, DISTRIBUTION_POINTS);
    ranks.map(|rank| (sorted[rank], (rank + 1) as f64 / count as f64)).collect()
}

fn weighted_distribution(counts: &[(f64, u64)]) -> Vec<(f64, f64)> {
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut below = 0;
    let shares = counts.iter().map(|(value, count)| {
        below += count;
        (*value, below as f64 / total as f64)
    });
    let shares: Vec<(f64, f64)> = shares.collect();
    thinned(shares.len(), DISTRIBUTION_POINTS).map(|index| shares[index]).collect()
}

/// At most `most` indices below `count`, evenly, the last among them.
fn thinned(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let taken = count.min(most);
    (1..=taken).map(move |index| index * count / taken - 1)
}

/// What happened over time under one policy: watermark, blocks in use, queues, preemptions. Axes end where those of all
/// `shown` policies do.
pub(super) fn timeline(served: &ServedPolicy, shown: &[&ServedPolicy], pen: Pen) -> Vec<Chart> {
    let all = || shown.iter().flat_map(|served| &served.timeline);
    let end = all().map(|moment| moment.seconds).fold(1.0, f64::max);
    let faint = Pen { colour: NUM_COLOURS, dash: "", width: 1.2 };
    let line = |name: &str, pen: Pen, filled: bool, value: &dyn Fn(&Moment) -> f64| Line {
        name: name.to_owned(),
        pen,
        points: over_time(&served.timeline, end, value),
        bars: Vec::new(),
        filled,
    };
    let chart = |title: String, x: &str, y: ChartAxis, lines: Vec<Line>| Chart {
        title,
        width: 430.0,
        height: 155.0,
        x: ChartAxis { label: x.to_owned(), from: 0.0, to: end, unit: Unit::Number },
        y,
        lines,
        rules: Vec::new(),
        band: None,
    };
    let percent = |axis: ChartAxis| ChartAxis { unit: Unit::Percent, ..axis };
    // What is drawn are means over a little time; a single decision must not flatten them.
    let means = shown.iter().flat_map(|served| over_time(&served.timeline, end, &|moment| moment.watermark));
    let watermarks = ChartAxis::above_zero("", means.map(|point| point.1));
    let pool = ChartAxis { label: String::new(), from: 0.0, to: 1.0, unit: Unit::Percent };
    let requests = ChartAxis::above_zero("", all().map(|moment| moment.waiting.max(moment.running) as f64));
    let preemptions = ChartAxis::above_zero("", all().map(|moment| moment.preemptions as f64));
    vec![
        chart(
            "Watermark, of the pool".to_owned(),
            "",
            percent(watermarks),
            vec![line("watermark", pen, true, &|moment| moment.watermark)],
        ),
        chart(
            "Blocks in use, of the pool".to_owned(),
            "",
            pool,
            vec![line("blocks in use", pen, true, &|moment| moment.kv_usage)],
        ),
        chart(
            "Requests running (area) and waiting (line)".to_owned(),
            "",
            requests,
            vec![
                line("running", faint, true, &|moment| moment.running as f64),
                line("waiting", pen, false, &|moment| moment.waiting as f64),
            ],
        ),
        chart(
            "Preemptions so far".to_owned(),
            "seconds",
            preemptions,
            vec![line("preemptions", pen, true, &|moment| moment.preemptions as f64)],
        ),
    ]
}

/// Means over equal stretches of time; a stretch without a decision goes on as before.
fn over_time(moments: &[Moment], end: f64, value: &dyn Fn(&Moment) -> f64) -> Vec<(f64, f64)> {
    let mut sums = vec![(0.0, 0.0); TIME_POINTS];
    for moment in moments {
        let index = ((moment.seconds / end) * TIME_POINTS as f64) as usize;
        let (sum, count) = &mut sums[index.min(TIME_POINTS - 1)];
        (*sum, *count) = (*sum + value(moment), *count + 1.0);
    }
    let last = moments.last().map_or(0.0, |moment| moment.seconds);
    let mut latest = moments.first().map_or(0.0, value);
    let mut points = Vec::new();
    for (index, (sum, count)) in sums.into_iter().enumerate() {
        let seconds = (index as f64 + 0.5) * end / TIME_POINTS as f64;
        if seconds > last + end / TIME_POINTS as f64 {
            break;
        }
        latest = if count > 0.0 { sum / count } else { latest };
        points.push((seconds, latest));
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_thinned_to_their_end() {
        assert_eq!(distribution(&[1.0, 5.0]), [(1.0, 0.5), (5.0, 1.0)]);
        let many: Vec<f64> = (0..10_000).map(f64::from).collect();
        let points = distribution(&many);
        assert_eq!((points.len(), points[DISTRIBUTION_POINTS - 1]), (DISTRIBUTION_POINTS, (9999.0, 1.0)));
        assert_eq!(distribution(&[]), []);
        assert_eq!(weighted_distribution(&[(1.0, 3), (2.0, 1)]), [(1.0, 0.75), (2.0, 1.0)]);
    }

    #[test]
    fn time_is_averaged_in_equal_stretches() {
        let moment = |seconds: f64, running: usize| Moment {
            seconds,
            watermark: 0.0,
            kv_usage: 0.0,
            waiting: 0,
            running,
            preemptions: 0,
        };
        let moments = [moment(0.0, 2), moment(0.1, 4), moment(100.0, 9)];
        let points = over_time(&moments, 260.0, &|moment| moment.running as f64);
        // Two decisions in the first second, none until the hundredth, and nothing after it.
        assert_eq!((points[0], points[50]), ((0.5, 3.0), (50.5, 3.0)));
        assert_eq!(points.last(), Some(&(100.5, 9.0)));
    }
}
