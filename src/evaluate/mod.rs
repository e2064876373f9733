//! Judges policies: each one serves the same windows at the same loads with the same seeds.

mod capacity;
mod compare;
mod hindsight;
mod knee;
mod matrix;
mod row;
mod spec;
mod table;
mod violations;

pub use crate::bootstrap::{Interval, interquartile_mean, paired_interval, stratified};
pub use capacity::{Bound, CAPACITY_TARGET, Capacity, bisect_capacity};
pub use compare::{AtLoad, Comparison, compare};
pub use knee::{AUTO_DRAWS, AUTO_TARGETS, FoundLoad, find_loads, knee};
pub use matrix::{Cell, Matrix, MatrixError, Watch, run_matrix};
pub use row::Row;
pub use spec::{PolicySpec, SpecError, Subject};
pub use table::{capacity as capacity_text, percent, render};
pub use violations::Fewer;
