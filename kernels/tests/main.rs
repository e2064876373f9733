//! Kernels: that they compile, and what they compute.

mod common;
mod compile;
mod emulated;
mod emulator;
mod mutants;
