//! How much more is attained by one policy than by another, and whether that is more than chance.

use serde::{Deserialize, Serialize};

use super::Attained;
use crate::bootstrap::{Interval, resampled};

/// A difference of attainment in percentage points, with its 95 % interval over episodes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gain {
    /// The mean.
    pub points: f64,
    /// Lower end; `None` where nothing can be resampled.
    pub low: Option<f64>,
    /// Upper end, likewise.
    pub high: Option<f64>,
}

impl Gain {
    /// Of the same episodes under two policies.
    pub fn between(mine: &[Attained], theirs: &[Attained]) -> Gain {
        let pairs: Vec<(Attained, Attained)> = mine.iter().copied().zip(theirs.iter().copied()).collect();
        let gained = |pairs: &[&(Attained, Attained)]| {
            let share = |side: fn(&(Attained, Attained)) -> Attained| {
                Attained::share(&pairs.iter().map(|pair| side(pair)).collect::<Vec<Attained>>())
            };
            Some(100.0 * (share(|pair| pair.0) - share(|pair| pair.1)))
        };
        let Interval { mean: points, low, high, .. } = resampled(&pairs, gained).unwrap_or(Interval::single(0.0));
        Gain { points, low, high }
    }

    /// Whether it is more than chance.
    pub fn is_sure(&self) -> bool {
        self.low.is_some_and(|low| low > 0.0)
    }

    /// `+1.2 points [0.3, 2.0]`.
    pub fn text(&self) -> String {
        let interval =
            self.low.zip(self.high).map_or_else(String::new, |(low, high)| format!(" [{low:+.1}, {high:+.1}]"));
        format!("{:+.1} points{interval}", self.points)
    }
}
