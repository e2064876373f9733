//! Azure public LLM inference traces: CSV with `TIMESTAMP`, `ContextTokens` and `GeneratedTokens`.
//!
//! Source: the Azure public dataset, 2023 (Splitwise, ISCA'24), 2024 (`DynamoLLM`) and 2025 (`ModServe`). Columns are
//! found by name, others are ignored (2025 adds `NumImages`). Nothing is ever quoted in these files, so a row is split
//! at commas. Timestamps are `2023-11-16 18:15:46.6805900` with 0 to 9 digits of a second (the 2024 files drop a
//! fraction of zero), `T` or a space between date and time, and no offset, `Z` or `+00:00`; without an offset, UTC is
//! meant.

use jiff::civil::DateTime;
use jiff::tz::Offset;

use super::error::{Fault, excerpt};
use super::{MAX_OUTPUT_TOKENS, MAX_PROMPT_TOKENS, Request, Row, output_tokens, tokens};
use crate::time::Micros;

const TIMESTAMP: &str = "TIMESTAMP";
const CONTEXT: &str = "ContextTokens";
const GENERATED: &str = "GeneratedTokens";

/// Where the columns are, from the header.
pub(super) struct Columns {
    timestamp: usize,
    context: usize,
    generated: usize,
    count: usize,
}

impl Columns {
    /// What there must be.
    pub(super) const NAMES: [&str; 3] = [TIMESTAMP, CONTEXT, GENERATED];

    /// Where they are in a header that has them.
    pub(super) fn of(header: &str) -> Option<Columns> {
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let find = |column: &str| names.iter().position(|name| *name == column);
        Some(Columns {
            timestamp: find(TIMESTAMP)?,
            context: find(CONTEXT)?,
            generated: find(GENERATED)?,
            count: names.len(),
        })
    }

    pub(super) fn parse(&self, line: &str) -> Result<Row, Fault> {
        let got = line.split(',').count();
        if got != self.count {
            return Err(Fault::Columns { expected: self.count, got, row: excerpt(line) });
        }
        let column = |index| line.split(',').nth(index).unwrap_or_default().trim();
        let time_ns = time_ns(column(self.timestamp))
            .ok_or_else(|| Fault::NotATime { field: TIMESTAMP, value: excerpt(column(self.timestamp)) })?;
        let prompt_tokens =
            tokens(CONTEXT, count(CONTEXT, column(self.context), MAX_PROMPT_TOKENS)?, MAX_PROMPT_TOKENS)?;
        let (output_tokens, zero_output) =
            output_tokens(GENERATED, count(GENERATED, column(self.generated), MAX_OUTPUT_TOKENS)?)?;
        Ok(Row { time_ns, zero_output, request: Request::new(Micros::ZERO, prompt_tokens, output_tokens) })
    }
}

fn count(field: &'static str, text: &str, limit: u32) -> Result<u64, Fault> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(text) {
        let value = excerpt(text);
        let negative = text.strip_prefix('-').is_some_and(digits);
        return Err(if negative { Fault::Negative { field, value } } else { Fault::NotANumber { field, value } });
    }
    // Only too many digits are left to go wrong.
    text.parse().map_err(|_| Fault::AboveLimit { field, value: excerpt(text), limit: u64::from(limit) })
}

/// Nanoseconds since 1970-01-01 UTC.
fn time_ns(text: &str) -> Option<i128> {
    let (date, time) = (text.get(..10)?, text.get(11..)?);
    if !matches!(text.as_bytes()[10], b' ' | b'T') {
        return None;
    }
    let (time, offset_s) = split_offset(time)?;
    let (time, fraction) = time.split_once('.').map_or((time, "0"), |(time, fraction)| (time, fraction));
    let [year, month, day] = fields(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = fields(time, ':', [2, 2, 2])?;
    // A second of 60 is a leap second: the next one, as POSIX has it.
    let leap = i64::from(second == 60);
    let [month, day, hour, minute, second] = [month, day, hour, minute, second - leap].map(|number| number as i8);
    let at = DateTime::new(year as i16, month, day, hour, minute, second, 0).ok().filter(|at| at.year() >= 1970)?;
    let seconds = Offset::UTC.to_timestamp(at).ok()?.as_second() + leap - offset_s;
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(fraction_ns(fraction)?))
}

/// Takes `Z`, `+HH:MM` or `-HH:MM` off the end: the time, and seconds ahead of UTC.
fn split_offset(time: &str) -> Option<(&str, i64)> {
    if let Some(time) = time.strip_suffix('Z') {
        return Some((time, 0));
    }
    let Some(sign_at) = time.find(['+', '-']) else { return Some((time, 0)) };
    let [hours, minutes] = fields(&time[sign_at + 1..], ':', [2, 2])?;
    let offset_s = hours * 3_600 + minutes * 60;
    Some((&time[..sign_at], if time.as_bytes()[sign_at] == b'+' { offset_s } else { -offset_s }))
}

/// Exactly `N` numbers of the given digits.
fn fields<const N: usize>(text: &str, separator: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let part = parts.next()?;
        if part.len() != digits || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(numbers)
}

/// 1 to 9 digits after the point, as nanoseconds.
fn fraction_ns(digits: &str) -> Option<i64> {
    if digits.is_empty() || digits.len() > 9 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse::<i64>().ok()? * 10_i64.pow(9 - digits.len() as u32))
}

#[cfg(test)]
mod tests {
    use super::time_ns;

    #[test]
    fn timestamps_of_every_year_of_the_dataset() {
        // Seconds from `date -u -d '…' +%s`.
        let at = |text: &str| time_ns(text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(at("1970-01-01 00:00:00"), 0);
        assert_eq!(at("2023-11-16 18:15:46.6805900"), 1_700_158_546_680_590_000);
        assert_eq!(at("2023-11-16T18:15:46.6805900Z"), 1_700_158_546_680_590_000);
        assert_eq!(at("2024-05-10 00:00:00.009930+00:00"), 1_715_299_200_009_930_000);
        assert_eq!(at("2024-05-10 00:00:00+00:00"), 1_715_299_200_000_000_000);
        assert_eq!(at("2024-05-10 02:30:00.5+02:30"), 1_715_299_200_500_000_000);
        assert_eq!(at("2024-02-29 23:59:60.123456789"), 1_709_251_200_123_456_789);
        assert_eq!(at("2000-03-01 00:00:00-01:00"), 951_872_400_000_000_000);
    }

    #[test]
    fn what_is_not_a_time() {
        let wrong = [
            "",
            "2023-11-16",
            "2023-11-16 18:15",
            "2023-11-16x18:15:46",
            "2023-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-11-31 00:00:00",
            "2023-11-16 24:00:00",
            "2023-11-16 18:15:46.",
            "2023-11-16 18:15:46.1234567890",
            "2023-11-16 18:15:46 +00:00",
            "2023-11-16 18:15:46+0000",
            "1969-12-31 00:00:00",
            "2023-11-16 1é:15:46",
            "1700158546",
        ];
        assert_eq!(wrong.map(time_ns), [None; 15]);
    }
}
