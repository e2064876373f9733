//! Attention as it was recorded: docs/ATTENTION.md.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Attention, Conversation};
use crate::files::{Unpacked, read_line};

/// Why a file of attention cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AttentionFileError {
    /// It cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A line is not what it must be.
    #[error("{path}:{line}: {fault}", path = path.display())]
    Line {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        fault: String,
    },
}

/// The first line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    kvtide_attention: u32,
    block_tokens: u32,
    #[serde(default)]
    model: String,
}

/// Every other line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt_blocks: u32,
    rows: Vec<Vec<f32>>,
}

/// Longest line, bytes; most of all lines together: what is read is kept.
const LONGEST_LINE: usize = 64 << 20;
const MOST_BYTES: u64 = 1 << 30;
/// The form's version.
const VERSION: u32 = 1;
/// Most tokens of a block, and blocks of a prompt.
const MOST_BLOCK_TOKENS: u32 = 4096;
const MOST_PROMPT_BLOCKS: u32 = 1 << 16;

/// Reads a file, plain, gzip or zstd.
///
/// # Errors
/// It cannot be read, or has a line that is not of the form.
pub fn read(path: &Path) -> Result<Attention, AttentionFileError> {
    let io = |source| AttentionFileError::Io { path: path.to_owned(), source };
    let mut reader = Unpacked::open(path).map_err(io)?.reader.take(MOST_BYTES + 1);
    let (mut header, mut conversations) = (None, Vec::new());
    let (mut text, mut line, mut bytes) = (Vec::new(), 0, 0);
    loop {
        text.clear();
        line += 1;
        let length = read_line(&mut reader, &mut text, LONGEST_LINE).map_err(io)?;
        let wrong = |fault: String| AttentionFileError::Line { path: path.to_owned(), line, fault };
        bytes += length as u64;
        if length > LONGEST_LINE || bytes > MOST_BYTES {
            return Err(wrong("more than 64 MiB in a line, or 1 GiB in the file".to_owned()));
        }
        if length == 0 {
            break;
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match header {
            None => header = Some(read_header(&text).map_err(wrong)?),
            Some(_) => conversations.push(conversation(&text).map_err(wrong)?),
        }
    }
    let wrong = |fault: &str| AttentionFileError::Line { path: path.to_owned(), line, fault: fault.to_owned() };
    let header = header.ok_or_else(|| wrong("an empty file: no line {\"kvtide_attention\":1,\"block_tokens\":…}"))?;
    if conversations.is_empty() {
        return Err(wrong("no conversation"));
    }
    let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = if header.model.is_empty() { file } else { format!("{file}, {}", header.model) };
    Ok(Attention { name, block_tokens: header.block_tokens, conversations })
}

fn read_header(text: &[u8]) -> Result<Header, String> {
    let header: Header = serde_json::from_slice(text).map_err(|error| format!("the first line: {error}"))?;
    if header.kvtide_attention != VERSION {
        return Err(format!("kvtide_attention is {}, must be {VERSION}", header.kvtide_attention));
    }
    if !(1..=MOST_BLOCK_TOKENS).contains(&header.block_tokens) {
        return Err(format!("block_tokens is {}, must be from 1 to {MOST_BLOCK_TOKENS}", header.block_tokens));
    }
    Ok(header)
}

fn conversation(text: &[u8]) -> Result<Conversation, String> {
    let Line { prompt_blocks, rows } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if !(1..=MOST_PROMPT_BLOCKS).contains(&prompt_blocks) {
        return Err(format!("prompt_blocks is {prompt_blocks}, must be from 1 to {MOST_PROMPT_BLOCKS}"));
    }
    if rows.len() < 2 {
        return Err(format!("rows has {} rows, must have the prompt's and one of the answer at least", rows.len()));
    }
    Conversation::new(prompt_blocks, rows).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::tempdir;

    use super::*;

    const HEADER: &str = "{\"kvtide_attention\":1,\"block_tokens\":16,\"model\":\"m\"}\n";
    const LINE: &str = "{\"prompt_blocks\":2,\"rows\":[[0.5,0.5],[0.2,0.3,0.5]]}\n";

    fn of(text: &[u8]) -> Result<Attention, String> {
        let folder = tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, text).unwrap();
        read(&path).map_err(|error| error.to_string().replace(&*folder.path().to_string_lossy(), "DIR"))
    }

    #[test]
    fn a_file_is_read_plain_and_compressed() {
        let text = [HEADER, "\n", LINE, LINE].concat();
        let plain = of(text.as_bytes()).unwrap();
        assert_eq!((plain.name.as_str(), plain.block_tokens, plain.conversations.len()), ("a.jsonl, m", 16, 2));
        assert_eq!(plain.conversations[1].row(1), [0.2, 0.3, 0.5]);
        assert_eq!(of(&zstd::encode_all(text.as_bytes(), 1).unwrap()).unwrap(), plain);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let wrong = |lines: &[&str]| of(lines.concat().as_bytes()).unwrap_err();
        assert!(wrong(&[]).starts_with("DIR/a.jsonl:1: an empty file"));
        assert!(wrong(&[LINE]).starts_with("DIR/a.jsonl:1: the first line: unknown field `prompt_blocks`"));
        assert_eq!(wrong(&[HEADER]), "DIR/a.jsonl:2: no conversation");
        assert!(wrong(&[&HEADER.replace("16", "0"), LINE]).contains("a.jsonl:1: block_tokens is 0"));
        assert!(wrong(&[&HEADER.replace(":1,", ":2,"), LINE]).contains("kvtide_attention is 2, must be 1"));
        for (from, to, part) in [
            ("2,\"rows\"", "0,\"rows\"", ":3: prompt_blocks is 0"),
            ("2,\"rows\"", "-1,\"rows\"", ":3: invalid value"),
            ("2,\"rows\"", "99999999999,\"rows\"", ":3: invalid value"),
            ("[0.2,0.3,0.5]", "[0.2,0.3]", ":3: rows[1] has 2 shares, must have 3"),
            ("[0.2,0.3,0.5]", "[0.2,0.3,1e40]", ":3: "),
            ("[0.2,0.3,0.5]", "[0.2,0.3,null]", ":3: invalid type"),
            (",[0.2,0.3,0.5]", "", ":3: rows has 1 rows"),
            ("]]}", "]]", ":3: EOF"),
            ("rows", "text", ":3: unknown field `text`"),
        ] {
            let error = wrong(&[HEADER, LINE, &LINE.replacen(from, to, 1)]);
            assert!(error.contains(part), "{to}: {error}");
        }
        assert!(of(&[0x1f, 0x8b, 0, 1, 2]).unwrap_err().starts_with("DIR/a.jsonl: "));
        assert!(of(b"\xff\xfe\n").unwrap_err().contains(":1: "));
    }
}
