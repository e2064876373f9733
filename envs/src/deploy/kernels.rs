//! What kernels of one accelerator were measured to reach, where two shares of the peaks say too little.

use serde::{Deserialize, Serialize};

use super::{ClockFactors, SettingError};

/// Least and most knots of a [`KernelTimes`] curve.
const KNOTS: std::ops::RangeInclusive<usize> = 2..=64;
/// Most tokens of a step that a knot may stand at.
const MAX_TOKENS: u32 = 1 << 20;

/// Times of kernels on one accelerator, in units that hold for other dense bf16 models on it.
///
/// The time of a matrix product per weight is **piecewise linear in tokens** and never falls. Linear in tokens rather
/// than in their logarithm, because both sides of a roofline are: below the ridge the time is constant, above it in
/// proportion to tokens, and a straight piece between two knots is exact on either. A tile that is filled at 128 tokens
/// is a pair of knots at 128 and 129.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTimes {
    /// Tokens multiplied at once at each knot: 2 to 64 ascending numbers from 1 to 1,048,576. Below the first the curve is
    /// constant, beyond the last in proportion to tokens.
    pub tokens: Vec<u32>,
    /// Time of a matrix product for each of its weights at each knot, picoseconds, never falling, from 1e-6 to 1e6.
    pub ps_per_weight: Vec<f64>,
    /// Share of `peak_bandwidth` at which attention reads keys and values, from 0.01 to 1.5.
    pub decode_bandwidth: f64,
    /// Time in each layer for each sequence that decodes: scheduling and merging of its parts. Seconds, from 0 to 1.
    pub decode_sequence: f64,
    /// Share of `peak_flops` that attention of chunks reaches, from 0.001 to 1.5.
    pub chunk_compute: f64,
    /// Tokens of a chunk that attention takes at a time, so that fewer cost as many, from 1 to 1024.
    pub chunk_tile: u32,
    /// Time in each layer, whatever their size, for attention of decodes, and again for attention of chunks, where a step
    /// has any. Seconds, from 0 to 1.
    pub attention_fixed: f64,
    /// What launching all kernels of a step takes: no step is shorter. Seconds, from 0 to 10.
    pub launch: f64,
    /// Share of the shorter of computing and copying that is hidden behind the other, from 0 to 1.
    #[serde(default)]
    pub swap_overlap: f64,
}

impl KernelTimes {
    /// Its keys in a file.
    pub(super) const KEYS: [&str; 9] = [
        "tokens",
        "ps_per_weight",
        "decode_bandwidth",
        "decode_sequence",
        "chunk_compute",
        "chunk_tile",
        "attention_fixed",
        "launch",
        "swap_overlap",
    ];

    /// Checks lengths, order and ranges.
    ///
    /// # Errors
    /// The first key that is wrong, its value, and what would do.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.validate_curve()?;
        let ranges = [
            ("decode_bandwidth", self.decode_bandwidth, 0.01..=1.5, "a share from 0.01 to 1.5"),
            ("decode_sequence", self.decode_sequence, 0.0..=1.0, "seconds, from 0 to 1"),
            ("chunk_compute", self.chunk_compute, 0.001..=1.5, "a share from 0.001 to 1.5"),
            ("chunk_tile", f64::from(self.chunk_tile), 1.0..=1024.0, "tokens, from 1 to 1024"),
            ("attention_fixed", self.attention_fixed, 0.0..=1.0, "seconds, from 0 to 1"),
            ("launch", self.launch, 0.0..=10.0, "seconds, from 0 to 10"),
            ("swap_overlap", self.swap_overlap, 0.0..=1.0, "a share from 0 to 1"),
        ];
        match ranges.into_iter().find(|(_, value, range, _)| !range.contains(value)) {
            Some((key, value, _, expected)) => Err(SettingError::value(key, &value.to_string(), expected)),
            None => Ok(()),
        }
    }

    fn validate_curve(&self) -> Result<(), SettingError> {
        let wrong = |key, value: String, expected| Err(SettingError::value(key, &value, expected));
        let (tokens, times) = (&self.tokens, &self.ps_per_weight);
        if !KNOTS.contains(&tokens.len()) {
            return wrong("tokens", format!("{} knots", tokens.len()), "2 to 64 knots");
        }
        if times.len() != tokens.len() {
            return wrong("ps_per_weight", format!("{} knots", times.len()), "as many values as tokens has");
        }
        if let Some(count) = tokens.iter().find(|count| !(1..=MAX_TOKENS).contains(*count)) {
            return wrong("tokens", count.to_string(), "numbers from 1 to 1048576");
        }
        if let Some([left, right]) = tokens.array_windows().find(|[left, right]| left >= right) {
            return wrong("tokens", format!("{left}, {right}"), "ascending numbers");
        }
        if let Some(time) = times.iter().find(|time| !(1e-6..=1e6).contains(*time)) {
            return wrong("ps_per_weight", time.to_string(), "picoseconds, from 1e-6 to 1e6");
        }
        if let Some([left, right]) = times.array_windows().find(|[left, right]| left > right) {
            return wrong("ps_per_weight", format!("{left}, {right}"), "values that never fall");
        }
        Ok(())
    }

    /// Multiplies the times of each group by its factor, within the ranges of each.
    pub(super) fn slow_down(&mut self, factors: &ClockFactors) {
        for time in &mut self.ps_per_weight {
            *time = (*time * factors.products).clamp(1e-6, 1e6);
        }
        self.decode_bandwidth = (self.decode_bandwidth / factors.decode).clamp(0.01, 1.5);
        self.decode_sequence = (self.decode_sequence * factors.decode).min(1.0);
        self.attention_fixed = (self.attention_fixed * factors.decode).min(1.0);
        self.chunk_compute = (self.chunk_compute / factors.prefill).clamp(0.001, 1.5);
        self.launch = (self.launch * factors.host).min(10.0);
    }

    /// Most knots a curve may have.
    pub(crate) const fn max_knots() -> usize {
        *KNOTS.end()
    }
}

/// Where `tokens` lie on a curve with these knots: two of them, and the weight of each in its value there.
///
/// # Panics
/// If there are no knots.
pub(crate) fn between(knots: &[f64], tokens: f64) -> [(usize, f64); 2] {
    let above = knots.partition_point(|knot| *knot <= tokens);
    if above == 0 {
        return [(0, 1.0), (0, 0.0)];
    }
    let below = above - 1;
    if above == knots.len() {
        return [(below, tokens / knots[below]), (below, 0.0)];
    }
    let share = (tokens - knots[below]) / (knots[above] - knots[below]);
    [(below, 1.0 - share), (above, share)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels() -> KernelTimes {
        KernelTimes {
            tokens: vec![1, 64, 65, 4096],
            ps_per_weight: vec![0.5, 0.5, 0.75, 9.0],
            decode_bandwidth: 0.8,
            decode_sequence: 1e-7,
            chunk_compute: 0.6,
            chunk_tile: 64,
            attention_fixed: 4e-6,
            launch: 1e-3,
            swap_overlap: 0.5,
        }
    }

    #[test]
    fn a_curve_is_straight_between_its_knots() {
        let at = |tokens: f64| {
            let weights = between(&[1.0, 64.0, 65.0, 4096.0], tokens);
            weights.iter().map(|(knot, weight)| kernels().ps_per_weight[*knot] * weight).sum::<f64>()
        };
        let times = [0.5, 1.0, 64.0, 64.5, 65.0, 4096.0, 8192.0].map(at);
        assert_eq!(times, [0.5, 0.5, 0.5, 0.625, 0.75, 9.0, 18.0]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |change: fn(&mut KernelTimes)| {
            let mut changed = kernels();
            change(&mut changed);
            changed.validate().unwrap_err().to_string()
        };
        assert_eq!(kernels().validate(), Ok(()));
        assert_eq!(error(|kernels| kernels.tokens.clear()), "tokens=\"0 knots\": expected 2 to 64 knots");
        let long = error(|kernels| kernels.tokens = (1..=1_000_000).collect());
        assert_eq!(long, "tokens=\"1000000 knots\": expected 2 to 64 knots");
        let unequal = error(|kernels| kernels.ps_per_weight.truncate(3));
        assert_eq!(unequal, "ps_per_weight=\"3 knots\": expected as many values as tokens has");
        assert_eq!(error(|kernels| kernels.tokens[0] = 0), "tokens=\"0\": expected numbers from 1 to 1048576");
        assert_eq!(error(|kernels| kernels.tokens[2] = 64), "tokens=\"64, 64\": expected ascending numbers");
        let falling = error(|kernels| kernels.ps_per_weight[2] = 0.25);
        assert_eq!(falling, "ps_per_weight=\"0.5, 0.25\": expected values that never fall");
        for value in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            let mut changed = kernels();
            changed.ps_per_weight[1] = value;
            let error = changed.validate().unwrap_err().to_string();
            assert_eq!(error, format!("ps_per_weight=\"{value}\": expected picoseconds, from 1e-6 to 1e6"));
        }
        assert_eq!(error(|kernels| kernels.swap_overlap = 1.5), "swap_overlap=\"1.5\": expected a share from 0 to 1");
        assert!(error(|kernels| kernels.launch = f64::NAN).starts_with("launch=\"NaN\""));
        assert!(error(|kernels| kernels.chunk_tile = 0).starts_with("chunk_tile=\"0\""));
    }
}
