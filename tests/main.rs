//! The tool as its users run it.

mod calibrate;
mod commands;
mod common;
mod cross_entropy;
mod documents;
mod evaluate;
mod floors;
mod handover;
mod hosts;
mod memory;
mod programs;
mod snapshots;
mod timings;
mod tune;
