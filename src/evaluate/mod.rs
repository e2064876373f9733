//! Judges policies: each one serves the same windows at the same loads with the same seeds.

mod bootstrap;
mod compare;
mod hindsight;
mod knee;
mod matrix;
mod row;
mod spec;

pub use bootstrap::{Interval, interquartile_mean, paired_interval};
pub use compare::{Comparison, compare, render};
pub use knee::knee;
pub use matrix::{Cell, Matrix, MatrixError, Watch, run_matrix};
pub use row::Row;
pub use spec::{PolicySpec, SpecError, Subject};
