//! Judges policies: each one serves the same windows at the same loads with the same seeds.

mod against;
mod capacity;
mod compare;
mod distinct;
mod knee;
mod matrix;
mod resample;
mod row;
mod table;
mod training;
mod watch;

pub use crate::bootstrap::{Evidence, Interval, interquartile_mean, resampled};
pub use against::{Against, GainAt, WaitAt};
pub use capacity::{Bound, CAPACITY_TARGET, Capacity, bisect_capacities, bisect_capacity};
pub use compare::{AtLoad, Comparison, compare};
pub use distinct::distinct;
pub use knee::{AUTO_DRAWS, AUTO_TARGETS, FoundLoad, find_loads, knee};
pub use matrix::{Cell, Matrix, MatrixError, Watch, run_matrix};
pub use row::RunRow;
pub use table::{
    capacity as capacity_text, dash, evidence, percent, render, repeated_text, rps, signed, time, times, yardsticks,
};
pub use training::{Doubt, TrainedOnError, doubts};
