//! Points: what is timed on an accelerator, and how long it took.

use serde::{Deserialize, Serialize};

use crate::cost::{Chunk, StepLoad};
use crate::percentile::percentile;
use crate::tier::Links;

/// A step to be timed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepShape {
    /// Of each sequence that decodes, the tokens of context before its new one.
    pub decodes: Vec<u32>,
    /// Chunks of prompts.
    pub chunks: Vec<Chunk>,
}

impl StepShape {
    /// What the step has to do.
    pub fn load(&self) -> StepLoad<impl ExactSizeIterator<Item = Chunk> + Clone> {
        StepLoad {
            decodes: self.decodes.len() as u32,
            decode_context: self.decodes.iter().map(|context| u64::from(*context) + 1).sum(),
            chunks: self.chunks.iter().copied(),
            blocks: Links::default(),
        }
    }
}

/// Whether a point is there to be fitted or to judge the fit by. None is both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The constants are found from it.
    Fit,
    /// The error is told from it.
    HeldOut,
}

/// Which way blocks are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the host to the accelerator.
    In,
    /// From the accelerator to the host.
    Out,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::In => "in",
            Direction::Out => "out",
        })
    }
}

/// How long something took, over its repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// The median, seconds.
    pub seconds: f64,
    /// The 10th and the 90th percentile, seconds.
    pub spread: [f64; 2],
    /// How often it was repeated.
    pub repeats: u32,
}

impl Timing {
    /// Of the seconds each repeat took; `None` for no repeats.
    pub fn of(seconds: &[f64]) -> Option<Timing> {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let repeats = u32::try_from(sorted.len()).ok()?;
        (repeats > 0).then(|| {
            let [low, median, high] = [10.0, 50.0, 90.0].map(|p| percentile(&sorted, p));
            Timing { seconds: median, spread: [low, high], repeats }
        })
    }
}

/// Computing and copying, each alone and both at once. Seconds, medians.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Overlap {
    /// The step alone.
    pub compute_s: f64,
    /// The copies alone.
    pub transfer_s: f64,
    /// From the start of both to the end of the later one.
    pub together_s: f64,
}

/// A step that was timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepPoint {
    /// What it is there for.
    pub role: Role,
    /// What was run.
    pub shape: StepShape,
    /// How long it took.
    #[serde(flatten)]
    pub timing: Timing,
}

/// A copy of blocks that was timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TransferPoint {
    /// What it is there for.
    pub role: Role,
    /// Which way.
    pub direction: Direction,
    /// How many blocks, at least one.
    pub blocks: u32,
    /// How long it took.
    #[serde(flatten)]
    pub timing: Timing,
}

/// A step that was timed while blocks were copied to the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverlapPoint {
    /// What it is there for.
    pub role: Role,
    /// What was computed.
    pub shape: StepShape,
    /// How many blocks were copied out.
    pub blocks: u32,
    /// How long it took.
    #[serde(flatten)]
    pub overlap: Overlap,
}

/// A shape in a few words: `32 decodes of 2048, 1 chunk of 512 after 0`.
pub(super) struct Brief<'a>(pub(super) &'a StepShape);

impl std::fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepShape { decodes, chunks } = self.0;
        if let (Some(least), Some(most)) = (decodes.iter().min(), decodes.iter().max()) {
            write!(f, "{} decodes of {least}", decodes.len())?;
            if least != most {
                write!(f, "..{most}")?;
            }
            if !chunks.is_empty() {
                write!(f, ", ")?;
            }
        }
        if let Some(first) = chunks.first() {
            let word = if chunks.len() == 1 { "chunk" } else { "chunks" };
            write!(f, "{} {word} of {} after {}", chunks.len(), first.tokens, first.context)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::CostModel;
    use crate::sched::{Prefill, PrefillSource, RequestId, StepPlan};

    #[test]
    fn a_shape_costs_what_its_plan_costs() {
        let cost = CostModel::new(&"llama-3-8b@a10".parse().unwrap(), 16);
        let chunk = Chunk { context: 300, tokens: 200 };
        let shape = StepShape { decodes: vec![9, 99, 999], chunks: vec![chunk; 2] };
        let prefill = |id| Prefill {
            id: RequestId(id),
            tokens: 200,
            context: 300,
            source: PrefillSource::Waiting,
            samples: true,
        };
        let plan = StepPlan {
            cohort: 3,
            decode_context: 10 + 100 + 1000,
            prefills: vec![prefill(0), prefill(1)],
            ..StepPlan::default()
        };
        assert_eq!(cost.step_seconds(&shape.load()), cost.step_seconds(&plan.load()));
        assert_eq!(Brief(&shape).to_string(), "3 decodes of 9..999, 2 chunks of 200 after 300");
    }

    #[test]
    fn a_timing_is_its_median() {
        let timing = Timing::of(&[5.0, 1.0, 2.0, 4.0, 3.0]).unwrap();
        assert_eq!((timing.seconds, timing.repeats), (3.0, 5));
        assert!((timing.spread[0] - 1.4).abs() < 1e-12 && (timing.spread[1] - 4.6).abs() < 1e-12);
        assert_eq!(Timing::of(&[]), None);
    }
}
