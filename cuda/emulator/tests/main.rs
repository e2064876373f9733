//! The kernels on the CPU: that the language is CUDA's, what they compute, and that a defect in one is noticed.

mod common;
mod emulated;
mod language;
mod mutants;
