//! What a user of the device runs, on the emulated one and without any.

mod examples;
mod program;
