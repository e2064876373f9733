//! The page, from top to bottom.

use std::fmt::Write;

use kvtide_envs::seed::RunHash;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::ReportInput;
use super::close_up::CloseUp;
use super::figures;
use super::tables;
use crate::evaluate::{Comparison, Interval, evidence, percent, repeated_text};
use crate::plot::chart::{Chart, Pen};
use crate::plot::svg::Words;

/// Features shown.
const MAX_FEATURES: usize = 12;

/// What stands above the first table.
const ATTAINED: &str = "A request counts if it met its TTFT, TPOT and stall targets at once. In brackets 95 % intervals, and what \
    they rest on: of generated traffic every seed is a trace of its own, and seeds are resampled; a recorded trace is one, and \
    stretches of 120 s of its time are resampled (circular block bootstrap), beside seeds. Gains are paired: the same requests \
    for everybody. Late requests stand beside every gain: TTFT p99 and the longest wait for a first token.";
/// What stands above the chart over loads.
const BY_LOAD: &str =
    "Bars are 95 % intervals. The dotted line is 90 %: where a policy falls below it is its goodput capacity.";
/// What stands above the features.
const SHUFFLED: &str = "Shuffling one feature over the states visited changes so many of its decisions (permutation importance). \
    Features that go together share their influence; what changes no decision is left out.";

pub(super) fn render(material: &ReportInput<'_>, close_up: &CloseUp) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "kvtide evaluate" }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            "\n"
            body { main { (contents(material, close_up)) } }
        }
    };
    page.into_string() + "\n"
}

fn contents(material: &ReportInput<'_>, close_up: &CloseUp) -> Markup {
    let ReportInput { world, comparisons, .. } = *material;
    let CloseUp { window, load, seed, .. } = *close_up;
    let window = window.map_or_else(|| "all of the traffic".to_owned(), |window| window.to_string());
    let draw = format!("load {load}, {window}, seed {seed}");
    html! {
        h1 { (Words(&world.trace)) " on " (Words(&world.deployment.name())) }
        p.claim { (claim(comparisons, close_up)) }
        (settings(material))

        (section("What was attained", ATTAINED))
        (tables::results(comparisons))
        @if comparisons[0].repeated > 0 { p.note { (repeated_text(comparisons[0].repeated)) "." } }

        (section("Violations and capacity", &violations_text(comparisons)))
        (tables::violations(comparisons))
        @for than in material.versus {
            (section(&format!("Gains over {than}"), "Over every load run, paired."))
            (tables::gains(comparisons, than))
        }

        (section("By load", BY_LOAD))
        (legend(comparisons, close_up))
        (figure(&[figures::attainment(comparisons, close_up)]))
        details { summary { "The numbers" } (tables::by_load(comparisons)) }

        (section("Latencies", &format!("Of requests that finished, on one draw: {draw}.")))
        (legend(comparisons, close_up))
        (figure(&figures::latencies(material, close_up)))

        (groups(material, load))
        (timelines(comparisons, close_up, &draw))
        (decisions(close_up, &draw))
    }
}

/// What came of it in a sentence or two.
fn claim(comparisons: &[Comparison], close_up: &CloseUp) -> Markup {
    let best = |line: &&Comparison| !line.policy.spec().knows_the_future();
    let index = close_up.pair.0;
    let line = index
        .map(|index| &comparisons[index])
        .or_else(|| comparisons.iter().filter(best).max_by(|a, b| a.slo_attainment.total_cmp(&b.slo_attainment)));
    let line = line.unwrap_or(&comparisons[0]);
    let yardstick = &comparisons[close_up.pair.1];
    let attains = html! { b { (Words(line.policy.as_str())) } " attains " (share(line)) " of requests" };
    if yardstick.policy == line.policy {
        return html! { (attains) "." };
    }
    let against = line.against.iter().filter_map(|against| Some((against.fewer_violations?, &against.than)));
    html! {
        (attains) ", " b { (Words(yardstick.policy.as_str())) } " " (share(yardstick))
        @for (fewer, than) in against { "; " (fewer_or_more(&fewer)) " violations than " (Words(than.as_str())) }
        " (" (evidence(line.slo_attainment_mean.as_ref())) "). Its late requests: TTFT p99 "
        (tables::seconds(line.ttft_p99_ms)) " against " (tables::seconds(yardstick.ttft_p99_ms)) ", longest wait "
        (tables::seconds(line.longest_wait_ms)) " against " (tables::seconds(yardstick.longest_wait_ms)) "."
    }
}

fn share(line: &Comparison) -> String {
    format!("{:.1} %", line.slo_attainment * 100.0)
}

/// `62 % [58, 66] fewer`, `5 % [1, 9] more`.
fn fewer_or_more(share: &Interval) -> String {
    if share.mean >= 0.0 {
        return format!("{} fewer", percent(Some(share)));
    }
    let more =
        Interval { mean: -share.mean, low: share.high.map(|high| -high), high: share.low.map(|low| -low), ..*share };
    format!("{} more", percent(Some(&more)))
}

fn settings(material: &ReportInput<'_>) -> Markup {
    let ReportInput { world, matrix, found, rows, .. } = *material;
    let engine = &world.node.engine;
    let list = |values: Vec<String>| values.join(", ");
    let windows =
        matrix.windows.iter().map(|window| window.map_or_else(|| "all".to_owned(), |window| window.to_string()));
    let mut loads = list(matrix.loads.iter().map(f64::to_string).collect());
    let attained = found.iter().filter_map(|one| Some(format!("{}: {:.1} %", one.load?, one.attained? * 100.0)));
    let attained: Vec<String> = attained.collect();
    if !attained.is_empty() {
        let _ = write!(loads, " (found; the default attained {})", attained.join(", "));
    }
    let mut hash = RunHash::default();
    for row in rows {
        row.summary.hash.bytes().for_each(|byte| hash.absorb(u64::from(byte)));
    }
    let traffic =
        world.fingerprint().map_or_else(|| "generated".to_owned(), |hash| format!("recorded, fingerprint {hash}"));
    let clients = world
        .node
        .clients
        .map_or_else(|| "open loop".to_owned(), |clients| format!("closed loop, {clients} clients at load 1"));
    let facts = [
        ("traffic", format!("{}, {traffic}, {clients}", world.trace)),
        ("windows", list(windows.collect())),
        ("loads", loads),
        ("seeds", list(matrix.seeds.iter().map(u64::to_string).collect())),
        ("node", world.deployment.name()),
        (
            "engine",
            format!(
                "{}, {} blocks of {} tokens, {} on the host, max_num_seqs {}, max_num_batched_tokens {}, max_model_len {}{}{}",
                engine.engine.name(),
                engine.num_gpu_blocks,
                engine.block_size,
                engine.num_cpu_blocks,
                engine.max_num_seqs,
                engine.max_num_batched_tokens,
                engine.max_model_len,
                if engine.async_scheduling { ", asynchronous" } else { "" },
                if engine.enable_prefix_caching { ", prefix cache" } else { "" }
            ),
        ),
        ("targets", world.node.slo.to_string()),
        (
            "decisions",
            format!("every {} scheduler steps, and when something is first refused", world.decision_interval),
        ),
        (
            "made by",
            format!(
                "kvtide {}, commit {}; hash of {} runs {:016x}",
                env!("CARGO_PKG_VERSION"),
                option_env!("KVTIDE_COMMIT").unwrap_or("unknown"),
                rows.len(),
                hash.value()
            ),
        ),
    ];
    html! {
        pre { (Words(&material.command)) }
        dl { @for (name, value) in facts { "\n" dt { (name) } dd { (Words(&value)) } } }
    }
}

fn violations_text(comparisons: &[Comparison]) -> String {
    let loads: Vec<String> = comparisons[0].loads.iter().map(|at| at.load.to_string()).collect();
    format!(
        "Violations are requests that missed a target, averaged over every load run: {}. best-fixed and best-static are \
         chosen in hindsight, for each window and load anew.",
        loads.join(", ")
    )
}

/// Sections for classes and tenants, where requests name any.
fn groups(material: &ReportInput<'_>, load: f64) -> Markup {
    let by_class = tables::by_group(material, load, |row| &row.summary.by_class);
    let by_tenant = tables::by_group(material, load, |row| &row.summary.by_tenant);
    let text = format!("At load {load}, over all windows and seeds.");
    html! {
        @for (title, table) in [("By class", by_class), ("By tenant", by_tenant)] {
            @if let Some(table) = table { (section(title, &text)) (table) }
        }
    }
}

fn timelines(comparisons: &[Comparison], close_up: &CloseUp, draw: &str) -> Markup {
    let mut shown: Vec<usize> = close_up.pair.0.into_iter().collect();
    if close_up.pair.0 != Some(close_up.pair.1) {
        shown.push(close_up.pair.1);
    }
    let both = if shown.len() > 1 { " Both see the same requests." } else { "" };
    let served: Vec<_> = shown.iter().map(|&index| &close_up.served[index]).collect();
    let charts = |index: usize| {
        let pen = Pen { dash: "", ..figures::pen(comparisons, index, true) };
        figures::timeline(&close_up.served[index], &served, pen)
    };
    html! {
        (section("What happened", &format!("{draw}.{both}")))
        div.columns { @for &index in &shown { div { @for chart in charts(index) { (chart.to_svg()) } } } }
    }
}

fn decisions(close_up: &CloseUp, draw: &str) -> Markup {
    let served = close_up.pair.0.map(|index| &close_up.served[index]);
    let Some((served, insight)) = served.and_then(|served| Some((served, served.insight.as_ref()?))) else {
        return Markup::default();
    };
    let took = format!("{} took {} decisions on {draw}.", served.policy, insight.decisions);
    html! {
        (section("What the decisions depend on", &took))
        (tables::choices(insight))
        p { (SHUFFLED) }
        (tables::features(insight, MAX_FEATURES))
    }
}

fn section(title: &str, text: &str) -> Markup {
    html! { "\n" h2 { (Words(title)) } "\n" p { (Words(text)) } "\n" }
}

/// Who is which line.
fn legend(comparisons: &[Comparison], close_up: &CloseUp) -> Markup {
    let pen = |index: usize| figures::pen(comparisons, index, close_up.served[index].insight.is_some());
    html! {
        p.legend {
            @for (index, comparison) in comparisons.iter().enumerate() {
                span { (pen(index).sample()) " " (Words(comparison.policy.as_str())) } " "
            }
        }
    }
}

fn figure(charts: &[Chart]) -> Markup {
    html! {
        div.figure.three[charts.len() > 1] { @for chart in charts { (chart.to_svg()) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_not_called_a_gain() {
        let share =
            |mean, low, high| fewer_or_more(&Interval { low: Some(low), high: Some(high), ..Interval::single(mean) });
        assert_eq!(share(0.62, 0.58, 0.66), "62 % [58, 66] fewer");
        assert_eq!(share(-0.05, -0.09, 0.01), "5 % [-1, 9] more");
    }
}
