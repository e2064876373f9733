//! How far the constants of a clock may be off, and clocks drawn within that.
//!
//! What a step takes rests on constants that somebody fitted, measured on another engine or read off a data sheet. A [`ClockSpread`]
//! says of each group of them how far off it may be; [`Hardware::drawn`] is the accelerator with constants that are as likely, so
//! that a judgement can be repeated over what the clock may get wrong, and a policy trained on all of it.
//!
//! A group's times are all multiplied by one factor, log-normal around 1, no farther than two and a half spreads. What multiplies (products, attention of chunks)
//! shares half of its variance, and so does what reads memory (weights, attention of decodes): over six measured cards the
//! distances of their shares of the peaks from what a data sheet is taken for correlate by .56 within the first and by .88 within the
//! second, and not between them. Host, links and copies are by themselves.

use std::fmt;

use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::{Hardware, SettingError};
use crate::seed;

/// Share of the variance that groups of one kind have in common.
const SHARED_VARIANCE: f64 = 0.5;

/// Farthest that a draw lies from the profile, in spreads: among a score of clocks one in a thousand would decide what the worst is.
const FARTHEST: f64 = 2.5;

/// What groups have in common.
#[derive(Clone, Copy)]
enum Shares {
    /// The rate at which the accelerator multiplies.
    Arithmetic,
    /// That at which it reads.
    Memory,
    /// Nothing.
    Nothing,
}

/// Largest spread that is taken: beyond a factor of three either way nothing is known.
const MAX_SPREAD: f64 = 1.0;

/// One number for each group of a clock's constants: spreads, or the factors that were drawn.
macro_rules! groups {
    ($($(#[$doc:meta])* $group:ident: $shares:ident,)*) => {
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

            /// Each group's name and factor.
            pub fn by_group(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($group), self.$group),)*]
            }
        }

        impl ClockSpread {
            /// Each group's name and spread.
            pub fn by_group(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($group), self.$group),)*]
            }

            /// Factors of draw `draw` under `seed`. Every group has a stream of its own: neither another spread of one nor one more
            /// changes any other.
            fn draw(&self, seed: u64, draw: u64) -> ClockFactors {
                let normal = |name: &str| -> f64 { StandardNormal.sample(&mut seed::stream(seed, name, draw)) };
                let arithmetic = normal("clock.shared.arithmetic");
                let memory = normal("clock.shared.memory");
                let factor = |spread: f64, shares: Shares, name: &str| {
                    let (shared, share) = match shares {
                        Shares::Arithmetic => (arithmetic, SHARED_VARIANCE),
                        Shares::Memory => (memory, SHARED_VARIANCE),
                        Shares::Nothing => (0.0, 0.0),
                    };
                    let drawn = share.sqrt() * shared + (1.0 - share).sqrt() * normal(name);
                    (spread * drawn.clamp(-FARTHEST, FARTHEST)).exp()
                };
                ClockFactors {
                    $($group: factor(self.$group, Shares::$shares, concat!("clock.", stringify!($group))),)*
                }
            }
        }
    };
}

groups! {
    /// Matrix products, those of routed experts among them: the share of the peak they reach, or their measured times.
    products: Arithmetic,
    /// Attention of chunks of prompts. Where two shares of the peaks are all that is known, it goes with the products.
    prefill: Arithmetic,
    /// Attention of decodes: reading keys and values. By shares of the peaks it goes with memory.
    decode: Memory,
    /// Memory bandwidth: reading weights and blocks where it is a share of the peak.
    memory: Memory,
    /// The host's time of a step and for each sequence, and launching kernels.
    host: Nothing,
    /// All-reduces between accelerators.
    link: Nothing,
    /// Copies of blocks between accelerator and host.
    copies: Nothing,
}

/// Where the constants of a clock come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockKind {
    /// A data sheet, and engineering defaults.
    DataSheet,
    /// Kernels measured on a relative, as shares of its data sheet.
    Estimated,
    /// Kernels measured by shape, on another server.
    Tables,
    /// Steps of a device, timed one by one.
    Timed,
    /// A served run that shares and overheads were fitted to.
    Fitted,
}

/// How names end of profiles whose kernels were measured on a relative.
const ESTIMATED: &str = "-estimated";

impl fmt::Display for ClockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClockKind::DataSheet => "the data sheet and engineering defaults",
            ClockKind::Estimated => "kernels measured on a relative",
            ClockKind::Tables => "kernels measured by shape",
            ClockKind::Timed => "kernels timed on the device",
            ClockKind::Fitted => "constants fitted to a served run, or given",
        })
    }
}

impl ClockKind {
    pub(super) fn of(hardware: &Hardware) -> ClockKind {
        match (&hardware.tables, &hardware.kernels) {
            (Some(_), _) if hardware.name.ends_with(ESTIMATED) => ClockKind::Estimated,
            (Some(_), _) => ClockKind::Tables,
            (None, Some(_)) => ClockKind::Timed,
            (None, None) if hardware.is_data_sheet() => ClockKind::DataSheet,
            (None, None) => ClockKind::Fitted,
        }
    }
}

impl ClockSpread {
    /// What is known of a profile that says nothing itself.
    pub(super) fn usual_of(hardware: &Hardware) -> ClockSpread {
        ClockSpread::of_kind(ClockKind::of(hardware))
    }

    /// What is known of a profile that says nothing itself, by where its constants come from.
    ///
    /// Logarithms of measured over predicted time, from the kernel times of vLLM on A100, H100, H200, B200, L40S and RTX PRO 6000
    /// in `aiconfigurator-core` 0.12.0 (medians of a card, 16 bits):
    ///
    /// | against 0.7 of the arithmetic and 0.8 of the bandwidth on the data sheet | root mean square | among cards, without their mean |
    /// |---|---|---|
    /// | matrix products of 1,024 tokens and more | .12 | .12 |
    /// | matrix products of 32 tokens and fewer: reading weights | .10 | .10 |
    /// | attention of chunks of 1,024 tokens and more | .51 | .17 |
    /// | attention of decodes over 64 MB and more | .22 | .18 |
    ///
    /// The RTX 4090 that is fitted to a served run ([`rtx-4090-measured`](Hardware::NAMES)) lies .28 from its data sheet in products
    /// and .14 in bandwidth, which makes it .15 for both over seven cards.
    fn of_kind(kind: ClockKind) -> ClockSpread {
        let [products, prefill, decode, memory, host, link, copies] = match kind {
            // The table's second column. Engines differ by half in what a step takes on the host.
            ClockKind::DataSheet => [0.15, 0.5, 0.2, 0.15, 0.5, 0.3, 0.15],
            // Its third: other cards' kernels are as far from this one's as from each other's.
            ClockKind::Estimated => [0.12, 0.17, 0.18, 0.1, 0.3, 0.3, 0.15],
            // Kernels as measured; what is between them, and the host, is another server's.
            ClockKind::Tables => [0.05, 0.08, 0.08, 0.1, 0.3, 0.1, 0.15],
            // A device's own steps, timed; of the host nothing is known.
            ClockKind::Timed => [0.05, 0.05, 0.05, 0.05, 0.3, 0.3, 0.05],
            // A served run is met within a per cent, but under light load its steps are 10 % shorter. Of links and copies it says
            // nothing.
            ClockKind::Fitted => [0.05, 0.05, 0.05, 0.05, 0.15, 0.3, 0.15],
        };
        ClockSpread { products, prefill, decode, memory, host, link, copies }
    }

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
        if draw == 0 { ClockFactors::ONE } else { self.draw(seed, draw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::HardwareProfile;

    const ALL: ClockSpread =
        ClockSpread { products: 0.1, prefill: 0.2, decode: 0.1, memory: 0.2, host: 0.4, link: 0.3, copies: 0.2 };

    #[test]
    fn draws_are_fixed_for_ever_and_draw_0_is_the_profile() {
        let hardware = Hardware::named("rtx-4090").unwrap();
        assert_eq!(hardware.drawn(0, 0), hardware);
        assert_eq!(ALL.factors(7, 0), ClockFactors::ONE);
        assert_eq!(hardware.with_clock(&ClockFactors::ONE), hardware);
        // A changed value here changes every judgement by drawn clocks.
        let ClockFactors { products, host, copies, .. } = ALL.factors(0, 1);
        let shown = [products, host, copies].map(|factor| format!("{factor:.12}"));
        assert_eq!(shown, ["0.880478312325", "1.054629423013", "1.245851152009"]);
        assert_ne!(ALL.factors(0, 1), ALL.factors(0, 2));
        assert_ne!(ALL.factors(0, 1), ALL.factors(1, 1));
    }

    #[test]
    fn a_group_draws_the_same_whatever_the_others_are() {
        let narrow = ClockSpread { products: 0.0, decode: 0.0, ..ALL };
        for draw in 1..50 {
            let (wide, narrow) = (ALL.factors(3, draw), narrow.factors(3, draw));
            assert_eq!(narrow, ClockFactors { products: 1.0, decode: 1.0, ..wide });
        }
    }

    #[test]
    fn factors_are_as_far_apart_as_they_say_and_kinds_go_together() {
        let draws: Vec<ClockFactors> = (1..=4000).map(|draw| ALL.factors(0, draw)).collect();
        let logs = |of: fn(&ClockFactors) -> f64| draws.iter().map(|drawn| of(drawn).ln()).collect::<Vec<f64>>();
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / a.len() as f64;
        let correlation = |a: &[f64], b: &[f64]| product(a, b) / (product(a, a) * product(b, b)).sqrt();
        let (products, prefill) = (logs(|by| by.products), logs(|by| by.prefill));
        let (decode, memory, host) = (logs(|by| by.decode), logs(|by| by.memory), logs(|by| by.host));
        for (logs, spread) in [(&products, 0.1), (&prefill, 0.2), (&memory, 0.2), (&host, 0.4)] {
            assert!((product(logs, logs).sqrt() / spread - 1.0).abs() < 0.04, "{spread}");
            assert!(logs.iter().all(|log| log.abs() <= 2.5 * spread + 1e-12));
            assert!((logs.iter().sum::<f64>() / logs.len() as f64).abs() < 0.05 * spread);
        }
        assert!((correlation(&products, &prefill) - 0.5).abs() < 0.05);
        assert!((correlation(&decode, &memory) - 0.5).abs() < 0.05);
        for (one, other) in [(&products, &memory), (&prefill, &host), (&decode, &host)] {
            assert!(correlation(one, other).abs() < 0.05);
        }
    }

    #[test]
    fn what_is_known_of_a_profile_depends_on_where_it_comes_from() {
        let spread = |name: &str| Hardware::named(name).unwrap().clock_spread();
        assert_eq!(spread("rtx-4090"), ClockSpread::of_kind(ClockKind::DataSheet));
        assert_eq!(spread("rtx-4090-measured"), ClockSpread::of_kind(ClockKind::Fitted));
        assert_eq!(spread("h100"), ClockSpread::of_kind(ClockKind::Tables));
        assert_eq!(spread("h100-datasheet"), ClockSpread::of_kind(ClockKind::DataSheet));
        assert_eq!(spread("rtx-5090-estimated"), ClockSpread::of_kind(ClockKind::Estimated));
        let own = ClockSpread { host: 0.25, ..ClockSpread::default() };
        let profile = Hardware { spread: Some(own), ..Hardware::named("rtx-4090").unwrap() };
        assert_eq!(profile.clock_spread(), own);
    }

    #[test]
    fn a_file_says_its_spread_and_is_refused_with_what_is_wrong() {
        let hardware = Hardware {
            spread: Some(ClockSpread { products: 0.125, ..ClockSpread::default() }),
            ..Hardware::named("a10").unwrap()
        };
        let profile = HardwareProfile { hardware, provenance: None };
        let text = profile.to_toml();
        assert_eq!(HardwareProfile::parse(&text), Ok(profile), "{text}");
        let error = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            HardwareProfile::parse(&text.replace(from, to)).unwrap_err().1
        };
        assert_eq!(error("0.125", "2.0"), "products=\"2\": expected a standard deviation from 0 to 1 (0.1: 10 %)");
        assert!(error("products = 0.125", "product = 0.125").starts_with("unknown field `product`"));
    }
}
