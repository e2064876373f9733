//! Times of logs: ISO 8601, or a number whose unit its name or its size tells.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use serde::Serialize;

use super::error::{Fault, excerpt};

/// What a number that is a time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

/// Units as they are written at the end of a name, or by a user.
const WRITTEN: [(TimeUnit, &[&str]); 4] = [
    (TimeUnit::Seconds, &["s", "sec", "secs", "seconds"]),
    (TimeUnit::Milliseconds, &["ms", "msec", "millis", "milliseconds"]),
    (TimeUnit::Microseconds, &["us", "usec", "micros", "microseconds"]),
    (TimeUnit::Nanoseconds, &["ns", "nsec", "nanos", "nanoseconds"]),
];

/// Digits before the point that a time may have: more than any epoch in nanoseconds.
const MAX_DIGITS: usize = 24;

impl TimeUnit {
    fn written(text: &str) -> Option<TimeUnit> {
        let text = text.to_ascii_lowercase();
        WRITTEN.iter().find(|(_, names)| names.contains(&text.as_str())).map(|(unit, _)| *unit)
    }

    /// What one is worth.
    pub(super) fn nanos(self) -> i128 {
        match self {
            TimeUnit::Seconds => 1_000_000_000,
            TimeUnit::Milliseconds => 1_000_000,
            TimeUnit::Microseconds => 1_000,
            TimeUnit::Nanoseconds => 1,
        }
    }

    /// By size: an epoch has 10 digits in seconds, 13 in milliseconds, 16 in microseconds and 19 in nanoseconds, give or take
    /// one. Anything smaller counts seconds.
    fn by_size(whole: i128) -> TimeUnit {
        let most = [
            (100_000_000_000, TimeUnit::Seconds),
            (100_000_000_000_000, TimeUnit::Milliseconds),
            (100_000_000_000_000_000, TimeUnit::Microseconds),
        ];
        most.iter().find(|(most, _)| whole < *most).map_or(TimeUnit::Nanoseconds, |(_, unit)| *unit)
    }

    /// Takes a unit off the end of a name: `timestamp_ms`, `arrivalNs`, `time (s)`.
    pub(super) fn off(name: &str) -> (&str, Option<TimeUnit>) {
        let ended = name.trim_end_matches([')', ']', ' ']);
        let mut before = '\0';
        let mut start = None;
        for (index, letter) in ended.char_indices() {
            if !letter.is_alphanumeric() {
                start = Some(index + letter.len_utf8());
            } else if before.is_lowercase() && letter.is_uppercase() {
                start = Some(index);
            }
            before = letter;
        }
        let Some((start, unit)) = start.and_then(|start| Some((start, TimeUnit::written(&ended[start..])?))) else {
            return (name, None);
        };
        (ended[..start].trim_end_matches(|letter: char| !letter.is_alphanumeric()), Some(unit))
    }
}

impl FromStr for TimeUnit {
    type Err = String;

    fn from_str(text: &str) -> Result<TimeUnit, String> {
        TimeUnit::written(text).ok_or_else(|| "expected s, ms, us or ns".to_owned())
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeUnit::Seconds => "seconds",
            TimeUnit::Milliseconds => "milliseconds",
            TimeUnit::Microseconds => "microseconds",
            TimeUnit::Nanoseconds => "nanoseconds",
        })
    }
}

/// How the unit of numbers is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// A user or the form says so.
    Given,
    ByName,
    BySize,
}

/// Reads the times of one file.
#[derive(Debug, Default)]
pub(super) struct Clock {
    given: Option<TimeUnit>,
    numbers: Option<(TimeUnit, Known)>,
    /// The first number was an epoch, not a time since some start.
    is_epoch: bool,
    is_iso: bool,
    is_without_zone: bool,
}

impl Clock {
    /// A clock whose numbers count `given`, if that is known.
    pub(super) fn new(given: Option<TimeUnit>) -> Clock {
        Clock { given, ..Clock::default() }
    }

    /// Nanoseconds, since 1970 or since whenever the file's own clock started; `unit` is what the name of the field says. The
    /// first number decides for all.
    pub(super) fn time_ns(&mut self, field: &str, text: &str, unit: Option<TimeUnit>) -> Result<i128, Fault> {
        if let Some((negative, whole, fraction)) = decimal(text) {
            if negative && (whole > 0 || fraction.bytes().any(|digit| digit != b'0')) {
                return Err(Fault::Row(format!("{field} `{}` is negative", excerpt(text))));
            }
            let known = || match (self.given, unit) {
                (Some(unit), _) => (unit, Known::Given),
                (None, Some(unit)) => (unit, Known::ByName),
                (None, None) => (TimeUnit::by_size(whole), Known::BySize),
            };
            let first = self.numbers.is_none();
            let (unit, how) = self.numbers.unwrap_or_else(known);
            self.numbers = Some((unit, how));
            if first {
                self.is_epoch = whole * unit.nanos() >= 100_000_000 * TimeUnit::Seconds.nanos();
            }
            return Ok(whole * unit.nanos() + part_ns(&fraction, unit.nanos()));
        }
        let wrong = || {
            let value = excerpt(text);
            Fault::Row(format!("{field} `{value}` is not a time: expected 2023-11-16T18:15:46.68+01:00 or a number"))
        };
        let (time_ns, has_zone) = iso_ns(text).ok_or_else(wrong)?;
        self.is_iso = true;
        self.is_without_zone |= !has_zone;
        Ok(time_ns)
    }

    /// What was found, for people; `None` before the first time.
    pub(super) fn told(&self) -> Option<String> {
        let numbers = self.numbers.map(|(unit, how)| {
            let since = if self.is_epoch { " since 1970" } else { "" };
            match how {
                Known::Given => format!("{unit}{since}"),
                Known::ByName => format!("{unit}{since}, by its name"),
                Known::BySize => format!("{unit}{since}, by size (--time-unit says otherwise)"),
            }
        });
        let iso = match (self.is_iso, self.is_without_zone) {
            (false, _) => None,
            (true, false) => Some("ISO 8601".to_owned()),
            (true, true) => Some("ISO 8601, as UTC where no zone is given".to_owned()),
        };
        [numbers, iso].into_iter().flatten().reduce(|a, b| format!("{a}; {b}"))
    }
}

/// Sign, digits before the point, digits after it; an exponent is moved into them.
fn decimal(text: &str) -> Option<(bool, i128, String)> {
    let text = text.trim();
    let (negative, digits) = text.strip_prefix('-').map_or((false, text), |digits| (true, digits));
    let (mantissa, exponent) = match digits.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok().filter(|e| e.abs() <= 40)?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let (mut whole, mut fraction) = (whole.to_owned(), fraction.to_owned());
    for _ in 0..exponent.max(0) {
        whole.push(if fraction.is_empty() { '0' } else { fraction.remove(0) });
    }
    for _ in exponent..0 {
        fraction.insert(0, whole.pop().unwrap_or('0'));
    }
    let whole = whole.trim_start_matches('0');
    if whole.len() > MAX_DIGITS {
        return None;
    }
    Some((negative, if whole.is_empty() { 0 } else { whole.parse().ok()? }, fraction))
}

/// Digits after the point of something of `nanos` nanoseconds, cut to whole nanoseconds.
fn part_ns(fraction: &str, nanos: i128) -> i128 {
    let mut part = 0;
    let mut worth = nanos;
    for digit in fraction.bytes().take(9) {
        worth /= 10;
        part += i128::from(digit - b'0') * worth;
    }
    part
}

/// Nanoseconds since 1970, and whether a zone was given; without one, UTC is taken. Named zones need their offset as well.
fn iso_ns(text: &str) -> Option<(i128, bool)> {
    let text = text.trim();
    // As databases print them: `… 18:15:46 UTC`, `… 18:15:46 +01:00`.
    let spaced =
        text.strip_suffix("UTC").or_else(|| text.strip_suffix("GMT")).map(|time| format!("{}Z", time.trim_end()));
    let joined = spaced.unwrap_or_else(|| text.replace(" +", "+").replace(" -", "-"));
    let at = |timestamp: Timestamp| Some(timestamp.as_nanosecond()).filter(|time_ns| *time_ns >= 0);
    if let Ok(timestamp) = joined.parse::<Timestamp>() {
        return Some((at(timestamp)?, true));
    }
    // A date alone would be a day of requests at midnight.
    if !joined.contains(':') {
        return None;
    }
    let civil = joined.parse::<DateTime>().ok()?;
    Some((at(Offset::UTC.to_timestamp(civil).ok()?)?, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<i128> {
        Clock::default().time_ns("t", text, None).ok()
    }

    #[test]
    fn epochs_are_told_by_their_size() {
        let expected = Some(1_700_000_000_123_456_000);
        for text in
            ["1700000000.123456", "1700000000123.456", "1700000000123456", "1700000000123456000", "1.700000000123456e9"]
        {
            assert_eq!(read(text), expected, "{text}");
        }
        assert_eq!(
            (read("0"), read("0.25"), read("19440110.0")),
            (Some(0), Some(250_000_000), Some(19_440_110 * 1_000_000_000))
        );
        let mut clock = Clock::new(Some(TimeUnit::Milliseconds));
        assert_eq!(clock.time_ns("t", "250", Some(TimeUnit::Seconds)), Ok(250_000_000));
        assert_eq!(clock.told().as_deref(), Some("milliseconds"));
    }

    #[test]
    fn dates_with_zones_and_without() {
        let expected = Some(1_700_158_546_500_000_000);
        for text in [
            "2023-11-16T18:15:46.5Z",
            "2023-11-16 18:15:46.5",
            "2023-11-16T19:15:46.5+01:00",
            "2023-11-16T19:15:46.5+0100",
            "2023-11-16 13:15:46.500 -05:00",
            "2023-11-16 18:15:46.500000 UTC",
            "2023-11-16T18:15:46,5Z",
            "2023-11-16T19:15:46.5+01:00[Europe/Paris]",
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        let mut clock = Clock::default();
        clock.time_ns("t", "2023-11-16 18:15:46", None).unwrap();
        assert_eq!(clock.told().as_deref(), Some("ISO 8601, as UTC where no zone is given"));
    }

    #[test]
    fn what_is_not_a_time() {
        for text in [
            "",
            " ",
            "NaN",
            "inf",
            "-1",
            "-0.5",
            "1e999",
            "1e-999",
            "0x10",
            "2023-13-01T00:00:00Z",
            "2023-11-16",
            "18:15:46",
            "1969-12-31T23:59:59Z",
            "99999999999999999999999999999999",
            "1.2.3",
            "é",
            "1700000000 1",
            "9999999-01-01T00:00:00Z",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("-0"), Some(0));
    }

    #[test]
    fn units_at_the_end_of_names() {
        assert_eq!(TimeUnit::off("timestamp_ms"), ("timestamp", Some(TimeUnit::Milliseconds)));
        assert_eq!(TimeUnit::off("arrivalNs"), ("arrival", Some(TimeUnit::Nanoseconds)));
        assert_eq!(TimeUnit::off("Time (us)"), ("Time", Some(TimeUnit::Microseconds)));
        for name in ["timestamps", "ts", "é_", "", "_", "s"] {
            assert_eq!(TimeUnit::off(name), (name, None));
        }
    }
}
