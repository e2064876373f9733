//! Judges policies: each one serves the same windows at the same loads with the same seeds.

mod against;
mod capacity;
mod cell;
mod clock;
mod clock_table;
mod compare;
mod distinct;
mod identity;
mod kept;
mod knee;
mod matrix;
mod once;
mod releases;
mod resample;
mod row;
mod table;
mod together;
mod training;
mod unserved;
mod watch;

pub use crate::bootstrap::{Evidence, Interval, interquartile_mean, resampled};
pub use against::{Against, GainAt, WaitAt};
pub use capacity::{Bound, CAPACITY_TARGET, Capacity, CapacityError, bisect_capacities, bisect_capacity};
pub use clock::{ClockError, ClockGain, GainByClock, clock_gains, go_on_with_clocks};
pub use clock_table::{render_clocks, shown as shown_gains};
pub use compare::{AtLoad, Comparison, compare};
pub use distinct::distinct;
pub use identity::identity;
pub use kept::{Kept, KeptError, RunFile};
pub use knee::{AUTO_DRAWS, AUTO_TARGETS, FoundLoad, find_loads, knee};
pub use matrix::{Cell, Finished, Matrix, MatrixError, Watch, go_on_with_matrix, run_matrix};
pub use releases::{NotedRun, ReleaseRow, note_releases};
pub use row::{RunRow, Tried, TriedRow};
pub use table::{
    capacity as capacity_text, dash, evidence, percent, render, repeated_text, rps, signed, time, times, yardsticks,
};
pub use training::{Doubt, TrainedOnError, check_engine, doubts};
pub use unserved::{Unserved, unserved};
