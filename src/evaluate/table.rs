//! Comparisons as text for people.

use std::fmt::Write;

use super::capacity::{Bound, Capacity};
use super::compare::Comparison;
use crate::bootstrap::{Evidence, Interval};
use crate::policy::PolicyName;

/// The comparisons as tables: what was attained, how many violations fewer than those of the yardsticks, what happened at each
/// load, and the gains over each policy in `versus`.
pub fn render(comparisons: &[Comparison], versus: &[PolicyName]) -> String {
    let width = comparisons.iter().map(|line| line.policy.as_str().chars().count()).max().unwrap_or(0).max(21);
    let mut text = attained(comparisons, width);
    text.push_str(&violations(comparisons, width));
    text.push_str(&by_load(comparisons, width));
    for than in versus {
        text.push_str(&gains(comparisons, than, width));
    }
    text
}

fn attained(comparisons: &[Comparison], width: usize) -> String {
    let mut text = String::new();
    let head =
        ["attained", "gain [95 %]", "tokens/s", "TTFT p99", "ITL p99", "longest wait", "preempt.", "intervals rest on"];
    let _ = writeln!(
        text,
        "{:width$}  {:>8}  {:>24}  {:>8}  {:>9}  {:>8}  {:>12}  {:>8}  {}",
        "policy", head[0], head[1], head[2], head[3], head[4], head[5], head[6], head[7]
    );
    for line in comparisons {
        let gain = match &line.slo_attainment_gain {
            _ if line.policy == line.reference => "reference".to_owned(),
            gain => points(gain.as_ref()),
        };
        let _ = writeln!(
            text,
            "{:width$}  {:>6.1} %  {:>24}  {:>8.0}  {:>9}  {:>8}  {:>12}  {:>8.0}  {}",
            line.policy,
            line.slo_attainment * 100.0,
            gain,
            line.output_tok_s,
            time(line.ttft_p99_ms, |ms| format!("{:.2} s", ms / 1e3)),
            time(line.itl_p99_ms, |ms| format!("{ms:.0} ms")),
            time(line.longest_wait_ms, |ms| format!("{:.1} s", ms / 1e3)),
            line.preemptions,
            evidence(line.slo_attainment_mean.as_ref()),
        );
        if let Some(first) = line.chosen.first() {
            let others = line.chosen.len() - 1;
            let more = if others == 0 { String::new() } else { format!(" (and {others} others)") };
            let _ = writeln!(text, "{:width$}  = {first}{more}", "");
        }
        if let Some(guard) = &line.guard {
            let _ = writeln!(text, "{:width$}  {guard}", "");
        }
    }
    let repeated = comparisons.first().map_or(0, |line| line.repeated);
    if repeated > 0 {
        let _ = writeln!(text, "{:width$}  {}", "", repeated_text(repeated));
    }
    text
}

/// Empty where there is nobody to be compared with.
fn violations(comparisons: &[Comparison], width: usize) -> String {
    let mut text = String::new();
    let yardsticks = yardsticks(comparisons);
    if yardsticks.is_empty() {
        return text;
    }
    let _ = write!(text, "\n{:width$}", "fewer violations than");
    for than in &yardsticks {
        let _ = write!(text, "  {than:>20}");
    }
    let _ = writeln!(text, "  {:>20}  intervals rest on", "load at 90 %");
    for line in comparisons {
        let _ = write!(text, "{:width$}", line.policy);
        for than in &yardsticks {
            let against = line.against.iter().find(|against| against.than == **than);
            let cell = against.map_or_else(dash, |against| percent(against.fewer_violations.as_ref()));
            let _ = write!(text, "  {cell:>pad$}", pad = than.as_str().chars().count().max(20));
        }
        let at_90 = line.capacity.as_ref().map_or_else(dash, capacity);
        let _ = writeln!(text, "  {at_90:>20}  {}", evidence(line.slo_attainment_mean.as_ref()));
    }
    let loads: Vec<String> = comparisons[0].loads.iter().map(|at| at.load.to_string()).collect();
    let _ = writeln!(text, "{:width$}  violations over every load run: {}", "", loads.join(", "));
    text
}

/// What was attained at each load, and the longest wait there as a multiple of the reference's.
fn by_load(comparisons: &[Comparison], width: usize) -> String {
    let mut text = String::new();
    let Some(first) = comparisons.first() else { return text };
    let _ = write!(text, "\n{:width$}", "at load");
    for at in &first.loads {
        let _ = write!(text, "  {:>16}", at.load);
    }
    let _ = writeln!(text);
    for line in comparisons {
        let _ = write!(text, "{:width$}", line.policy);
        for at in &line.loads {
            let attained = at.slo_attainment.map_or_else(dash, |share| format!("{:.1} %", share.mean * 100.0));
            let _ = write!(text, "  {attained:>8} {:>7}", times(at.longest_wait_times));
        }
        let _ = writeln!(text);
    }
    let _ = writeln!(text, "{:width$}  attained, and the longest wait × that of {}", "", first.reference);
    text
}

/// What each policy gains over `than`, at which load least, and the longest wait at each load as a multiple of its.
fn gains(comparisons: &[Comparison], than: &PolicyName, width: usize) -> String {
    let mut text = String::new();
    let against = |line: &Comparison| line.against.iter().find(|against| against.than == *than).cloned();
    let _ = writeln!(text, "\ngain over {than}");
    let _ = writeln!(
        text,
        "{:width$}  {:>24}  {:>24}  {:>20}  longest wait × at each load; intervals rest on",
        "policy", "gain [95 %]", "at the worst load", "fewer violations"
    );
    for (line, against) in comparisons.iter().filter_map(|line| Some((line, against(line)?))) {
        let worst = against.worst_load.map_or_else(dash, |at| format!("{} pts at {}", signed(at.gain), at.load));
        let waits: Vec<String> = against.longest_waits.iter().map(|at| times(at.times)).collect();
        let _ = writeln!(
            text,
            "{:width$}  {:>24}  {worst:>24}  {:>20}  {}; {}",
            line.policy,
            points(against.gain.as_ref()),
            percent(against.fewer_violations.as_ref()),
            waits.join(", "),
            evidence(against.gain.as_ref()),
        );
    }
    text
}

/// Policies somebody is compared with, in order of appearance.
pub fn yardsticks(comparisons: &[Comparison]) -> Vec<&PolicyName> {
    let is_one =
        |name: &PolicyName| comparisons.iter().flat_map(|line| &line.against).any(|against| against.than == *name);
    comparisons.iter().map(|line| &line.policy).filter(|name| is_one(name)).collect()
}

/// `3 draws are the same runs again and count once`.
pub fn repeated_text(repeated: usize) -> String {
    let is = if repeated == 1 { "draw is an earlier one" } else { "draws are earlier ones" };
    format!("{repeated} {is} again, run for run, and counted once")
}

/// `+1.2 [-0.3, +2.5] pts`.
fn points(gain: Option<&Interval>) -> String {
    match gain {
        Some(Interval { mean, low: Some(low), high: Some(high), .. }) => {
            format!("{} [{}, {}] pts", signed(*mean), signed(*low), signed(*high))
        }
        Some(Interval { mean, .. }) => format!("{} [no interval] pts", signed(*mean)),
        None => dash(),
    }
}

/// In points, with a sign that zero does not have.
pub fn signed(gain: f64) -> String {
    let points = (gain * 1000.0).round() / 10.0;
    if points == 0.0 { "0.0".to_owned() } else { format!("{points:+.1}") }
}

/// `1 trace, 5 draws, 12 stretches`.
pub fn evidence(interval: Option<&Interval>) -> String {
    interval.and_then(|interval| interval.evidence).map_or_else(dash, |evidence: Evidence| evidence.to_string())
}

/// `2.4×`.
pub fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(dash, |ratio| format!("{ratio:.2}×"))
}

/// A time that not every run has: nobody may have finished.
pub fn time(ms: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    ms.map_or_else(dash, text)
}

/// What stands where there is nothing to say.
pub fn dash() -> String {
    "–".to_owned()
}

/// `62 % [58, 66]`.
pub fn percent(share: Option<&Interval>) -> String {
    match share {
        Some(Interval { mean, low: Some(low), high: Some(high), .. }) => {
            format!("{} % [{}, {}]", hundredths(*mean), hundredths(*low), hundredths(*high))
        }
        Some(Interval { mean, .. }) => format!("{} %", hundredths(*mean)),
        None => dash(),
    }
}

/// Whole percent; zero has no sign.
fn hundredths(share: f64) -> f64 {
    (share * 100.0).round() + 0.0
}

/// `0.46 [0.45, 0.47]`, `at least 0.6`, `below 0.4`.
pub fn capacity(capacity: &Capacity) -> String {
    let load = capacity.load;
    match (capacity.bound, capacity.low, capacity.high) {
        (Bound::AtLeast, ..) => format!("at least {load:.3}"),
        (Bound::Below, ..) => format!("below {load:.3}"),
        (Bound::Exact, Some(low), Some(high)) => format!("{load:.3} [{low:.3}, {high:.3}]"),
        (Bound::Exact, ..) => format!("{load:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_are_whole_and_zero_has_no_sign() {
        let interval = |mean, low, high| Interval { mean, low, high, evidence: None };
        assert_eq!(percent(Some(&interval(0.623, Some(-0.004), Some(0.7)))), "62 % [0, 70]");
        assert_eq!(percent(Some(&interval(-0.5, None, None))), "-50 %");
        assert_eq!(percent(None), "–");
    }

    #[test]
    fn what_there_is_none_of_is_a_dash() {
        assert_eq!((times(None), times(Some(2.345))), ("–".to_owned(), "2.35×".to_owned()));
        assert_eq!(time(None, |ms| ms.to_string()), "–");
        assert_eq!(evidence(Some(&Interval::single(1.0))), "–");
        assert_eq!(points(Some(&Interval::single(-0.012))), "-1.2 [no interval] pts");
        assert_eq!((signed(-0.0004), signed(0.123)), ("0.0".to_owned(), "+12.3".to_owned()));
    }

    #[test]
    fn capacities_say_how_they_are_meant() {
        let text = |bound, low, high| capacity(&Capacity { load: 0.5, low, high, bound, evidence: None });
        assert_eq!(text(Bound::Exact, Some(0.4), Some(0.6)), "0.500 [0.400, 0.600]");
        assert_eq!(text(Bound::Exact, None, None), "0.500");
        assert_eq!(text(Bound::AtLeast, Some(0.4), Some(0.5)), "at least 0.500");
        assert_eq!(text(Bound::Below, None, None), "below 0.500");
    }
}
