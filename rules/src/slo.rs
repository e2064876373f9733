//! Service-level objectives of one request.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use crate::Micros;

/// Targets a request must meet all at once to be attained.
///
/// Token *j* (from 0) is on time if it appears by `arrival + ttft + j * tpot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Slo {
    /// Time to first token.
    pub ttft: Micros,
    /// Mean time per output token after the first.
    pub tpot: Micros,
    /// Longest gap between two tokens.
    pub stall: Micros,
}

/// Named classes: TTFT and inter-token targets in milliseconds. The stall target of a class is 30 times its
/// inter-token target, and at least one second.
const CLASSES: [(&str, u64, u64); 5] =
    [("chat", 400, 30), ("agent", 100, 20), ("document", 1500, 50), ("batch", 10_000, 100), ("real-time", 150, 15)];

/// No target may exceed a day.
const MAX_TARGET_MS: u64 = 86_400_000;

impl Slo {
    /// Targets in milliseconds.
    pub const fn from_millis(ttft: u64, tpot: u64, stall: u64) -> Slo {
        Slo { ttft: Micros::from_millis(ttft), tpot: Micros::from_millis(tpot), stall: Micros::from_millis(stall) }
    }

    /// Names of the preset classes.
    pub fn class_names() -> impl Iterator<Item = &'static str> {
        CLASSES.iter().map(|class| class.0)
    }

    /// The preset class of that name.
    pub fn class(name: &str) -> Option<Slo> {
        let (_, ttft, itl) = *CLASSES.iter().find(|class| class.0 == name)?;
        Some(Slo::from_millis(ttft, itl, (30 * itl).max(1000)))
    }

    /// By when token `index` (from 0) of a request that arrived at `arrival` is on time.
    pub fn deadline(&self, arrival: Micros, index: u32) -> Micros {
        arrival + self.ttft + self.tpot.times(u64::from(index))
    }
}

impl Default for Slo {
    /// `ttft:2000,tpot:100,stall:3000`: a patient chat user.
    fn default() -> Slo {
        Slo::from_millis(2000, 100, 3000)
    }
}

/// Why an SLO could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SloError {
    /// Neither a class nor `key:ms` pairs.
    Unknown(String),
    /// A value that is not a whole number of milliseconds in range.
    Target {
        /// Which target.
        key: String,
        /// What stood there.
        value: String,
    },
    /// A target given twice.
    Twice(String),
}

impl fmt::Display for SloError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SloError::Unknown(text) => {
                write!(f, "unknown SLO {text:?}: give a class (")?;
                for (index, name) in Slo::class_names().enumerate() {
                    write!(f, "{}{name}", if index == 0 { "" } else { ", " })?;
                }
                f.write_str(") or ttft:MS,tpot:MS[,stall:MS]")
            }
            SloError::Target { key, value } => {
                write!(f, "SLO target {key}:{value:?} is not a whole number of milliseconds from 1 to {MAX_TARGET_MS}")
            }
            SloError::Twice(key) => write!(f, "SLO target {key} is given twice"),
        }
    }
}

impl core::error::Error for SloError {}

impl FromStr for Slo {
    type Err = SloError;

    /// Reads a class name, or `ttft:500,tpot:50[,stall:3000]` in milliseconds; what is left out keeps its default.
    fn from_str(text: &str) -> Result<Slo, SloError> {
        if let Some(slo) = Slo::class(text) {
            return Ok(slo);
        }
        let mut slo = Slo::default();
        let mut seen = Vec::new();
        for part in text.split(',') {
            let (key, value) = part.split_once(':').ok_or_else(|| SloError::Unknown(text.to_owned()))?;
            let target = match key {
                "ttft" => &mut slo.ttft,
                "tpot" => &mut slo.tpot,
                "stall" => &mut slo.stall,
                _ => return Err(SloError::Unknown(text.to_owned())),
            };
            if seen.contains(&key) {
                return Err(SloError::Twice(key.to_owned()));
            }
            seen.push(key);
            let millis = value.parse().ok().filter(|millis| (1..=MAX_TARGET_MS).contains(millis));
            let bad = || SloError::Target { key: key.to_owned(), value: value.to_owned() };
            *target = Micros::from_millis(millis.ok_or_else(bad)?);
        }
        Ok(slo)
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ttft:{},tpot:{},stall:{}", self.ttft.0 / 1000, self.tpot.0 / 1000, self.stall.0 / 1000)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn classes_and_pairs_are_read() {
        assert_eq!("chat".parse(), Ok(Slo::from_millis(400, 30, 1000)));
        assert_eq!("batch".parse(), Ok(Slo::from_millis(10_000, 100, 3000)));
        assert_eq!("ttft:500,tpot:50".parse(), Ok(Slo::from_millis(500, 50, 3000)));
        assert_eq!(
            "ttft:2000,tpot:100,stall:3000".parse::<Slo>().unwrap().to_string(),
            "ttft:2000,tpot:100,stall:3000"
        );
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Slo>().unwrap_err().to_string();
        assert_eq!(
            error("fast"),
            "unknown SLO \"fast\": give a class (chat, agent, document, batch, real-time) or ttft:MS,tpot:MS[,stall:MS]"
        );
        assert!(error("ttft:0").contains("ttft:\"0\""));
        assert!(error("tpot:5.5").contains("tpot:\"5.5\""));
        assert_eq!(error("ttft:1,ttft:2"), "SLO target ttft is given twice");
    }
}
