//! Durations as they are written on a command line: `3s`, `250ms`, `10m`, `1.5h`, and plain seconds.

use std::fmt;
use std::str::FromStr;

use super::WorkloadError;
use crate::time::Micros;
use crate::trace::MAX_SPAN;

/// Units, longest suffix first where one ends another.
const UNITS: [(&str, f64); 5] = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3_600e6)];

/// A length of time of at most ten years, as text: a number and `us`, `ms`, `s`, `m` or `h`; without a unit, seconds. Written
/// in the shortest way that is read back: whole seconds, milliseconds or microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duration(pub Micros);

impl FromStr for Duration {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Duration, WorkloadError> {
        let text = text.trim();
        let (number, unit_us) =
            UNITS.iter().find_map(|(unit, us)| Some((text.strip_suffix(unit)?, *us))).unwrap_or((text, 1e6));
        let wrong = || WorkloadError::spec(text, "is not a duration: expected 3s, 250ms, 10m, 1.5h or plain seconds");
        // `f64` also reads `inf`, `nan` and `1e3`; only digits and a point are meant.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(wrong());
        }
        let duration_us = number.parse::<f64>().map_err(|_| wrong())? * unit_us;
        if duration_us > MAX_SPAN.0 as f64 {
            return Err(WorkloadError::spec(text, "is more than ten years"));
        }
        Ok(Duration(Micros(duration_us.round() as u64)))
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            us if us % 1_000_000 == 0 => write!(f, "{}s", us / 1_000_000),
            us if us % 1_000 == 0 => write!(f, "{}ms", us / 1_000),
            us => write!(f, "{us}us"),
        }
    }
}

/// A duration that may be absent, as text: `jitter = "3s"`.
pub(super) mod as_text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Duration;
    use crate::time::Micros;

    #[expect(clippy::ref_option, reason = "the signature serde calls")]
    pub(in super::super) fn serialize<S: Serializer>(duration: &Option<Micros>, to: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| Duration(duration).to_string()).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Micros>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        let read = |text: String| text.parse::<Duration>().map(|duration| duration.0);
        text.map(read).transpose().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Micros, WorkloadError> {
        text.parse().map(|Duration(duration)| duration)
    }

    #[test]
    fn units() {
        let texts = ["3s", "250ms", "40us", "10m", "1.5h", "600", "0.5", " 2s "];
        let expected = [3_000_000, 250_000, 40, 600_000_000, 5_400_000_000, 600_000_000, 500_000, 2_000_000];
        assert_eq!(texts.map(|text| parse(text).unwrap().0), expected);
    }

    #[test]
    fn what_is_not_a_duration() {
        for text in ["", "s", "-3s", "3 d", "1e3", "inf", "nan", "1.2.3s", "+5"] {
            let expected =
                format!("`{}`: is not a duration: expected 3s, 250ms, 10m, 1.5h or plain seconds", text.trim());
            assert_eq!(parse(text).unwrap_err().to_string(), expected);
        }
        assert_eq!(parse("99999999h").unwrap_err().to_string(), "`99999999h`: is more than ten years");
    }

    #[test]
    fn written_and_read_back() {
        for us in [0, 1, 999, 1_000, 1_500_000, 3_000_000, 2_399_316_671] {
            assert_eq!(parse(&Duration(Micros(us)).to_string()), Ok(Micros(us)));
        }
    }
}
