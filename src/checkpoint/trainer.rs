//! A checkpoint made into the run it was: the only part of this room that needs whoever learns.

use std::path::Path;

use kvtide_envs::env::VectorEnv;

use super::{Checkpoint, CheckpointError, Manifest, load};
use crate::agent::{Tensors, Trainer};

/// Reads a checkpoint and goes on from it in `env`, made as the one it was saved from, with networks that `tensors` multiplies.
///
/// # Errors
/// As [`load`], and [`CheckpointError::Agent`] if `env` is another.
pub fn load_trainer(
    path: &Path,
    env: Box<dyn VectorEnv>,
    tensors: &'static dyn Tensors,
) -> Result<(Trainer, Manifest), CheckpointError> {
    let Checkpoint { path, manifest, state } = load(path)?;
    let trainer = Trainer::resume(state, env, tensors).map_err(|source| CheckpointError::Agent { path, source })?;
    Ok((trainer, manifest))
}
