//! What a generation of a cross-entropy search leaves in the logs.

use serde::Serialize;

use super::episode_scalars;
use crate::agent::{EpisodeSummary, GenerationReport};

/// One line of `train.jsonl`: a generation of a search as `{"type": "iteration", "data": …}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GenerationRecord {
    /// Counted from 1.
    #[serde(rename = "iteration")]
    pub generation: u64,
    /// Decisions so far, of all candidates.
    pub decisions: u64,
    /// Decisions per second of wall-clock time since the process began to train.
    pub sps: f64,
    /// Score of the prior on the generation's episodes.
    pub start: f64,
    /// Score of the mean the candidates were drawn around.
    pub mean: f64,
    /// Mean score of the elite.
    pub elite: f64,
    /// Best score.
    pub best: f64,
    /// Root mean square of the deviations the candidates were drawn with.
    pub spread: f64,
    /// Means over the episodes of the mean.
    pub episodes: Option<EpisodeSummary>,
}

impl GenerationRecord {
    /// A report with the speed it was made at.
    pub fn new(report: &GenerationReport, sps: f64) -> GenerationRecord {
        let GenerationReport { generation, decisions, start, mean, elite, best, spread, ref episodes } = *report;
        let episodes = EpisodeSummary::of(episodes);
        GenerationRecord { generation, decisions, sps, start, mean, elite, best, spread, episodes }
    }

    /// Tags `search/*`, and those of an iteration's episodes, with their values.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let mut scalars: Vec<(String, f64)> = [
            ("charts/SPS", self.sps),
            ("search/start", self.start),
            ("search/mean", self.mean),
            ("search/elite", self.elite),
            ("search/best", self.best),
            ("search/spread", self.spread),
        ]
        .map(|(tag, value)| (tag.to_owned(), value))
        .to_vec();
        scalars.extend(self.episodes.iter().flat_map(episode_scalars));
        scalars
    }

    /// In a few words.
    pub(super) fn message(&self) -> String {
        let GenerationRecord { sps, start, mean, best, spread, .. } = self;
        format!("{sps:.0}/s  score {mean:.4} (start {start:.4}, best {best:.4})  spread {spread:.3}")
    }
}
