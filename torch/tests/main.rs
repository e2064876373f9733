//! The agent on problems with known answers, and what libtorch says about it.

mod adam;
mod checkpoint;
mod gradient;
mod inference;
mod learn_check;
mod learning;
mod toys;
