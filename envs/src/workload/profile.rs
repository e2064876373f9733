//! What synthetic requests look like: lengths as published of production services, and how bursty they arrive.

use std::fmt;

use rand::RngExt;

use super::{DayMix, LogNormal, agentic, day};
use crate::seed::Stream;

/// A kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrafficProfile {
    /// Conversation, after the Azure conversation trace of 2023.
    Chat,
    /// Code completion, after the Azure code trace of 2023.
    Code,
    /// Reasoning models: short prompts, outputs of about 1,500 tokens.
    Reasoning,
    /// The three above in phases and bursts; see [`super::synthetic`].
    Mix,
    /// Sessions of coding agents with long common prefixes; see [`super::agentic`].
    Agentic,
    /// A day of a service, compressed: all of the kinds above on a daily curve; see [`super::day`].
    Day {
        /// The highest hour over the mean one.
        peak: f64,
        /// What it is made of.
        mix: DayMix,
    },
    /// Lengths uniform around a mean, for experiments on one thing at a time.
    Uniform {
        /// Mean prompt, tokens.
        prompt_mean: u32,
        /// Mean output, tokens.
        output_mean: u32,
        /// Lengths are within `mean * (1 ± spread)`; from 0 to 1.
        spread: f64,
    },
    /// Log-normal lengths: a few answers are many times as long as most.
    LogNormal {
        /// Prompts.
        prompt: LogNormal,
        /// Answers.
        output: LogNormal,
    },
}

/// Distribution of lengths and burstiness of one kind of traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrafficShape {
    /// Its name; the tenant of its requests in a mix.
    pub name: &'static str,
    /// Prompt lengths, tokens.
    pub prompt: Quantiles,
    /// Output lengths, tokens.
    pub output: Quantiles,
    /// Coefficient of variation of the time between arrivals. Times are gamma-distributed, the family that `BurstGPT`
    /// (Wang et al. 2024, arXiv 2401.17644) and `ServeGen` (Xiang et al. 2025, arXiv 2505.09999) fit to production
    /// traffic.
    pub inter_arrival_cv: f64,
}

/// A distribution given by points of its quantile function, `(probability, length)`, rising in both from probability 0
/// to 1. Between two points the logarithm is interpolated, so a draw is log-uniform between them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantiles(&'static [(f64, f64)]);

/// Conversation. p50, p95 and p99 are those of the whole Azure conversation trace of 2023 (CC-BY-4.0; Patel et al.,
/// "Splitwise", ISCA'24, whose section III gives the medians 1,020 and 129 and calls outputs "almost bimodal"): prompt
/// 1020/4083/4142, output 129/451/601, inter-arrival CV 1.09. The other points are rounded from its first 40 minutes.
pub const CHAT: TrafficShape = TrafficShape {
    name: "chat",
    prompt: Quantiles(&[
        (0.0, 3.0),
        (0.05, 180.0),
        (0.25, 400.0),
        (0.5, 1_020.0),
        (0.75, 1_210.0),
        (0.9, 4_050.0),
        (0.95, 4_083.0),
        (0.99, 4_142.0),
        (0.999, 5_250.0),
        (1.0, 14_000.0),
    ]),
    output: Quantiles(&[
        (0.0, 7.0),
        (0.05, 40.0),
        (0.25, 82.0),
        (0.5, 129.0),
        (0.72, 390.0),
        (0.95, 451.0),
        (0.99, 601.0),
        (0.999, 940.0),
        (1.0, 1_000.0),
    ]),
    inter_arrival_cv: 1.09,
};

/// Code completion. Medians of 1,500 and 13 from "Splitwise", section III; the prompt's p95 of 7,302 from the Azure
/// code trace of 2023 (8,819 requests). The other points are chosen: its first minutes have no prompt above 7,437 and
/// no output below 6 tokens, and the output's tail is set for a mean of 28. The trace comes in bursts with pauses of up
/// to minutes between them; a CV of 4 is chosen, milder than that.
pub const CODE: TrafficShape = TrafficShape {
    name: "code",
    prompt: Quantiles(&[(0.0, 20.0), (0.5, 1_500.0), (0.95, 7_302.0), (1.0, 7_437.0)]),
    output: Quantiles(&[(0.0, 6.0), (0.5, 13.0), (0.9, 42.0), (0.99, 220.0), (1.0, 900.0)]),
    inter_arrival_cv: 4.0,
};

/// Reasoning. A description, not a fit: `ServeGen` reports that reasoning lengths of DeepSeek-R1 in production are
/// bimodal, short thought and long, but we know of no public trace with both arrivals and lengths. All points are
/// chosen, for a mean output of 1,500 tokens spread over two orders of magnitude and a longest one of 16,384; so is the
/// CV of 1.
pub const REASONING: TrafficShape = TrafficShape {
    name: "reasoning",
    prompt: Quantiles(&[(0.0, 16.0), (0.5, 300.0), (0.9, 2_000.0), (0.99, 8_000.0), (1.0, 16_384.0)]),
    output: Quantiles(&[
        (0.0, 64.0),
        (0.25, 500.0),
        (0.5, 1_000.0),
        (0.75, 1_800.0),
        (0.9, 3_100.0),
        (0.99, 7_800.0),
        (1.0, 16_384.0),
    ]),
    inter_arrival_cv: 1.0,
};

/// The kinds of traffic a mix is made of.
pub const MIXED: [TrafficShape; 3] = [CHAT, CODE, REASONING];

impl Quantiles {
    pub(super) const fn new(points: &'static [(f64, f64)]) -> Quantiles {
        Quantiles(points)
    }

    /// The length at a probability from 0 to 1, rounded, at least 1.
    pub fn at(&self, probability: f64) -> u32 {
        let above = self.0.partition_point(|(point, _)| *point <= probability).clamp(1, self.0.len() - 1);
        let ((p0, low), (p1, high)) = (self.0[above - 1], self.0[above]);
        let weight = (probability - p0) / (p1 - p0);
        (low * (high / low).powf(weight)).round().max(1.0) as u32
    }

    /// Draws a length.
    pub fn draw(&self, stream: &mut Stream) -> u32 {
        self.at(stream.random())
    }

    /// Whether probabilities rise from 0 to 1, and lengths with them.
    #[cfg(test)]
    pub(super) fn is_rising(&self) -> bool {
        let (first, last) = (self.0[0].0, self.0[self.0.len() - 1].0);
        (first, last) == (0.0, 1.0) && self.0.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1)
    }
}

impl TrafficProfile {
    /// Lengths and burstiness of a profile of one kind; `None` for the mix, sessions and lengths that are
    /// given.
    pub fn shape(self) -> Option<&'static TrafficShape> {
        match self {
            TrafficProfile::Chat => Some(&CHAT),
            TrafficProfile::Code => Some(&CODE),
            TrafficProfile::Reasoning => Some(&REASONING),
            TrafficProfile::Mix
            | TrafficProfile::Agentic
            | TrafficProfile::Day { .. }
            | TrafficProfile::Uniform { .. }
            | TrafficProfile::LogNormal { .. } => None,
        }
    }

    /// The coefficient of variation of the time between arrivals that it has unless told otherwise. That of the mix is
    /// of the process within a phase, to which phases add; that of sessions is of their starts; on a day every kind has
    /// its own.
    pub fn inter_arrival_cv(self) -> f64 {
        self.shape().map_or(1.0, |shape| shape.inter_arrival_cv)
    }
}

impl fmt::Display for TrafficProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrafficProfile::Chat => CHAT.name,
            TrafficProfile::Code => CODE.name,
            TrafficProfile::Reasoning => REASONING.name,
            TrafficProfile::Mix => "mix",
            TrafficProfile::Agentic => agentic::NAME,
            TrafficProfile::Day { .. } => day::NAME,
            TrafficProfile::Uniform { .. } => "uniform",
            TrafficProfile::LogNormal { .. } => "lognormal",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_points_are_met() {
        assert_eq!([0.5, 0.95, 0.99].map(|p| CHAT.prompt.at(p)), [1_020, 4_083, 4_142]);
        assert_eq!([0.5, 0.95, 0.99].map(|p| CHAT.output.at(p)), [129, 451, 601]);
        assert_eq!([0.0, 0.5, 0.95, 1.0].map(|p| CODE.prompt.at(p)), [20, 1_500, 7_302, 7_437]);
        assert_eq!([0.0, 0.5].map(|p| CODE.output.at(p)), [6, 13]);
    }

    #[test]
    fn points_rise() {
        for shape in MIXED {
            assert!(shape.prompt.is_rising() && shape.output.is_rising(), "{}", shape.name);
        }
    }
}
