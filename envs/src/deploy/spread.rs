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

use std::sync::Arc;

use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Serialize};

use super::keys::of_hardware;
use super::{Hardware, HostTimes, KernelTables, SettingError};
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
/// Factors that tables of kernels may be multiplied by.
const SCALES: std::ops::RangeInclusive<f64> = 0.1..=10.0;
/// Times that they may hold.
const MICROSECONDS: std::ops::RangeInclusive<f64> = 0.001..=1e9;

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
enum ClockKind {
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

impl ClockKind {
    fn of(hardware: &Hardware) -> ClockKind {
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

impl Hardware {
    /// How far its clock may be off: what its profile says, or what is known of profiles of its kind.
    pub fn clock_spread(&self) -> ClockSpread {
        self.spread.unwrap_or_else(|| ClockSpread::of_kind(ClockKind::of(self)))
    }

    /// The groups of constants that its way of pricing knows: two shares of the peaks tell attention from nothing else.
    pub fn clock_groups(&self) -> Vec<&'static str> {
        if self.tables.is_some() || self.kernels.is_some() {
            vec!["products", "prefill", "decode", "host", "link", "copies"]
        } else {
            vec!["products", "memory", "host", "link", "copies"]
        }
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
        match (&mut hardware.tables, &mut hardware.kernels) {
            // Shares of the peaks are beneath what tables lack, whose scales are then on top.
            (Some(tables), _) => slow_down(Arc::make_mut(tables), factors),
            (None, Some(kernels)) => kernels.slow_down(factors),
            (None, None) => {
                hardware.compute_efficiency /= factors.products;
                hardware.bandwidth_efficiency /= factors.memory;
            }
        }
        if let Some(host) = &mut hardware.host {
            let HostTimes { step, sequence, exposed, exposed_sequence, chunk_overhead, launch, .. } = host;
            for time in [step, sequence, exposed, exposed_sequence, chunk_overhead] {
                *time = (*time * factors.host).min(10.0);
            }
            *launch = (*launch * factors.host).min(1.0);
        }
        hardware.step_overhead *= factors.host;
        hardware.sequence_overhead *= factors.host;
        hardware.link_bandwidth /= factors.link;
        hardware.pcie_bandwidth /= factors.copies;
        hardware.swap_overhead *= factors.copies;
        for (_, range, of) in of_hardware() {
            let value = of(&mut hardware);
            *value = value.clamp(range.low, range.high);
        }
        hardware
    }
}

/// Multiplies what tables say by the factor of its group.
fn slow_down(tables: &mut KernelTables, factors: &ClockFactors) {
    let scales = &mut tables.scales;
    for (scale, factor) in [
        (&mut scales.products, factors.products),
        (&mut scales.prefill, factors.prefill),
        (&mut scales.decode, factors.decode),
    ] {
        *scale = (*scale * factor).clamp(*SCALES.start(), *SCALES.end());
    }
    for time in tables.all_reduce.iter_mut().flat_map(|table| &mut table.us) {
        *time = (*time * factors.link).clamp(*MICROSECONDS.start(), *MICROSECONDS.end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::{HardwareProfile, KernelTimes, ReduceTable};

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
    fn each_group_slows_down_what_it_names_and_nothing_else() {
        let slower = |factors: ClockFactors| Hardware::named("h100").unwrap().with_clock(&factors);
        let before = slower(ClockFactors::ONE);
        let one = ClockFactors::ONE;
        let expected = Hardware { compute_efficiency: before.compute_efficiency / 1.25, ..before.clone() };
        assert_eq!(slower(ClockFactors { products: 1.25, ..one }), expected);
        let expected = Hardware { bandwidth_efficiency: before.bandwidth_efficiency / 1.25, ..before.clone() };
        assert_eq!(slower(ClockFactors { memory: 1.25, ..one }), expected);
        let (step, sequence) = (before.step_overhead * 2.0, before.sequence_overhead * 2.0);
        let expected = Hardware { step_overhead: step, sequence_overhead: sequence, ..before.clone() };
        assert_eq!(slower(ClockFactors { host: 2.0, ..one }), expected);
        let drawn = slower(ClockFactors { link: 2.0, copies: 4.0, ..one });
        assert_eq!(drawn.link_bandwidth, before.link_bandwidth / 2.0);
        assert_eq!(drawn.pcie_bandwidth, before.pcie_bandwidth / 4.0);
        assert_eq!(drawn.swap_overhead, before.swap_overhead * 4.0);
    }

    #[test]
    fn measured_kernels_are_slowed_down_where_they_were_measured() {
        let factors =
            ClockFactors { products: 1.5, prefill: 2.0, decode: 0.5, host: 3.0, link: 4.0, ..ClockFactors::ONE };
        let card = Hardware::named("h100").unwrap();
        let shares = |hardware: &Hardware| (hardware.compute_efficiency, hardware.bandwidth_efficiency);

        let all_reduce = vec![ReduceTable { devices: 2, bytes: vec![1024], us: vec![8.0] }];
        let tables = Arc::new(KernelTables { all_reduce, ..KernelTables::default() });
        let host = Some(HostTimes::default());
        let before = Hardware { tables: Some(Arc::clone(&tables)), host, ..card.clone() };
        let after = before.with_clock(&factors);
        let slowed = after.tables.as_ref().unwrap();
        assert_eq!((slowed.scales.products, slowed.scales.prefill, slowed.scales.decode), (1.5, 2.0, 0.5));
        assert_eq!(
            (slowed.all_reduce[0].us[0], tables.all_reduce[0].us[0]),
            (32.0, 8.0),
            "the profile's own are as they were"
        );
        assert_eq!(shares(&after), shares(&before), "shares of the peaks are beneath them");
        let (was, is) = (before.host.as_ref().unwrap(), after.host.as_ref().unwrap());
        assert_eq!(
            (is.step, is.exposed_sequence, is.launch),
            (was.step * 3.0, was.exposed_sequence * 3.0, was.launch * 3.0)
        );
        assert_eq!((is.client, is.cudagraph_tokens), (was.client, was.cudagraph_tokens));
        assert_eq!(before.with_clock(&ClockFactors::ONE), before);

        let kernels = KernelTimes {
            tokens: vec![1, 64],
            ps_per_weight: vec![0.5, 1.0],
            decode_bandwidth: 0.75,
            decode_sequence: 1e-7,
            chunk_compute: 0.5,
            chunk_tile: 128,
            attention_fixed: 1e-6,
            launch: 1e-3,
            swap_overlap: 0.0,
        };
        let expected = KernelTimes {
            ps_per_weight: vec![0.75, 1.5],
            decode_bandwidth: 1.5,
            decode_sequence: 0.5e-7,
            chunk_compute: 0.25,
            attention_fixed: 0.5e-6,
            launch: 3e-3,
            ..kernels.clone()
        };
        let after = Hardware { kernels: Some(kernels), ..card.clone() }.with_clock(&factors);
        assert_eq!((after.kernels.as_ref(), shares(&after)), (Some(&expected), shares(&card)));
    }

    #[test]
    fn whatever_is_drawn_is_a_valid_profile_of_the_same_card() {
        let widest =
            ClockSpread { products: 1.0, prefill: 1.0, decode: 1.0, memory: 1.0, host: 1.0, link: 1.0, copies: 1.0 };
        for name in Hardware::NAMES {
            let hardware = Hardware { spread: Some(widest), ..Hardware::named(name).unwrap() };
            for draw in 0..300 {
                let drawn = hardware.drawn(draw, draw);
                assert_eq!(drawn.validate(), Ok(()), "{name}, draw {draw}");
                assert_eq!(
                    (&drawn.name, drawn.memory_bytes, drawn.spread),
                    (&hardware.name, hardware.memory_bytes, Some(widest))
                );
            }
        }
    }

    #[test]
    fn what_is_known_of_a_profile_depends_on_where_it_comes_from() {
        let spread = |name: &str| Hardware::named(name).unwrap().clock_spread();
        assert_eq!(spread("rtx-4090"), ClockSpread::of_kind(ClockKind::DataSheet));
        assert_eq!(spread("rtx-4090-measured"), ClockSpread::of_kind(ClockKind::Fitted));
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
