//! Kernels: that they compile, and what they compute.

#[expect(unsafe_code, reason = "runs compiled kernels")]
mod common;
mod compile;
mod emulated;
mod emulator;
mod mutants;
