//! Protocol buffers as they lie in a file: fields of a message, one after another.
//!
//! Nothing is believed: a length beyond the end, a number longer than ten bytes and a kind nobody writes any more are errors, and
//! nothing is allocated for what a file only claims to hold. The encoding is that of
//! <https://protobuf.dev/programming-guides/encoding/>.

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value<'a> {
    /// A whole number of variable length.
    Number(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Four bytes.
    Fixed32([u8; 4]),
    /// A message, a text, or numbers packed together.
    Bytes(&'a [u8]),
}

/// The fields of a message that are left to read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Fields<'a> {
        Fields { left: message }
    }

    /// Number and value of the next field; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.left.is_empty() {
            return Ok(None);
        }
        let key = self.number()?;
        let (field, kind) = (key >> 3, key & 7);
        if field == 0 {
            return Err("a field has the number 0".to_owned());
        }
        let value = match kind {
            0 => Value::Number(self.number()?),
            1 => Value::Fixed64(self.array()?),
            2 => {
                let length = self.number()?;
                Value::Bytes(self.take(length)?)
            }
            5 => Value::Fixed32(self.array()?),
            other => return Err(format!("field {field} is of wire type {other}, which is none")),
        };
        Ok(Some((field, value)))
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The next number of variable length.
    pub(super) fn number(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for place in 0..10 {
            let &[byte] = self.take(1)? else { break };
            number |= u64::from(byte & 0x7f).checked_shl(7 * place).unwrap_or(0);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("a number is longer than ten bytes".to_owned())
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], String> {
        self.take(LENGTH as u64)?.try_into().map_err(|_| "it ends early".to_owned())
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let there = self.left.len();
        let split = usize::try_from(length).ok().and_then(|length| self.left.split_at_checked(length));
        let (taken, left) = split.ok_or_else(|| format!("{length} bytes are said to follow where {there} are left"))?;
        self.left = left;
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(message: &[u8]) -> Result<Vec<(u64, Value<'_>)>, String> {
        let mut fields = Fields::of(message);
        let mut all = Vec::new();
        while let Some(field) = fields.next()? {
            all.push(field);
        }
        Ok(all)
    }

    #[test]
    fn every_kind_is_read() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(
            all(&message).unwrap(),
            [
                (1, Value::Number(150)),
                (2, Value::Bytes(b"hi")),
                (3, Value::Fixed32([1, 2, 3, 4])),
                (4, Value::Fixed64([1, 2, 3, 4, 5, 6, 7, 8])),
            ]
        );
    }

    #[test]
    fn lies_are_errors() {
        for (message, what) in [
            (&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f][..], "4294967295 bytes are said to follow where 0 are left"),
            (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "bytes are said to follow"),
            (&[0xff; 16], "longer than ten bytes"),
            (&[0x80], "1 bytes are said to follow where 0 are left"),
            (&[0x0b], "wire type 3"),
            (&[0x00, 0x00], "the number 0"),
            (&[0x1d, 1, 2], "4 bytes are said to follow where 2 are left"),
        ] {
            let error = all(message).unwrap_err();
            assert!(error.contains(what), "{message:?}: {error}");
        }
    }
}
