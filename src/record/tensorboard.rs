//! TensorBoard event files.
//!
//! A file is a row of records, each an `Event` of TensorFlow's `event.proto` in protobuf's wire format, with its length before
//! it and checksums of both (`tensorflow/core/lib/io/record_writer.h`). Of all that only scalars are needed: two messages with
//! five fields.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most files of one process that are begun in one second in one folder.
const MAX_FILES: u32 = 1_000;

/// A writer of scalars.
pub struct TensorBoard {
    file: File,
}

impl TensorBoard {
    /// Opens a new event file in `folder`, creating the folder where needed. TensorBoard shows all files of a folder as
    /// one run.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn create(folder: &Path) -> io::Result<TensorBoard> {
        fs::create_dir_all(folder)?;
        let (second, process) = (now().as_secs(), process::id());
        let create = |number| {
            File::create_new(folder.join(format!("events.out.tfevents.{second:010}.kvtide.{process}.{number}")))
        };
        let is_taken =
            |file: &io::Result<File>| file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
        let taken = || Err(io::Error::from(io::ErrorKind::AlreadyExists));
        let file = (0..MAX_FILES).map(create).find(|file| !is_taken(file)).unwrap_or_else(taken)?;
        let mut board = TensorBoard { file };
        board.record(&event(now(), None, &field(3, b"brain.Event:2")))?;
        Ok(board)
    }

    /// Adds scalars at a number of decisions, and flushes. Values are stored as `f32`.
    ///
    /// # Errors
    /// The file can no longer be written.
    pub fn scalars(&mut self, scalars: &[(String, f64)], decisions: u64) -> io::Result<()> {
        let mut summary = Vec::new();
        for (tag, value) in scalars {
            let mut scalar = field(1, tag.as_bytes());
            scalar.push(key(2, FOUR_BYTES));
            scalar.extend((*value as f32).to_le_bytes());
            summary.extend(field(1, &scalar));
        }
        self.record(&event(now(), Some(decisions), &field(5, &summary)))
    }

    /// Length, its checksum, the event, its checksum; in one write, so that who reads along sees whole records.
    fn record(&mut self, event: &[u8]) -> io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut record = length.to_vec();
        record.extend(masked(crc32c(&length)).to_le_bytes());
        record.extend(event);
        record.extend(masked(crc32c(event)).to_le_bytes());
        self.file.write_all(&record)?;
        self.file.flush()
    }
}

/// When an event happened: what TensorBoard shows beside the number of decisions.
#[expect(clippy::disallowed_methods, reason = "events are dated; nothing is decided by it")]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

// Protobuf's wire types.
const VARINT: u8 = 0;
const EIGHT_BYTES: u8 = 1;
const BYTES: u8 = 2;
const FOUR_BYTES: u8 = 5;

/// `Event { wall_time = 1, step = 2, … }` with `what`, a field of its own.
fn event(time: Duration, step: Option<u64>, what: &[u8]) -> Vec<u8> {
    let mut event = vec![key(1, EIGHT_BYTES)];
    event.extend(time.as_secs_f64().to_le_bytes());
    if let Some(step) = step {
        event.push(key(2, VARINT));
        varint(&mut event, step);
    }
    event.extend(what);
    event
}

/// What a field begins with; its number is below 16, so a byte.
fn key(number: u8, wire_type: u8) -> u8 {
    number << 3 | wire_type
}

/// A field of bytes: a text, or a message.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![key(number, BYTES)];
    varint(&mut field, bytes.len() as u64);
    field.extend(bytes);
    field
}

/// Seven bits a byte, the lowest first.
fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// CRC-32C (Castagnoli), bit by bit: a record has a few hundred bytes.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let of_bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc: u32, byte| (0..8).fold(crc ^ u32::from(*byte), of_bit))
}

/// Checksums are stored so that a checksum of what holds checksums does not come out trivial.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_in_one_second_keep_both_files() {
        let folder = tempfile::tempdir().unwrap();
        for value in [1.0, 2.0] {
            let mut writer = TensorBoard::create(folder.path()).unwrap();
            writer.scalars(&[("charts/x".to_owned(), value)], 1).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_folder_that_cannot_be_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert!(TensorBoard::create(&file.join("below")).is_err());
        assert!(TensorBoard::create(&file).is_err());
    }

    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of CRC-32C, and a vector of RFC 3720, appendix B.4.
        assert_eq!((crc32c(b"123456789"), crc32c(&[0; 32])), (0xe306_9283, 0x8a91_36aa));
    }

    #[test]
    fn records_are_what_event_proto_says() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TensorBoard::create(folder.path()).unwrap();
        writer.scalars(&[("charts/x".to_owned(), 0.5)], 300).unwrap();
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        let mut rest = &fs::read(file).unwrap()[..];
        let mut events = Vec::new();
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().unwrap()) as usize;
            let (event, after) = rest[12..].split_at(length);
            assert_eq!(rest[8..12], masked(crc32c(&rest[..8])).to_le_bytes());
            assert_eq!(after[..4], masked(crc32c(event)).to_le_bytes());
            events.push(event);
            rest = &after[4..];
        }
        // After the time: a version; the step 300 and a summary of one value, with its tag and the float 0.5.
        assert_eq!(events[0][9..], *b"\x1a\x0dbrain.Event:2");
        assert_eq!(events[1][9..], *b"\x10\xac\x02\x2a\x11\x0a\x0f\x0a\x08charts/x\x15\0\0\0\x3f");
        assert_eq!((events[0][0], events.len()), (0x09, 2));
    }
}
