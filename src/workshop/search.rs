//! Episodes of a search.

use std::path::Path;

use kvtide_envs::env::ServingArena;

use super::{answer, asked, in_words};
use crate::agent::{AgentError, Player};
use crate::crew::CrewError;
use crate::experiment::Experiment;
use crate::train::{SearchWork, Slice};

/// A search whose points can be played.
pub(super) struct Search(Player);

impl Search {
    pub(super) fn new(work: &SearchWork, folder: &Path) -> Result<Search, CrewError> {
        let SearchWork { experiment, space } = work;
        let mut experiment =
            Experiment::parse(experiment).map_err(|reason| CrewError(format!("an experiment: {reason}")))?;
        experiment.world = experiment.world.relative_to(folder);
        for also in &mut experiment.also {
            also.world = also.world.clone().relative_to(folder);
        }
        let world = experiment.world.world().map_err(|error| in_words(&error))?;
        let config = experiment.env_config(&world).map_err(|error| in_words(&error))?;
        let arena = ServingArena::new(&config).map_err(|error| in_words(&error))?;
        Player::new(space, Box::new(arena)).map(Search).map_err(|error| in_words(&error))
    }

    pub(super) fn play(&self, task: &str) -> Result<String, CrewError> {
        let Slice { points, seeds } = asked(task)?;
        let played: Result<Vec<_>, AgentError> = points.iter().map(|point| self.0.play(point, &seeds)).collect();
        answer(&played.map_err(|error| in_words(&error))?)
    }
}
