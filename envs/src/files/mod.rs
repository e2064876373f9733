//! Files: written whole or not at all ([`NewFile`], [`replace`]), and read whatever they are compressed with ([`Unpacked`]).

mod unpack;
mod write;

pub use unpack::{Compression, Unpacked, ZSTD_WINDOW_LOG_MAX, peek};
pub use write::{NewFile, replace};
