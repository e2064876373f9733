//! A figure as a file of its own: charts in rows, a heading and one legend above them.

use maud::{Markup, PreEscaped, html};

use super::chart::{Chart, ChartAxis, Line, Pen, Unit};
use super::svg::{Anchor, text};
use super::{Axis, Band, Figure, LineStyle, Panel, Series};

/// Sizes in pixels: what is drawn is as wide as a page of text.
const WIDTH: f64 = 1080.0;
const HEADER_HEIGHT: f64 = 88.0;
const MARGIN: f64 = 12.0;
/// Of a row, of which a figure has many; one alone is higher.
const ROW_HEIGHT: f64 = 200.0;
const ONLY_ROW_HEIGHT: f64 = 400.0;
/// Width of a letter of the legend and of the line below the title, about; what the reader's font makes of it is not known.
const LETTER: f64 = 7.3;

/// What its classes look like. The colours are of Okabe and Ito 2008, which the colour-blind tell apart.
const STYLE: &str = "text{font:12px sans-serif;fill:#222222}.heading{font-size:20px}.legend,.subtitle{font-size:13px}\
    .subtitle,.tick,.note{fill:#5c6269}.title{font-size:14px}.paper{fill:#ffffff}.band{fill:#eef2f7}.grid{stroke:#e4e4e4}\
    .axis{stroke:#6e6e6e}.rule{stroke:#5c6269;stroke-dasharray:3 3}.line{fill:none;stroke-linejoin:round}\
    .c1 .line{stroke:#0072b2}.c1 .dot{fill:#0072b2}.c2 .line{stroke:#d55e00}.c2 .dot{fill:#d55e00}\
    .c3 .line{stroke:#009e73}.c3 .dot{fill:#009e73}.c8 .line{stroke:#a0a0a0}.c8 .dot{fill:#a0a0a0}";

impl LineStyle {
    fn pen(self) -> Pen {
        let (colour, width, dash) = match self {
            LineStyle::Reference => (8, 5.0, ""),
            LineStyle::First => (1, 2.0, ""),
            LineStyle::Second => (2, 1.5, "6 4"),
            LineStyle::Third => (3, 2.0, "2 3"),
        };
        Pen { colour, dash, width }
    }
}

impl Figure {
    /// The figure as an SVG document.
    pub fn to_svg(&self) -> String {
        let row_height = if self.rows.len() == 1 { ONLY_ROW_HEIGHT } else { ROW_HEIGHT };
        let height = HEADER_HEIGHT + row_height * self.rows.len() as f64 + MARGIN;
        let panels = self.rows.iter().zip(0_u32..).flat_map(|(row, index)| {
            let top = HEADER_HEIGHT + row_height * f64::from(index);
            let width = (WIDTH - MARGIN) / row.len() as f64;
            row.iter().zip(0_u32..).map(move |(panel, column)| {
                let at = format!("translate({} {top})", f64::from(column) * width);
                html! { g transform=(at) { (panel.chart(width, row_height - 6.0).shapes()) } }
            })
        });
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" width=(WIDTH) height=(height) viewBox={ "0 0 " (WIDTH) " " (height) }
                role="img"
            {
                title { (self.title) }
                style { (PreEscaped(STYLE)) }
                rect class="paper" width=(WIDTH) height=(height) {}
                (self.header())
                @for panel in panels { "\n" (panel) }
                "\n"
            }
        };
        svg.into_string() + "\n"
    }

    fn header(&self) -> Markup {
        let left = MARGIN + 8.0;
        let mut legend = Vec::new();
        let mut x = left;
        for series in self.legend() {
            legend.push(series.look.pen().sample_at((x, 70.0), 30.0));
            legend.push(text("legend", (x + 38.0, 74.0), Anchor::Start, series.name));
            x += 38.0 + letters(series.name) * LETTER + 24.0;
        }
        html! {
            (text("heading", (left, 28.0), Anchor::Start, &within(&self.title, (WIDTH - left) / 12.0)))
            (text("subtitle", (left, 50.0), Anchor::Start, &within(&self.subtitle, (WIDTH - left) / LETTER)))
            @for part in &legend { (part) }
        }
    }

    /// One series of each name, those that others are compared with first.
    fn legend(&self) -> Vec<&Series> {
        let mut legend: Vec<&Series> = Vec::new();
        for series in self.rows.iter().flatten().flat_map(|panel| &panel.series) {
            if legend.iter().all(|known| known.name != series.name) {
                legend.push(series);
            }
        }
        legend.sort_by_key(|series| series.look);
        legend
    }
}

impl Panel {
    fn chart(&self, width: f64, height: f64) -> Chart {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let bars = || self.series.iter().flat_map(|series| &series.bars);
        let x = self.x.across(points().map(|point| point.0), 1.0);
        let heights = points().map(|point| point.1).chain(bars().flat_map(|bar| [bar.1, bar.2]));
        let y = self.y.across(heights, 1.06);
        let line = |series: &Series| Line {
            name: series.name.to_owned(),
            pen: series.look.pen(),
            // What lies beyond a given end is left out.
            points: series.points.iter().copied().filter(|point| point.0 <= x.to).collect(),
            bars: series.bars.clone(),
            filled: false,
        };
        let mut rules = self.rules.clone();
        if let Some(Band { end, label, .. }) = &self.band {
            rules.push((end.min(x.to), (*label).to_owned()));
        }
        let lines = self.series.iter().map(line).collect();
        let band = self.band.as_ref().map(|band| (band.start, band.end.min(x.to)));
        Chart { title: self.title.clone(), width, height, x, y, lines, rules, band }
    }
}

impl Axis {
    /// From zero, or below it as far as values go, to its end: where that is given, or `room` times the greatest value.
    fn across(&self, values: impl Iterator<Item = f64>, room: f64) -> ChartAxis {
        let finite = values.filter(|value| value.is_finite());
        let (least, greatest) = finite.fold((0.0_f64, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let end = self.end.unwrap_or(greatest * room);
        let to = match end {
            _ if end > 0.0 => end,
            // Zero is seen from below.
            _ if least < 0.0 => least * -0.1,
            _ => 1.0,
        };
        ChartAxis { label: self.label.clone(), from: least * room, to, unit: Unit::Number }
    }
}

/// As much of `text` as there is room for.
fn within(text: &str, room: f64) -> String {
    if letters(text) <= room {
        return text.to_owned();
    }
    text.chars().take((room as usize).max(1) - 1).chain(['…']).collect()
}

fn letters(text: &str) -> f64 {
    text.chars().count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_begins_at_zero_or_below_it() {
        let ends = |axis: Axis, values: &[f64]| {
            let across = axis.across(values.iter().copied(), 1.5);
            (across.from, across.to)
        };
        assert_eq!(ends(Axis::new("x"), &[1.0, 2.0]), (0.0, 3.0));
        assert_eq!(ends(Axis::new("x"), &[-2.0, 2.0, f64::NAN]), (-3.0, 3.0));
        assert_eq!(ends(Axis::new("x"), &[-2.0]), (-3.0, 0.2));
        assert_eq!((ends(Axis::to("x", 9.0), &[1.0]), ends(Axis::new("x"), &[])), ((0.0, 9.0), (0.0, 1.0)));
    }

    #[test]
    fn what_has_no_room_is_cut() {
        assert_eq!([within("abcdef", 6.0), within("abcdef", 4.2), within("ab", 0.0)], ["abcdef", "abc…", "…"]);
    }
}
