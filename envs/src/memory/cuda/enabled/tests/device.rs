//! What is found out about a device.

use super::emulated_or_skip;
use crate::cost::Deployment;
use crate::memory::cuda::{check_kernels, devices};

#[test]
fn every_kernel_passes_its_checks_through_the_driver() {
    let _emulated = emulated_or_skip!();
    assert_eq!(devices(), 1);
    let mut checks = Vec::new();
    check_kernels(0, 0..2, &mut |check| checks.push(check.clone())).unwrap();
    assert!(checks.len() >= kvtide_kernels::ALL.len());
    let failed: Vec<_> = checks.iter().filter(|check| check.failure.is_some()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let _emulated = emulated_or_skip!();
    let deployment: Deployment = "llama-3-8b@h200".parse().unwrap();
    let engine = deployment.engine(crate::sched::EngineKind::V1);
    let error = crate::memory::cuda::open(3, &deployment, &engine).unwrap_err().to_string();
    assert!(error.starts_with("no CUDA device 3: "), "{error}");
}
