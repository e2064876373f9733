//! Time as every rule knows it: whole microseconds on a clock that does not go back, the node's own or a simulated one.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

/// A moment or a duration, in whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Micros(pub u64);

impl Micros {
    /// Time zero, or no time at all.
    pub const ZERO: Micros = Micros(0);
    /// The end of time.
    pub const MAX: Micros = Micros(u64::MAX);

    /// Rounds to the nearest microsecond; negative and NaN become zero.
    pub fn from_secs_f64(seconds: f64) -> Micros {
        let exact = seconds * 1e6;
        // `f64::round` is not in `core`. Halves go up, and the difference is exact.
        let whole = exact as u64;
        Micros(whole.saturating_add(u64::from(exact - whole as f64 >= 0.5)))
    }

    /// From whole milliseconds.
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis.saturating_mul(1000))
    }

    /// In seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In milliseconds.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// The difference, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// `self` times a count.
    #[must_use]
    pub fn times(self, count: u64) -> Micros {
        Micros(self.0.saturating_mul(count))
    }
}

impl Add for Micros {
    type Output = Micros;

    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Micros) {
        *self = *self + other;
    }
}

impl Sub for Micros {
    type Output = Micros;

    /// # Panics
    /// If `other` is later than `self`: a programmer's mistake. Use [`Micros::since`] where either may come first.
    fn sub(self, other: Micros) -> Micros {
        Micros(self.0.checked_sub(other.0).expect("time went backwards"))
    }
}

impl Sum for Micros {
    fn sum<I: Iterator<Item = Micros>>(times: I) -> Micros {
        times.fold(Micros::ZERO, Add::add)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_as_the_standard_library_rounds() {
        let seconds = [0.0, -0.0, -1.0, 4e-7, 5e-7, 4.999_999e-7, 1.5e-6, 2.5e-6, 1e-6, 12.345_678_9, 1e9, 9e12, 4e15];
        for seconds in seconds.into_iter().chain([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE]) {
            assert_eq!(Micros::from_secs_f64(seconds), Micros((seconds * 1e6).round() as u64), "{seconds}");
        }
        for number in 0..10_000 {
            let seconds = f64::from(number) * 1.7e-7;
            assert_eq!(Micros::from_secs_f64(seconds), Micros((seconds * 1e6).round() as u64), "{seconds}");
        }
    }
}
