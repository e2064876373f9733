//! Files that are compressed as they are written.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::write::GzEncoder;

use super::NewFile;

/// zstd's own default: the size of a trace is in its hashes, which higher levels hardly shrink.
const ZSTD_LEVEL: i32 = 3;

/// A file that is being written and takes its place when it is finished: by gzip if its name ends in `.gz`, by zstd if it ends in
/// `.zst`, else as it is.
pub struct Packed(Sink);

enum Sink {
    Plain(BufWriter<NewFile>),
    Gzip(GzEncoder<BufWriter<NewFile>>),
    Zstd(zstd::Encoder<'static, BufWriter<NewFile>>),
}

impl Packed {
    /// A file for `path`, beside it until it is finished.
    ///
    /// # Errors
    /// Those of [`NewFile`].
    pub fn create(path: &Path) -> io::Result<Packed> {
        let file = BufWriter::new(NewFile::create(path)?);
        Ok(Packed(match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Sink::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Some("zst") => {
                let mut encoder = zstd::Encoder::new(file, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Sink::Zstd(encoder)
            }
            _ => Sink::Plain(file),
        }))
    }

    /// Puts the file in its place.
    ///
    /// # Errors
    /// What is left cannot be written, or the place not be taken; what was there stays.
    pub fn finish(self) -> io::Result<()> {
        let file = match self.0 {
            Sink::Plain(file) => file,
            Sink::Gzip(encoder) => encoder.finish()?,
            Sink::Zstd(encoder) => encoder.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
    }
}

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Sink::Plain(file) => file.write(bytes),
            Sink::Gzip(encoder) => encoder.write(bytes),
            Sink::Zstd(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Sink::Plain(file) => file.flush(),
            Sink::Gzip(encoder) => encoder.flush(),
            Sink::Zstd(encoder) => encoder.flush(),
        }
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packed").finish_non_exhaustive()
    }
}
