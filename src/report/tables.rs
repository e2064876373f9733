//! The tables of a report.

use std::collections::BTreeMap;

use kvtide_envs::metrics::GroupSummary;
use kvtide_runtime::{FEATURES, Head};
use maud::{Markup, Render, html};

use super::ReportInput;
use super::cells::{Cell, table};
use super::insight::Insight;
use super::names::{ShortNames, breakable};
use super::wording::{
    fewer_or_more, gain, milliseconds, milliseconds_of_mean, minus, percent, seconds, seconds_of_mean, spread,
};
use crate::evaluate::{
    Against, Comparison, Interval, RunRow, capacity_text, dash, distinct, evidence, signed, times, yardsticks,
};
use crate::plot::svg::{Words, round};
use crate::policy::PolicyName;

/// What each policy attained, with what happened to late requests.
pub(super) fn results(comparisons: &[Comparison], names: &ShortNames) -> Markup {
    let shared = shared(comparisons.iter().map(|line| evidence(line.slo_attainment_mean.as_ref())));
    let mut head = vec!["policy", "attained, %", "gain, points", "draws won, %", "worst load, points"];
    head.extend(shared.is_none().then_some(EVIDENCE));
    head.extend(["goodput, req/s", "tokens/s", "TTFT p99", "longest wait", "ITL p99", "preemptions"]);
    let row = |line: &Comparison| {
        let is_reference = line.policy == line.reference;
        let or_reference =
            |cell: Cell| if is_reference { Cell::number(html! { i { "reference" } }, Some(0.0)) } else { cell };
        let mean = |interval: Option<&Interval>| interval.map(|one| one.mean);
        let (attained, won) = (line.slo_attainment_mean.as_ref(), line.improvement.as_ref());
        let shown = |interval: Option<&Interval>, digits| {
            Cell::number(interval.map_or_else(none, |one| spread(one, 100.0, digits)), mean(interval))
        };
        let mut cells = vec![
            Cell::text(whole_name(line, names)),
            shown(attained, 1),
            or_reference(points(line.slo_attainment_gain.as_ref())),
            or_reference(shown(won, 0)),
            or_reference(against(line, &line.reference).map_or_else(|| Cell::number(none(), None), worst_load)),
        ];
        cells.extend(shared.is_none().then(|| Cell::text(evidence(attained))));
        cells.extend([
            Cell::number(round(line.goodput_rps, 2), Some(line.goodput_rps)),
            Cell::number(round(line.output_tok_s, 0), Some(line.output_tok_s)),
            Cell::number(seconds(line.ttft_p99_ms), line.ttft_p99_ms),
            Cell::number(seconds(line.longest_wait_ms), line.longest_wait_ms),
            Cell::number(milliseconds(line.itl_p99_ms), line.itl_p99_ms),
            Cell::number(round(line.preemptions, 0), Some(line.preemptions)),
        ]);
        cells
    };
    html! {
        (table("What was attained", &head, comparisons.iter().map(row)))
        (shared_note(shared.as_ref()))
        @if let Some(means) = mean_times(comparisons, names) { (means) }
    }
}

/// Mean times of each policy; `None` where nobody has one, as in results from before they were counted.
fn mean_times(comparisons: &[Comparison], names: &ShortNames) -> Option<Markup> {
    let means = |line: &Comparison| [line.ttft_mean_ms, line.tpot_mean_ms, line.itl_mean_ms, line.e2e_mean_ms];
    comparisons.iter().flat_map(means).flatten().next()?;
    let row = |line: &Comparison| {
        let [ttft, tpot, itl, e2e] = means(line);
        let cells =
            [seconds_of_mean(ttft), milliseconds_of_mean(tpot), milliseconds_of_mean(itl), seconds_of_mean(e2e)];
        let times = cells.into_iter().zip(means(line)).map(|(text, time)| Cell::number(text, time));
        std::iter::once(Cell::text(names.bold(&line.policy))).chain(times).collect()
    };
    let head = ["policy", "mean TTFT", "mean TPOT", "mean ITL", "mean E2E"];
    Some(table("Mean times", &head, comparisons.iter().map(row)))
}

/// Heads the column that says what intervals rest on.
const EVIDENCE: &str = "intervals rest on";

/// What all intervals rest on, if that is the same for all policies: a column less.
fn shared(mut all: impl Iterator<Item = String>) -> Option<String> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}

fn shared_note(shared: Option<&String>) -> Markup {
    html! { @if let Some(shared) = shared { p.note { "Every interval rests on " (shared) "." } } }
}

/// The short name with the whole one beneath, and what hindsight chose.
fn whole_name(line: &Comparison, names: &ShortNames) -> Markup {
    html! {
        (names.bold(&line.policy))
        @if let Some(whole) = names.whole(&line.policy) { br; small { (whole) } }
        @if let Some(chosen) = line.chosen.first() {
            br;
            small {
                "= " (breakable(&chosen.to_string()))
                @match line.chosen.len() {
                    1 => {},
                    2 => { " and another" },
                    more => { " and " (more - 1) " others" },
                }
            }
        }
    }
}

fn none() -> Markup {
    dash().render()
}

fn points(interval: Option<&Interval>) -> Cell {
    Cell::number(interval.map_or_else(none, gain), interval.map(|one| one.mean))
}

/// Violations against those of the yardsticks, and capacity.
pub(super) fn violations(comparisons: &[Comparison], names: &ShortNames) -> Markup {
    let yardsticks = yardsticks(comparisons);
    let titles: Vec<String> =
        yardsticks.iter().map(|than| format!("violations, against {}", names.short(than))).collect();
    let mut head = vec!["policy"];
    head.extend(titles.iter().map(String::as_str));
    head.push("load at 90 % attained");
    let row = |line: &Comparison| {
        let mut cells = vec![Cell::text(names.bold(&line.policy))];
        cells.extend(
            yardsticks.iter().map(|than| fewer(against(line, than).and_then(|one| one.fewer_violations.as_ref()))),
        );
        let capacity = line.capacity.as_ref();
        cells.push(Cell::number(capacity.map_or_else(dash, capacity_text), capacity.map(|one| one.load)));
        cells
    };
    table("Violations and capacity", &head, comparisons.iter().map(row))
}

/// Sorted by how many more.
fn fewer(share: Option<&Interval>) -> Cell {
    Cell::number(share.map_or_else(dash, fewer_or_more), share.map(|one| -one.mean))
}

fn against<'a>(line: &'a Comparison, than: &PolicyName) -> Option<&'a Against> {
    line.against.iter().find(|against| against.than == *than)
}

/// `−1.2 at 0.8`.
fn worst_load(against: &Against) -> Cell {
    let at = |load: f64| html! { " " small { "at " (load) } };
    let worst = against.worst_load;
    let words = worst.map_or_else(none, |worst| html! { (minus(&signed(worst.gain))) (at(worst.load)) });
    Cell::number(words, worst.map(|worst| worst.gain))
}

/// Gains over `than`, and where they cost most.
pub(super) fn gains(comparisons: &[Comparison], than: &PolicyName, names: &ShortNames) -> Markup {
    let lines = || comparisons.iter().filter_map(|line| Some((line, against(line, than)?)));
    let shared = shared(lines().map(|(_, against)| evidence(against.gain.as_ref())));
    let mut head = vec!["policy", "gain, points", "worst load, points", "violations", "longest wait ×, by load"];
    head.extend(shared.is_none().then_some(EVIDENCE));
    let rows = lines().map(|(line, against)| {
        let waits = html! {
            @for (index, at) in against.longest_waits.iter().enumerate() {
                @if index > 0 { br; }
                small { "at " (at.load) } " " (times(at.times))
            }
        };
        let longest = against.longest_waits.iter().filter_map(|at| at.times).max_by(f64::total_cmp);
        let mut cells = vec![
            Cell::text(names.bold(&line.policy)),
            points(against.gain.as_ref()),
            worst_load(against),
            fewer(against.fewer_violations.as_ref()),
            Cell::number(waits, longest),
        ];
        cells.extend(shared.is_none().then(|| Cell::text(evidence(against.gain.as_ref()))));
        cells
    });
    html! { (table(&format!("Gains over {}", names.short(than)), &head, rows)) (shared_note(shared.as_ref())) }
}

/// Attainment, TTFT, mean E2E and longest wait of each policy at each load.
pub(super) fn by_load(comparisons: &[Comparison], names: &ShortNames) -> Markup {
    let titles: Vec<String> = comparisons[0].loads.iter().map(|at| format!("load {}", at.load)).collect();
    let mut head = vec!["policy"];
    head.extend(titles.iter().map(String::as_str));
    let row = |line: &Comparison| {
        let at_load = line.loads.iter().map(|at| {
            let words = html! {
                @match &at.slo_attainment {
                    Some(one) => (spread(one, 100.0, 1)),
                    None => (dash()),
                }
                br;
                small { "TTFT mean " (seconds_of_mean(at.ttft_mean_ms)) ", p99 " (seconds(at.ttft_p99_ms)) }
                br;
                small { "E2E mean " (seconds_of_mean(at.e2e_mean_ms)) }
                br;
                small { "longest wait " (seconds(at.longest_wait_ms)) ", " (times(at.longest_wait_times)) }
            };
            Cell::number(words, at.slo_attainment.as_ref().map(|one| one.mean))
        });
        std::iter::once(Cell::text(names.bold(&line.policy))).chain(at_load).collect()
    };
    let reference = names.short(&comparisons[0].reference);
    html! {
        (table("By load", &head, comparisons.iter().map(row)))
        p.note { "Attained, %, with its interval; × the longest wait of " (Words(reference)) "." }
    }
}

/// Attainment by class or tenant at one load, over all draws; `None` if none is named.
pub(super) fn by_group(
    material: &ReportInput<'_>,
    names: &ShortNames,
    load: f64,
    groups: fn(&RunRow) -> &BTreeMap<String, GroupSummary>,
) -> Option<Markup> {
    let rows = distinct(&material.rows.iter().filter(|row| row.load == load).collect::<Vec<&RunRow>>());
    let mut found: Vec<(&str, u64)> = Vec::new();
    for (name, group) in rows.iter().flat_map(|row| groups(row)) {
        match found.iter_mut().find(|(known, _)| known == name) {
            Some((_, requests)) => *requests += group.requests,
            None => found.push((name, group.requests)),
        }
    }
    if found.is_empty() {
        return None;
    }
    found.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let more = found.len().saturating_sub(MAX_GROUPS);
    found.truncate(MAX_GROUPS);
    // Every policy serves the same requests.
    let policies = material.comparisons.len() as u64;
    let mut head = vec!["group", "requests"];
    head.extend(material.comparisons.iter().map(|line| names.short(&line.policy)));
    let lines = found.iter().map(|(name, requests)| {
        let requests = requests / policies.max(1);
        let of_policy = material.comparisons.iter().map(|line| group_cell(&rows, groups, &line.policy, name));
        let first = [Cell::text(bold(name)), Cell::number(requests, Some(requests as f64))];
        first.into_iter().chain(of_policy).collect()
    });
    Some(html! {
        (table("By group", &head, lines))
        @if more > 0 { p.note { "The " (MAX_GROUPS) " largest; " (more) " more are left out." } }
    })
}

/// What one group attained under one policy.
fn group_cell(
    rows: &[&RunRow],
    groups: fn(&RunRow) -> &BTreeMap<String, GroupSummary>,
    policy: &PolicyName,
    name: &str,
) -> Cell {
    let found: Vec<&GroupSummary> =
        rows.iter().filter(|row| row.policy == *policy).filter_map(|row| groups(row).get(name)).collect();
    let requests: u64 = found.iter().map(|group| group.requests).sum();
    let attained: f64 = found.iter().map(|group| group.slo_attainment * group.requests as f64).sum();
    let wait = found.iter().filter_map(|group| group.longest_wait_ms).max_by(f64::total_cmp);
    let share = (requests > 0).then(|| attained / requests as f64);
    let words = share.map_or_else(dash, percent);
    Cell::number(html! { (words) br; small { "longest wait " (seconds(wait)) } }, share)
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
        let share = |share: f64| Cell::number(percent(share), Some(share));
        let mut cells = vec![
            Cell::text(html! { (bold(spec.name)) br; small { (Words(spec.source)) } }),
            share(one.any),
            Cell::text(html! { span.bar style=(format_args!("width:{:.1}px", one.any * 160.0)) {} }),
        ];
        if heads.len() > 1 {
            cells.extend(heads.iter().map(|&head| share(one.heads[head as usize])));
        }
        if is_table {
            cells.push(one.asked.map_or_else(|| Cell::number(none(), None), share));
        }
        cells
    });
    table("Features by influence", &head, rows)
}

/// How often each choice was taken.
pub(super) fn choices(insight: &Insight) -> Markup {
    let rows = insight.heads.iter().map(|(head, shares)| {
        let shares: Vec<String> =
            shares.iter().map(|(choice, share)| format!("{choice} {}", percent(*share))).collect();
        vec![Cell::text(bold(head.name())), Cell::text(html! { span.text { (Words(&shares.join(" · "))) } })]
    });
    table("Choices taken", &["head", "choices taken"], rows)
}

fn bold(name: &str) -> Markup {
    html! { b { (Words(name)) } }
}
