//! A search whose candidates others play.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvtide_envs::env::Episode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::agent::{AgentError, CrossEntropy, LinearSpace, Players};
use crate::crew::{Crew, CrewError, Order, Setting};
use crate::experiment::Experiment;

/// Tasks a generation is cut into for each who works: the last of them to end keeps the others waiting, and what is cut too finely
/// is spent on sending it.
const TASKS_A_WORKER: usize = 4;

/// Who plays a search's candidates.
#[derive(Debug, Clone, Copy)]
pub struct Spread<'a> {
    /// They do.
    pub crew: &'a Arc<dyn Crew>,
    /// Where the trace of the experiment's first world lies, if not where the experiment says.
    pub trace: Option<&'a Path>,
}

/// What they are told once: where it is played, and what a point means.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchWork {
    /// The experiment as it is written, its files by the names under which they are shipped.
    pub experiment: String,
    /// What its points stand for.
    pub space: LinearSpace,
}

/// A task: some points, each on the same episodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The points.
    pub points: Vec<Vec<f64>>,
    /// Seeds of the episodes.
    pub seeds: Vec<u64>,
}

impl Spread<'_> {
    /// `search` of `experiment`, played by them.
    pub(super) fn over(&self, experiment: &Experiment, search: CrossEntropy) -> Result<CrossEntropy, CrewError> {
        let (experiment, files) = self.shipped(experiment)?;
        let work = SearchWork { experiment: experiment.to_toml(), space: search.space() };
        let setting = Arc::new(Setting::new(&json!({"search": work}), &files)?);
        Ok(search.played_by(Box::new(Spreading { crew: Arc::clone(self.crew), setting })))
    }

    /// The experiment with its files by the names they are shipped under, and where they lie here.
    fn shipped(&self, experiment: &Experiment) -> Result<(Experiment, Vec<PathBuf>), CrewError> {
        let mut experiment = experiment.clone();
        experiment.world.trace = self.trace.map(Path::to_path_buf).or(experiment.world.trace);
        let mut files = Vec::new();
        experiment.world = experiment.world.shipped(&mut files)?;
        for also in &mut experiment.also {
            also.world = also.world.clone().shipped(&mut files)?;
        }
        Ok((experiment, files))
    }
}

/// Plays a generation by sending it out in slices.
struct Spreading {
    crew: Arc<dyn Crew>,
    setting: Arc<Setting>,
}

impl Players for Spreading {
    fn play(
        &self,
        points: &[Vec<f64>],
        seeds: &[u64],
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Vec<Episode>>>, AgentError> {
        let (some_points, some_seeds) = cut(points.len(), seeds.len(), TASKS_A_WORKER * self.crew.workers());
        let elsewhere = |error: CrewError| AgentError::Elsewhere(error.to_string());
        let mut orders = Vec::new();
        for points in points.chunks(some_points) {
            for seeds in seeds.chunks(some_seeds) {
                let slice = Slice { points: points.to_vec(), seeds: seeds.to_vec() };
                let task = serde_json::to_string(&slice).map_err(|error| AgentError::Elsewhere(error.to_string()))?;
                let order = Order { setting: Arc::clone(&self.setting), task };
                self.crew.begin(&order);
                orders.push((points.len(), seeds.len(), order));
            }
        }
        let slices_of_a_point = seeds.len().div_ceil(some_seeds);
        let mut played: Vec<Vec<Episode>> = Vec::new();
        for (place, (points, seeds, order)) in orders.iter().enumerate() {
            let Some(done) = self.crew.finish(order, stop).map_err(elsewhere)? else { return Ok(None) };
            let episodes: Vec<Vec<Episode>> =
                serde_json::from_value(done).map_err(|error| AgentError::Elsewhere(format!("an answer: {error}")))?;
            if episodes.len() != *points || episodes.iter().any(|episodes| episodes.len() != *seeds) {
                return Err(AgentError::Elsewhere("an answer is not of the episodes asked for".to_owned()));
            }
            if place.is_multiple_of(slices_of_a_point) {
                played.extend(episodes);
            } else {
                let first = played.len() - points;
                played[first..].iter_mut().zip(episodes).for_each(|(point, more)| point.extend(more));
            }
        }
        Ok(Some(played))
    }
}

/// How many points and seeds make a slice, so that there are about as many slices as `tasks`: points are kept whole as long as
/// there are enough of them.
fn cut(points: usize, seeds: usize, tasks: usize) -> (usize, usize) {
    if points >= tasks {
        return (points.div_ceil(tasks), seeds);
    }
    (1, seeds.div_ceil(tasks.div_ceil(points.max(1)).clamp(1, seeds.max(1))).max(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use kvtide_envs::env::Served;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_generation_is_cut_into_about_as_many_slices_as_can_be_done() {
        for (points, seeds, tasks, slice) in [
            (66, 16, 8, (9, 16)),
            (66, 16, 66, (1, 16)),
            (66, 16, 400, (1, 3)),
            (66, 16, 9999, (1, 1)),
            (6, 1, 99, (1, 1)),
        ] {
            assert_eq!(cut(points, seeds, tasks), slice, "{points} {seeds} {tasks}");
        }
    }

    /// Answers with numbers that say which episode was asked for.
    #[derive(Debug)]
    struct Echo {
        workers: usize,
        begun: Mutex<Vec<String>>,
    }

    impl Crew for Echo {
        fn workers(&self) -> usize {
            self.workers
        }

        fn begin(&self, order: &Order) {
            self.begun.lock().unwrap().push(order.task.clone());
        }

        fn finish(&self, order: &Order, _: &AtomicBool) -> Result<Option<Value>, CrewError> {
            let slice: Slice = serde_json::from_str(&order.task).unwrap();
            let episode = |point: &[f64], seed: u64| Episode {
                env: 0,
                episode_return: point[0],
                decisions: seed,
                served: Served::default(),
            };
            let of = |point: &Vec<f64>| slice.seeds.iter().map(|&seed| episode(point, seed)).collect::<Vec<Episode>>();
            Ok(Some(serde_json::to_value(slice.points.iter().map(of).collect::<Vec<_>>()).unwrap()))
        }
    }

    #[test]
    fn however_it_is_cut_the_episodes_are_in_order() {
        let points: Vec<Vec<f64>> = (0..6).map(|point| vec![f64::from(point) / 3.0]).collect();
        let seeds = [7, 8, 9, 10, 11];
        for workers in [1, 2, 3, 4, 50] {
            let echo = Arc::new(Echo { workers, begun: Mutex::default() });
            let setting = Arc::new(Setting::new(&"work", &[]).unwrap());
            let players = Spreading { crew: echo.clone(), setting };
            let played = players.play(&points, &seeds, &AtomicBool::new(false)).unwrap().unwrap();
            let found: Vec<Vec<(f64, u64)>> = played
                .iter()
                .map(|episodes| episodes.iter().map(|episode| (episode.episode_return, episode.decisions)).collect())
                .collect();
            let expected: Vec<Vec<(f64, u64)>> =
                points.iter().map(|point| seeds.iter().map(|&seed| (point[0], seed)).collect()).collect();
            assert_eq!(found, expected, "{workers}");
            assert!(echo.begun.lock().unwrap().len() >= workers.min(6));
        }
    }
}
