//! Without the feature `cuda`: nothing to open.

use super::{KernelCheck, Speed};
use crate::calibrate::{DeviceAbout, Timed};
use crate::deploy::{Deployment, EngineConfig};
use crate::memory::{KvShape, MemoryBackend, MemoryError};

fn refused() -> MemoryError {
    MemoryError::Unavailable("this kvtide was built without the feature cuda".to_owned())
}

/// Devices the driver knows: none.
pub fn devices() -> u32 {
    0
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn about(_: u32) -> Result<DeviceAbout, MemoryError> {
    Err(refused())
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn open(_: u32, _: &Deployment, _: &EngineConfig) -> Result<Box<dyn MemoryBackend>, MemoryError> {
    Err(refused())
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn open_drawn(_: u32, _: KvShape, _: &EngineConfig) -> Result<Box<dyn MemoryBackend>, MemoryError> {
    Err(refused())
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn timer(_: u32, _: &Deployment, _: &EngineConfig, _: &str) -> Result<Box<dyn Timed>, MemoryError> {
    Err(refused())
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn speeds(_: u32, _: &Deployment, _: &mut dyn FnMut(&Speed)) -> Result<(), MemoryError> {
    Err(refused())
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn check_kernels(_: u32, _: std::ops::Range<u64>, _: &mut dyn FnMut(&KernelCheck)) -> Result<(), MemoryError> {
    Err(refused())
}
