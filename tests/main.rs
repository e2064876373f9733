//! The tool as its users run it, and the agent on problems with known answers.

mod calibrate;
mod checkpoint;
mod commands;
mod common;
mod cross_entropy;
mod documents;
mod evaluate;
mod hosts;
mod learn_check;
mod learning;
mod memory;
mod pipeline;
mod programs;
mod timings;
mod toys;
