//! The page of a replay: what each policy finds by capacity, as charts and tables. Its speed is not on it, so that equal replays
//! on one day give equal bytes.

use maud::{Markup, html};

use super::EvictionRow;
use crate::plot::chart::{Chart, ChartAxis, Line, Pen, Unit};
use crate::plot::svg::Words;
use crate::report::{Cell, Sheet, last_part, table};

/// Colours of lines; more policies than these are told apart by dashes.
const COLOURS: usize = 7;
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

/// The bound, and what it is drawn with.
const BOUND: &str = "belady";

/// The page over `rows`, of which there is at least one: those of every finished capacity, in the order of the policies. `command`
/// is what made it, on the day `made_on`.
pub fn page(rows: &[EvictionRow], command: &str, made_on: &str) -> String {
    let first = &rows[0];
    let policies: Vec<&str> = rows.iter().filter(|row| row.capacity == first.capacity).map(|row| row.policy).collect();
    let late = format!("Requests with more than {} tokens uncached", first.uncached);
    let sections = html! {
        section id="hits" {
            h2 { "Hits by capacity" }
            p { (Words(&what_counts(first))) }
            (legend(&policies))
            div.figure { (chart(rows, &policies, "Blocks that hit, of those asked for", &|row| row.hit_ratio, true).to_svg()) }
            (by_capacity(rows, &policies, "Blocks that hit", &|row| row.hit_ratio))
        }
        section id="late" {
            h2 { (Words(&late)) }
            p { "What such a request has to compute keeps its first token waiting, whoever else is served. Of all requests." }
            (legend(&policies))
            div.figure { (chart(rows, &policies, &late, &late_share, false).to_svg()) }
            (by_capacity(rows, &policies, &late, &late_share))
        }
        section id="tokens" {
            h2 { "Prompt tokens that hit" }
            p { "Of all prompt tokens, those of a last block that is not full included." }
            (by_capacity(rows, &policies, "Prompt tokens that hit", &|row| row.token_hit_ratio))
        }
    };
    let heading = format!("{}: eviction replayed", last_part(&first.trace));
    Sheet { heading: &heading, claims: &[claim(rows)], subcommand: "evict replay", command, made_on }.over(&sections)
}

fn late_share(row: &EvictionRow) -> f64 {
    row.late_requests as f64 / row.requests.max(1) as f64
}

fn what_counts(row: &EvictionRow) -> String {
    let rule = if row.hits_of == "prefixes" {
        "A request's blocks before the first that is not cached hit; then all of them are cached, and given back from the last to \
         the first."
    } else {
        "Each block is asked for by itself, in order, and hits if it is cached."
    };
    format!(
        "{} requests ask for {} blocks of {} tokens, {} different ones; one after the other, the whole cache for prompts. {rule} \
         Ideal: nothing is ever evicted. Belady evicts what is asked for again last, which takes the future to know.",
        row.requests, row.references, row.block_tokens, row.distinct
    )
}

/// Who finds most at each capacity of those that do not know the future, in a sentence.
fn claim(rows: &[EvictionRow]) -> String {
    let mut parts = Vec::new();
    let mut capacities: Vec<u32> = rows.iter().map(|row| row.capacity).collect();
    capacities.dedup();
    for capacity in capacities {
        let at = || rows.iter().filter(move |row| row.capacity == capacity);
        let best = at().filter(|row| !knows_more(row.policy)).max_by(|a, b| a.hit_ratio.total_cmp(&b.hit_ratio));
        let bound = at().find(|row| row.policy == BOUND);
        if let (Some(best), Some(bound)) = (best, bound) {
            parts.push(format!(
                "at {capacity} blocks {} finds {}, Belady {}",
                best.policy,
                percent(best.hit_ratio),
                percent(bound.hit_ratio)
            ));
        }
    }
    let text = parts.join("; ");
    let ideal = format!("ideal {}", percent(rows[0].ideal_hit_ratio));
    if text.is_empty() { format!("The {ideal}.") } else { format!("Of what is asked for {text}; {ideal}.") }
}

/// Whether no pool can run it.
fn knows_more(policy: &str) -> bool {
    policy == BOUND || policy.starts_with("perfect-")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn pen(policies: &[&str], index: usize) -> Pen {
    if policies[index] == BOUND {
        return Pen { colour: 0, dash: "", width: 3.0 };
    }
    Pen { colour: 1 + index % COLOURS, dash: DASHES[index / COLOURS % DASHES.len()], width: 2.0 }
}

/// What nothing finds more than.
const IDEAL: Pen = Pen { colour: 8, dash: "4 4", width: 1.5 };

fn legend(policies: &[&str]) -> Markup {
    html! {
        p.legend {
            @for (index, policy) in policies.iter().enumerate() { span { (pen(policies, index).sample()) " " (Words(policy)) } " " }
            span { (IDEAL.sample()) " ideal" }
        }
    }
}

fn chart(
    rows: &[EvictionRow],
    policies: &[&str],
    title: &str,
    value: &dyn Fn(&EvictionRow) -> f64,
    has_ideal: bool,
) -> Chart {
    let line = |(index, policy): (usize, &&str)| {
        let of_policy = rows.iter().filter(|row| row.policy == *policy);
        let mut points: Vec<(f64, f64)> = of_policy.map(|row| (row.capacity_share, value(row))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Line::dotted(policy, pen(policies, index), points)
    };
    let across = |label: &str, values: &mut dyn Iterator<Item = f64>| ChartAxis {
        unit: Unit::Percent,
        ..ChartAxis::above_zero(label, values)
    };
    let x = across("capacity, of the distinct blocks", &mut rows.iter().map(|row| row.capacity_share));
    let ideal = rows[0].ideal_hit_ratio;
    let y = across("", &mut rows.iter().map(value).chain(has_ideal.then_some(ideal)));
    let mut lines = Vec::new();
    if has_ideal {
        lines.push(Line::plain("ideal", IDEAL, vec![(x.from, ideal), (x.to, ideal)]));
    }
    lines.extend(policies.iter().enumerate().map(line));
    Chart { title: title.to_owned(), width: 860.0, height: 400.0, x, y, lines, rules: Vec::new(), band: None }
}

fn by_capacity(rows: &[EvictionRow], policies: &[&str], caption: &str, value: &dyn Fn(&EvictionRow) -> f64) -> Markup {
    let of_first = rows.iter().filter(|row| row.policy == policies[0]);
    let heads = of_first.map(|row| format!("{} blocks ({})", row.capacity, percent(row.capacity_share)));
    let heads: Vec<String> = ["policy".to_owned()].into_iter().chain(heads).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let lines = policies.iter().map(|policy| {
        let cells = rows.iter().filter(|row| row.policy == *policy).map(|row| {
            let value = value(row);
            Cell::number(percent(value), Some(value))
        });
        [Cell::text(html! { b { (Words(policy)) } })].into_iter().chain(cells).collect()
    });
    table(caption, &heads, lines)
}
