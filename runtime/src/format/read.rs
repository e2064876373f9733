//! A cursor over bytes that reports where it ran out.

use super::FormatError;

/// What is left of a file, and how far in it begins.
pub(super) struct ByteReader<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> ByteReader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> ByteReader<'a> {
        ByteReader { rest: bytes, offset: 0 }
    }

    /// Offset of the next byte.
    pub(super) const fn offset(&self) -> usize {
        self.offset
    }

    /// What has not been read.
    pub(super) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) const fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        match self.rest.split_first_chunk::<N>() {
            Some((array, rest)) => {
                self.rest = rest;
                self.offset += N;
                Ok(*array)
            }
            None => Err(self.truncated(N)),
        }
    }

    pub(super) const fn bytes(&mut self, len: usize) -> Result<&'a [u8], FormatError> {
        match self.rest.split_at_checked(len) {
            Some((bytes, rest)) => {
                self.rest = rest;
                self.offset += len;
                Ok(bytes)
            }
            None => Err(self.truncated(len)),
        }
    }

    pub(super) const fn u8(&mut self) -> Result<u8, FormatError> {
        match self.array::<1>() {
            Ok([byte]) => Ok(byte),
            Err(error) => Err(error),
        }
    }

    pub(super) const fn u16(&mut self) -> Result<u16, FormatError> {
        match self.array() {
            Ok(bytes) => Ok(u16::from_le_bytes(bytes)),
            Err(error) => Err(error),
        }
    }

    pub(super) const fn u32(&mut self) -> Result<u32, FormatError> {
        match self.array() {
            Ok(bytes) => Ok(u32::from_le_bytes(bytes)),
            Err(error) => Err(error),
        }
    }

    pub(super) const fn u64(&mut self) -> Result<u64, FormatError> {
        match self.array() {
            Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
            Err(error) => Err(error),
        }
    }

    const fn truncated(&self, wanted: usize) -> FormatError {
        FormatError::Truncated {
            needed: self.offset.saturating_add(wanted),
            found: self.offset.saturating_add(self.rest.len()),
        }
    }
}

/// `?` for a `const fn`, where the operator is not allowed yet.
macro_rules! ok {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Err(error),
        }
    };
}
pub(crate) use ok;
