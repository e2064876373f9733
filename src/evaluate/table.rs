//! Comparisons as text for people.

use super::capacity::{Bound, Capacity};
use super::compare::{AtLoad, Comparison};
use crate::bootstrap::{Evidence, Interval};
use crate::policy::{PolicyName, short_names};
use crate::text::{Column, TextTable, printable, wrapped};

/// The comparisons as tables at most `width` columns wide: what was attained, how many violations fewer than those of the
/// yardsticks, what happened at each load, and the gains over each policy in `versus`. Policies with long names have short ones,
/// and their own beneath.
pub fn render(comparisons: &[Comparison], versus: &[PolicyName], width: usize) -> String {
    let names: Vec<&PolicyName> = comparisons.iter().map(|line| &line.policy).collect();
    let tables = Tables { comparisons, short: short_names(&names), width };
    let mut text = tables.attained();
    text.push_str(&tables.violations());
    text.push_str(&tables.by_load());
    for than in versus {
        text.push_str(&tables.gains(than));
    }
    text.push_str(&tables.rest());
    text
}

struct Tables<'a> {
    comparisons: &'a [Comparison],
    /// A name each.
    short: Vec<String>,
    width: usize,
}

impl Tables<'_> {
    fn lines(&self) -> impl Iterator<Item = (&String, &Comparison)> {
        self.short.iter().zip(self.comparisons)
    }

    fn short(&self, name: &PolicyName) -> String {
        let found = self.lines().find(|(_, line)| line.policy == *name);
        found.map_or_else(|| name.to_string(), |(short, _)| short.clone())
    }

    fn attained(&self) -> String {
        let mut table = TextTable::new(vec![
            Column::new("", "policy"),
            Column::new("attained", "%"),
            Column::new("gain [95 %]", "points"),
            Column::new("TTFT", "mean s"),
            Column::new("TTFT", "p99 s"),
            Column::new("longest", "wait s"),
            Column::new("ITL", "mean ms"),
            Column::new("ITL", "p99 ms"),
            Column::new("E2E", "mean s"),
            Column::new("output", "tokens/s"),
            Column::new("preemp-", "tions"),
        ]);
        for (short, line) in self.lines() {
            let gain = match &line.slo_attainment_gain {
                _ if line.policy == line.reference => "reference".to_owned(),
                gain => points(gain.as_ref()),
            };
            table.row(vec![
                short.clone(),
                format!("{:.1}", line.slo_attainment * 100.0),
                gain,
                time(line.ttft_mean_ms, |ms| format!("{:.2}", ms / 1e3)),
                time(line.ttft_p99_ms, |ms| format!("{:.2}", ms / 1e3)),
                time(line.longest_wait_ms, |ms| format!("{:.1}", ms / 1e3)),
                time(line.itl_mean_ms, |ms| format!("{ms:.1}")),
                time(line.itl_p99_ms, |ms| format!("{ms:.0}")),
                time(line.e2e_mean_ms, |ms| format!("{:.2}", ms / 1e3)),
                format!("{:.0}", line.output_tok_s),
                format!("{:.0}", line.preemptions),
            ]);
            if *short != line.policy.as_str() {
                table.note(format!("is {}", printable(line.policy.as_str())));
            }
            if let Some(first) = line.chosen.first() {
                let others = line.chosen.len() - 1;
                let more = if others == 0 { String::new() } else { format!(" (and {others} others)") };
                table.note(format!("= {first}{more}"));
            }
            if let Some(guard) = &line.guard {
                table.note(guard.to_string());
            }
        }
        table.render(self.width)
    }

    /// Empty where there is nobody to be compared with.
    fn violations(&self) -> String {
        let yardsticks = yardsticks(self.comparisons);
        if yardsticks.is_empty() {
            return String::new();
        }
        let mut columns = vec![Column::new("", "fewer violations, %")];
        columns.extend(yardsticks.iter().map(|than| Column::new("than", &self.short(than))));
        columns.push(Column::new("load", "at 90 %"));
        let is_open = self.comparisons.iter().any(|line| line.capacity.is_some_and(|at| at.offered_rps.is_some()));
        if is_open {
            columns.push(Column::new("req/s", "at 90 %"));
        }
        let mut table = TextTable::new(columns);
        for (short, line) in self.lines() {
            let mut cells = vec![short.clone()];
            for than in &yardsticks {
                let against = line.against.iter().find(|against| against.than == **than);
                cells.push(against.map_or_else(dash, |against| percents(against.fewer_violations.as_ref())));
            }
            cells.push(line.capacity.as_ref().map_or_else(dash, capacity));
            let rate = line.capacity.and_then(|at| Some((at.bound, at.offered_rps?)));
            cells.push(rate.map_or_else(dash, |(bound, rate)| bounded(bound, rps(rate))));
            table.row(cells);
        }
        let loads = self.comparisons.first().map_or(&[][..], |line| &line.loads[..]);
        let loads: Vec<String> = loads.iter().map(|at| at.load.to_string()).collect();
        let note = format!("violations over every load run: {}; below 0 they are more", loads.join(", "));
        format!("\n{}{}", table.render(self.width), wrapped(&note, self.width, 2))
    }

    /// What was attained at each load, and the longest wait there as a multiple of the reference's.
    fn by_load(&self) -> String {
        let Some(first) = self.comparisons.first() else { return String::new() };
        let mut columns = vec![Column::new("at load", "offered req/s")];
        let offered = |at: &AtLoad| at.offered_rps.map_or_else(dash, rps);
        columns.extend(first.loads.iter().map(|at| Column::new(&at.load.to_string(), &offered(at))));
        let mut table = TextTable::new(columns);
        for (short, line) in self.lines() {
            let cell = |at: &AtLoad| {
                let attained = at.slo_attainment.map_or_else(dash, |share| format!("{:.1}", share.mean * 100.0));
                format!("{attained} {:>6}", times(at.longest_wait_times))
            };
            table.row(std::iter::once(short.clone()).chain(line.loads.iter().map(cell)).collect());
        }
        let note = format!("attained, %, and the longest wait × that of {}", self.short(&first.reference));
        format!("\n{}{}", table.render(self.width), wrapped(&note, self.width, 2))
    }

    /// What each policy gains over `than`, at which load least, and the longest wait at each load as a multiple of its.
    fn gains(&self, than: &PolicyName) -> String {
        let against = |line: &Comparison| line.against.iter().find(|against| against.than == *than).cloned();
        let found: Vec<_> = self.lines().filter_map(|(short, line)| Some((short, against(line)?))).collect();
        let mut columns = vec![
            Column::new("", "policy"),
            Column::new("gain [95 %]", "points"),
            Column::new("at the worst", "load, points"),
            Column::new("fewer vio-", "lations, %"),
        ];
        let loads = found.first().map_or(&[][..], |(_, against)| &against.longest_waits[..]);
        columns.extend(loads.iter().map(|at| Column::new("wait ×", &format!("at {}", at.load))));
        let mut table = TextTable::new(columns);
        for (short, against) in &found {
            let worst = against.worst_load.map_or_else(dash, |at| format!("{} at {}", signed(at.gain), at.load));
            let gain = points(against.gain.as_ref());
            let mut cells = vec![(*short).clone(), gain, worst, percents(against.fewer_violations.as_ref())];
            cells.extend(against.longest_waits.iter().map(|at| times(at.times)));
            table.row(cells);
        }
        format!("\ngain over {}\n{}", self.short(than), table.render(self.width))
    }

    /// What intervals rest on, which mostly is the same for all.
    fn rest(&self) -> String {
        let mut text = String::from("\n");
        let rests: Vec<String> =
            self.comparisons.iter().map(|line| evidence(line.slo_attainment_mean.as_ref())).collect();
        match rests.first() {
            Some(first) if rests.iter().all(|rest| rest == first) => {
                text.push_str(&wrapped(&format!("intervals rest on {first}"), self.width, 2));
            }
            _ => {
                for ((short, _), rest) in self.lines().zip(&rests) {
                    text.push_str(&wrapped(&format!("intervals of {short} rest on {rest}"), self.width, 2));
                }
            }
        }
        let repeated = self.comparisons.first().map_or(0, |line| line.repeated);
        if repeated > 0 {
            text.push_str(&wrapped(&repeated_text(repeated), self.width, 2));
        }
        text
    }
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

/// `+1.2 [-0.3, +2.5]`.
fn points(gain: Option<&Interval>) -> String {
    match gain {
        Some(Interval { mean, low: Some(low), high: Some(high), .. }) => {
            format!("{} [{}, {}]", signed(*mean), signed(*low), signed(*high))
        }
        Some(Interval { mean, .. }) => format!("{} [no interval]", signed(*mean)),
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

/// `62 [58, 66]`, of a column whose name says that it is per cent.
fn percents(share: Option<&Interval>) -> String {
    percent(share).replacen(" %", "", 1)
}

/// Requests a second, to three digits: `2.87`, `12.3`, `104`.
pub fn rps(rate: f64) -> String {
    let decimals = if rate >= 99.95 { 0 } else { usize::from(rate < 9.995) + 1 };
    format!("{rate:.decimals$}")
}

/// Whole percent; zero has no sign.
fn hundredths(share: f64) -> f64 {
    (share * 100.0).round() + 0.0
}

/// `0.46 [0.45, 0.47]`, `at least 0.6`, `below 0.4`.
pub fn capacity(capacity: &Capacity) -> String {
    let load = format!("{:.3}", capacity.load);
    match (capacity.bound, capacity.low, capacity.high) {
        (Bound::Exact, Some(low), Some(high)) => format!("{load} [{low:.3}, {high:.3}]"),
        (bound, ..) => bounded(bound, load),
    }
}

fn bounded(bound: Bound, text: String) -> String {
    match bound {
        Bound::AtLeast => format!("at least {text}"),
        Bound::Below => format!("below {text}"),
        Bound::Exact => text,
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
    fn rates_have_three_digits() {
        assert_eq!([0.123, 2.874, 9.999, 12.34, 99.97, 104.4].map(rps), ["0.12", "2.87", "10.0", "12.3", "100", "104"]);
        assert_eq!(percents(Some(&Interval::single(0.5))), "50");
    }

    #[test]
    fn what_there_is_none_of_is_a_dash() {
        assert_eq!((times(None), times(Some(2.345))), ("–".to_owned(), "2.35×".to_owned()));
        assert_eq!(time(None, |ms| ms.to_string()), "–");
        assert_eq!(evidence(Some(&Interval::single(1.0))), "–");
        assert_eq!(points(Some(&Interval::single(-0.012))), "-1.2 [no interval]");
        assert_eq!((signed(-0.0004), signed(0.123)), ("0.0".to_owned(), "+12.3".to_owned()));
    }

    #[test]
    fn capacities_say_how_they_are_meant() {
        let text =
            |bound, low, high| capacity(&Capacity { load: 0.5, low, high, offered_rps: None, bound, evidence: None });
        assert_eq!(text(Bound::Exact, Some(0.4), Some(0.6)), "0.500 [0.400, 0.600]");
        assert_eq!(text(Bound::Exact, None, None), "0.500");
        assert_eq!(text(Bound::AtLeast, Some(0.4), Some(0.5)), "at least 0.500");
        assert_eq!(text(Bound::Below, None, None), "below 0.500");
    }
}
