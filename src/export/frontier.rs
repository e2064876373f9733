//! How small a table can be: size against what it loses.

use std::fmt::Write;

use super::interval_text;
use crate::bootstrap::Interval;
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

    /// Drawn: what each size loses, with both ends of its interval, and the size that was chosen.
    pub fn figure(&self, name: &str, traffic: &str, chosen_leaves: usize) -> Figure {
        let points = self.points.iter().map(|point| (point.leaves as f64, point.loss.points.mean)).collect();
        let ends = |point: &FrontierPoint| {
            let Interval { low, high, .. } = point.loss.points;
            Some((point.leaves as f64, low?, high?))
        };
        let bars = self.points.iter().filter_map(ends).collect();
        let greatest = self.points.iter().map(|point| point.leaves).max().unwrap_or(1);
        let panel = Panel {
            title: "Attainment lost against the teacher".to_owned(),
            x: Axis::to("leaves (16 bytes each)", greatest as f64 * 1.03),
            y: Axis::new("percentage points"),
            series: vec![Series { name: "points lost, with 95 % interval", look: LineStyle::First, points, bars }],
            rules: vec![(chosen_leaves as f64, format!("chosen: {chosen_leaves} leaves"))],
            band: None,
        };
        let episodes = self.points.first().map_or(0, |point| point.loss.episodes);
        Figure {
            title: format!("{name}: how small the table can be"),
            subtitle: format!(
                "{episodes} episodes of {traffic} traffic; below zero the table serves better than its teacher"
            ),
            rows: vec![vec![panel]],
        }
    }
}
