//! A device at hand: its kernels checked, its blocks under random schedules, its speeds, a profile fitted to its timings,
//! and traffic served both on it and in the model.
//!
//! Everything here is asked of whatever [`cuda`](crate::memory::cuda) opens, and most of it also of host memory, so that it
//! runs where there is no GPU. The program `kvtide-device` does it all and writes one report; it needs no libtorch.

mod compare;
mod report;
mod schedules;

pub use compare::{Agreement, Comparison, compare, traffic};
pub use report::{Report, Section, render, speed_line};
pub use schedules::{ScheduleError, ScheduleReport, check_schedules};
