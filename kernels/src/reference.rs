//! What each kernel computes, in plain Rust: slow and obvious, `f64` where there is arithmetic.

mod attention;
mod element;
mod layer;
mod memory;
mod price;

pub use attention::{Attended, KvSequence, attend};
pub use element::Element;
pub use layer::{argmax, embed, rms_norm, rope, silu_mul};
pub use memory::{KvLayer, block_checksum, kv_fill, kv_scatter, mix32, mix64};
pub use price::block_price;
