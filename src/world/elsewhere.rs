//! Runs that other processes serve.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvtide_envs::metrics::Summary;
use kvtide_envs::time::Micros;
use kvtide_envs::trace::STDIN;
use kvtide_envs::workload::Window;
use serde::{Deserialize, Serialize};

use super::{Draw, World, WorldSpec};
use crate::crew::{Crew, CrewError, Order, Setting, shipped_name};

/// Who serves runs of a world in this process's place, and what they were told of it.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    crew: Arc<dyn Crew>,
    setting: Arc<Setting>,
    /// Whether somebody has looked whether they come to what this process comes to.
    is_compared: Arc<AtomicBool>,
}

/// One run, as another process is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errand {
    /// The policy, in the words of the command line.
    pub policy: String,
    /// First moment of the part of the traffic, and the first after it.
    pub window: Option<(Micros, Micros)>,
    /// Load factor.
    pub load: f64,
    /// Seed of the draw.
    pub seed: u64,
    /// Draw of the clock, if it is not the profile's own.
    pub clock: Option<u32>,
}

impl Elsewhere {
    /// `crew`, to be told `setting`.
    pub fn new(crew: Arc<dyn Crew>, setting: Setting) -> Elsewhere {
        Elsewhere { crew, setting: Arc::new(setting), is_compared: Arc::new(AtomicBool::new(false)) }
    }

    /// How many runs are served at once.
    pub fn workers(&self) -> usize {
        self.crew.workers()
    }

    /// Has a run begun that will be asked for.
    pub fn begin(&self, errand: &Errand) {
        if let Ok(order) = self.order(errand) {
            self.crew.begin(&order);
        }
    }

    /// What came of a run; waits for it. `None` if `stop` was set before.
    ///
    /// # Errors
    /// It has no result, or nobody is there any more to serve it.
    pub fn finish(&self, errand: &Errand, stop: &AtomicBool) -> Result<Option<Summary>, CrewError> {
        let Some(done) = self.crew.finish(&self.order(errand)?, stop)? else { return Ok(None) };
        serde_json::from_value(done).map(Some).map_err(|error| CrewError(format!("a worker's answer: {error}")))
    }

    /// Whether the first run that came back is still to be compared with what this process comes to; said once.
    pub fn is_to_be_compared(&self) -> bool {
        !self.is_compared.swap(true, Ordering::Relaxed)
    }

    fn order(&self, errand: &Errand) -> Result<Order, CrewError> {
        let task = serde_json::to_string(errand).map_err(|error| CrewError(error.to_string()))?;
        Ok(Order { setting: Arc::clone(&self.setting), task })
    }
}

impl Errand {
    /// The draw it is about.
    pub fn draw(&self) -> Draw {
        let window = self.window.map(|(start, end)| Window { start, end });
        Draw { window, load: self.load, seed: self.seed }
    }
}

impl World {
    /// What another process is told of the run of a policy on a draw of this world.
    pub fn errand(&self, policy: String, draw: &Draw) -> Errand {
        let window = draw.window.map(|window| (window.start, window.end));
        Errand { policy, window, load: draw.load, seed: draw.seed, clock: self.clock_draw }
    }
}

impl WorldSpec {
    /// Whether others can be told of it at all.
    ///
    /// # Errors
    /// Its traffic comes from standard input.
    pub fn can_be_sent(&self) -> Result<(), CrewError> {
        if self.trace.as_deref() == Some(Path::new(STDIN)) {
            return Err(CrewError(
                "traffic from standard input cannot be sent to others: write it to a file".to_owned(),
            ));
        }
        Ok(())
    }

    /// The same with its files by the names they are shipped under; where they lie here goes to `files`.
    ///
    /// # Errors
    /// A file is not there, or none at all.
    pub fn shipped(self, files: &mut Vec<PathBuf>) -> Result<WorldSpec, CrewError> {
        self.can_be_sent()?;
        let mut failed = None;
        let shipped = self.with_files(&mut |path| {
            files.push(path.to_owned());
            shipped_name(path).unwrap_or_else(|error| {
                failed.get_or_insert(CrewError(format!("{}: {error}", path.display())));
                path.to_owned()
            })
        });
        failed.map_or(Ok(shipped), Err)
    }
}
