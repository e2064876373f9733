//! A calibration as a picture: measured and simulated curves over time, and distributions of latencies.

use super::{Calibration, CalibrationReport, ObservedRun, SimulatedRun, Stamps, Tick};
use crate::plot::{Axis, Band, Figure, LineStyle, Panel, Series, distribution};

/// Ticks a throughput is averaged over, to either side.
const SMOOTHED: usize = 2;
const THROUGHPUT: &str = "Output throughput (mean of 5 ticks)";
const KV_USAGE: &str = "KV blocks in use";

/// A curve over time.
type Curve = fn(&[Tick]) -> Vec<(f64, f64)>;

/// The figure: throughput, running, waiting and KV usage over time with the cut marked, and TTFT, TPOT and E2E of what
/// was not fitted (of all, if all was).
pub fn picture(calibration: &Calibration, report: &CalibrationReport) -> Figure {
    let over_time: [(&str, &str, Curve); 4] = [
        (THROUGHPUT, "tokens/s", throughput),
        ("Running requests", "requests", |ticks| points(ticks, |tick| tick.running)),
        ("Waiting requests", "requests", |ticks| points(ticks, |tick| tick.waiting)),
        (KV_USAGE, "%", |ticks| points(ticks, |tick| tick.kv_usage * 100.0)),
    ];
    let is_fitted = report.fit.is_some();
    let end_s = calibration.whole.ticks.last().map_or(1.0, |tick| tick.at_s);
    // Throughput leaves room for words at the bottom.
    let band = |title| Band {
        start: 0.0,
        end: calibration.until_s,
        label: if title == THROUGHPUT { "forecast from here" } else { "" },
    };
    let mut rows: Vec<Vec<Panel>> = Vec::new();
    for (title, unit, curve) in over_time {
        let mut series = beside_each_other(|ticks, _| curve(ticks), calibration, is_fitted);
        if title == KV_USAGE {
            // Blocks that are never in use were not recorded.
            series.retain(|one| one.points.iter().any(|(_, share)| *share > 0.0));
        }
        rows.push(vec![Panel {
            title: title.to_owned(),
            x: Axis::to("time since the first arrival (s)", end_s),
            y: Axis::new(unit),
            series,
            rules: Vec::new(),
            band: (is_fitted && report.held_out.is_some()).then(|| band(title)),
        }]);
    }
    let rest = if report.held_out.is_some() { calibration.until_s } else { 0.0 };
    rows.push(distributions(calibration, rest, is_fitted));
    Figure {
        title: format!("{} and its simulation", report.run),
        subtitle: format!(
            "{}, {} on {}, simulated as {}; {}",
            report.engine,
            report.model,
            report.device,
            report.env,
            report.fit.as_ref().map_or_else(
                || "nothing fitted".to_owned(),
                |fit| format!("fitted to the first {:.0} s of {:.0} s", fit.until_s, report.makespan_s)
            )
        ),
        rows,
    }
}

/// The same curve of what was measured and simulated, with a fit also of what is simulated without it.
fn beside_each_other(
    curve: impl Fn(&[Tick], &[Stamps]) -> Vec<(f64, f64)>,
    calibration: &Calibration,
    is_fitted: bool,
) -> Vec<Series> {
    let Calibration { whole, fitted, unfitted, .. } = calibration;
    let of_served = |served: &SimulatedRun| curve(&served.ticks, &served.stamps);
    let of_run = |run: &ObservedRun| curve(&run.ticks, &run.stamps);
    let series = |name, look, points| Series { name, look, points, bars: Vec::new() };
    let mut all = vec![series("measured", LineStyle::Reference, of_run(whole))];
    if is_fitted {
        all.push(series("simulated, not calibrated", LineStyle::Second, of_served(unfitted)));
    }
    let name = if is_fitted { "simulated, calibrated" } else { "simulated" };
    all.push(series(name, LineStyle::First, of_served(fitted)));
    all
}

fn points(ticks: &[Tick], of: fn(&Tick) -> f64) -> Vec<(f64, f64)> {
    ticks.iter().map(|tick| (tick.at_s, of(tick))).collect()
}

fn throughput(ticks: &[Tick]) -> Vec<(f64, f64)> {
    let rate = |index: usize| {
        let (from, to) = (index.saturating_sub(SMOOTHED + 1), (index + SMOOTHED).min(ticks.len() - 1));
        let tokens = ticks[to].output_tokens - ticks[from].output_tokens;
        (ticks[index].at_s, tokens / (ticks[to].at_s - ticks[from].at_s))
    };
    (1..ticks.len()).map(rate).collect()
}

/// A latency in the unit of its panel, of arrival, first and last token in seconds and tokens generated.
type Latency = fn(f64, f64, f64, f64) -> f64;

/// Distributions over the requests whose measured token appeared after `rest` seconds.
fn distributions(calibration: &Calibration, rest: f64, is_fitted: bool) -> Vec<Panel> {
    let latencies: [(&str, &str, bool, Latency); 3] = [
        ("Time to first token", "TTFT (s)", true, |arrival, first, _, _| first - arrival),
        ("Time per output token after the first", "TPOT (ms)", false, |_, first, last, tokens| {
            (last - first) * 1e3 / (tokens - 1.0)
        }),
        ("Arrival to last token", "E2E (s)", false, |arrival, _, last, _| last - arrival),
    ];
    let share = if rest > 0.0 { "share of later requests" } else { "share of requests" };
    let whole = &calibration.whole;
    let panel = |(title, unit, is_first, latency): (&str, &str, bool, Latency)| {
        let counts = |measured: &Stamps| {
            let token = if is_first { measured.first_s } else { measured.last_s };
            token.is_some_and(|at_s| at_s > rest)
        };
        let curve = |_: &[Tick], stamps: &[Stamps]| {
            let rows =
                whole.requests.iter().zip(&whole.stamps).zip(stamps).filter(|((_, measured), _)| counts(measured));
            let values = rows.filter_map(|((request, _), stamps)| {
                let (arrival, tokens) = (request.arrival.as_secs_f64(), f64::from(request.output_tokens));
                Some(latency(arrival, stamps.first_s?, stamps.last_s?, tokens))
            });
            distribution(values.filter(|value| value.is_finite()).collect())
        };
        Panel {
            title: title.to_owned(),
            x: Axis::new(unit),
            y: Axis::to(share, 1.0),
            series: beside_each_other(curve, calibration, is_fitted),
            rules: Vec::new(),
            band: None,
        }
    };
    latencies.into_iter().map(panel).collect()
}
