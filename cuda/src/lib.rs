//! Blocks on a GPU: a device pool, a pinned host pool, a decoder over them, and the time it all takes.
//!
//! A step is sent to two streams. The **swap stream** copies blocks between the pools; it waits for the compute of the
//! steps before, whose blocks it may read or overwrite. The **compute stream** runs the model over the blocks; it waits for
//! what is copied in, which is needed at once, and for a copy out only if the step writes a block that is still being
//! copied. So a swap-out overlaps the step it makes room for, where the scheduler's choice of blocks allows it.
//!
//! All unsafe code of this crate is below this module. Nothing of CUDA is needed to build it: driver, NVRTC and cuBLAS are
//! loaded when a device is opened, and one that is missing is an error that says so. Without the feature `cuda` every
//! function here says that the build cannot.

#[cfg(not(feature = "cuda"))]
mod disabled;
#[cfg(feature = "cuda")]
mod enabled;
mod found;

#[cfg(not(feature = "cuda"))]
pub use disabled::{about, check_kernels, devices, open, open_drawn, speeds, timer};
#[cfg(feature = "cuda")]
pub use enabled::{about, check_kernels, devices, open, open_drawn, speeds, timer};
pub use found::{Ceiling, KernelCheck, Speed};
