//! The page of a comparison of tiers: what each policy loses by the size of HBM, how it went over the stream, and what the repaired
//! rules change. Speed is not on it, so that equal comparisons on one day give equal bytes.

use std::fmt::Write;

use kvtide_envs::intent::{ProfileSpec, Sample};
use maud::{Markup, html};

use super::tiers::TierRow;
use crate::plot::chart::{Chart, ChartAxis, Line, Pen, Unit};
use crate::plot::svg::{Words, round};
use crate::report::{Cell, Sheet, last_part, table};

/// Looks of the policies, in their order: not by colour alone.
const DASHES: [&str; 5] = ["", "7 3", "2 3", "", "9 3 2 3"];

/// What HBM holds.
const LIMIT: Pen = Pen { colour: 8, dash: "4 4", width: 1.5 };

/// The page over `rows`, of which there is at least one: by capacity, mode and policy. `command` is what made it, on the day
/// `made_on`.
pub fn page(rows: &[TierRow], command: &str, made_on: &str) -> String {
    let first = &rows[0];
    let profile = first.trace.parse::<ProfileSpec>().ok().map(|spec| spec.profile.name());
    let stream = profile.unwrap_or_else(|| last_part(&first.trace));
    let modes = distinct(rows.iter().map(|row| row.result.mode));
    let sections = html! {
        (deadlines(rows, &modes))
        (course(rows, &modes))
        section id="results" {
            h2 { "What came of each" }
            p { (RESULTS) }
            @for of_capacity in capacities(rows) {
                h3 { (held(&of_capacity[0])) }
                (results(of_capacity))
            }
        }
        section id="modes" {
            h2 { "Faithful and corrected" }
            p { (MODES) }
            ul { @for repair in REPAIRS { li { (repair) } } }
        }
    };
    let heading = format!("{stream}: tiers compared");
    Sheet { heading: &heading, claims: &[claim(rows)], subcommand: "evict compare", command, made_on }.over(&sections)
}

const RESULTS: &str = "Misses are accesses to blocks outside HBM; decode-critical ones are of blocks that the token being generated \
    waits for. A decode step is a run of accesses of one request to such blocks, each block once; it is late if it takes longer than \
    the nearest deadline of its blocks. p99 is of events where the rules are faithful, of decode steps where they are corrected.";

const MODES: &str = "Faithful is the simulator that is followed, to the last integer and the last victim. Corrected differs from it \
    in six rules:";

const REPAIRS: [&str; 6] = [
    "a block marked cold is pinned no longer, where else whatever was decode-critical once stays pinned until it is freed;",
    "HBM never holds more than it has room for: room is made first, never of the block that comes, and if all is pinned the least \
     urgent block goes;",
    "DRAM is finite for whoever moves a block there;",
    "a block found in DRAM costs a transfer, one that is nowhere what computing it again is declared to cost, where else both cost \
     one and the same miss;",
    "a block brought in ahead of its use displaces none that ranks as more worth keeping;",
    "time is that of decode steps, where else every mark and commit takes as long as a step.",
];

fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The rows of each capacity.
fn capacities(rows: &[TierRow]) -> impl Iterator<Item = &[TierRow]> {
    rows.chunk_by(|a, b| capacity(a) == capacity(b))
}

fn capacity(row: &TierRow) -> (u64, u64) {
    (row.result.hbm_capacity_bytes, row.result.dram_capacity_bytes)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What the tiers of a row hold.
fn held(row: &TierRow) -> String {
    let (hbm, dram) = capacity(row);
    format!("{} of HBM, {} of DRAM", size(hbm), size(dram))
}

fn size(bytes: u64) -> String {
    format!("{} MiB", round(mib(bytes), 3))
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// The policy that is late least often in the least HBM, and what that of the simplest is, in a sentence.
fn claim(rows: &[TierRow]) -> String {
    let Some(least) = capacities(rows).min_by_key(|rows| capacity(&rows[0])) else { return String::new() };
    let result = &rows[0].result;
    let mut text = format!("{}: {} events on {} blocks.", rows[0].trace, result.total_steps, result.total_blocks);
    for mode in distinct(least.iter().map(|row| row.result.mode)) {
        let of_mode = || least.iter().map(|row| &row.result).filter(move |result| result.mode == mode);
        let rate =
            |policy: &str| of_mode().find(|result| result.policy == policy).map(|result| result.deadline_miss_rate);
        let best = of_mode().min_by(|a, b| a.deadline_miss_rate.total_cmp(&b.deadline_miss_rate));
        if let Some(best) = best {
            let _ = write!(
                text,
                " In {} of HBM, {mode}: {} is late in {} of the decode steps with a deadline",
                size(best.hbm_capacity_bytes),
                best.policy,
                percent(best.deadline_miss_rate)
            );
            let lru = rate("lru").filter(|_| best.policy != "lru");
            text += &lru.map_or_else(|| ".".to_owned(), |lru| format!(", lru in {}.", percent(lru)));
        }
    }
    text
}

fn pen(index: usize) -> Pen {
    Pen { colour: 1 + index % 7, dash: DASHES[index % DASHES.len()], width: 2.0 }
}

fn policies(rows: &[TierRow]) -> Vec<&'static str> {
    distinct(rows.iter().map(|row| row.result.policy))
}

fn legend(policies: &[&str], has_limit: bool) -> Markup {
    html! {
        p.legend {
            @for (index, policy) in policies.iter().enumerate() { span { (pen(index).sample()) " " (Words(policy)) } " " }
            @if has_limit { span { (LIMIT.sample()) " room in HBM" } }
        }
    }
}

/// Late decode steps and misses by the size of HBM, a chart each for a mode; of the first size of DRAM.
fn deadlines(rows: &[TierRow], modes: &[&'static str]) -> Markup {
    let policies = policies(rows);
    let dram = rows[0].result.dram_capacity_bytes;
    let of = |mode: &str| -> Vec<&TierRow> {
        rows.iter().filter(|row| row.result.mode == mode && row.result.dram_capacity_bytes == dram).collect()
    };
    html! {
        section id="deadlines" {
            h2 { "Late decode steps by the size of HBM" }
            p { "Of the decode steps that have a deadline, with " (size(dram)) " of DRAM." }
            (legend(&policies, false))
            @for mode in modes {
                div.figure {
                    (by_hbm(&of(mode), &policies, &format!("Late decode steps, {mode}"), Unit::Percent, &|row| row.result.deadline_miss_rate).to_svg())
                }
            }
        }
        "\n"
        section id="misses" {
            h2 { "Decode-critical misses by the size of HBM" }
            (legend(&policies, false))
            @for mode in modes {
                div.figure {
                    (by_hbm(&of(mode), &policies, &format!("Decode-critical misses, {mode}"), Unit::Number, &|row| row.result.decode_critical_misses as f64).to_svg())
                }
            }
        }
        "\n"
    }
}

fn by_hbm(rows: &[&TierRow], policies: &[&str], title: &str, unit: Unit, value: &dyn Fn(&TierRow) -> f64) -> Chart {
    let line = |(index, policy): (usize, &&str)| {
        let of_policy = rows.iter().filter(|row| row.result.policy == *policy);
        let mut points: Vec<(f64, f64)> =
            of_policy.map(|row| (mib(row.result.hbm_capacity_bytes), value(row))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line::dotted(policy, pen(index), points)
    };
    let x = ChartAxis::above_zero("HBM, MiB", rows.iter().map(|row| mib(row.result.hbm_capacity_bytes)));
    let y = ChartAxis { unit, ..ChartAxis::above_zero("", rows.iter().map(|row| value(row))) };
    let lines = policies.iter().enumerate().map(line).collect();
    Chart { title: title.to_owned(), width: 860.0, height: 300.0, x, y, lines, rules: Vec::new(), band: None }
}

/// How it went in the least HBM: what HBM held, and deadlines missed so far.
fn course(rows: &[TierRow], modes: &[&'static str]) -> Markup {
    let Some(least) = capacities(rows).min_by_key(|rows| capacity(&rows[0])) else { return html! {} };
    let policies = policies(rows);
    let limit = mib(least[0].result.hbm_capacity_bytes);
    let of = |mode: &str| -> Vec<&TierRow> { least.iter().filter(|row| row.result.mode == mode).collect() };
    html! {
        section id="course" {
            h2 { "Over the stream, in the least HBM" }
            p { "What HBM holds, and how many decode steps were late so far. Under faithful rules pins can let HBM exceed its room." }
            (legend(&policies, true))
            @for mode in modes {
                div.figure {
                    (over_events(&of(mode), &policies, &format!("HBM in use, MiB, {mode}"), Some(limit), &|sample| mib(sample.hbm_used_bytes)).to_svg())
                }
                div.figure {
                    (over_events(&of(mode), &policies, &format!("Late decode steps so far, {mode}"), None, &|sample| sample.deadline_misses as f64).to_svg())
                }
            }
        }
        "\n"
    }
}

fn over_events(
    rows: &[&TierRow],
    policies: &[&str],
    title: &str,
    limit: Option<f64>,
    value: &dyn Fn(&Sample) -> f64,
) -> Chart {
    let samples = || rows.iter().flat_map(|row| &row.series);
    let x = ChartAxis::above_zero("events", samples().map(|sample| sample.events as f64));
    let y = ChartAxis::above_zero("", samples().map(value).chain(limit));
    let mut lines: Vec<Line> = Vec::new();
    if let Some(limit) = limit {
        lines.push(Line::plain("room in HBM", LIMIT, vec![(x.from, limit), (x.to, limit)]));
    }
    for (index, policy) in policies.iter().enumerate() {
        let of_policy = rows.iter().filter(|row| row.result.policy == *policy).flat_map(|row| &row.series);
        let points = of_policy.map(|sample| (sample.events as f64, value(sample))).collect();
        lines.push(Line::plain(policy, pen(index), points));
    }
    Chart { title: title.to_owned(), width: 860.0, height: 260.0, x, y, lines, rules: Vec::new(), band: None }
}

const HEADS: [&str; 11] = [
    "policy",
    "rules",
    "hits",
    "misses",
    "decode-critical",
    "evicted",
    "brought in",
    "late steps",
    "p99 us",
    "total ms",
    "peak of HBM",
];

/// Both modes of every policy beside each other.
fn results(rows: &[TierRow]) -> Markup {
    let caption = held(&rows[0]);
    let mut rows: Vec<&TierRow> = rows.iter().collect();
    let order = policies_of(&rows);
    rows.sort_by_key(|row| order.iter().position(|policy| *policy == row.result.policy));
    let count = |value: u64| Cell::number(value.to_string(), Some(value as f64));
    let lines = rows.into_iter().map(|row| {
        let result = &row.result;
        let peak = result.actual_peak_hbm_used_bytes as f64 / result.hbm_capacity_bytes.max(1) as f64;
        let late =
            format!("{} of {} ({})", result.deadline_misses, result.deadline_steps, percent(result.deadline_miss_rate));
        vec![
            Cell::text(html! { b { (result.policy) } }),
            Cell::text(html! { (result.mode) }),
            count(result.hits),
            count(result.miss_count),
            count(result.decode_critical_misses),
            count(result.eviction_count),
            count(result.prefetch_count),
            Cell::number(late, Some(result.deadline_miss_rate)),
            Cell::number(format!("{:.0}", result.p99_latency_us), Some(result.p99_latency_us)),
            Cell::number(format!("{:.1}", result.total_latency_us as f64 * 1e-3), Some(result.total_latency_us as f64)),
            Cell::number(percent(peak), Some(peak)),
        ]
    });
    table(&caption, &HEADS, lines)
}

fn policies_of(rows: &[&TierRow]) -> Vec<&'static str> {
    distinct(rows.iter().map(|row| row.result.policy))
}
