//! Blocks on a GPU.

mod disabled;

pub use disabled::open;
