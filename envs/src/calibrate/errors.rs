//! How far predictions are off on points that were held out, and a report of it.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::{Direction, Fitted, StepShape};
use crate::percentile::percentile;

/// Misses that are kept of each group.
const WORST: usize = 3;

/// What kind of point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointKind {
    /// A step of decodes.
    Decode,
    /// A step of chunks.
    Prefill,
    /// A step of both.
    Mixed,
    /// Blocks copied to the accelerator.
    TransferIn,
    /// Blocks copied to the host.
    TransferOut,
    /// A step while blocks were copied.
    Overlap,
}

impl PointKind {
    const ALL: [PointKind; 6] = [
        PointKind::Decode,
        PointKind::Prefill,
        PointKind::Mixed,
        PointKind::TransferIn,
        PointKind::TransferOut,
        PointKind::Overlap,
    ];

    pub(super) fn of(shape: &StepShape) -> PointKind {
        match (shape.decodes.is_empty(), shape.chunks.is_empty()) {
            (true, _) => PointKind::Prefill,
            (false, true) => PointKind::Decode,
            (false, false) => PointKind::Mixed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            PointKind::Decode => "decode",
            PointKind::Prefill => "prefill",
            PointKind::Mixed => "mixed",
            PointKind::TransferIn => "copy in",
            PointKind::TransferOut => "copy out",
            PointKind::Overlap => "overlap",
        }
    }
}

impl From<Direction> for PointKind {
    fn from(direction: Direction) -> PointKind {
        match direction {
            Direction::In => PointKind::TransferIn,
            Direction::Out => PointKind::TransferOut,
        }
    }
}

/// A point, and what was predicted of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Miss {
    /// Its kind.
    pub kind: PointKind,
    /// What was run: `32 decodes of 2048`.
    pub what: String,
    /// How long it took, seconds.
    pub measured_s: f64,
    /// How long it was predicted to take, seconds.
    pub predicted_s: f64,
}

impl Miss {
    /// Relative error of the prediction; negative where it is too short.
    pub fn error(&self) -> f64 {
        self.predicted_s / self.measured_s - 1.0
    }
}

/// Relative errors of predictions, without their signs: 0.01 is one per cent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelativeErrors {
    /// Points that were predicted.
    pub count: usize,
    /// Median over the points.
    pub median: f64,
    /// 95th percentile.
    pub p95: f64,
    /// Largest of any point.
    pub max: f64,
    /// The three that are furthest off, the furthest first.
    pub worst: Vec<Miss>,
}

impl RelativeErrors {
    /// Of these predictions; `None` if there are none.
    pub(super) fn of(misses: &[Miss]) -> Option<RelativeErrors> {
        let mut sizes: Vec<f64> = misses.iter().map(|miss| miss.error().abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let max = *sizes.last()?;
        let mut worst: Vec<&Miss> = misses.iter().collect();
        worst.sort_by(|a, b| b.error().abs().total_cmp(&a.error().abs()));
        Some(RelativeErrors {
            count: sizes.len(),
            median: percentile(&sizes, 50.0),
            p95: percentile(&sizes, 95.0),
            max,
            worst: worst.into_iter().take(WORST).cloned().collect(),
        })
    }
}

/// Errors of one kind of point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KindErrors {
    /// The kind of point.
    pub kind: PointKind,
    /// Points of the kind that were fitted.
    pub fitted: usize,
    /// Errors on those held out.
    pub held_out: RelativeErrors,
}

impl KindErrors {
    /// Of each kind that has points held out.
    pub(super) fn split(fitted: &[PointKind], held_out: &[Miss]) -> Vec<KindErrors> {
        let of = |kind: PointKind| {
            let own: Vec<Miss> = held_out.iter().filter(|miss| miss.kind == kind).cloned().collect();
            let fitted = fitted.iter().filter(|is| **is == kind).count();
            Some(KindErrors { kind, fitted, held_out: RelativeErrors::of(&own)? })
        };
        PointKind::ALL.into_iter().filter_map(of).collect()
    }
}

/// The errors of a fit as text: a line for each kind of point, and under it the three that are furthest off.
pub fn render(fitted: &Fitted) -> String {
    let mut text = format!("{} on {}: {} points fitted\n", fitted.env, fitted.about.name, fitted.points_fitted);
    let mut line = |name: &str, errors: &RelativeErrors| {
        let [median, p95, max] = [errors.median, errors.p95, errors.max].map(|error| 100.0 * error);
        writeln!(
            text,
            "{name:<9} {:>4} held out  median {median:5.2} %  p95 {p95:5.2} %  max {max:5.2} %",
            errors.count
        )
        .expect("a string takes everything");
        for miss in &errors.worst {
            let [measured, predicted] = [miss.measured_s, miss.predicted_s].map(|seconds| 1e3 * seconds);
            writeln!(
                text,
                "  {:+7.2} %  measured {measured:9.3} ms  predicted {predicted:9.3} ms  {}",
                100.0 * miss.error(),
                miss.what
            )
            .expect("a string takes everything");
        }
    };
    for kind in &fitted.by_kind {
        line(kind.kind.name(), &kind.held_out);
    }
    line("all", &fitted.held_out);
    text
}
