//! Accelerators with other constants than their profile's: what each group of a clock's constants is, by every way of pricing.

use std::sync::Arc;

use super::keys::of_hardware;
use super::{ClockFactors, ClockSpread, Hardware, HostTimes, KernelTables};

/// Factors that tables of kernels may be multiplied by.
const SCALES: std::ops::RangeInclusive<f64> = 0.1..=10.0;
/// Times that they may hold.
const MICROSECONDS: std::ops::RangeInclusive<f64> = 0.001..=1e9;

impl Hardware {
    /// How far its clock may be off: what its profile says, or what is known of profiles of its kind.
    pub fn clock_spread(&self) -> ClockSpread {
        self.spread.unwrap_or_else(|| ClockSpread::usual_of(self))
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
    use crate::deploy::{KernelTimes, ReduceTable};

    #[test]
    fn each_group_slows_down_what_it_names_and_nothing_else() {
        let slower = |factors: ClockFactors| Hardware::named("h100-datasheet").unwrap().with_clock(&factors);
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
        let card = Hardware::named("h100-datasheet").unwrap();
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
}
