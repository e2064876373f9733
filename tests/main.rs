//! The tool as its users run it.

mod calibrate;
mod commands;
mod common;
mod cross_entropy;
mod evaluate;
mod hosts;
mod memory;
mod pipeline;
mod programs;
mod timings;
