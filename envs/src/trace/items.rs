//! Rows that are JSON: one a line, the elements of an array, or objects one after the other over as many lines as they like.
//!
//! Nothing is parsed here but where an item ends: brackets and strings are followed byte by byte, without recursion, and an item
//! is no longer than a line may be.

use std::io::BufRead;
use std::path::PathBuf;

use super::Compression;
use super::error::{Fault, TraceError, excerpt, excerpt_of_end};
use super::source::{LineSource, MAX_LINE_BYTES, Opened, read_fault};

/// Most items of one file.
const MAX_ITEMS: u64 = super::MAX_LINES;

/// How objects stand in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Lines,
    Array,
    Stream,
}

/// Items of a file, each with the line it starts on.
pub(super) enum Items {
    Lines(LineSource),
    Spread(Spread),
}

impl Items {
    pub(super) fn new(opened: Opened, layout: Layout) -> Items {
        match layout {
            Layout::Lines => Items::Lines(LineSource::new(opened)),
            Layout::Array | Layout::Stream => Items::Spread(Spread::new(opened, layout)),
        }
    }

    /// Reads the next item; false after the last.
    pub(super) fn next(&mut self, text: &mut String) -> Result<bool, TraceError> {
        match self {
            Items::Lines(lines) => lines.next_line(text),
            Items::Spread(items) => items.next(text),
        }
    }

    /// An error of the item read last.
    pub(super) fn error(&self, fault: Fault) -> TraceError {
        match self {
            Items::Lines(lines) => lines.error(fault),
            Items::Spread(items) => items.error(fault),
        }
    }

    /// An error of the file as a whole.
    pub(super) fn file_error(&self, fault: Fault) -> TraceError {
        TraceError { line: None, ..self.error(fault) }
    }
}

/// How the first object of a text stands in it, the text being the start of a file; whether it is there to its end.
pub(super) fn layout(text: &str) -> (Layout, bool) {
    let (rest, is_array) = text.strip_prefix('[').map_or((text, false), |rest| (rest.trim_start(), true));
    let mut end = End::default();
    let mut lines = None;
    for (index, byte) in rest.bytes().enumerate() {
        if byte == b'\n' && !end.in_string && lines.is_none() {
            // An object goes on with a key or ends; a row that was cut off has the next one below it.
            let goes_on = rest[index..].trim_start().starts_with(['"', '}', ']', ',', ':']);
            lines = Some(!goes_on);
        }
        if end.is_after(byte) {
            let spread = if lines == Some(false) { Layout::Stream } else { Layout::Lines };
            return (if is_array { Layout::Array } else { spread }, true);
        }
    }
    let spread = if lines == Some(false) { Layout::Stream } else { Layout::Lines };
    (if is_array { Layout::Array } else { spread }, false)
}

/// Follows an object or array to its end.
#[derive(Debug, Default)]
struct End {
    depth: u64,
    in_string: bool,
    is_escaped: bool,
}

impl End {
    /// Whether this byte closes what was opened first.
    fn is_after(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// Items that lines mean nothing to.
pub(super) struct Spread {
    path: PathBuf,
    compression: Compression,
    reader: Box<dyn BufRead + Send>,
    is_array: bool,
    items: u64,
    is_ended: bool,
    /// Where reading is, and where the item started.
    line: u64,
    item_line: u64,
    raw: Vec<u8>,
}

impl Spread {
    fn new(opened: Opened, layout: Layout) -> Spread {
        let Opened { path, compression, reader, .. } = opened;
        let is_array = layout == Layout::Array;
        let raw = Vec::new();
        Spread { path, compression, reader, is_array, items: 0, is_ended: false, line: 1, item_line: 1, raw }
    }

    fn error(&self, fault: Fault) -> TraceError {
        TraceError::of_line(&self.path, self.item_line, fault)
    }

    fn next(&mut self, text: &mut String) -> Result<bool, TraceError> {
        text.clear();
        if self.is_ended || !self.find()? {
            self.is_ended = true;
            return Ok(false);
        }
        self.read()?;
        self.items += 1;
        if self.items > MAX_ITEMS {
            return Err(self.error(Fault::TooManyLines(MAX_ITEMS)));
        }
        let item = std::str::from_utf8(&self.raw)
            .map_err(|_| self.error(Fault::NotText(excerpt(&String::from_utf8_lossy(&self.raw)))))?;
        text.push_str(item.trim());
        Ok(true)
    }

    /// Goes to the start of the next item; false if there is none.
    fn find(&mut self) -> Result<bool, TraceError> {
        let mut wants_comma = self.is_array && self.items > 0;
        let mut is_open = !self.is_array || self.items > 0;
        loop {
            self.item_line = self.line;
            let Some(byte) = self.peek()? else {
                // An array that was begun has to be closed.
                return if self.is_array { Err(self.error(Fault::CutOff(self.end_of_last()))) } else { Ok(false) };
            };
            match byte {
                b'\n' => self.line += 1,
                // The mark stands before everything else.
                b' ' | b'\t' | b'\r' | 0xef | 0xbb | 0xbf => {}
                b'[' if !is_open => is_open = true,
                b',' if wants_comma => wants_comma = false,
                b']' if self.is_array && is_open && (wants_comma || self.items == 0) => {
                    self.reader.consume(1);
                    return self.nothing_follows().map(|()| false);
                }
                _ if is_open && !wants_comma => return Ok(true),
                other => return Err(self.unexpected(other)),
            }
            self.reader.consume(1);
        }
    }

    /// Reads an item to its end, which is where its brackets are closed.
    fn read(&mut self) -> Result<(), TraceError> {
        self.raw.clear();
        let mut end = End::default();
        loop {
            let Some(byte) = self.peek()? else {
                let cut = excerpt_of_end(&String::from_utf8_lossy(&self.raw));
                return Err(self.error(Fault::CutOff(cut)));
            };
            // What is not in brackets is no row, but ends somewhere all the same.
            let is_bare = end.depth == 0 && !end.in_string && !self.raw.is_empty();
            if is_bare && (byte == b',' || byte == b']') {
                return Ok(());
            }
            self.reader.consume(1);
            self.line += u64::from(byte == b'\n');
            self.raw.push(byte);
            if self.raw.len() > MAX_LINE_BYTES {
                return Err(self.error(Fault::LineTooLong(MAX_LINE_BYTES)));
            }
            if end.is_after(byte) {
                return Ok(());
            }
        }
    }

    fn nothing_follows(&mut self) -> Result<(), TraceError> {
        while let Some(byte) = self.peek()? {
            self.item_line = self.line;
            if !byte.is_ascii_whitespace() {
                return Err(self.unexpected(byte));
            }
            self.line += u64::from(byte == b'\n');
            self.reader.consume(1);
        }
        Ok(())
    }

    fn peek(&mut self) -> Result<Option<u8>, TraceError> {
        loop {
            match self.reader.fill_buf() {
                Ok(bytes) => return Ok(bytes.first().copied()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let fault = read_fault(self.compression, &error);
                    return Err(TraceError::of_line(&self.path, self.line, fault));
                }
            }
        }
    }

    fn unexpected(&self, byte: u8) -> TraceError {
        let found = excerpt(&String::from_utf8_lossy(&[byte]));
        self.error(Fault::Row(format!("`{found}` where an array goes on with a comma or ends")))
    }

    fn end_of_last(&self) -> String {
        excerpt_of_end(&String::from_utf8_lossy(&self.raw))
    }
}

/// The keys of the first object in a text, which may be cut off anywhere, with those of objects in it, joined by dots.
pub(super) fn keys(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // What is open: the key it stands under, and whether it is an object that waits for a key.
    let mut open: Vec<(String, bool, bool)> = Vec::new();
    let mut last = String::new();
    let mut bytes = text.char_indices().skip_while(|(_, letter)| *letter != '{').peekable();
    while let Some((_, letter)) = bytes.next() {
        match letter {
            '{' | '[' => {
                let path = match open.last() {
                    Some((path, false, _)) => path.clone(),
                    Some((path, ..)) if !path.is_empty() => format!("{path}.{last}"),
                    _ => std::mem::take(&mut last),
                };
                open.push((path, letter == '{', letter == '{'));
                if open.len() > 64 {
                    return found;
                }
            }
            '}' | ']' => {
                open.pop();
                if open.is_empty() {
                    return found;
                }
            }
            ',' => {
                if let Some((_, is_object, waits)) = open.last_mut() {
                    *waits = *is_object;
                }
            }
            ':' => {
                if let Some((_, _, waits)) = open.last_mut() {
                    *waits = false;
                }
            }
            '"' => {
                let mut string = String::new();
                let mut is_escaped = false;
                for (_, letter) in bytes.by_ref() {
                    match letter {
                        _ if is_escaped => is_escaped = false,
                        '\\' => is_escaped = true,
                        '"' => break,
                        _ if string.len() < super::MAX_NAME_BYTES => string.push(letter),
                        _ => {}
                    }
                }
                let Some((path, _, true)) = open.last() else { continue };
                if found.len() < 4_096 {
                    found.push(if path.is_empty() { string.clone() } else { format!("{path}.{string}") });
                }
                last = string;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_an_object_that_is_cut_off() {
        let text = r#"{"a": {"b\"": 1, "c": ["x", {"d": "e"}]}, "f": "g", "h"#;
        assert_eq!(keys(text), ["a", "a.b", "a.c", "a.c.d", "f", "h"]);
        assert_eq!(keys("[{\"a\":1},{\"b\":2}]"), ["a"]);
        assert_eq!((keys(""), keys(&"[".repeat(100)), keys(&"{\"a\":".repeat(100)).len()), (vec![], vec![], 64));
    }

    #[test]
    fn how_objects_stand() {
        for (text, expected) in [
            ("{\"a\":1}\n{\"a\":2}", (Layout::Lines, true)),
            ("{\n  \"a\": {}\n}\n", (Layout::Stream, true)),
            ("[\n{\"a\":1}", (Layout::Array, true)),
            ("[{\"a\":1", (Layout::Array, false)),
            ("{\"a\": \n{\"a\":1}", (Layout::Lines, false)),
            ("{\"a\": \"}\\\"", (Layout::Lines, false)),
        ] {
            assert_eq!(layout(text), expected, "{text}");
        }
    }
}
