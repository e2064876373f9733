//! The page, from top to bottom.

use std::fmt::Write;

use kvtide_envs::seed::RunHash;

use super::Material;
use super::chart::{Chart, Pen};
use super::close_up::CloseUp;
use super::figures;
use super::html::escape;
use super::tables;
use crate::evaluate::{Comparison, Interval, evidence, percent, repeated_text};

/// Features shown.
const MAX_FEATURES: usize = 12;

pub(super) fn render(material: &Material<'_>, close_up: &CloseUp) -> String {
    let mut html = String::from(HEAD);
    let Material { world, comparisons, .. } = *material;
    let _ = writeln!(html, "<h1>{} on {}</h1>", escape(&world.trace), escape(world.deployment.name()));
    let _ = writeln!(html, "<p class=\"claim\">{}</p>", claim(comparisons, close_up));
    settings(&mut html, material);

    section(
        &mut html,
        "What was attained",
        "A request counts if it met its TTFT, TPOT and stall targets at once. In brackets 95 % \
        intervals, and what they rest on: of generated traffic every seed is a trace of its own, and seeds are resampled; a \
        recorded trace is one, and stretches of 120 s of its time are resampled (circular block bootstrap), beside seeds. Gains are \
        paired: the same requests for everybody. Late requests stand beside every gain: TTFT p99 and the longest wait for a \
        first token.",
    );
    html.push_str(&tables::results(comparisons));
    if comparisons[0].repeated > 0 {
        let _ = writeln!(html, "<p class=\"note\">{}.</p>", repeated_text(comparisons[0].repeated));
    }

    section(&mut html, "Violations and capacity", &violations_text(comparisons));
    html.push_str(&tables::violations(comparisons));
    for than in material.versus {
        section(&mut html, &format!("Gains over {}", escape(than)), "Over every load run, paired.");
        html.push_str(&tables::gains(comparisons, than));
    }

    section(
        &mut html,
        "By load",
        "Bars are 95 % intervals. The dotted line is 90 %: where a policy falls below it is its goodput capacity.",
    );
    legend(&mut html, comparisons, close_up);
    figure(&mut html, &[figures::attainment(comparisons, close_up).to_svg()]);
    html.push_str("<details><summary>The numbers</summary>");
    html.push_str(&tables::by_load(comparisons));
    html.push_str("</details>\n");

    let CloseUp { window, load, seed, .. } = *close_up;
    let window = window.map_or_else(|| "all of the traffic".to_owned(), |window| window.to_string());
    let draw = format!("load {load}, {window}, seed {seed}");
    section(&mut html, "Latencies", &format!("Of requests that finished, on one draw: {}.", escape(&draw)));
    legend(&mut html, comparisons, close_up);
    let charts: Vec<String> = figures::latencies(material, close_up).iter().map(Chart::to_svg).collect();
    figure(&mut html, &charts);

    groups(&mut html, material, load);
    timelines(&mut html, comparisons, close_up, &draw);
    decisions(&mut html, close_up, &draw);
    html.push_str("</main>\n</html>\n");
    html
}

/// What came of it in a sentence or two.
fn claim(comparisons: &[Comparison], close_up: &CloseUp) -> String {
    let best = |line: &&Comparison| !line.policy.spec().knows_the_future();
    let index = close_up.pair.0;
    let line = index
        .map(|index| &comparisons[index])
        .or_else(|| comparisons.iter().filter(best).max_by(|a, b| a.slo_attainment.total_cmp(&b.slo_attainment)));
    let line = line.unwrap_or(&comparisons[0]);
    let yardstick = &comparisons[close_up.pair.1];
    let mut text = format!("<b>{}</b> attains {:.1} % of requests", escape(&line.policy), line.slo_attainment * 100.0);
    if yardstick.policy == line.policy {
        text.push('.');
        return text;
    }
    let _ = write!(text, ", <b>{}</b> {:.1} %", escape(&yardstick.policy), yardstick.slo_attainment * 100.0);
    for against in &line.against {
        let Some(share) = against.fewer_violations else { continue };
        let _ = write!(text, "; {} violations than {}", fewer_or_more(&share), escape(&against.than));
    }
    let _ = write!(
        text,
        " ({}). Its late requests: TTFT p99 {} against {}, longest wait {} against {}.",
        evidence(line.slo_attainment_mean.as_ref()),
        tables::seconds(line.ttft_p99_ms),
        tables::seconds(yardstick.ttft_p99_ms),
        tables::seconds(line.longest_wait_ms),
        tables::seconds(yardstick.longest_wait_ms)
    );
    text
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

fn settings(html: &mut String, material: &Material<'_>) {
    let Material { world, matrix, found, rows, .. } = *material;
    let engine = &world.node.engine;
    let _ = writeln!(html, "<pre>{}</pre>", escape(&material.command));
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
    html.push_str("<dl>\n");
    for (name, value) in facts {
        let _ = writeln!(html, "<dt>{name}</dt><dd>{}</dd>", escape(&value));
    }
    html.push_str("</dl>\n");
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
fn groups(html: &mut String, material: &Material<'_>, load: f64) {
    let by_class = tables::by_group(material, load, |row| &row.summary.by_class);
    let by_tenant = tables::by_group(material, load, |row| &row.summary.by_tenant);
    for (title, table) in [("By class", by_class), ("By tenant", by_tenant)] {
        if !table.is_empty() {
            section(html, title, &format!("At load {load}, over all windows and seeds."));
            html.push_str(&table);
        }
    }
}

fn timelines(html: &mut String, comparisons: &[Comparison], close_up: &CloseUp, draw: &str) {
    let mut shown: Vec<usize> = close_up.pair.0.into_iter().collect();
    if close_up.pair.0 != Some(close_up.pair.1) {
        shown.push(close_up.pair.1);
    }
    let both = if shown.len() > 1 { " Both see the same requests." } else { "" };
    let text = format!("{}.{both}", escape(draw));
    section(html, "What happened", &text);
    let served: Vec<_> = shown.iter().map(|&index| &close_up.served[index]).collect();
    html.push_str("<div class=\"columns\">\n");
    for &index in &shown {
        let pen = Pen { dash: "", ..figures::pen(comparisons, index, true) };
        let charts = figures::timeline(&close_up.served[index], &served, pen);
        let charts: Vec<String> = charts.iter().map(Chart::to_svg).collect();
        let _ = writeln!(html, "<div>{}</div>", charts.concat());
    }
    html.push_str("</div>\n");
}

fn decisions(html: &mut String, close_up: &CloseUp, draw: &str) {
    let Some(served) = close_up.pair.0.map(|index| &close_up.served[index]) else { return };
    let Some(insight) = &served.insight else { return };
    let policy = escape(&served.policy);
    section(
        html,
        "What the decisions depend on",
        &format!("{policy} took {} decisions on {}.", insight.decisions, escape(draw)),
    );
    html.push_str(&tables::choices(insight));
    let _ = writeln!(
        html,
        "<p>Shuffling one feature over the states visited changes so many of its decisions (permutation importance). Features \
         that go together share their influence; what changes no decision is left out.</p>"
    );
    html.push_str(&tables::features(insight, MAX_FEATURES));
}

fn section(html: &mut String, title: &str, text: &str) {
    let _ = writeln!(html, "<h2>{title}</h2>\n<p>{text}</p>");
}

/// Who is which line.
fn legend(html: &mut String, comparisons: &[Comparison], close_up: &CloseUp) {
    html.push_str("<p class=\"legend\">");
    for (index, comparison) in comparisons.iter().enumerate() {
        let pen = figures::pen(comparisons, index, close_up.served[index].insight.is_some());
        let _ = write!(
            html,
            "<span><svg viewBox=\"0 0 28 8\" style=\"--c:var(--c{})\"><path class=\"line\" stroke-width=\"{}\" \
             stroke-dasharray=\"{}\" d=\"M0 4H28\"/></svg> {}</span> ",
            pen.colour,
            pen.width,
            pen.dash,
            escape(&comparison.policy)
        );
    }
    html.push_str("</p>\n");
}

fn figure(html: &mut String, charts: &[String]) {
    let _ = writeln!(
        html,
        "<div class=\"figure{}\">\n{}</div>",
        if charts.len() > 1 { " three" } else { "" },
        charts.concat()
    );
}

const HEAD: &str = concat!(
    "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">\n",
    "<meta name=\"viewport\" content=\"width=device-width\">\n<title>kvtide evaluate</title>\n<style>\n",
    include_str!("page.css"),
    "</style></head>\n<body><main>\n"
);

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
