//! How far the constants of a clock may be off, and clocks drawn within that.
//!
//! What a step takes rests on constants that somebody fitted, measured on another engine or read off a data sheet. A [`ClockSpread`]
//! says of each group of them how far off it may be; [`Hardware::drawn`] is the accelerator with constants that are as likely, so
//! that a judgement can be repeated over what the clock may get wrong, and a policy trained on all of it.
//!
//! A group's times are all multiplied by one factor, log-normal around 1. The groups of the accelerator itself (products,
//! attention, memory, experts) share half of their variance: what makes one card faster than its data sheet, its clocks and its
//! cooling, makes all of its kernels faster. Host, links and copies are by themselves.

use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::keys::of_hardware;
use super::{Hardware, SettingError};
use crate::seed;

/// Share of the variance that groups of one accelerator have in common.
const SHARED_VARIANCE: f64 = 0.5;
/// Largest spread that is taken: beyond a factor of three either way nothing is known.
const MAX_SPREAD: f64 = 1.0;
/// Factors that a scale may have.
const SCALES: std::ops::RangeInclusive<f64> = 0.01..=100.0;

/// One number for each group of a clock's constants: spreads, or the factors that were drawn.
macro_rules! groups {
    ($($(#[$doc:meta])* $group:ident: $is_shared:literal,)*) => {
        /// Standard deviations of the logarithm of what a clock says, by group of constants: 0.1 is about 10 % either way. The
        /// table `[hardware.spread]` of a profile; a group that is not named has none.
        #[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ClockSpread {
            $($(#[$doc])* pub $group: f64,)*
        }

        /// What the times of each group of constants are multiplied by: 1.1 is 10 % slower.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct ClockFactors {
            $($(#[$doc])* pub $group: f64,)*
        }

        impl ClockFactors {
            /// The clock as it is.
            pub const ONE: ClockFactors = ClockFactors { $($group: 1.0,)* };

            /// Each group's name and factor, in the order in which they are drawn.
            pub fn by_group(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($group), self.$group),)*]
            }
        }

        impl ClockSpread {
            /// Each group's name and spread.
            fn by_group(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($group), self.$group),)*]
            }

            /// Factors drawn from `stream`. Every group draws, whatever its spread: another spread of one changes no other.
            fn draw(&self, stream: &mut seed::Stream) -> ClockFactors {
                let shared: f64 = StandardNormal.sample(stream);
                let mut factor = |spread: f64, is_shared: bool| {
                    let own: f64 = StandardNormal.sample(stream);
                    let common = if is_shared { SHARED_VARIANCE } else { 0.0 };
                    (spread * (common.sqrt() * shared + (1.0 - common).sqrt() * own)).exp()
                };
                ClockFactors { $($group: factor(self.$group, $is_shared),)* }
            }
        }
    };
}

groups! {
    /// Matrix products: the share of the peak they reach, or their measured times.
    products: true,
    /// Attention of chunks of prompts. Where two shares of the peaks are all that is known, it goes with the products.
    prefill: true,
    /// Attention of decodes: reading keys and values. By shares of the peaks it goes with memory.
    decode: true,
    /// Memory bandwidth: reading weights and blocks where it is a share of the peak.
    memory: true,
    /// Routed experts, where they were measured by themselves.
    experts: true,
    /// The host's time of a step and for each sequence, and launching kernels.
    host: false,
    /// All-reduces between accelerators.
    link: false,
    /// Copies of blocks between accelerator and host.
    copies: false,
}

/// What measured times of kernels are multiplied by: 1.1 is 10 % slower than they were measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelScales {
    /// Matrix products.
    pub products: f64,
    /// Attention of chunks.
    pub prefill: f64,
    /// Attention of decodes.
    pub decode: f64,
    /// All-reduces.
    pub all_reduce: f64,
    /// Routed experts.
    pub experts: f64,
}

impl Default for KernelScales {
    fn default() -> KernelScales {
        KernelScales { products: 1.0, prefill: 1.0, decode: 1.0, all_reduce: 1.0, experts: 1.0 }
    }
}

impl KernelScales {
    /// Whether nothing is scaled, which a file does not say.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    pub(super) fn is_default(&self) -> bool {
        *self == KernelScales::default()
    }

    /// Checks that every factor is from 0.01 to 100.
    ///
    /// # Errors
    /// The first that is not.
    pub fn validate(&self) -> Result<(), SettingError> {
        let KernelScales { products, prefill, decode, all_reduce, experts } = *self;
        let factors = [
            ("products", products),
            ("prefill", prefill),
            ("decode", decode),
            ("all_reduce", all_reduce),
            ("experts", experts),
        ];
        match factors.into_iter().find(|(_, factor)| !SCALES.contains(factor)) {
            Some((key, factor)) => Err(SettingError::value(key, &factor.to_string(), "a factor from 0.01 to 100")),
            None => Ok(()),
        }
    }

    /// The same with each group's factor on top, as far as factors go.
    fn times(self, factors: &ClockFactors) -> KernelScales {
        let scaled = |scale: f64, factor: f64| (scale * factor).clamp(*SCALES.start(), *SCALES.end());
        KernelScales {
            products: scaled(self.products, factors.products),
            prefill: scaled(self.prefill, factors.prefill),
            decode: scaled(self.decode, factors.decode),
            all_reduce: scaled(self.all_reduce, factors.link),
            experts: scaled(self.experts, factors.experts),
        }
    }
}

impl ClockSpread {
    /// Of a data sheet with engineering defaults.
    pub const DATA_SHEET: ClockSpread = ClockSpread {
        products: 0.2,
        prefill: 0.3,
        decode: 0.2,
        memory: 0.2,
        experts: 0.3,
        host: 0.5,
        link: 0.3,
        copies: 0.15,
    };

    /// Checks that every spread is from 0 to 1.
    ///
    /// # Errors
    /// The first that is not.
    pub fn validate(&self) -> Result<(), SettingError> {
        match self.by_group().into_iter().find(|(_, spread)| !(0.0..=MAX_SPREAD).contains(spread)) {
            Some((key, spread)) => {
                Err(SettingError::value(key, &spread.to_string(), "a standard deviation from 0 to 1 (0.1: 10 %)"))
            }
            None => Ok(()),
        }
    }

    /// The factors of draw `draw` under `seed`: the same on every machine. Draw 0 is the clock as it is.
    pub fn factors(&self, seed: u64, draw: u64) -> ClockFactors {
        if draw == 0 { ClockFactors::ONE } else { self.draw(&mut seed::stream(seed, "clock", draw)) }
    }
}

impl Hardware {
    /// How far its clock may be off: what its profile says, or what is known of profiles of its kind.
    pub fn clock_spread(&self) -> ClockSpread {
        self.spread.unwrap_or(ClockSpread::DATA_SHEET)
    }

    /// This accelerator with the constants of draw `draw` under `seed`, within its [spread](Self::clock_spread). Draw 0 is
    /// itself. Its name, memory and peaks stay.
    #[must_use]
    pub fn drawn(&self, seed: u64, draw: u64) -> Hardware {
        if draw == 0 { self.clone() } else { self.with_clock(&self.clock_spread().factors(seed, draw)) }
    }

    /// This accelerator with all times of each group multiplied by its factor, within the ranges that profiles may have.
    #[must_use]
    pub fn with_clock(&self, factors: &ClockFactors) -> Hardware {
        let mut hardware = self.clone();
        hardware.compute_efficiency /= factors.products;
        hardware.bandwidth_efficiency /= factors.memory;
        hardware.step_overhead *= factors.host;
        hardware.sequence_overhead *= factors.host;
        hardware.link_bandwidth /= factors.link;
        hardware.pcie_bandwidth /= factors.copies;
        hardware.swap_overhead *= factors.copies;
        for (_, range, of) in of_hardware() {
            let value = of(&mut hardware);
            *value = value.clamp(range.low, range.high);
        }
        hardware.scales = hardware.scales.times(factors);
        if let Some(kernels) = &mut hardware.kernels {
            kernels.slow_down(factors);
        }
        hardware
    }
}
