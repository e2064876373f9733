//! The agent on problems with known answers, what libtorch says about it, and the tool as whoever trains runs it.

mod adam;
mod checkpoint;
#[path = "../../tests/common/mod.rs"]
mod common;
mod gradient;
mod groups;
mod inference;
mod learn_check;
mod learning;
mod pipeline;
mod toys;
