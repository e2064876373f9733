//! Calibration: reading a measured run, fitting constants that are known, seeing nothing of the future, and a real run.

#[path = "../common/mod.rs"]
mod common;
mod fitting;
mod made_up;
mod reading;
mod real;
