//! Comparisons as text for people.

use std::fmt::Write;

use super::capacity::{Bound, Capacity};
use super::compare::Comparison;
use crate::bootstrap::Interval;

/// The comparisons as two tables: what was attained, and how many violations fewer than those of the yardsticks.
pub fn render(comparisons: &[Comparison]) -> String {
    let width = comparisons.iter().map(|line| line.policy.chars().count()).max().unwrap_or(0).max(21);
    let mut text = attained(comparisons, width);
    text.push_str(&violations(comparisons, width));
    text
}

fn attained(comparisons: &[Comparison], width: usize) -> String {
    let mut text = String::new();
    let head = ["attained", "gain [95 %]", "tokens/s", "TTFT p99", "ITL p99", "longest wait", "preempt."];
    let _ = writeln!(
        text,
        "{:width$}  {:>8}  {:>24}  {:>8}  {:>9}  {:>8}  {:>12}  {:>8}",
        "policy", head[0], head[1], head[2], head[3], head[4], head[5], head[6]
    );
    for line in comparisons {
        let gain = match line.slo_attainment_gain {
            _ if line.policy == line.reference => "reference".to_owned(),
            Some(Interval { mean, low: Some(low), high: Some(high) }) => {
                format!("{:+.1} [{:+.1}, {:+.1}] pts", mean * 100.0, low * 100.0, high * 100.0)
            }
            Some(Interval { mean, .. }) => format!("{:+.1} [one draw] pts", mean * 100.0),
            None => "-".to_owned(),
        };
        let _ = writeln!(
            text,
            "{:width$}  {:>6.1} %  {:>24}  {:>8.0}  {:>7.2} s  {:>5.0} ms  {:>10.1} s  {:>8.0}",
            line.policy,
            line.slo_attainment * 100.0,
            gain,
            line.output_tok_s,
            line.ttft_p99_ms / 1e3,
            line.itl_p99_ms,
            line.longest_wait_ms / 1e3,
            line.preemptions,
        );
        if let Some(first) = line.chosen.first() {
            let others = line.chosen.len() - 1;
            let more = if others == 0 { String::new() } else { format!(" (and {others} others)") };
            let _ = writeln!(text, "{:width$}  = {first}{more}", "");
        }
    }
    text
}

/// Empty where there is nobody to be compared with.
fn violations(comparisons: &[Comparison], width: usize) -> String {
    let mut text = String::new();
    let fewer = || comparisons.iter().flat_map(|line| &line.fewer_violations);
    let names = comparisons.iter().map(|line| line.policy.as_str());
    let yardsticks: Vec<&str> = names.filter(|name| fewer().any(|one| one.than == *name)).collect();
    let Some(loads) = fewer().map(|one| &one.loads).next() else { return text };
    let _ = write!(text, "\n{:width$}", "fewer violations than");
    for than in &yardsticks {
        let _ = write!(text, "  {than:>20}");
    }
    let _ = writeln!(text, "  {:>18}", "load at 90 %");
    for line in comparisons {
        let _ = write!(text, "{:width$}", line.policy);
        for than in &yardsticks {
            let fewer = line.fewer_violations.iter().find(|fewer| fewer.than == *than);
            let cell = fewer.map_or_else(|| "-".to_owned(), |fewer| percent(fewer.share.as_ref()));
            let _ = write!(text, "  {cell:>20}");
        }
        let _ = writeln!(text, "  {:>18}", line.capacity.as_ref().map_or_else(|| "-".to_owned(), capacity));
    }
    let loads: Vec<String> = loads.iter().map(f64::to_string).collect();
    let _ = writeln!(text, "{:width$}  violations at load {}", "", loads.join(", "));
    text
}

/// `62 % [58, 66]`.
pub fn percent(share: Option<&Interval>) -> String {
    match share {
        Some(Interval { mean, low: Some(low), high: Some(high) }) => {
            format!("{} % [{}, {}]", hundredths(*mean), hundredths(*low), hundredths(*high))
        }
        Some(Interval { mean, .. }) => format!("{} %", hundredths(*mean)),
        None => "-".to_owned(),
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
        let interval = |mean, low, high| Interval { mean, low, high };
        assert_eq!(percent(Some(&interval(0.623, Some(-0.004), Some(0.7)))), "62 % [0, 70]");
        assert_eq!(percent(Some(&interval(-0.5, None, None))), "-50 %");
        assert_eq!(percent(None), "-");
    }

    #[test]
    fn capacities_say_how_they_are_meant() {
        let text = |bound, low, high| capacity(&Capacity { load: 0.5, low, high, bound });
        assert_eq!(text(Bound::Exact, Some(0.4), Some(0.6)), "0.500 [0.400, 0.600]");
        assert_eq!(text(Bound::Exact, None, None), "0.500");
        assert_eq!(text(Bound::AtLeast, Some(0.4), Some(0.5)), "at least 0.500");
        assert_eq!(text(Bound::Below, None, None), "below 0.500");
    }
}
