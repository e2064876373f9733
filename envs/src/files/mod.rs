//! Files: written whole or not at all ([`NewFile`], [`replace`]), compressed if their name says so ([`Packed`]), by one at a time ([`Lock`]), and read whatever they are compressed with ([`Unpacked`]), line by line ([`read_line`]).

mod line;
mod lock;
mod pack;
mod unpack;
mod write;

pub use line::read_line;
pub use lock::{Lock, LockError, resolved};
pub use pack::Packed;
pub use unpack::{Compression, Unpacked, ZSTD_WINDOW_LOG_MAX, peek};
pub use write::{NewFile, replace};
