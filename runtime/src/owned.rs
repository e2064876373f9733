//! A table and its bytes in one value, for a node that replaces its table while it serves.

use crate::format::{FormatError, Outline};
use crate::table::{Meaning, Table};

/// A validated table that owns its bytes: a `Vec<u8>`, a `Box<[u8]>`, an `Arc<[u8]>`, or borrowed ones.
///
/// The bytes are checked once. [`table`](Self::table) is then a few subtractions, cheap enough for every decision.
#[derive(Debug, Clone)]
pub struct OwnedTable<B> {
    bytes: B,
    outline: Outline,
    meaning: Meaning,
}

impl<B: AsRef<[u8]>> OwnedTable<B> {
    /// The table in `bytes`.
    ///
    /// # Errors
    /// As [`Table::parse`].
    pub fn parse(bytes: B) -> Result<OwnedTable<B>, FormatError> {
        let table = Table::parse(bytes.as_ref())?;
        let (outline, meaning) = (table.file().outline(), table.meaning());
        Ok(OwnedTable { bytes, outline, meaning })
    }

    /// The table.
    ///
    /// # Errors
    /// [`FormatError::Truncated`] if `as_ref` now gives bytes of another length than it gave to [`parse`](Self::parse),
    /// which no container of the standard library does.
    pub fn table(&self) -> Result<Table<'_>, FormatError> {
        let bytes = self.bytes.as_ref();
        let view = self.outline.view(bytes).map(|file| Table::trusted(file, self.meaning));
        view.ok_or(FormatError::Truncated { needed: 0, found: bytes.len() })
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
