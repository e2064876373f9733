//! A pair of axes with lines, as SVG within a page. Colours are the page's: `--c0`, `--c1`, …

use std::fmt::Write;

use super::html::escape;

/// A chart.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chart {
    /// What it shows, for whoever cannot see it, and its heading.
    pub(super) title: String,
    /// Width, in the SVG's own units, of which the page shows as many as fit.
    pub(super) width: f64,
    /// Height, likewise.
    pub(super) height: f64,
    pub(super) x: Axis,
    pub(super) y: Axis,
    /// Lines, the first at the bottom.
    pub(super) lines: Vec<Line>,
    /// Vertical rules with what they mark.
    pub(super) rules: Vec<(f64, String)>,
}

/// An axis.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub(super) label: String,
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) unit: Unit,
}

/// How values are spaced and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// As they are.
    Number,
    /// Shares as percent.
    Percent,
    /// Milliseconds, spaced by their logarithm.
    LogMillis,
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    /// What it is, shown when pointed at.
    pub(super) name: String,
    pub(super) pen: Pen,
    /// `(x, y)`, in order of `x`.
    pub(super) points: Vec<(f64, f64)>,
    /// `(x, low, high)` of vertical bars; points are dots as well if there are any.
    pub(super) bars: Vec<(f64, f64, f64)>,
    /// The area below is filled.
    pub(super) filled: bool,
}

/// How a line looks: not by colour alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pen {
    /// Index of the colour.
    pub(super) colour: usize,
    /// SVG's `stroke-dasharray`.
    pub(super) dash: &'static str,
    pub(super) width: f64,
}

/// Room for labels: left, right, top, bottom.
const MARGINS: (f64, f64, f64, f64) = (52.0, 12.0, 26.0, 38.0);

impl Axis {
    /// From 0 to a little beyond the greatest of `values`.
    pub(super) fn above_zero(label: &str, values: impl Iterator<Item = f64>) -> Axis {
        let greatest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let to = if greatest > 0.0 { greatest * 1.05 } else { 1.0 };
        Axis { label: label.to_owned(), from: 0.0, to, unit: Unit::Number }
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

/// At most so many digits after the point, and none that is a trailing zero.
pub(super) fn round(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

impl Chart {
    /// The chart as an element.
    pub(super) fn to_svg(&self) -> String {
        let (width, height) = (self.width, self.height);
        let mut svg =
            format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n", escape(&self.title));
        let (left, _, top, _) = MARGINS;
        let _ = writeln!(svg, "<text class=\"title\" x=\"{left}\" y=\"{}\">{}</text>", top - 11.0, escape(&self.title));
        self.draw_axes(&mut svg);
        for (at, label) in &self.rules {
            let x = self.x_of(*at);
            let (above, below) = (self.y_of(self.y.to), self.y_of(self.y.from));
            let _ = writeln!(svg, "<path class=\"rule\" d=\"M{x:.1} {above:.1}V{below:.1}\"/>");
            // On the side where there is room.
            let (aside, anchor) = if self.x.place(*at) > 0.7 { (-4.0, "end") } else { (4.0, "start") };
            let _ = writeln!(
                svg,
                "<text class=\"note\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                x + aside,
                below - 6.0,
                escape(label)
            );
        }
        for line in &self.lines {
            self.draw_line(&mut svg, line);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn x_of(&self, value: f64) -> f64 {
        let (left, right, ..) = MARGINS;
        left + self.x.place(value) * (self.width - left - right)
    }

    fn y_of(&self, value: f64) -> f64 {
        let (_, _, top, bottom) = MARGINS;
        self.height - bottom - self.y.place(value) * (self.height - top - bottom)
    }

    fn draw_axes(&self, svg: &mut String) {
        let (left, right) = (self.x_of(self.x.from), self.x_of(self.x.to));
        let (above, below) = (self.y_of(self.y.to), self.y_of(self.y.from));
        for tick in self.y.ticks(5) {
            let y = self.y_of(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
            let text = self.y.text(tick);
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                left - 6.0,
                y + 4.0
            );
        }
        // About seventy units a label.
        for tick in self.x.ticks(((right - left) / 70.0).max(2.0) as usize) {
            let x = self.x_of(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{x:.1} {above:.1}V{:.1}\"/>", below + 3.0);
            let text = self.x.text(tick);
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
                below + 16.0
            );
        }
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{left:.1} {below:.1}H{right:.1}\"/>");
        let label = |svg: &mut String, x: f64, y: f64, turn: &str, text: &str| {
            let _ = writeln!(
                svg,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\"{turn}>{}</text>",
                escape(text)
            );
        };
        label(svg, f64::midpoint(left, right), self.height - 6.0, "", &self.x.label);
        let middle = f64::midpoint(above, below);
        label(svg, 12.0, middle, &format!(" transform=\"rotate(-90 12 {middle:.1})\""), &self.y.label);
    }

    fn draw_line(&self, svg: &mut String, line: &Line) {
        let Pen { colour, dash, width } = line.pen;
        let finite = line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite());
        let points: Vec<(f64, f64)> = finite.map(|(x, y)| (self.x_of(*x), self.y_of(*y))).collect();
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        let _ = writeln!(svg, "<g style=\"--c:var(--c{colour})\"><title>{}</title>", escape(&line.name));
        if let (true, Some((from, _)), Some((to, _))) = (line.filled, points.first(), points.last()) {
            let below = self.y_of(self.y.from);
            let _ = writeln!(svg, "<path class=\"area\" d=\"{path}L{to:.1} {below:.1}L{from:.1} {below:.1}Z\"/>");
        }
        let _ =
            writeln!(svg, "<path class=\"line\" stroke-width=\"{width}\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>");
        for (at, low, high) in &line.bars {
            let (x, low, high) = (self.x_of(*at), self.y_of(*low), self.y_of(*high));
            let _ = writeln!(svg, "<path class=\"line\" stroke-width=\"1.2\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
        }
        if !line.bars.is_empty() {
            for (x, y) in &points {
                let _ = writeln!(svg, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
            }
        }
        svg.push_str("</g>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(from: f64, to: f64, unit: Unit) -> Axis {
        Axis { label: "x".to_owned(), from, to, unit }
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
        };
        let svg = chart.to_svg();
        assert!(svg.contains("&lt;b&gt;") && svg.contains("a&amp;b&lt;/title&gt;") && !svg.contains("NaN"), "{svg}");
        // Beyond the axes is on their edge.
        assert!(svg.contains("M52.0 162.0L288.0 26.0"), "{svg}");
    }
}
