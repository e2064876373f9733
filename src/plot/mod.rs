//! Pictures as SVG.
//!
//! | file | draws |
//! |---|---|
//! | `mod.rs`, `draw.rs` | [`Figure`]: a file of its own, charts in rows with one legend |
//! | `chart.rs` | a pair of axes with lines, within a figure or a page, which lends it its colours, light or dark |
//! | `svg.rs` | the shapes charts and other pictures of ours are made of |

pub(crate) mod chart;
mod draw;
pub(crate) mod svg;

/// A page of panels.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Its heading.
    pub title: String,
    /// A line below.
    pub subtitle: String,
    /// Panels of a row share its width equally. Every series of one name looks the same throughout.
    pub rows: Vec<Vec<Panel>>,
}

impl Figure {
    /// All of them on one page, one below the other; `None` of none.
    pub fn joined(figures: impl IntoIterator<Item = Figure>) -> Option<Figure> {
        figures.into_iter().reduce(|all, figure| Figure {
            title: format!("{}; {}", all.title, figure.title),
            rows: [all.rows, figure.rows].concat(),
            ..all
        })
    }
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What is drawn.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Lines, the first beneath all others.
    pub series: Vec<Series>,
    /// Vertical rules, each with what it marks.
    pub rules: Vec<(f64, String)>,
    /// A stretch of the horizontal axis that is set off.
    pub band: Option<Band>,
}

/// An axis, drawn from zero, or from the least value where that is below.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What it measures, with its unit.
    pub label: String,
    /// Its end; a little beyond the greatest value if `None`.
    pub end: Option<f64>,
}

/// A line through points, which are in order of `x`.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: &'static str,
    /// How it is drawn.
    pub look: LineStyle,
    /// `(x, y)`; those that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// `(x, low, high)` of vertical bars; where there are any, points are dots as well.
    pub bars: Vec<(f64, f64, f64)>,
}

/// How a line is drawn: in colours that the colour-blind tell apart (Okabe and Ito 2008), and not by colour alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineStyle {
    /// Grey and broad, so that it is seen beneath another: what the others are compared with.
    Reference,
    /// Blue.
    First,
    /// Orange, dashed.
    Second,
    /// Green, dotted.
    Third,
}

/// A shaded stretch of the horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// From here.
    pub start: f64,
    /// To here.
    pub end: f64,
    /// What ends here, in a few words; may be empty.
    pub label: &'static str,
}

impl Axis {
    /// An axis as long as its values need.
    pub fn new(label: &str) -> Axis {
        Axis { label: label.to_owned(), end: None }
    }

    /// An axis that ends at `end`.
    pub fn to(label: &str, end: f64) -> Axis {
        Axis { label: label.to_owned(), end: Some(end) }
    }
}

/// The empirical distribution of `values` as points: `x` a value, `y` the share of values not above it.
pub fn distribution(mut values: Vec<f64>) -> Vec<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let steps = values.into_iter().zip(1_u32..);
    // Two points a value, so that the line rises where the value is.
    steps.flat_map(|(value, rank)| [f64::from(rank - 1), f64::from(rank)].map(|rank| (value, rank / count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_at_its_values() {
        let expected = [(1.0, 0.0), (1.0, 0.5), (4.0, 0.5), (4.0, 1.0)];
        assert_eq!(distribution(vec![4.0, 1.0]), expected);
        assert_eq!(distribution(Vec::new()), []);
    }
}
