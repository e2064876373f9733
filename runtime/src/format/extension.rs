//! Extensions: room for what later writers add without a new format version.

use super::FormatError;
use super::read::{ByteReader, ok};

/// An extension this version knows nothing about, skipped because it is not critical.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<'a> {
    /// What it is. `FORMAT.md` lists the ids in use.
    pub id: u16,
    /// Bit 0: critical, a reader that does not know the id must refuse the file. The other bits are zero.
    pub flags: u16,
    /// Its content.
    pub bytes: &'a [u8],
}

impl Extension<'_> {
    /// Bit 0 of [`Extension::flags`].
    pub const CRITICAL: u16 = 1;
    /// Bytes before the content.
    pub(super) const HEADER_BYTES: usize = 8;
}

/// The extensions of a file, in increasing order of id.
#[derive(Debug, Clone)]
pub struct Extensions<'a> {
    rest: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// The extensions in `bytes`, which `check` has accepted.
    pub(super) const fn new(bytes: &'a [u8]) -> Extensions<'a> {
        Extensions { rest: bytes }
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Extension<'a>;

    fn next(&mut self) -> Option<Extension<'a>> {
        let mut reader = ByteReader::new(self.rest);
        let extension = read(&mut reader).ok()?;
        self.rest = reader.rest();
        Some(extension)
    }
}

/// Reads one extension.
pub(super) const fn read<'a>(reader: &mut ByteReader<'a>) -> Result<Extension<'a>, FormatError> {
    let id = ok!(reader.u16());
    let flags = ok!(reader.u16());
    let len = ok!(reader.u32());
    let bytes = ok!(reader.bytes(len as usize));
    Ok(Extension { id, flags, bytes })
}

/// Checks the extensions `bytes`, which begin at `start` in the file and whose lengths are known to add up.
pub(super) const fn check(bytes: &[u8], start: usize) -> Result<(), FormatError> {
    let mut reader = ByteReader::new(bytes);
    let mut smallest_id = 0;
    while !reader.rest().is_empty() {
        let offset = start + reader.offset();
        let Extension { id, flags, .. } = ok!(read(&mut reader));
        if (id as u32) < smallest_id {
            return Err(FormatError::ExtensionOrder { offset, id });
        }
        if flags & !Extension::CRITICAL != 0 {
            return Err(FormatError::ExtensionFlags { offset, flags });
        }
        if flags & Extension::CRITICAL != 0 {
            return Err(FormatError::CriticalExtension { offset, id });
        }
        smallest_id = id as u32 + 1;
    }
    Ok(())
}
