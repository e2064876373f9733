//! Blocks on a GPU: a device pool, a pinned host pool, a decoder over them, and the time it all takes.
//!
//! [`open`] makes a [`MemoryBackend`](kvtide_envs::memory::MemoryBackend) of a device and [`lend`] a
//! [`MemorySource`](kvtide_envs::memory::MemorySource), which is what `kvtide-envs` takes for the blocks of its nodes; it
//! knows nothing of this crate. The rest is about a device at hand: its kernels checked ([`check_kernels`]), its blocks under
//! random schedules ([`check_schedules`]), its speeds ([`speeds`]), its steps timed for a hardware profile ([`timer`]), and
//! traffic served both on it and in the model ([`compare()`]). Most of that can be asked of host memory too, so that it runs
//! where there is no GPU. The program `kvtide-device` does it all and writes one [`DeviceReport`]; it needs no libtorch.
//!
//! A step is sent to two streams. The **swap stream** copies blocks between the pools; it waits for the compute of the
//! steps before, whose blocks it may read or overwrite. The **compute stream** runs the model over the blocks; it waits for
//! what is copied in, which is needed at once, and for a copy out only if the step writes a block that is still being
//! copied. So a swap-out overlaps the step it makes room for, where the scheduler's choice of blocks allows it.
//!
//! All unsafe code is in the module that talks to the driver. Nothing of CUDA is needed to build it: driver, NVRTC and
//! cuBLAS are loaded when a device is opened, and one that is missing is an error that says so.

mod backend;
mod compare;
mod found;
mod report;
mod schedules;

pub use backend::{Kernels, about, check_kernels, devices, lend, lend_drawn, open, open_drawn, speeds, timer};
pub use compare::{Agreement, DeviceComparison, compare, traffic};
pub use found::{Ceiling, KernelCheck, Speed};
pub use report::{DeviceReport, Section, render, speed_line};
pub use schedules::{MemoryOf, ScheduleError, ScheduleReport, check_schedules};
