//! Text for people, as wide as they can read it.
//!
//! How wide that is, in this order: `COLUMNS`, the terminal on stdout, and where stdout is none (a pipe, a file) always
//! [`PIPED_WIDTH`]: what is kept looks the same wherever it was made.

mod table;

use std::io::{self, IsTerminal};

use terminal_size::{Width, terminal_size_of};
use unicode_width::UnicodeWidthStr;

pub use table::{Column, TextTable};

/// Columns of text that goes to no terminal.
pub const PIPED_WIDTH: usize = 80;
/// Narrower than this nothing is laid out for.
const LEAST_WIDTH: usize = 40;

/// How many columns text on stdout may take.
pub fn width() -> usize {
    let given = std::env::var("COLUMNS").ok().and_then(|columns| columns.trim().parse().ok());
    let seen = || {
        let stdout = io::stdout();
        if !stdout.is_terminal() {
            return None;
        }
        terminal_size_of(stdout).map(|(Width(columns), _)| usize::from(columns))
    };
    given.filter(|columns| *columns > 0).or_else(seen).unwrap_or(PIPED_WIDTH).max(LEAST_WIDTH)
}

/// Columns that `text` takes on a terminal.
pub fn columns(text: &str) -> usize {
    text.width()
}

/// `text` without what a terminal would obey.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

/// `text` in lines of at most `width` columns, broken between words; lines after the first begin with `indent` spaces more than
/// the first does. A word that is wider stands alone, whole: a path that is cut cannot be copied.
pub fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let lead = line.len() - line.trim_start_matches(' ').len();
        let mut at = lead;
        out.push_str(&line[..lead]);
        let mut is_first = true;
        for word in line.trim_start_matches(' ').split(' ') {
            let wide = columns(word);
            if is_first {
                is_first = false;
            } else if at + 1 + wide > width {
                out.truncate(out.trim_end_matches(' ').len());
                out.push('\n');
                at = lead + indent;
                out.push_str(&" ".repeat(at));
            } else {
                out.push(' ');
                at += 1;
            }
            out.push_str(word);
            at += wide;
        }
        out.push('\n');
    }
    out
}

/// `label`, and from column `at` on `text`, in lines of at most `width` columns.
pub fn labelled(label: &str, text: &str, at: usize, width: usize) -> String {
    let pad = " ".repeat(at.saturating_sub(columns(label) + 1));
    let body = wrapped(text, width.saturating_sub(at).max(LEAST_WIDTH / 2), 0);
    let mut lines = body.lines();
    let mut out = format!("{label}{pad} {}\n", lines.next().unwrap_or_default());
    for line in lines {
        out.push_str(&" ".repeat(at));
        out.push_str(line);
        out.push('\n');
    }
    out
}

/// `text` in at most `width` columns, its end cut off if it takes more.
pub fn shortened(text: &str, width: usize) -> String {
    if columns(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    for letter in text.chars() {
        if columns(&short) + columns(letter.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        short.push(letter);
    }
    short + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_words_never() {
        assert_eq!(wrapped("  one two three four", 12, 2), "  one two\n    three\n    four\n");
        assert_eq!(wrapped("a /quite/a/long/path b", 10, 2), "a\n  /quite/a/long/path\n  b\n");
        assert_eq!(wrapped("one\ntwo", 80, 2), "one\ntwo\n");
        // Two spaces between words stay two where they fit.
        assert_eq!(wrapped("a  b", 80, 0), "a  b\n");
    }

    #[test]
    fn a_label_stands_beside_what_it_is_about() {
        let text = labelled("made from", "one two three four five six seven", 12, 32);
        assert_eq!(text, "made from   one two three four\n            five six seven\n");
        assert_eq!(labelled("a", "b", 4, 80), "a   b\n");
    }

    #[test]
    fn what_is_cut_says_so_and_wide_letters_count_twice() {
        assert_eq!((shortened("abcdef", 6), shortened("abcdefg", 6)), ("abcdef".to_owned(), "abcde…".to_owned()));
        assert_eq!((columns("策略"), shortened("策略表", 5)), (4, "策略…".to_owned()));
    }

    #[test]
    fn no_letter_is_a_command_to_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
    }
}
