//! Metadata: what a table says about itself, as sorted pairs of strings.

use core::str::from_utf8;

use super::FormatError;
use super::read::{ByteReader, ok};

/// Pairs of key and value, in increasing order of key.
#[derive(Debug, Clone)]
pub struct Metadata<'a> {
    rest: &'a [u8],
}

impl<'a> Metadata<'a> {
    /// The pairs in `bytes`, which `check` has accepted.
    pub(super) const fn new(bytes: &'a [u8]) -> Metadata<'a> {
        Metadata { rest: bytes }
    }

    /// The value of `key` among the pairs left.
    pub fn get(mut self, key: &str) -> Option<&'a str> {
        self.find(|(found, _)| *found == key).map(|(_, value)| value)
    }
}

impl<'a> Iterator for Metadata<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<(&'a str, &'a str)> {
        let mut reader = ByteReader::new(self.rest);
        let pair = read_pair(&mut reader).ok()?;
        self.rest = reader.rest();
        Some((from_utf8(pair.key).ok()?, from_utf8(pair.value).ok()?))
    }
}

struct MetadataPair<'a> {
    key: &'a [u8],
    value: &'a [u8],
}

const fn read_pair<'a>(reader: &mut ByteReader<'a>) -> Result<MetadataPair<'a>, FormatError> {
    let key_len = ok!(reader.u8());
    let value_len = ok!(reader.u16());
    let key = ok!(reader.bytes(key_len as usize));
    let value = ok!(reader.bytes(value_len as usize));
    Ok(MetadataPair { key, value })
}

/// Checks the metadata section `bytes`, which begins at `start` in the file.
pub(super) const fn check(bytes: &[u8], start: usize) -> Result<(), FormatError> {
    let mut reader = ByteReader::new(bytes);
    let mut previous: &[u8] = &[];
    while !reader.rest().is_empty() {
        let offset = start + reader.offset();
        let Ok(pair) = read_pair(&mut reader) else {
            return Err(FormatError::MetadataPair { offset });
        };
        if pair.key.is_empty() {
            return Err(FormatError::MetadataKey { offset });
        }
        if from_utf8(pair.key).is_err() || from_utf8(pair.value).is_err() {
            return Err(FormatError::MetadataUtf8 { offset });
        }
        if !less(previous, pair.key) {
            return Err(FormatError::MetadataOrder { offset });
        }
        previous = pair.key;
    }
    Ok(())
}

/// Lexicographic `left < right`; the operator is not allowed in a `const fn` yet.
const fn less(mut left: &[u8], mut right: &[u8]) -> bool {
    loop {
        match (left.split_first(), right.split_first()) {
            (Some((l, left_rest)), Some((r, right_rest))) => {
                if *l != *r {
                    return *l < *r;
                }
                left = left_rest;
                right = right_rest;
            }
            (None, Some(_)) => return true,
            (_, None) => return false,
        }
    }
}
