//! Files as they were before they were compressed.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use serde::Serialize;

/// Largest zstd window accepted, as a power of two: `zstd --long=27`, 128 MiB of memory.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// How a file is compressed, told by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    Plain,
    /// RFC 1952; several members are read as one.
    Gzip,
    /// RFC 8878; several frames are read as one.
    Zstd,
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Compression::Plain => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        })
    }
}

impl Compression {
    fn of(magic: &[u8]) -> Compression {
        match magic {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            // A frame, or a skippable frame before the first one (as pzstd writes).
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Compression::Zstd,
            _ => Compression::Plain,
        }
    }

    /// Whether a failed read means that the compressed stream is cut off.
    pub fn is_cut_off(self, error: &io::Error) -> bool {
        self != Compression::Plain && error.kind() == io::ErrorKind::UnexpectedEof
    }
}

/// The contents of a file, decompressed if it needs to be. Read on from the start, never back: a pipe will do.
pub struct Unpacked {
    /// How the file is compressed.
    pub compression: Compression,
    /// What is in it.
    pub reader: Box<dyn BufRead + Send>,
}

impl Unpacked {
    /// Opens a file.
    ///
    /// # Errors
    /// The file cannot be opened, or not read.
    pub fn open(path: &Path) -> io::Result<Unpacked> {
        Unpacked::of(File::open(path)?)
    }

    /// What is in an open file.
    ///
    /// # Errors
    /// Its first bytes cannot be read.
    pub fn of(file: impl Read + Send + 'static) -> io::Result<Unpacked> {
        let (magic, file) = peek(BufReader::new(file), 4)?;
        let compression = Compression::of(&magic);
        let reader: Box<dyn BufRead + Send> = match compression {
            Compression::Plain => Box::new(file),
            Compression::Gzip => Box::new(BufReader::new(MultiGzDecoder::new(file))),
            Compression::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(file)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(BufReader::new(decoder))
            }
        };
        Ok(Unpacked { compression, reader })
    }
}

/// Up to `count` first bytes, and a reader that still has them.
///
/// # Errors
/// Those of the reader.
pub fn peek<R: BufRead>(mut reader: R, count: usize) -> io::Result<(Vec<u8>, impl BufRead + use<R>)> {
    let mut start = Vec::with_capacity(count);
    reader.by_ref().take(count as u64).read_to_end(&mut start)?;
    Ok((start.clone(), Cursor::new(start).chain(reader)))
}
