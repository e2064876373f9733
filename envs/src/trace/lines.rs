//! Forms whose rows are read as they are written: Azure's CSV, Bailian's, Mooncake's and kvtide's own objects.

use super::azure::Columns;
use super::bailian::Chats;
use super::error::{Fault, TraceError};
use super::items::{Items, Layout};
use super::reading::Skipped;
use super::source::Opened;
use super::{Row, RowSource, jsonl, mooncake};

/// How a row is read, one variant a form.
pub(super) enum Parser {
    Azure(Columns),
    Bailian(Chats),
    Mooncake,
    Canonical,
}

impl Parser {
    fn parse(&mut self, text: &str) -> Result<Row, Fault> {
        match self {
            Parser::Azure(columns) => columns.parse(text),
            Parser::Bailian(chats) => chats.parse(text),
            Parser::Mooncake => mooncake::parse(text),
            Parser::Canonical => jsonl::parse(text),
        }
    }
}

/// Rows of such a file.
pub(super) struct Lines {
    items: Items,
    parser: Parser,
    text: String,
    skipped: Skipped,
}

impl Lines {
    pub(super) fn new(opened: Opened, layout: Layout, parser: Parser) -> Lines {
        Lines { items: Items::new(opened, layout), parser, text: String::new(), skipped: Skipped::default() }
    }

    /// A CSV of Azure's, whose first line says where its columns are.
    pub(super) fn with_header(opened: Opened) -> Result<Lines, TraceError> {
        let mut items = Items::new(opened, Layout::Lines);
        let mut text = String::new();
        items.next(&mut text)?;
        let columns = Columns::of(&text).ok_or_else(|| items.error(Fault::Empty))?;
        Ok(Lines { items, parser: Parser::Azure(columns), text, skipped: Skipped::default() })
    }
}

impl RowSource for Lines {
    fn next_row(&mut self) -> Result<Option<Row>, TraceError> {
        while self.items.next(&mut self.text)? {
            match self.parser.parse(&self.text) {
                Ok(row) => return Ok(Some(row)),
                // Nothing was asked or answered.
                Err(Fault::Zero(_)) => self.skipped.empty += 1,
                Err(fault) => return Err(self.items.error(fault)),
            }
        }
        Ok(None)
    }

    fn error(&self, fault: Fault) -> TraceError {
        self.items.error(fault)
    }

    fn skipped(&self) -> Skipped {
        self.skipped
    }
}
