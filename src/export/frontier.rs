//! How small a table can be: size against what it loses.

use std::fmt::Write;

use super::interval_text;
use crate::distil::{Baseline, DistilError, Loss, Student};
use crate::plot::{Axis, Figure, LineStyle, Panel, Series};

/// Bytes of a node in a file.
const NODE_BYTES: usize = 8;

/// Tables cut from one tree, the smallest first.
pub struct Frontier {
    points: Vec<FrontierPoint>,
}

struct FrontierPoint {
    leaves: usize,
    loss: Loss,
}

impl Frontier {
    /// Judges every size of `student`.
    ///
    /// # Errors
    /// An episode cannot be played, or somebody asked it to stop.
    pub fn of(student: &Student, reference: &Baseline<'_>) -> Result<Frontier, DistilError> {
        let judged =
            student.sizes().map(|(tree, _)| Ok(FrontierPoint { leaves: tree.leaves(), loss: reference.loss(tree)? }));
        let mut points = judged.collect::<Result<Vec<FrontierPoint>, DistilError>>()?;
        points.reverse();
        Ok(Frontier { points })
    }

    /// As a table.
    pub fn text(&self) -> String {
        let mut out = format!("{:>6}{:>12}{:>11}  points lost\n", "leaves", "node bytes", "attained");
        for FrontierPoint { leaves, loss } in &self.points {
            let bytes = (2 * leaves - 1) * NODE_BYTES;
            let lost = interval_text(&loss.points);
            writeln!(out, "{leaves:>6}{bytes:>12}{:>9.2} %  {lost}", loss.student * 100.0)
                .expect("a string takes everything");
        }
        out
    }

    /// Drawn: leaves as powers of two, so that every halving is a step; negative losses are drawn as none.
    pub fn figure(&self, name: &str, traffic: &str) -> Figure {
        let line = |value: fn(&Loss) -> f64| {
            let point = |point: &FrontierPoint| ((point.leaves as f64).log2(), value(&point.loss).max(0.0));
            self.points.iter().map(point).collect::<Vec<(f64, f64)>>()
        };
        let series = vec![
            Series {
                name: "95 % interval, upper end",
                look: LineStyle::Second,
                points: line(|loss| loss.points.high.unwrap_or(loss.points.mean)),
            },
            Series { name: "points lost", look: LineStyle::First, points: line(|loss| loss.points.mean) },
        ];
        let panel = Panel {
            title: "Attainment lost against the teacher".to_owned(),
            x: Axis::new("leaves, as a power of 2"),
            y: Axis::new("percentage points"),
            series,
            band: None,
        };
        let episodes = self.points.first().map_or(0, |point| point.loss.episodes);
        Figure {
            title: format!("{name}: how small the table can be"),
            subtitle: format!("{episodes} episodes of {traffic} traffic; a leaf takes 16 bytes"),
            rows: vec![vec![panel]],
        }
    }
}
