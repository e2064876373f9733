//! Logs of a training run: TensorBoard events and JSON Lines in the run's folder, a progress bar on stderr.
//!
//! Nothing here feeds back into training; clocks are read only here.

mod generation;
mod jsonl;
mod progress;
mod rate;
mod tensorboard;

use std::fs::File;
use std::io;
use std::path::Path;

use serde::Serialize;

use crate::agent::{EpisodeSummary, GenerationReport, IterationReport, Losses, SearchState};

pub use generation::GenerationRecord;
pub use jsonl::JsonLines;
pub(crate) use jsonl::{Envelope, OwnedEnvelope};
pub use progress::{LINE_SECONDS, Progress, progress_line};
pub use rate::RateMeter;
pub use tensorboard::TensorBoard;

/// One line of `train.jsonl`: an iteration as `{"type": "iteration", "data": …}`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct IterationRecord {
    /// Counted from 1.
    pub iteration: u64,
    /// Decisions so far.
    pub decisions: u64,
    /// Decisions per second of wall-clock time since the process began to train.
    pub sps: f64,
    /// Adam's step size.
    pub learning_rate: f64,
    /// Weight of the entropy bonus.
    pub entropy_coef: f64,
    /// What the update did.
    #[serde(flatten)]
    pub losses: Losses,
    /// Means over the episodes that ended; `null` if none did.
    pub episodes: Option<EpisodeSummary>,
}

impl IterationRecord {
    /// A report with the speed it was made at.
    pub fn new(report: &IterationReport, sps: f64) -> IterationRecord {
        IterationRecord {
            iteration: report.iteration,
            decisions: report.decisions,
            sps,
            learning_rate: report.learning_rate,
            entropy_coef: report.entropy_coef,
            losses: report.losses,
            episodes: report.summary(),
        }
    }

    /// cleanrl's tags and `serving/*`, with their values.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let losses = &self.losses;
        let mut scalars: Vec<(String, f64)> = [
            ("charts/learning_rate", self.learning_rate),
            ("charts/SPS", self.sps),
            ("losses/value_loss", losses.value_loss),
            ("losses/policy_loss", losses.policy_loss),
            ("losses/entropy", losses.entropy),
            ("losses/old_approx_kl", losses.old_approx_kl),
            ("losses/approx_kl", losses.approx_kl),
            ("losses/clipfrac", losses.clip_fraction),
            ("losses/grad_norm", losses.grad_norm),
        ]
        .map(|(tag, value)| (tag.to_owned(), value))
        .to_vec();
        scalars.extend(losses.explained_variance.map(|value| ("losses/explained_variance".to_owned(), value)));
        scalars.extend(self.episodes.iter().flat_map(episode_scalars));
        scalars
    }

    /// In a few words.
    fn message(&self) -> String {
        let Some(episodes) = &self.episodes else { return format!("{:.0}/s", self.sps) };
        let attainment = episodes.slo_attainment.map(|value| format!("  attainment {value:.3}"));
        format!("{:.0}/s  return {:.3}{}", self.sps, episodes.episodic_return, attainment.unwrap_or_default())
    }
}

fn episode_scalars(episodes: &EpisodeSummary) -> Vec<(String, f64)> {
    let mut scalars = vec![
        ("charts/episodic_return".to_owned(), episodes.episodic_return),
        ("charts/episodic_length".to_owned(), episodes.episodic_length),
    ];
    scalars.extend(episodes.metrics.iter().map(|(name, &value)| (format!("serving/{name}"), value)));
    scalars
}

/// Every log of one training run.
pub struct Recorder {
    tensorboard: TensorBoard,
    lines: JsonLines<File>,
    progress: Progress,
    rate: RateMeter,
}

impl Recorder {
    /// Logs into `folder` (`train.jsonl`, `tensorboard/`), after what is there; for a run that has taken `done` of
    /// `total` decisions.
    ///
    /// # Errors
    /// The folder or a file in it cannot be written.
    pub fn new(folder: &Path, done: u64, total: u64) -> io::Result<Recorder> {
        Recorder::open(folder, Progress::new("decisions", done, total), done)
    }

    /// As [`Recorder::new`], for a search that has come to `state`.
    ///
    /// # Errors
    /// The folder or a file in it cannot be written.
    pub fn of_search(folder: &Path, state: &SearchState) -> io::Result<Recorder> {
        let progress = Progress::new("generations", state.progress.generation, state.config.generations);
        Recorder::open(folder, progress, state.progress.decisions)
    }

    fn open(folder: &Path, progress: Progress, decisions: u64) -> io::Result<Recorder> {
        let tensorboard = TensorBoard::create(&folder.join("tensorboard"))?;
        let lines = JsonLines::append(&folder.join("train.jsonl"))?;
        Ok(Recorder { tensorboard, lines, progress, rate: RateMeter::start(decisions) })
    }

    /// Records an iteration everywhere.
    ///
    /// # Errors
    /// A log cannot be written.
    pub fn iteration(&mut self, report: &IterationReport) -> io::Result<()> {
        let record = IterationRecord::new(report, self.rate.per_second(report.decisions));
        self.lines.write("iteration", &record)?;
        self.tensorboard.scalars(&record.scalars(), report.decisions)?;
        self.progress.show(record.decisions, record.message(), self.rate.seconds());
        Ok(())
    }

    /// Records a generation everywhere.
    ///
    /// # Errors
    /// A log cannot be written.
    pub fn generation(&mut self, report: &GenerationReport) -> io::Result<()> {
        let record = GenerationRecord::new(report, self.rate.per_second(report.decisions));
        self.lines.write("iteration", &record)?;
        self.tensorboard.scalars(&record.scalars(), report.decisions)?;
        self.progress.show(record.generation, record.message(), self.rate.seconds());
        Ok(())
    }

    /// Adds a line of another type to `train.jsonl`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn line<T: Serialize>(&mut self, kind: &str, data: &T) -> io::Result<()> {
        self.lines.write(kind, data)
    }

    /// Runs `talk`, which may write to stderr, without the bar in its way.
    pub fn suspend<T>(&self, talk: impl FnOnce() -> T) -> T {
        self.progress.suspend(talk)
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.progress.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kvtide_envs::env::{Episode, Served};
    use serde_json::Value;

    use super::*;

    fn report() -> IterationReport {
        IterationReport {
            iteration: 2,
            decisions: 256,
            learning_rate: 1e-3,
            entropy_coef: 0.01,
            losses: Losses { explained_variance: None, entropy: 1.5, ..Losses::default() },
            episodes: vec![Episode {
                env: 0,
                episode_return: 3.0,
                decisions: 20,
                served: Served { requests: 4, on_time: 3, ..Served::default() },
            }],
        }
    }

    #[test]
    fn tags_are_cleanrls_and_serving() {
        let scalars = IterationRecord::new(&report(), 1000.0).scalars();
        let value = |tag: &str| scalars.iter().find(|(found, _)| found == tag).map(|&(_, value)| value);
        assert_eq!(value("charts/SPS"), Some(1000.0));
        assert_eq!(value("losses/entropy"), Some(1.5));
        assert_eq!(value("charts/episodic_return"), Some(3.0));
        assert_eq!(value("serving/slo_attainment"), Some(0.75));
        assert_eq!(value("losses/explained_variance"), None);
    }

    #[test]
    fn a_run_leaves_lines_and_events() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::new(folder.path(), 0, 1024).unwrap();
        recorder.iteration(&report()).unwrap();
        recorder.line("done", &7).unwrap();
        drop(recorder);
        let text = fs::read_to_string(folder.path().join("train.jsonl")).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["type"], "iteration");
        assert_eq!(lines[0]["data"]["decisions"], 256);
        assert_eq!(lines[0]["data"]["explained_variance"], Value::Null);
        assert_eq!(lines[0]["data"]["episodes"]["metrics"]["slo_attainment"], 0.75);
        assert_eq!(lines[1], serde_json::json!({"type": "done", "data": 7}));
        let events: Vec<_> = fs::read_dir(folder.path().join("tensorboard")).unwrap().collect();
        assert_eq!(events.len(), 1);
        let bytes = fs::read(events[0].as_ref().unwrap().path()).unwrap();
        assert!(bytes.windows(10).any(|window| window == b"charts/SPS"));
    }
}
