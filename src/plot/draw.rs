//! How a figure looks.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Axis, Band, Figure, LineStyle, Panel, Series};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Writing into a string cannot fail, and a figure has no other source of errors.
const CANNOT_FAIL: &str = "drawing into a string does not fail";

const WIDTH: u32 = 1080;
const HEADER_HEIGHT: u32 = 84;
const ROW_HEIGHT: u32 = 190;
const MARGIN: u32 = 12;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(34, 34, 34);
const FAINT: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(228, 228, 228);
const BAND: RGBColor = RGBColor(240, 243, 247);

/// Colour, width, and lengths of dash and gap.
struct Stroke {
    colour: RGBColor,
    width: u32,
    dash: Option<(u32, u32)>,
}

impl LineStyle {
    fn stroke(self) -> Stroke {
        let (colour, width, dash) = match self {
            LineStyle::Reference => (RGBColor(160, 160, 160), 5, None),
            LineStyle::First => (RGBColor(0, 114, 178), 2, None),
            LineStyle::Second => (RGBColor(213, 94, 0), 1, Some((6, 4))),
            LineStyle::Third => (RGBColor(0, 158, 115), 2, Some((2, 3))),
        };
        Stroke { colour, width, dash }
    }
}

impl Figure {
    /// The figure as an SVG document.
    pub fn to_svg(&self) -> String {
        let mut svg = String::new();
        let height = HEADER_HEIGHT + ROW_HEIGHT * self.rows.len() as u32 + MARGIN;
        {
            let page = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
            page.fill(&WHITE).expect(CANNOT_FAIL);
            let (header, body) = page.split_vertically(HEADER_HEIGHT);
            self.draw_header(&header);
            let body = body.margin(0, MARGIN, MARGIN, MARGIN);
            let areas = body.split_evenly((self.rows.len().max(1), 1));
            for (row, area) in self.rows.iter().zip(areas) {
                for (panel, area) in row.iter().zip(area.split_evenly((1, row.len().max(1)))) {
                    panel.draw(&area);
                }
            }
            page.present().expect(CANNOT_FAIL);
        }
        svg
    }

    fn draw_header(&self, area: &Area<'_>) {
        let left = MARGIN as i32 + 8;
        write(area, &self.title, (left, 22), 20, INK);
        write(area, &self.subtitle, (left, 46), 13, FAINT);
        let mut x = left;
        for series in self.legend() {
            let Stroke { colour, width, dash } = series.look.stroke();
            let line = vec![(x, 70), (x + 30, 70)];
            let style = colour.stroke_width(width);
            match dash {
                None => area.draw(&PathElement::new(line, style)).expect(CANNOT_FAIL),
                Some((dash, gap)) => {
                    area.draw(&DashedPathElement::new(line, dash, gap, style)).expect(CANNOT_FAIL);
                }
            }
            write(area, series.name, (x + 38, 70), 13, INK);
            x += 38 + letters(series.name) * letter_width(13) + 24;
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
    fn draw(&self, area: &Area<'_>) {
        let all = || self.series.iter().flat_map(|series| &series.points);
        let x_end = self.x.length(all().map(|point| point.0), 1.0);
        let y_end = self.y.length(all().map(|point| point.1), 1.06);
        let mut chart = ChartBuilder::on(area)
            .margin_top(6)
            .margin_right(14)
            .caption(&self.title, (FONT, 14).into_font().color(&INK))
            .x_label_area_size(36)
            .y_label_area_size(58)
            .build_cartesian_2d(0.0..x_end, 0.0..y_end)
            .expect(CANNOT_FAIL);
        if let Some(Band { start, end, .. }) = self.band {
            let shaded = Rectangle::new([(start, 0.0), (end.min(x_end), y_end)], BAND.filled());
            chart.draw_series([shaded]).expect(CANNOT_FAIL);
        }
        let (x_digits, y_digits) = (digits(x_end), digits(y_end));
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .axis_desc_style((FONT, 12).into_font().color(&INK))
            .label_style((FONT, 11).into_font().color(&FAINT))
            .x_labels(10)
            .y_labels(6)
            .x_label_formatter(&|x| format!("{x:.x_digits$}"))
            .y_label_formatter(&|y| format!("{y:.y_digits$}"))
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .axis_style(FAINT)
            .draw()
            .expect(CANNOT_FAIL);
        for series in &self.series {
            let points = series.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite());
            let points = points.filter(|(x, _)| *x <= x_end);
            let Stroke { colour, width, dash } = series.look.stroke();
            let style = colour.stroke_width(width);
            let drawn = match dash {
                None => chart.draw_series(LineSeries::new(points, style)),
                Some((dash, gap)) => chart.draw_series(DashedLineSeries::new(points, dash, gap, style)),
            };
            drawn.expect(CANNOT_FAIL);
        }
        if let Some(Band { end, labels, .. }) = self.band {
            let edge = PathElement::new(vec![(end, 0.0), (end, y_end)], FAINT.stroke_width(1));
            chart.draw_series([edge]).expect(CANNOT_FAIL);
            for (text, side, offset) in [(labels[0], HPos::Right, -6), (labels[1], HPos::Left, 6)] {
                let style = (FONT, 12).into_font().color(&FAINT).pos(Pos::new(side, VPos::Bottom));
                let text = EmptyElement::at((end, 0.0)) + Text::new(text, (offset, -4), style);
                chart.draw_series([text]).expect(CANNOT_FAIL);
            }
        }
    }
}

/// Text to the right of `at`, as much as there is room for.
fn write(area: &Area<'_>, text: &str, at: (i32, i32), size: u32, colour: RGBColor) {
    let room = (WIDTH as i32 - at.0) / letter_width(size);
    let text = if letters(text) > room {
        text.chars().take(room.max(1) as usize - 1).chain(['…']).collect()
    } else {
        text.to_owned()
    };
    let style = (FONT, size).into_font().color(&colour).pos(Pos::new(HPos::Left, VPos::Center));
    area.draw(&Text::new(text, at, style)).expect(CANNOT_FAIL);
}

fn letters(text: &str) -> i32 {
    text.chars().count() as i32
}

/// About half of its height, pixels; what the reader's font makes of it is not known.
fn letter_width(size: u32) -> i32 {
    size as i32 / 2
}

/// Digits after the point that labels of an axis up to `end` need.
fn digits(end: f64) -> usize {
    if end >= 5.0 { 0 } else { 1 + usize::from(end < 0.5) }
}

impl Axis {
    /// Its end, at least a little from zero: where it is given, or `room` times the greatest value.
    fn length(&self, values: impl Iterator<Item = f64>, room: f64) -> f64 {
        let greatest = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let end = self.end.unwrap_or(greatest * room);
        if end > 0.0 { end } else { 1.0 }
    }
}
