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

#[cfg(test)]
mod tests {
    use kvtide_envs::env::{Episode, Served};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_generation_is_logged_as_an_iteration() {
        let served = Served { requests: 4, on_time: 3, ..Served::default() };
        let report = GenerationReport {
            generation: 3,
            decisions: 500,
            start: 0.5,
            mean: 0.75,
            elite: 0.8,
            best: 0.9,
            spread: 0.25,
            episodes: vec![Episode { env: 0, episode_return: 2.0, decisions: 10, served }],
        };
        let record = GenerationRecord::new(&report, 100.0);
        let line = serde_json::to_value(&record).unwrap();
        assert_eq!((&line["iteration"], &line["decisions"]), (&json!(3), &json!(500)));
        assert_eq!(line["episodes"]["metrics"]["slo_attainment"], 0.75);
        let scalars = record.scalars();
        let value = |tag: &str| scalars.iter().find(|(found, _)| found == tag).map(|&(_, value)| value);
        assert_eq!(value("search/mean"), Some(0.75));
        assert_eq!(value("search/start"), Some(0.5));
        assert_eq!(value("serving/slo_attainment"), Some(0.75));
        assert_eq!(record.message(), "100/s  score 0.7500 (start 0.5000, best 0.9000)  spread 0.250");
    }
}
