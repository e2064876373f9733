//! The tables of a report.

use std::collections::BTreeMap;

use kvtide_envs::metrics::GroupSummary;
use kvtide_runtime::{FEATURES, Head};
use maud::{Markup, Render, html};

use super::ReportInput;
use super::insight::Insight;
use crate::evaluate::{
    Against, Comparison, Interval, RunRow, capacity_text, dash, distinct, evidence, percent, signed, time, times,
    yardsticks,
};
use crate::plot::svg::{Words, round};
use crate::policy::PolicyName;

/// What each policy attained, with what happened to late requests.
pub(super) fn results(comparisons: &[Comparison]) -> Markup {
    let head = [
        "policy",
        "attained, %",
        "gain, points",
        "draws won, %",
        "worst load, points",
        "intervals rest on",
        "goodput, req/s",
        "tokens/s",
        "TTFT p99",
        "longest wait",
        "ITL p99",
        "preemptions",
    ];
    let row = |line: &Comparison| {
        let is_reference = line.policy == line.reference;
        let points = |interval: Option<&Interval>, digits| {
            interval.map_or_else(|| dash().render(), |one| spread(one, 100.0, digits))
        };
        let reference = html! { i { "reference" } };
        let or_reference = |cell: Markup| if is_reference { reference.clone() } else { cell };
        let name = html! {
            (bold(line.policy.as_str()))
            @if let Some(chosen) = line.chosen.first() {
                br;
                small {
                    "= " (Words(&chosen.to_string()))
                    @if line.chosen.len() > 1 { " and " (line.chosen.len() - 1) " others" }
                }
            }
        };
        vec![
            name,
            points(line.slo_attainment_mean.as_ref(), 1),
            or_reference(points(line.slo_attainment_gain.as_ref(), 1)),
            or_reference(points(line.improvement.as_ref(), 0)),
            or_reference(against(line, &line.reference).map_or_else(|| dash().render(), worst_load)),
            evidence(line.slo_attainment_mean.as_ref()).render(),
            round(line.goodput_rps, 2).render(),
            round(line.output_tok_s, 0).render(),
            seconds(line.ttft_p99_ms).render(),
            seconds(line.longest_wait_ms).render(),
            time(line.itl_p99_ms, |ms| format!("{ms:.0} ms")).render(),
            round(line.preemptions, 0).render(),
        ]
    };
    table(&head, comparisons.iter().map(row))
}

/// Violations against those of the yardsticks, and capacity.
pub(super) fn violations(comparisons: &[Comparison]) -> Markup {
    let yardsticks = yardsticks(comparisons);
    let titles: Vec<String> = yardsticks.iter().map(|than| format!("fewer violations than {than}")).collect();
    let mut head = vec!["policy"];
    head.extend(titles.iter().map(String::as_str));
    head.extend(["load at 90 % attained", "intervals rest on"]);
    let row = |line: &Comparison| {
        let mut cells = vec![bold(line.policy.as_str())];
        cells.extend(yardsticks.iter().map(|than| {
            against(line, than).map_or_else(dash, |against| percent(against.fewer_violations.as_ref())).render()
        }));
        cells.push(line.capacity.as_ref().map_or_else(dash, capacity_text).render());
        cells.push(evidence(line.slo_attainment_mean.as_ref()).render());
        cells
    };
    table(&head, comparisons.iter().map(row))
}

fn against<'a>(line: &'a Comparison, than: &PolicyName) -> Option<&'a Against> {
    line.against.iter().find(|against| against.than == *than)
}

/// `-1.2 at 0.8`.
fn worst_load(against: &Against) -> Markup {
    let at = |load: f64| html! { " " small { "at " (load) } };
    against.worst_load.map_or_else(|| dash().render(), |worst| html! { (signed(worst.gain)) (at(worst.load)) })
}

/// Gains over `than`, and where they cost most.
pub(super) fn gains(comparisons: &[Comparison], than: &PolicyName) -> Markup {
    let head = [
        "policy",
        "gain, points",
        "worst load, points",
        "fewer violations",
        "longest wait ×, by load",
        "intervals rest on",
    ];
    let rows = comparisons.iter().filter_map(|line| Some((line, against(line, than)?))).map(|(line, against)| {
        let waits = html! {
            @for (index, at) in against.longest_waits.iter().enumerate() {
                @if index > 0 { br; }
                (at.load) ": " (times(at.times))
            }
        };
        vec![
            bold(line.policy.as_str()),
            against.gain.as_ref().map_or_else(|| dash().render(), |gain| spread(gain, 100.0, 1)),
            worst_load(against),
            percent(against.fewer_violations.as_ref()).render(),
            waits,
            evidence(against.gain.as_ref()).render(),
        ]
    });
    table(&head, rows)
}

/// Attainment, TTFT p99 and longest wait of each policy at each load.
pub(super) fn by_load(comparisons: &[Comparison]) -> Markup {
    let titles: Vec<String> = comparisons[0].loads.iter().map(|at| format!("load {}", at.load)).collect();
    let mut head = vec!["policy"];
    head.extend(titles.iter().map(String::as_str));
    let row = |line: &Comparison| {
        let at_load = line.loads.iter().map(|at| {
            html! {
                @match &at.slo_attainment {
                    Some(one) => (spread(one, 100.0, 1)),
                    None => (dash()),
                }
                br;
                small {
                    (evidence(at.slo_attainment.as_ref()))
                    br;
                    "TTFT p99 " (seconds(at.ttft_p99_ms)) ", longest wait " (seconds(at.longest_wait_ms)) ", "
                    (times(at.longest_wait_times)) " " (Words(line.reference.as_str())) "'s"
                }
            }
        });
        std::iter::once(bold(line.policy.as_str())).chain(at_load).collect()
    };
    table(&head, comparisons.iter().map(row))
}

/// Attainment by class or tenant at one load, over all draws; `None` if none is named.
pub(super) fn by_group(
    material: &ReportInput<'_>,
    load: f64,
    groups: fn(&RunRow) -> &BTreeMap<String, GroupSummary>,
) -> Option<Markup> {
    let rows = distinct(&material.rows.iter().filter(|row| row.load == load).collect::<Vec<&RunRow>>());
    let mut names: Vec<(&str, u64)> = Vec::new();
    for (name, group) in rows.iter().flat_map(|row| groups(row)) {
        match names.iter_mut().find(|(known, _)| known == name) {
            Some((_, requests)) => *requests += group.requests,
            None => names.push((name, group.requests)),
        }
    }
    if names.is_empty() {
        return None;
    }
    names.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let more = names.len().saturating_sub(MAX_GROUPS);
    names.truncate(MAX_GROUPS);
    // Every policy serves the same requests.
    let policies = material.comparisons.len() as u64;
    let mut head = vec!["group", "requests"];
    head.extend(material.comparisons.iter().map(|line| line.policy.as_str()));
    let lines = names.iter().map(|(name, requests)| {
        let of_policy = material.comparisons.iter().map(|line| {
            let found: Vec<&GroupSummary> =
                rows.iter().filter(|row| row.policy == line.policy).filter_map(|row| groups(row).get(*name)).collect();
            let requests: u64 = found.iter().map(|group| group.requests).sum();
            let attained: f64 = found.iter().map(|group| group.slo_attainment * group.requests as f64).sum();
            let wait = found.iter().filter_map(|group| group.longest_wait_ms).max_by(f64::total_cmp);
            let share = if requests == 0 { dash() } else { format!("{:.1} %", attained / requests as f64 * 100.0) };
            html! { (share) br; small { "longest wait " (seconds(wait)) } }
        });
        let first = [bold(name), (requests / policies.max(1)).render()];
        first.into_iter().chain(of_policy).collect()
    });
    Some(html! {
        (table(&head, lines))
        @if more > 0 { p.note { "The " (MAX_GROUPS) " largest; " (more) " more are left out." } }
    })
}

/// Most groups shown.
const MAX_GROUPS: usize = 16;

/// Features by influence.
pub(super) fn features(insight: &Insight, most: usize) -> Markup {
    let heads: Vec<Head> = insight.heads.iter().map(|(head, _)| *head).collect();
    let titles: Vec<String> = heads.iter().map(|head| format!("of {}", head.name())).collect();
    let mut head = vec!["feature", "decisions changed", ""];
    if heads.len() > 1 {
        head.extend(titles.iter().map(String::as_str));
    }
    let is_table = insight.features.iter().any(|one| one.asked.is_some());
    if is_table {
        head.push("asked for in");
    }
    let rows = insight.features.iter().take(most).map(|one| {
        let spec = &FEATURES[one.feature as usize];
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let mut cells = vec![
            html! { (bold(spec.name)) br; small { (Words(spec.source)) } },
            percent(one.any).render(),
            html! { span.bar style=(format_args!("width:{:.1}px", one.any * 160.0)) {} },
        ];
        if heads.len() > 1 {
            cells.extend(heads.iter().map(|&head| percent(one.heads[head as usize]).render()));
        }
        if is_table {
            cells.push(one.asked.map_or_else(dash, percent).render());
        }
        cells
    });
    table(&head, rows)
}

/// How often each choice was taken.
pub(super) fn choices(insight: &Insight) -> Markup {
    let rows = insight.heads.iter().map(|(head, shares)| {
        let shares: Vec<String> =
            shares.iter().map(|(choice, share)| format!("{choice} {:.1} %", share * 100.0)).collect();
        vec![bold(head.name()), html! { span.text { (Words(&shares.join(" · "))) } }]
    });
    table(&["head", "choices taken"], rows)
}

fn bold(name: &str) -> Markup {
    html! { b { (Words(name)) } }
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<Markup>>) -> Markup {
    html! {
        div.scroll {
            table {
                tr { @for title in head { th { (Words(title)) } } }
                @for cells in rows { "\n" tr { @for cell in cells { td { (cell) } } } }
            }
        }
        "\n"
    }
}

/// `94.6 [93.1, 95.9]`, in hundredths if `scale` is 100.
fn spread(interval: &Interval, scale: f64, digits: usize) -> Markup {
    let number = |value: f64| {
        let text = format!("{:.digits$}", value * scale);
        // What rounds to zero has no sign.
        if text.trim_start_matches('-').parse() == Ok(0.0) { text.trim_start_matches('-').to_owned() } else { text }
    };
    let ends = interval
        .low
        .zip(interval.high)
        .map_or_else(|| "no interval".to_owned(), |(low, high)| format!("{}, {}", number(low), number(high)));
    html! { (number(interval.mean)) " " small { "[" (ends) "]" } }
}

pub(super) fn seconds(ms: Option<f64>) -> String {
    time(ms, |ms| format!("{:.1} s", ms / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_digits_and_no_negative_zero() {
        let interval = Interval { low: Some(-0.0004), high: Some(0.2), ..Interval::single(0.123) };
        assert_eq!(spread(&interval, 100.0, 1).into_string(), "12.3 <small>[0.0, 20.0]</small>");
        assert_eq!(spread(&Interval::single(-0.5), 100.0, 0).into_string(), "-50 <small>[no interval]</small>");
    }
}
