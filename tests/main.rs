//! The tool as its users run it.

mod calibrate;
mod clock_spread;
mod commands;
mod common;
mod cross_entropy;
mod documents;
mod evaluate;
mod evict;
mod figures;
mod floors;
mod habits;
mod handover;
mod hosts;
mod json;
mod kept;
mod memory;
mod numbers;
mod outputs;
mod own_traffic;
mod page;
mod programs;
mod record;
mod snapshots;
mod timings;
mod tune;
mod unfit;
