//! A pair of axes with lines, as SVG. Its shapes have classes; what they look like, whoever shows it says: a page or a
//! [`Figure`](super::Figure). Colours are the classes `c0`, `c1`, …

use std::fmt::Write;

use maud::{Markup, html};

use super::svg::{Anchor, Words, path, round, text, upright};

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    /// What it shows, for whoever cannot see it, and its heading.
    pub(crate) title: String,
    /// Width, in the SVG's own units, of which the page shows as many as fit.
    pub(crate) width: f64,
    /// Height, likewise.
    pub(crate) height: f64,
    pub(crate) x: ChartAxis,
    pub(crate) y: ChartAxis,
    /// Lines, the first at the bottom.
    pub(crate) lines: Vec<Line>,
    /// Vertical rules with what they mark.
    pub(crate) rules: Vec<(f64, String)>,
    /// A stretch of the horizontal axis that is set off.
    pub(crate) band: Option<(f64, f64)>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChartAxis {
    pub(crate) label: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) unit: Unit,
}

/// How values are spaced and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// As they are.
    Number,
    /// Shares as percent.
    Percent,
    /// Milliseconds, spaced by their logarithm.
    LogMillis,
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    /// What it is, shown when pointed at.
    pub(crate) name: String,
    pub(crate) pen: Pen,
    /// `(x, y)`, in order of `x`.
    pub(crate) points: Vec<(f64, f64)>,
    /// `(x, low, high)` of vertical bars; points are dots as well if there are any.
    pub(crate) bars: Vec<(f64, f64, f64)>,
    /// The area below is filled.
    pub(crate) filled: bool,
}

impl Line {
    /// A line and nothing else.
    pub(crate) fn plain(name: &str, pen: Pen, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.to_owned(), pen, points, bars: Vec::new(), filled: false }
    }

    /// A line with a dot at each point, so that a single one is seen as well: bars without height.
    pub(crate) fn dotted(name: &str, pen: Pen, points: Vec<(f64, f64)>) -> Line {
        let bars = points.iter().map(|&(x, y)| (x, y, y)).collect();
        Line { bars, ..Line::plain(name, pen, points) }
    }
}

/// How a line looks: not by colour alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pen {
    /// Index of the colour.
    pub(crate) colour: usize,
    /// SVG's `stroke-dasharray`.
    pub(crate) dash: &'static str,
    pub(crate) width: f64,
}

/// Room for labels: left, right, top, bottom.
const MARGINS: (f64, f64, f64, f64) = (52.0, 12.0, 26.0, 38.0);

impl ChartAxis {
    /// From 0 to a little beyond the greatest of `values`.
    pub(crate) fn above_zero(label: &str, values: impl Iterator<Item = f64>) -> ChartAxis {
        let greatest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let to = if greatest > 0.0 { greatest * 1.05 } else { 1.0 };
        ChartAxis { label: label.to_owned(), from: 0.0, to, unit: Unit::Number }
    }

    /// Where `value` lies between the ends, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self.unit {
            Unit::LogMillis => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            Unit::Number | Unit::Percent => (value - self.from) / (self.to - self.from),
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self, most: usize) -> Vec<f64> {
        if self.unit == Unit::LogMillis {
            let decades = (self.to / self.from).log10();
            let room = most as f64 + 1.0;
            let steps: &[f64] = match decades {
                _ if 3.0 * decades <= room => &[1.0, 2.0, 5.0],
                _ if 2.0 * decades <= room => &[1.0, 3.0],
                _ => &[1.0],
            };
            let first = self.from.log10().floor() as i32;
            let last = self.to.log10().ceil() as i32;
            let all = (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
            return all.filter(|tick| (self.from..=self.to).contains(tick)).collect();
        }
        let raw = (self.to - self.from) / most as f64;
        let unit = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * unit).into_iter().find(|step| *step >= raw * 0.999);
        let step = step.unwrap_or(10.0 * unit);
        let first = (self.from / step).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).map(|index| index as f64 * step).collect()
    }

    fn text(&self, value: f64) -> String {
        match self.unit {
            Unit::Percent => format!("{} %", round(value * 100.0, 1)),
            Unit::LogMillis if value >= 1000.0 => format!("{} s", round(value / 1000.0, 3)),
            Unit::LogMillis => format!("{} ms", round(value, 3)),
            Unit::Number => round(value, 4),
        }
    }
}

impl Pen {
    /// A stroke along `d`, SVG's path.
    fn stroke(self, d: &str) -> Markup {
        html! { path class="line" stroke-width=(self.width) stroke-dasharray=(self.dash) d=(d) {} }
    }

    /// The class of all that has its colour.
    fn class(self) -> String {
        format!("c{}", self.colour)
    }

    /// A short stroke, for a legend in words beside it.
    pub(crate) fn sample(self) -> Markup {
        html! { svg class=(self.class()) viewBox="0 0 28 8" aria-hidden="true" { (self.stroke("M0 4H28")) } }
    }

    /// A stroke within a picture, for a legend.
    pub(super) fn sample_at(self, (x, y): (f64, f64), width: f64) -> Markup {
        html! { g class=(self.class()) { (self.stroke(&format!("M{x} {y}H{}", x + width))) } }
    }
}

impl Chart {
    /// The chart as an element.
    pub(crate) fn to_svg(&self) -> Markup {
        html! {
            svg viewBox={ "0 0 " (self.width) " " (self.height) } role="img" {
                title { (Words(&self.title)) }
                (self.shapes())
            }
            "\n"
        }
    }

    /// What it is made of.
    pub(super) fn shapes(&self) -> Markup {
        let (left, _, top, _) = MARGINS;
        html! {
            @if let Some(band) = self.band { (self.shaded(band)) }
            (text("title", (left, top - 11.0), Anchor::Start, &self.title))
            (self.axes())
            @for line in &self.lines { "\n" (self.line(line)) }
            @for one in &self.rules { (self.rule(one)) }
        }
    }

    fn shaded(&self, (from, to): (f64, f64)) -> Markup {
        let (left, right) = (self.x_of(from), self.x_of(to));
        let (above, below) = (self.y_of(self.y.to), self.y_of(self.y.from));
        path("band", &format!("M{left:.1} {above:.1}H{right:.1}V{below:.1}H{left:.1}Z"))
    }

    fn rule(&self, (at, label): &(f64, String)) -> Markup {
        let x = self.x_of(*at);
        let (above, below) = (self.y_of(self.y.to), self.y_of(self.y.from));
        // On the side where there is room.
        let (aside, anchor) = if self.x.place(*at) > 0.7 { (-4.0, Anchor::End) } else { (4.0, Anchor::Start) };
        html! {
            (path("rule", &format!("M{x:.1} {above:.1}V{below:.1}")))
            (text("note", (x + aside, below - 6.0), anchor, label))
        }
    }

    fn x_of(&self, value: f64) -> f64 {
        let (left, right, ..) = MARGINS;
        left + self.x.place(value) * (self.width - left - right)
    }

    fn y_of(&self, value: f64) -> f64 {
        let (_, _, top, bottom) = MARGINS;
        self.height - bottom - self.y.place(value) * (self.height - top - bottom)
    }

    fn axes(&self) -> Markup {
        let (left, right) = (self.x_of(self.x.from), self.x_of(self.x.to));
        let (above, below) = (self.y_of(self.y.to), self.y_of(self.y.from));
        let across = |tick: f64| {
            let y = self.y_of(tick);
            html! {
                (path("grid", &format!("M{left:.1} {y:.1}H{right:.1}")))
                (text("tick", (left - 6.0, y + 4.0), Anchor::End, &self.y.text(tick)))
            }
        };
        let upwards = |tick: f64| {
            let x = self.x_of(tick);
            html! {
                (path("grid", &format!("M{x:.1} {above:.1}V{:.1}", below + 3.0)))
                (text("tick", (x, below + 16.0), Anchor::Middle, &self.x.text(tick)))
            }
        };
        html! {
            @for tick in self.y.ticks(5) { (across(tick)) }
            // About seventy units a label.
            @for tick in self.x.ticks(((right - left) / 70.0).max(2.0) as usize) { (upwards(tick)) }
            (path("axis", &format!("M{left:.1} {below:.1}H{right:.1}")))
            (text("tick", (f64::midpoint(left, right), self.height - 6.0), Anchor::Middle, &self.x.label))
            (upright("tick", (12.0, f64::midpoint(above, below)), &self.y.label))
        }
    }

    fn line(&self, line: &Line) -> Markup {
        let finite = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let points: Vec<(f64, f64)> = finite.map(|(x, y)| (self.x_of(*x), self.y_of(*y))).collect();
        let mut along = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(along, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        let ends = points.first().zip(points.last()).filter(|_| line.filled);
        let area = ends.map(|((from, _), (to, _))| {
            let below = self.y_of(self.y.from);
            format!("{along}L{to:.1} {below:.1}L{from:.1} {below:.1}Z")
        });
        let bar = |(at, low, high): &(f64, f64, f64)| {
            let (x, low, high) = (self.x_of(*at), self.y_of(*low), self.y_of(*high));
            Pen { dash: "", width: 1.2, ..line.pen }.stroke(&format!("M{x:.1} {low:.1}V{high:.1}"))
        };
        html! {
            g class=(line.pen.class()) {
                title { (Words(&line.name)) }
                @if let Some(area) = &area { (path("area", area)) }
                (line.pen.stroke(&along))
                @for one in &line.bars { (bar(one)) }
                @if !line.bars.is_empty() {
                    @for (x, y) in &points { circle class="dot" cx=(round(*x, 1)) cy=(round(*y, 1)) r="3" {} }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(from: f64, to: f64, unit: Unit) -> ChartAxis {
        ChartAxis { label: "x".to_owned(), from, to, unit }
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(axis(0.0, 1.0, Unit::Percent).ticks(5), [0.0, 0.2, 0.4, 0.600_000_000_000_000_1, 0.8, 1.0]);
        assert_eq!(axis(0.31, 0.62, Unit::Number).ticks(4), [0.4, 0.5, 0.600_000_000_000_000_1]);
        assert_eq!(axis(30.0, 3000.0, Unit::LogMillis).ticks(5), [50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
        assert_eq!(axis(20.0, 2000.0, Unit::LogMillis).ticks(4), [30.0, 100.0, 300.0, 1000.0]);
        assert_eq!(axis(1.0, 1e4, Unit::LogMillis).ticks(5), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        for to in [1e-6, 0.3, 7.0, 1e9] {
            assert!((2..=7).contains(&axis(0.0, to, Unit::Number).ticks(5).len()), "{to}");
        }
    }

    #[test]
    fn values_are_written_with_their_unit() {
        let text = |unit, value| axis(1.0, 2.0, unit).text(value);
        assert_eq!(text(Unit::Percent, 0.955), "95.5 %");
        assert_eq!(text(Unit::LogMillis, 20.0), "20 ms");
        assert_eq!(text(Unit::LogMillis, 2500.0), "2.5 s");
        assert_eq!(
            [100.0, 0.600_000_000_000_000_1, -0.00001].map(|value| text(Unit::Number, value)),
            ["100", "0.6", "0"]
        );
    }

    #[test]
    fn names_are_escaped_and_points_lie_within() {
        let chart = Chart {
            title: "<b>".to_owned(),
            width: 300.0,
            height: 200.0,
            x: axis(0.0, 1.0, Unit::Number),
            y: axis(0.0, 1.0, Unit::Percent),
            lines: vec![Line {
                name: "a&b</title>".to_owned(),
                pen: Pen { colour: 1, dash: "", width: 2.0 },
                points: vec![(0.0, 0.0), (f64::NAN, 1.0), (9.0, 9.0)],
                bars: vec![(0.5, 0.2, 0.4)],
                filled: true,
            }],
            rules: vec![(0.5, "\"".to_owned())],
            band: Some((0.0, 0.5)),
        };
        let svg = chart.to_svg().into_string();
        assert!(svg.contains("&lt;b&gt;") && svg.contains("a&amp;b&lt;/title&gt;") && !svg.contains("NaN"), "{svg}");
        // Beyond the axes is on their edge.
        assert!(svg.contains("M52.0 162.0L288.0 26.0"), "{svg}");
    }
}
