//! CUDA sources as text. They are compiled by NVRTC at run time, for the device that is there.
//!
//! This crate never runs anything: backends that launch these kernels live in `kvtide-envs`. Every source uses built-in
//! types only, so that it compiles without any header.
#![forbid(unsafe_code)]

/// A CUDA source with its entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// File name, for compiler messages.
    pub name: &'static str,
    /// The source.
    pub source: &'static str,
    /// The `extern "C"` function to launch.
    pub entry: &'static str,
}

/// Swap-out, swap-in and copy-on-write: whole blocks from one pool to another through a mapping.
pub const BLOCK_COPY: Kernel =
    Kernel { name: "block_copy.cu", source: include_str!("block_copy.cu"), entry: "kvtide_block_copy" };

/// Every kernel.
pub const ALL: &[Kernel] = &[BLOCK_COPY];
