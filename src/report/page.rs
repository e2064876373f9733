//! The page, from top to bottom.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::ReportInput;
use super::clocks;
use super::close_up::CloseUp;
use super::figures;
use super::names::ShortNames;
use super::settings::settings;
use super::tables;
use super::wording::{percent, seconds, violations_than};
use crate::evaluate::{Comparison, evidence, repeated_text};
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
/// What stands above the distributions, before the draw is named.
const LATENCIES: &str = "Of requests that finished, on one draw. Both times from arrival have one axis. The draw:";
/// What stands above the features.
const SHUFFLED: &str = "Shuffling one feature over the states visited changes so many of its decisions (permutation importance). \
    Features that go together share their influence; what changes no decision is left out.";

/// Nothing is fetched, whatever is in the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

/// A part of the page with a heading, which the list of contents leads to.
struct Section {
    title: String,
    text: String,
    body: Markup,
}

pub(super) fn render(material: &ReportInput<'_>, close_up: &CloseUp) -> String {
    let traffic = last_part(&material.world.trace);
    let node = material.world.deployment.name();
    let names = ShortNames::of(material.comparisons);
    let sections = sections(material, close_up, &names);
    // The tool and its subcommand.
    let made_by = Words(
        material.command.match_indices(' ').nth(1).map_or(&*material.command, |(end, _)| &material.command[..end]),
    );
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            (head(&html! { (Words(traffic)) " on " (Words(&node)) ", " (material.made_on) ": " (made_by) }))
            "\n"
            body {
                header {
                    h1 { (Words(traffic)) " on " (Words(&node)) }
                    p.made { "Made on " time datetime=(material.made_on) { (material.made_on) } " by " code { (made_by) } "." }
                    p.claim { (claim(material.comparisons, close_up, &names)) }
                    (contents(&sections))
                }
                "\n"
                main { @for one in &sections { (section(one)) } }
                script { (PreEscaped(include_str!("page.js"))) }
            }
        }
    };
    page.into_string() + "\n"
}

/// The head of a page: how it looks, and that it fetches nothing.
pub(super) fn head(title: &Markup) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta http-equiv="Content-Security-Policy" content=(POLICY);
            title { (title) }
            style { (PreEscaped(include_str!("page.css"))) }
        }
    }
}

/// A file's name without its folders; where it lies stands among the settings.
pub(crate) fn last_part(path: &str) -> &str {
    path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path)
}

fn contents(sections: &[Section]) -> Markup {
    html! {
        nav aria-label="Contents" {
            ol { @for one in sections { li { a href={ "#" (anchor(&one.title)) } { (Words(&one.title)) } } } }
        }
    }
}

fn section(section: &Section) -> Markup {
    let Section { title, text, body } = section;
    html! {
        "\n"
        section id=(anchor(title)) {
            h2 { (Words(title)) }
            @if !text.is_empty() { "\n" p { (Words(text)) } }
            "\n"
            (body)
        }
    }
}

/// A title as addresses have it: lower case, everything but letters and digits a hyphen.
fn anchor(title: &str) -> String {
    let letters = title.to_lowercase();
    let words = letters.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<&str>>().join("-")
}

fn sections(material: &ReportInput<'_>, close_up: &CloseUp, names: &ShortNames) -> Vec<Section> {
    let comparisons = material.comparisons;
    let CloseUp { window, load, seed, .. } = *close_up;
    let window = window.map_or_else(|| "all of the traffic".to_owned(), |window| window.to_string());
    let draw = format!("load {load}, {window}, seed {seed}");
    let section =
        |title: &str, text: &str, body: Markup| Section { title: title.to_owned(), text: text.to_owned(), body };
    let attained = html! {
        (tables::results(comparisons, names))
        @if comparisons[0].repeated > 0 { p.note { (repeated_text(comparisons[0].repeated)) "." } }
    };
    let loads = html! {
        (legend(comparisons, close_up, names))
        (by_load(comparisons, close_up))
        (tables::by_load(comparisons, names))
    };
    let latencies = html! {
        (legend(comparisons, close_up, names))
        div.figure.three { @for chart in figures::latencies(material, close_up) { (chart.to_svg()) } }
    };
    let mut sections = vec![
        section("What was attained", ATTAINED, attained),
        section("Violations and capacity", &violations_text(comparisons), tables::violations(comparisons, names)),
    ];
    sections.extend(material.versus.iter().map(|than| {
        let title = format!("Gains over {}", names.short(than));
        section(&title, "Over every load run, paired.", tables::gains(comparisons, than, names))
    }));
    let by_clock = clocks::body(material, close_up, names);
    sections.extend(by_clock.map(|body| section("By drawn clocks", &clocks::text(material.world), body)));
    sections.push(section("By load", BY_LOAD, loads));
    sections.push(section("Latencies", &format!("{LATENCIES} {draw}."), latencies));
    let by_class = tables::by_group(material, names, load, |row| &row.summary.by_class);
    let by_tenant = tables::by_group(material, names, load, |row| &row.summary.by_tenant);
    let text = format!("At load {load}, over all windows and seeds.");
    let groups = [("By class", by_class), ("By tenant", by_tenant)];
    sections.extend(groups.into_iter().filter_map(|(title, table)| Some(section(title, &text, table?))));
    sections.push(timelines(comparisons, close_up, &draw, names));
    sections.extend(decisions(close_up, &draw, names));
    sections.push(section("What was run", "", settings(material)));
    sections
}

/// What came of it in a sentence or two.
fn claim(comparisons: &[Comparison], close_up: &CloseUp, names: &ShortNames) -> Markup {
    let best = |line: &&Comparison| !line.policy.spec().knows_the_future();
    let index = close_up.pair.0;
    let line = index
        .map(|index| &comparisons[index])
        .or_else(|| comparisons.iter().filter(best).max_by(|a, b| a.slo_attainment.total_cmp(&b.slo_attainment)));
    let line = line.unwrap_or(&comparisons[0]);
    let yardstick = &comparisons[close_up.pair.1];
    let attains = html! { (names.bold(&line.policy)) " attains " (percent(line.slo_attainment)) " of requests" };
    if yardstick.policy == line.policy {
        return html! { (attains) "." };
    }
    let against = line.against.iter().filter_map(|against| Some((against.fewer_violations?, &against.than)));
    html! {
        (attains) ", " (names.bold(&yardstick.policy)) " " (percent(yardstick.slo_attainment))
        @for (fewer, than) in against { "; " (Words(&violations_than(&fewer, names.short(than)))) }
        " (" (evidence(line.slo_attainment_mean.as_ref())) "). Its late requests: TTFT p99 "
        (seconds(line.ttft_p99_ms)) " against " (seconds(yardstick.ttft_p99_ms)) ", longest wait "
        (seconds(line.longest_wait_ms)) " against " (seconds(yardstick.longest_wait_ms)) "."
    }
}

fn violations_text(comparisons: &[Comparison]) -> String {
    let loads: Vec<String> = comparisons[0].loads.iter().map(|at| at.load.to_string()).collect();
    format!(
        "Violations are requests that missed a target, averaged over every load run: {}. best-fixed and best-static are \
         chosen in hindsight, for each window and load anew, best-static-once for all of them; best-train is the constant that was best on training traffic.",
        loads.join(", ")
    )
}

fn timelines(comparisons: &[Comparison], close_up: &CloseUp, draw: &str, names: &ShortNames) -> Section {
    let mut shown: Vec<usize> = close_up.pair.0.into_iter().collect();
    if close_up.pair.0 != Some(close_up.pair.1) {
        shown.push(close_up.pair.1);
    }
    let both = if shown.len() > 1 { " Both see the same requests and have the same axes." } else { "" };
    let served: Vec<_> = shown.iter().map(|&index| &close_up.served[index]).collect();
    let charts = |index: usize| {
        let pen = Pen { dash: "", ..figures::pen(comparisons, index, true) };
        figures::timeline(&close_up.served[index], &served, pen)
    };
    let body = html! {
        div.columns {
            @for &index in &shown {
                div {
                    h3 { (Words(names.short(&comparisons[index].policy))) }
                    @for chart in charts(index) { (chart.to_svg()) }
                }
            }
        }
    };
    Section { title: "What happened".to_owned(), text: format!("{draw}.{both}"), body }
}

fn decisions(close_up: &CloseUp, draw: &str, names: &ShortNames) -> Option<Section> {
    let served = &close_up.served[close_up.pair.0?];
    let insight = served.insight.as_ref()?;
    let text = format!("{} took {} decisions on {draw}.", names.short(&served.policy), insight.decisions);
    let body = html! {
        (tables::choices(insight))
        p { (SHUFFLED) }
        (tables::features(insight, MAX_FEATURES))
    };
    Some(Section { title: "What the decisions depend on".to_owned(), text, body })
}

/// Who is which line.
fn legend(comparisons: &[Comparison], close_up: &CloseUp, names: &ShortNames) -> Markup {
    let pen = |index: usize| figures::pen(comparisons, index, close_up.served[index].insight.is_some());
    html! {
        p.legend {
            @for (index, comparison) in comparisons.iter().enumerate() {
                span { (pen(index).sample()) " " (Words(names.short(&comparison.policy))) } " "
            }
        }
    }
}

/// The chart over loads, twice: a phone shows the narrow one, whose words are as large.
fn by_load(comparisons: &[Comparison], close_up: &CloseUp) -> Markup {
    let chart = |width, height| -> Chart { figures::attainment(comparisons, close_up, (width, height)) };
    html! {
        div.figure {
            div.wide { (chart(860.0, 340.0).to_svg()) }
            div.narrow { (chart(380.0, 300.0).to_svg()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_titles_are_plain() {
        assert_eq!(anchor("Gains over fixed:0.03"), "gains-over-fixed-0-03");
        assert_eq!(["a/b/t.jsonl", "t.jsonl", "a/", "/"].map(last_part), ["t.jsonl", "t.jsonl", "a", "/"]);
    }

    /// Colours of the style sheet, on the screen by day and by night.
    fn colours() -> [Vec<(&'static str, [f64; 3])>; 2] {
        let css = include_str!("page.css");
        let (day, night) = css.split_once("@media screen and (prefers-color-scheme: dark)").unwrap();
        let hex = |text: &str| {
            let full = if text.len() == 3 { text.chars().flat_map(|c| [c, c]).collect() } else { text.to_owned() };
            [0, 2, 4].map(|at| f64::from(u8::from_str_radix(&full[at..at + 2], 16).unwrap()) / 255.0)
        };
        [day, night].map(|part| {
            let one = |line: &'static str| {
                let (name, colour) = line.trim().split_once(": #")?;
                Some((name.strip_prefix("--")?, hex(colour)))
            };
            part.split(['/', ';', '{']).filter_map(one).collect()
        })
    }

    /// Contrast of two colours as WCAG 2.1 defines it.
    fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
        let linear = |c: f64| if c <= 0.03928 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
        let luminance = |[r, g, b]: [f64; 3]| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        let (low, high) = (luminance(a).min(luminance(b)), luminance(a).max(luminance(b)));
        (high + 0.05) / (low + 0.05)
    }

    #[test]
    fn words_and_lines_stand_out_from_the_paper() {
        for colours in colours() {
            let of = |name: &str| colours.iter().find(|(known, _)| *known == name).unwrap().1;
            for (name, ground, least) in [("ink", "shade", 7.0), ("faint", "paper", 4.5), ("link", "paper", 4.5)] {
                assert!(contrast(of(name), of(ground)) >= least, "{name} on {ground}");
            }
            for line in 0..9 {
                let name = format!("c{line}");
                assert!(contrast(of(&name), of("paper")) >= 3.0, "{name}: {}", contrast(of(&name), of("paper")));
            }
        }
    }
}
