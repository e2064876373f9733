//! Lines of whatever is read.

use std::io::{self, BufRead, ErrorKind};

use memchr::memchr;

/// Appends the next line to `line`, with its end, or so much of it that `line` is longer than `longest`; how many bytes it is then, none
/// at the end.
///
/// # Errors
/// Those of the reader.
pub fn read_line(reader: &mut (impl BufRead + ?Sized), line: &mut Vec<u8>, longest: usize) -> io::Result<usize> {
    let before = line.len();
    loop {
        let buffered = match reader.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            buffered => buffered?,
        };
        let end = memchr(b'\n', buffered);
        let used = end.map_or(buffered.len(), |end| end + 1).min((longest + 1).saturating_sub(line.len()));
        line.extend_from_slice(&buffered[..used]);
        reader.consume(used);
        if used == 0 || end.is_some() || line.len() > longest {
            return Ok(line.len() - before);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    /// Gives a byte at a time, and is interrupted before each.
    struct Halting<'a>(&'a [u8], bool);

    impl Read for Halting<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 { Err(ErrorKind::Interrupted.into()) } else { self.0.read(&mut into[..1]) }
        }
    }

    fn lines(mut reader: impl BufRead, longest: usize) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            if read_line(&mut reader, &mut line, longest).unwrap() == 0 {
                return lines;
            }
            lines.push(line);
        }
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        let text = b"one\n\nand the third\r\nlast";
        let expected: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        assert_eq!(lines(&text[..], 100), expected);
        assert_eq!(lines(BufReader::with_capacity(3, &text[..]), 100), expected);
        assert_eq!(lines(BufReader::new(Halting(text, false)), 100), expected);
        assert_eq!(lines(&b""[..], 100), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_line_that_is_too_long_is_not_read_to_its_end() {
        for capacity in [1, 4, 100] {
            let mut line = Vec::new();
            let mut reader = BufReader::with_capacity(capacity, &b"abcdefgh\n"[..]);
            assert_eq!(read_line(&mut reader, &mut line, 5).unwrap(), 6, "one more than may be");
            line.clear();
            assert_eq!(read_line(&mut reader, &mut line, 5).unwrap(), 3);
            assert_eq!(line, b"gh\n");
        }
    }
}
