//! Tables of another accelerator: every kernel keeps its share of the roofline.
//!
//! A time `t` becomes `t · roof_to / roof_from`, with `roof = max(FLOP / peak, bytes / bandwidth)` of the kernel's arithmetic and
//! least traffic on either accelerator.
//!
//! Where arithmetic alone is slower than on the relative, as on cards for games that have half the rate of their workstation
//! sisters, kernels come closer to that roof than they did: what kept them from it (exponents, waits, clocks) has not become
//! slower with it. The best size of a kernel then reaches the peak, because all prompt work together, norms and rotations included, does so to 93 % on an RTX 4090
//! (`rtx-4090-measured`), and every other keeps its distance from the best: what tiles and waves leave idle is idle on
//! either card. Nothing becomes faster than its bandwidth was, nor slower than its old share.
//!
//! An all-reduce keeps its least time, and the rest goes with the links.

use super::{AttentionShape, DecodeTable, ExpertTable, KernelTables, LatentTable, PrefillTable, ProductTable};
use crate::deploy::{Experts, Hardware, Precision, UNQUANTISED_BYTES};

/// Widths of `DeepSeek`-V3's latent attention, whose modules were measured.
const QUERY_RANK: f64 = 1536.0;
const RANK: f64 = 512.0;
const ROTARY: f64 = 64.0;
const VALUE: f64 = 128.0;

/// Share of a peak that kernels reach which are bound by nothing else.
const REACHED: f64 = 1.0;

/// Peaks of an accelerator for one kernel.
#[derive(Clone, Copy)]
struct Roof {
    flops: f64,
    bandwidth: f64,
}

impl Roof {
    /// Products in fp8 on one that has none are in 16 bits.
    fn of(hardware: &Hardware, precision: Precision) -> Roof {
        let is_fp8 = precision == Precision::Fp8 && hardware.peak_fp8_flops > 0.0;
        let flops = if is_fp8 { hardware.peak_fp8_flops } else { hardware.peak_flops };
        Roof { flops, bandwidth: hardware.peak_bandwidth }
    }

    fn seconds(self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops).max(bytes / self.bandwidth)
    }
}

/// Both accelerators.
struct Pair<'a> {
    from: &'a Hardware,
    to: &'a Hardware,
}

impl Pair<'_> {
    /// The same of a kernel at all its sizes, with the arithmetic and the bytes of each.
    fn curve(&self, us: &mut [f64], precision: Precision, work: impl Fn(usize) -> (f64, f64)) {
        let [from, to] = [self.from, self.to].map(|hardware| Roof::of(hardware, precision));
        let best = |share: fn(Roof, (f64, f64)) -> f64| {
            let shares = us.iter().enumerate().map(|(size, us)| share(from, work(size)) * 1e6 / us);
            shares.fold(0.0, f64::max).min(1.0)
        };
        let flops_reached = best(|roof, (flops, _)| flops / roof.flops);
        let bytes_reached = best(|roof, (_, bytes)| bytes / roof.bandwidth);
        let reached = |roof: Roof, flops_reached: f64| Roof {
            flops: roof.flops * flops_reached,
            bandwidth: roof.bandwidth * bytes_reached,
        };
        let is_slower_alone = to.flops / from.flops < to.bandwidth / from.bandwidth;
        let closer = if is_slower_alone { flops_reached.max(REACHED) } else { flops_reached };
        let (before, after) = (reached(from, flops_reached), reached(to, closer));
        for (size, us) in us.iter_mut().enumerate() {
            let (flops, bytes) = work(size);
            let by_share = *us * to.seconds(flops, bytes) / from.seconds(flops, bytes);
            let as_before = *us * from.bandwidth / to.bandwidth;
            let by_best = *us * after.seconds(flops, bytes) / before.seconds(flops, bytes);
            *us = by_best.max(as_before).min(by_share);
        }
    }

    /// What a kernel takes on the other accelerator that takes `us` on the first.
    fn us(&self, us: f64, precision: Precision, flops: f64, bytes: f64) -> f64 {
        let [from, to] = [self.from, self.to].map(|hardware| Roof::of(hardware, precision));
        let by_share = us * to.seconds(flops, bytes) / from.seconds(flops, bytes);
        let as_before = us * from.bandwidth / to.bandwidth;
        by_share.min(as_before.max(flops / (to.flops * REACHED) * 1e6))
    }
}

impl KernelTables {
    /// The same of `to`, measured on `from`. Products in fp8 are left out where `to` has none.
    #[must_use]
    pub fn scaled(&self, from: &Hardware, to: &Hardware) -> KernelTables {
        let pair = Pair { from, to };
        let mut tables = self.clone();
        let is_known = |precision| precision != Precision::Fp8 || to.peak_fp8_flops > 0.0;
        tables.products.retain(|table| is_known(table.precision));
        tables.experts.retain(|table| is_known(table.precision));
        tables.latent.retain(|table| is_known(table.precision));
        tables.products.iter_mut().for_each(|table| table.scale(&pair));
        tables.prefill.iter_mut().for_each(|table| table.scale(&pair));
        tables.decode.iter_mut().for_each(|table| table.scale(&pair));
        tables.experts.iter_mut().for_each(|table| table.scale(&pair));
        tables.latent.iter_mut().for_each(|table| table.scale(&pair));
        let links = from.link_bandwidth / to.link_bandwidth;
        for table in &mut tables.all_reduce {
            let least = table.us.iter().copied().fold(f64::INFINITY, f64::min);
            table.us.iter_mut().for_each(|us| *us = least + (*us - least) * links);
        }
        tables
    }
}

impl ProductTable {
    fn scale(&mut self, pair: &Pair) {
        for row in &mut self.rows {
            let [n, k] = [row.n, row.k].map(f64::from);
            pair.curve(&mut row.us, self.precision, |size| {
                let tokens = f64::from(self.tokens[size]);
                let bytes = n * k * self.precision.bytes() + tokens * (n + k) * UNQUANTISED_BYTES;
                (2.0 * tokens * n * k, bytes)
            });
        }
    }
}

impl AttentionShape {
    /// Bytes of a token's keys and values, and of its query and output.
    fn bytes(&self) -> [f64; 2] {
        let [heads, kv_heads, width] = [self.heads, self.kv_heads, self.head_dim].map(f64::from);
        [2.0 * kv_heads * width * self.kv.bytes(), 2.0 * heads * width * UNQUANTISED_BYTES]
    }

    fn flops_per_pair(&self) -> f64 {
        4.0 * f64::from(self.heads) * f64::from(self.head_dim)
    }
}

impl PrefillTable {
    fn scale(&mut self, pair: &Pair) {
        let bytes: f64 = self.shape.bytes().iter().sum();
        pair.curve(&mut self.us, Precision::Bf16, |size| {
            let tokens = f64::from(self.tokens[size]);
            (self.shape.flops_per_pair() * self.shape.pairs(tokens), tokens * bytes)
        });
    }
}

impl DecodeTable {
    fn scale(&mut self, pair: &Pair) {
        let [kept, passing] = self.shape.bytes();
        for (row, sequences) in self.us.iter_mut().zip(&self.sequences) {
            for (us, context) in row.iter_mut().zip(&self.context) {
                let (sequences, seen) = (f64::from(*sequences), self.shape.seen(f64::from(*context)));
                let flops = self.shape.flops_per_pair() * sequences * seen;
                *us = pair.us(*us, Precision::Bf16, flops, sequences * (seen * kept + passing));
            }
        }
    }
}

impl ExpertTable {
    fn scale(&mut self, pair: &Pair) {
        let [hidden, inter, top_k] = [self.hidden, self.inter, self.top_k].map(f64::from);
        let params = 3.0 * hidden * inter;
        let experts = Experts {
            layers: 1,
            count: self.experts,
            per_token: self.top_k,
            params,
            weight_bytes: self.precision.bytes(),
        };
        pair.curve(&mut self.us, self.precision, |size| {
            let tokens = f64::from(self.tokens[size]);
            let bytes = experts.distinct(tokens) * params * experts.weight_bytes
                + tokens * top_k * (2.0 * hidden + 3.0 * inter) * UNQUANTISED_BYTES;
            (2.0 * tokens * top_k * params, bytes)
        });
    }
}

impl LatentTable {
    fn scale(&mut self, pair: &Pair) {
        let [hidden, heads] = [self.hidden, self.heads].map(f64::from);
        let key = VALUE + ROTARY;
        let weights = hidden * (QUERY_RANK + RANK + ROTARY)
            + QUERY_RANK * heads * key
            + RANK * heads * 2.0 * VALUE
            + heads * VALUE * hidden;
        let (precision, read) = (self.precision, weights * self.precision.bytes());
        for (us, tokens) in self.prefill_us.iter_mut().zip(&self.tokens) {
            let tokens = f64::from(*tokens);
            let pairs = tokens * (tokens + 1.0) / 2.0;
            *us = pair.us(*us, precision, 2.0 * tokens * weights + 2.0 * heads * (key + VALUE) * pairs, read);
        }
        let kept = (RANK + ROTARY) * self.kv.bytes();
        for (row, sequences) in self.decode_us.iter_mut().zip(&self.sequences) {
            for (us, context) in row.iter_mut().zip(&self.context) {
                let (sequences, context) = (f64::from(*sequences), f64::from(*context));
                let flops = 2.0 * sequences * (weights + heads * (2.0 * RANK + ROTARY) * context);
                *us = pair.us(*us, precision, flops, read + sequences * context * kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{KvPrecision, ProductRow, ReduceTable};
    use super::*;

    #[test]
    fn the_best_size_comes_to_a_slower_roof_and_the_others_keep_their_distance() {
        let from = Hardware::data_sheet("h100").unwrap();
        let to = Hardware { peak_flops: 0.4 * from.peak_flops, ..from.clone() };
        let (tokens, us) = (vec![1, 2048, 8192], vec![12.5, 100.0, 310.0]);
        let rows = vec![ProductRow { n: 4096, k: 4096, us }];
        let products = vec![ProductTable { precision: Precision::Bf16, tokens, rows }];
        let scaled = KernelTables { products, ..KernelTables::default() }.scaled(&from, &to);
        let peak = 2.0 * 8192.0 * 4096_f64.powi(2) / to.peak_flops * 1e6;
        let expected = [12.5, peak * 100.0 / 310.0, peak];
        for (us, expected) in scaled.products[0].rows[0].us.iter().zip(expected) {
            assert!((us / expected - 1.0).abs() < 1e-9, "{us} {expected}");
        }
    }

    #[test]
    fn a_card_of_twice_the_peaks_takes_half_the_time() {
        let shape = AttentionShape { heads: 8, kv_heads: 2, head_dim: 128, window: 0, kv: KvPrecision::Bf16 };
        let tables = KernelTables {
            products: vec![ProductTable {
                precision: Precision::Bf16,
                tokens: vec![1, 4096],
                rows: vec![ProductRow { n: 4096, k: 4096, us: vec![20.0, 600.0] }],
            }],
            prefill: vec![PrefillTable { shape, tokens: vec![1, 8192], us: vec![8.0, 900.0] }],
            decode: vec![DecodeTable { shape, sequences: vec![1], context: vec![1, 4096], us: vec![vec![8.0, 10.0]] }],
            all_reduce: vec![ReduceTable { devices: 2, bytes: vec![1, 1 << 20], us: vec![4.0, 24.0] }],
            ..KernelTables::default()
        };
        let from = Hardware::data_sheet("h100").unwrap();
        let to = Hardware {
            peak_flops: 2.0 * from.peak_flops,
            peak_bandwidth: 2.0 * from.peak_bandwidth,
            link_bandwidth: 2.0 * from.link_bandwidth,
            ..from.clone()
        };
        assert_eq!(tables.scaled(&from, &from), tables);
        let halved = tables.scaled(&from, &to);
        assert_eq!(halved.products[0].rows[0].us, [10.0, 300.0]);
        assert_eq!((&halved.prefill[0].us[..], &halved.decode[0].us[0][..]), (&[4.0, 450.0][..], &[4.0, 5.0][..]));
        assert_eq!(halved.all_reduce[0].us, [4.0, 14.0]);
        // Twice the arithmetic alone helps only what is bound by it.
        let to = Hardware { peak_flops: 2.0 * from.peak_flops, ..from.clone() };
        assert_eq!(tables.scaled(&from, &to).products[0].rows[0].us, [20.0, 300.0]);
        // Half of it alone leaves what has room below the roof as it is, and nothing is slower than at its old share.
        let to = Hardware { peak_flops: 0.5 * from.peak_flops, ..from.clone() };
        let slower = tables.scaled(&from, &to);
        let at_the_roof = 2.0 * 4096_f64.powi(3) / to.peak_flops * 1e6;
        assert_eq!(slower.products[0].rows[0].us, [20.0, at_the_roof.max(600.0)]);
        assert_eq!(slower.decode[0].us[0], [8.0, 10.0]);
        let full = KernelTables {
            products: vec![ProductTable {
                tokens: vec![4096],
                rows: vec![ProductRow { n: 4096, k: 4096, us: vec![at_the_roof * 0.45] }],
                ..tables.products[0].clone()
            }],
            ..tables
        };
        assert!(full.scaled(&from, &to).products[0].rows[0].us[0] <= at_the_roof * 0.9 + 1e-9);
    }
}
