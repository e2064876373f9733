//! Without the feature `cuda`: nothing to open.

use super::super::{MemoryBackend, MemoryError};
use crate::cost::Deployment;
use crate::sched::EngineConfig;

/// Refuses: this build cannot use a GPU.
///
/// # Errors
/// Always.
pub fn open(_: u32, _: &Deployment, _: &EngineConfig) -> Result<Box<dyn MemoryBackend>, MemoryError> {
    let wrong = "--memory cuda: this kvtide was built without the feature cuda".to_owned();
    Err(MemoryError::Unavailable(wrong))
}
