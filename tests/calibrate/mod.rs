//! Calibration: reading a measured run, fitting constants that are known, seeing nothing of the future, and a real run.

mod fitting;
pub mod made_up;
mod reading;
mod real;
mod summaries;
