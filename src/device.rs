//! The GPU, as far as this build can use one: with the feature `cuda`, `kvtide-cuda`; without it, an error that says so.

use kvtide_envs::calibrate::TimedDevice;
use kvtide_envs::deploy::Deployment;
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::memory::{MemoryError, MemoryKind, MemorySource};

/// Memory of `kind` for nodes of `engine` on `deployment`. A device is set up now: its pools, and the weights.
///
/// # Errors
/// No such device, it has not that much memory, or this build can use none.
pub(crate) fn memory(
    kind: MemoryKind,
    deployment: &Deployment,
    engine: &EngineConfig,
) -> Result<MemorySource, MemoryError> {
    match kind {
        MemoryKind::Modelled => Ok(MemorySource::Modelled),
        MemoryKind::Host { token_bytes } => Ok(MemorySource::Host { token_bytes }),
        MemoryKind::Cuda { ordinal } => lend(ordinal, deployment, engine),
    }
}

/// Device `ordinal` with the model of `deployment` on it, to be timed step by step.
///
/// # Errors
/// As [`memory`].
#[cfg(feature = "cuda")]
pub(crate) fn timer(
    ordinal: u32,
    deployment: &Deployment,
    engine: &EngineConfig,
) -> Result<Box<dyn TimedDevice>, MemoryError> {
    kvtide_cuda::timer(ordinal, deployment, engine, option_env!("KVTIDE_COMMIT").unwrap_or("unknown"))
}

#[cfg(feature = "cuda")]
use kvtide_cuda::lend;

/// There is nothing to time.
#[cfg(not(feature = "cuda"))]
pub(crate) fn timer(_: u32, _: &Deployment, _: &EngineConfig) -> Result<Box<dyn TimedDevice>, MemoryError> {
    Err(refused())
}

#[cfg(not(feature = "cuda"))]
fn lend(_: u32, _: &Deployment, _: &EngineConfig) -> Result<MemorySource, MemoryError> {
    Err(refused())
}

#[cfg(not(feature = "cuda"))]
fn refused() -> MemoryError {
    MemoryError::Unavailable("this kvtide was built without the feature cuda: it can use no device".to_owned())
}
