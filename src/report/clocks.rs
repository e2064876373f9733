//! What policies gain by drawn clocks.

use maud::{Markup, Render, html};

use super::ReportInput;
use super::cells::{Cell, table};
use super::close_up::CloseUp;
use super::figures;
use super::names::ShortNames;
use super::wording::minus;
use crate::evaluate::{ClockGain, Comparison, shown_gains, signed};
use crate::plot::chart::{Chart, ChartAxis, Line, Unit};
use crate::plot::svg::{Words, round};
use crate::policy::PolicyName;
use crate::world::World;

/// What stands above the chart.
pub(super) fn text(world: &World) -> String {
    format!(
        "The same judgement by {}, each a clock as likely as the profile's own. Requests, loads, targets and the engine's settings \
         are the same by each; policies of hindsight choose anew. What a gain is by most clocks does not hang on what this one \
         may get wrong.",
        world.spread_text()
    )
}

/// The chart of gains over whom everybody is compared with, and a table of all; `None` where no clock was drawn.
pub(super) fn body(material: &ReportInput<'_>, close_up: &CloseUp, names: &ShortNames) -> Option<Markup> {
    let shown: Vec<&ClockGain> = shown_gains(material.clocks).collect();
    let than = &shown.first()?.than;
    let over = shown.iter().find(|gain| gain.than == material.comparisons[0].reference).map_or(than, |gain| &gain.than);
    let drawn: Vec<(usize, &ClockGain)> = shown
        .iter()
        .filter(|gain| gain.than == *over)
        .filter_map(|gain| Some((place(material.comparisons, &gain.policy)?, *gain)))
        .collect();
    let chart = |width, height| {
        let learned = |index: usize| close_up.served[index].insight.is_some();
        let pens = |index: usize| figures::pen(material.comparisons, index, learned(index));
        let lines = drawn.iter().map(|(index, gain)| line(gain, names.short(&gain.policy), pens(*index))).collect();
        figure(names.short(over), lines, (width, height)).to_svg()
    };
    Some(html! {
        p.legend {
            @for (index, gain) in &drawn {
                span {
                    (figures::pen(material.comparisons, *index, close_up.served[*index].insight.is_some()).sample()) " "
                    (Words(names.short(&gain.policy)))
                } " "
            }
        }
        div.figure {
            div.wide { (chart(860.0, 260.0)) }
            div.narrow { (chart(380.0, 240.0)) }
        }
        (gains(material.world, &shown, names))
    })
}

fn place(comparisons: &[Comparison], policy: &PolicyName) -> Option<usize> {
    comparisons.iter().position(|line| line.policy == *policy)
}

/// Gains in ascending order: how many clocks it gains less by.
fn line(gain: &ClockGain, name: &str, pen: crate::plot::chart::Pen) -> Line {
    let mut sorted: Vec<f64> = gain.draws.iter().map(|by| by.gain * 100.0).collect();
    sorted.sort_by(f64::total_cmp);
    let points: Vec<(f64, f64)> = (1..).map(f64::from).zip(sorted).collect();
    // Dots, so that a single clock is seen.
    let bars = points.iter().map(|&(at, gain)| (at, gain, gain)).collect();
    let worst = &gain.worst;
    let name = format!("{name}: at worst {} points, by draw {}", round(worst.gain * 100.0, 1), worst.draw);
    Line { name, pen, points, bars, filled: false }
}

fn figure(over: &str, lines: Vec<Line>, (width, height): (f64, f64)) -> Chart {
    let values = || lines.iter().flat_map(|line| &line.points);
    let count = values().map(|(at, _)| *at).fold(1.0, f64::max);
    let low = values().map(|(_, gain)| *gain).fold(0.0, f64::min);
    let high = values().map(|(_, gain)| *gain).fold(0.0, f64::max);
    let room = (high - low).max(1.0) * 0.05;
    let from = if low < 0.0 { low - room } else { 0.0 };
    Chart {
        title: format!("Gain over {over} by drawn clock, from the least to the most, points"),
        width,
        height,
        x: ChartAxis { label: "clocks".to_owned(), from: 0.5, to: count + 0.5, unit: Unit::Number },
        y: ChartAxis { label: "gain, points".to_owned(), from, to: high + room, unit: Unit::Number },
        lines,
        rules: Vec::new(),
        band: None,
    }
}

fn gains(world: &World, shown: &[&ClockGain], names: &ShortNames) -> Markup {
    let head =
        ["policy", "over", "gain, points", "median by drawn clocks [5 %, 95 %]", "gains by", "at worst", "worst clock"];
    let points = |gain: f64| minus(&signed(gain));
    let rows = shown.iter().map(|gain| {
        let spread = html! {
            (points(gain.median)) " " small.ends { "[" (points(gain.low)) ", " (points(gain.high)) "]" }
        };
        let worst = format!("draw {}: {}", gain.worst.draw, world.factors_text(&gain.worst.factors));
        vec![
            Cell::text(names.bold(&gain.policy)),
            Cell::text(names.bold(&gain.than)),
            Cell::number(points(gain.gain).render(), Some(gain.gain)),
            Cell::number(spread, Some(gain.median)),
            Cell::number(format!("{} of {}", gain.gaining_draws(), gain.draws.len()), Some(gain.gaining)),
            Cell::number(points(gain.worst.gain), Some(gain.worst.gain)),
            Cell::text(html! { span.text { (Words(&worst)) } }),
        ]
    });
    table("Gains by drawn clocks", &head, rows)
}
