//! Times by shape: of the table that has it, else of its nearest relatives, by the work they share.

use std::collections::BTreeSet;

use super::curve::{Beyond, at, log_between, on_grid};
use super::{
    AttentionShape, Curve, DecodeTable, ExpertShape, ExpertTable, KernelTables, LatentShape, LatentTable, PrefillTable,
    ProductRow, ProductTable, ReduceTable,
};
use crate::deploy::Precision;

/// Rows of queries and keys that attention of prompts works on at once: tiles at the edges are half empty.
const TILE_ROWS: f64 = 64.0;
/// Tokens of a window that attention over all tokens tells as much of as another precision of keys would, twice over.
const WIDE_WINDOW: f64 = 512.0;

/// How far apart two sizes are, both sides alike.
fn apart(one: u32, other: u32) -> f64 {
    (f64::from(one.max(1)) / f64::from(other.max(1))).ln().abs()
}

/// The item that is least far away, the first of those that are alike.
fn nearest<T>(items: &[T], far: impl Fn(&T) -> f64) -> Option<&T> {
    items.iter().min_by(|one, other| far(one).total_cmp(&far(other)))
}

impl KernelTables {
    /// A product of `tokens` with weights of `precision`, `k` inputs and `n` outputs: between measured shapes by the logarithms of
    /// both. `None` where that precision was not measured. Microseconds.
    pub fn product_us(&self, precision: Precision, n: u32, k: u32, tokens: f64) -> Option<f64> {
        self.product_curve(precision, n, k).map(|curve| curve.at(tokens))
    }

    /// The same at every knot of the table.
    pub fn product_curve(&self, precision: Precision, n: u32, k: u32) -> Option<Curve> {
        let table = self.products.iter().find(|table| table.precision == precision)?;
        let us = table.row(n, k)?;
        Some(Curve { knots: table.tokens.iter().copied().map(f64::from).collect(), us })
    }

    /// Attention of one prompt of `tokens`, nothing of it cached. `None` where no prompt was measured. Microseconds.
    pub fn prefill_us(&self, shape: &AttentionShape, tokens: f64) -> Option<f64> {
        Some(self.prefill_around(shape)?.us_of(shape, tokens))
    }

    /// Attention of `sequences` that generate a token each, with `context` tokens to attend to. `None` where no decode was
    /// measured. Microseconds.
    pub fn decode_us(&self, shape: &AttentionShape, sequences: f64, context: f64) -> Option<f64> {
        self.decode_near(shape)?.us_of(shape, sequences, context)
    }

    /// An all-reduce of `bytes` among `devices`; of another number of devices if theirs was not measured. Microseconds.
    pub fn all_reduce_us(&self, devices: u32, bytes: f64) -> Option<f64> {
        let table = self.reduce_near(devices)?;
        // What passes through a link is (d − 1) / d of the bytes.
        let [here, there] = [devices, table.devices].map(|count| 1.0 - 1.0 / f64::from(count.max(1)));
        Some(at(&table.bytes, &table.us, bytes, Beyond::Linear) * here / there)
    }

    /// Routed experts of one layer for `tokens`. `None` where that precision was not measured. Microseconds.
    pub fn experts_us(&self, shape: &ExpertShape, tokens: f64) -> Option<f64> {
        Some(self.experts_near(shape)?.us_of(shape, tokens))
    }

    /// Latent attention of one prompt of `tokens` in one layer, nothing of it cached, with all its projections. `None` where that
    /// width or precision was not measured. Microseconds.
    pub fn latent_prefill_us(&self, shape: &LatentShape, tokens: f64) -> Option<f64> {
        let table = self.latent_near(shape)?;
        Some(at(&table.tokens, &table.prefill_us, tokens, Beyond::Square) * table.work(shape))
    }

    /// Latent attention of `sequences` that generate a token each, in one layer, with all its projections. Microseconds.
    pub fn latent_decode_us(&self, shape: &LatentShape, sequences: f64, context: f64) -> Option<f64> {
        let table = self.latent_near(shape)?;
        let us = on_grid((&table.sequences, &table.context, &table.decode_us), sequences, context)?;
        Some(us * table.work(shape))
    }

    /// The measured shapes that attention of `shape` is read from.
    pub fn for_attention(&self, shape: &AttentionShape) -> Vec<AttentionShape> {
        let prefill = self.prefill_around(shape).map(|around| [around.low.shape, around.high.shape]);
        prefill.into_iter().flatten().chain(self.decode_near(shape).map(|table| table.shape)).collect()
    }

    /// The prompts of the nearest kind with no more heads and with no fewer; how many queries share a key comes before how near
    /// their number is.
    pub(super) fn prefill_around(&self, shape: &AttentionShape) -> Option<PromptsAround<'_>> {
        let kind = self.prefill.iter().map(|table| shape.unlike(&table.shape)).min_by(f64::total_cmp)?;
        let far = |other: &AttentionShape| shape.far_in_group(other) + 0.5 * apart(shape.heads, other.heads);
        let of_kind = |is_side: fn(u32, u32) -> bool| {
            let tables = self.prefill.iter().filter(|table| shape.unlike(&table.shape) <= kind);
            let on_side = tables.filter(|table| is_side(table.shape.heads, shape.heads));
            on_side.min_by(|one, other| far(&one.shape).total_cmp(&far(&other.shape)))
        };
        let (low, high) = (of_kind(|heads, other| heads <= other), of_kind(|heads, other| heads >= other));
        Some(PromptsAround { low: low.or(high)?, high: high.or(low)? })
    }

    pub(super) fn decode_near(&self, shape: &AttentionShape) -> Option<&DecodeTable> {
        nearest(&self.decode, |table| shape.far(&table.shape))
    }

    pub(super) fn reduce_near(&self, devices: u32) -> Option<&ReduceTable> {
        nearest(&self.all_reduce, |table| apart(table.devices, devices))
    }

    pub(super) fn experts_near(&self, shape: &ExpertShape) -> Option<&ExpertTable> {
        let is_of = |table: &&ExpertTable| table.precision == shape.precision;
        let far = |table: &ExpertTable| {
            apart(table.hidden, shape.hidden)
                + apart(table.inter, shape.inter)
                + 2.0 * apart(table.experts, shape.experts)
                + apart(table.top_k, shape.top_k)
        };
        self.experts.iter().filter(is_of).min_by(|one, other| far(one).total_cmp(&far(other)))
    }

    pub(super) fn latent_near(&self, shape: &LatentShape) -> Option<&LatentTable> {
        let is_of = |table: &&LatentTable| (table.hidden, table.precision) == (shape.hidden, shape.precision);
        let unlike = |kv| if kv == shape.kv { 0.0 } else { 8.0 };
        let far = |table: &LatentTable| apart(table.heads, shape.heads) + unlike(table.kv);
        self.latent.iter().filter(is_of).min_by(|one, other| far(one).total_cmp(&far(other)))
    }
}

impl ProductTable {
    /// Times of `n` outputs and `k` inputs at each of the table's tokens: of the shapes around it, weighted by how near they are
    /// in log n and log k, each by its own time for a weight. Beyond the largest shape in proportion to weights, below the
    /// smallest constant.
    fn row(&self, n: u32, k: u32) -> Option<Vec<f64>> {
        if let Some(row) = self.find(n, k) {
            return Some(row.us.clone());
        }
        let around = [(n, ProductRow::outputs as fn(&ProductRow) -> u32), (k, ProductRow::inputs)]
            .map(|(size, of)| self.around(size, of));
        let [outputs, inputs] = around;
        let mut found: Vec<(&ProductRow, f64)> = Vec::with_capacity(4);
        for (n, by_n) in outputs? {
            for (k, by_k) in inputs? {
                let row = self.find(n, k).filter(|_| by_n * by_k > 0.0);
                found.extend(row.map(|row| (row, by_n * by_k)));
            }
        }
        if found.is_empty() {
            let row = nearest(&self.rows, |row| apart(row.n, n) + apart(row.k, k))?;
            found.push((row, 1.0));
        }
        let [least_n, least_k] = [ProductRow::outputs, ProductRow::inputs]
            .map(|of: fn(&ProductRow) -> u32| self.rows.iter().map(of).min().unwrap_or(1));
        let weights = (f64::from(n.max(least_n)) * f64::from(k.max(least_k))).ln();
        let total: f64 = found.iter().map(|(_, share)| share).sum();
        let at = |index: usize| {
            let log = |row: &ProductRow| {
                let us = row.us.get(index).copied().unwrap_or_default();
                us.ln() - (f64::from(row.n) * f64::from(row.k)).ln()
            };
            (weights + found.iter().map(|(row, share)| share / total * log(row)).sum::<f64>()).exp()
        };
        Some((0..self.tokens.len()).map(at).collect())
    }

    fn find(&self, n: u32, k: u32) -> Option<&ProductRow> {
        self.rows.iter().find(|row| (row.n, row.k) == (n, k))
    }

    /// The sizes around `size` among the shapes, and how much each of them counts.
    fn around(&self, size: u32, of: fn(&ProductRow) -> u32) -> Option<[(u32, f64); 2]> {
        let low = self.rows.iter().map(of).filter(|other| *other <= size).max();
        let high = self.rows.iter().map(of).filter(|other| *other >= size).min();
        match (low, high) {
            (Some(low), Some(high)) if low < high => {
                let share = apart(size, low) / apart(high, low);
                Some([(low, 1.0 - share), (high, share)])
            }
            (Some(only), _) | (None, Some(only)) => Some([(only, 1.0), (only, 0.0)]),
            (None, None) => None,
        }
    }
}

impl ProductRow {
    fn outputs(&self) -> u32 {
        self.n
    }

    fn inputs(&self) -> u32 {
        self.k
    }
}

impl AttentionShape {
    /// How unlike the kernels of another shape are: by width, window, and what keys are kept in.
    fn unlike(&self, other: &AttentionShape) -> f64 {
        let window = match (self.window, other.window) {
            (one, another) if one == another => 0.0,
            // All tokens tell of a window what a window cannot tell of all, and of a wide one the most.
            (one, 0) => (WIDE_WINDOW / f64::from(one)).min(4.0),
            (0, _) => 64.0,
            (one, another) => 2.0 + apart(one, another),
        };
        let kv = if self.kv == other.kv { 0.0 } else { 1.0 };
        window + kv + 4.0 * apart(self.head_dim, other.head_dim)
    }

    /// How far apart the queries that share a key are in number.
    fn far_in_group(&self, other: &AttentionShape) -> f64 {
        let group = |shape: &AttentionShape| f64::from(shape.heads) / f64::from(shape.kv_heads.max(1));
        (group(self) / group(other)).ln().abs()
    }

    /// How far another shape is from telling what decodes of this one take.
    fn far(&self, other: &AttentionShape) -> f64 {
        self.unlike(other) + 2.0 * self.far_in_group(other) + apart(self.kv_heads, other.kv_heads)
    }

    /// What a prompt of `tokens` has to do: pairs, and those of the tiles at the edges of what it attends to, for each row.
    fn tiled_work(&self, tokens: f64) -> f64 {
        let edges = tokens + (tokens - self.seen(tokens));
        f64::from(self.heads) * f64::from(self.head_dim) * (self.pairs(tokens) + TILE_ROWS * edges)
    }

    /// Tokens that attention reads of a sequence of `context`.
    pub(super) fn seen(&self, context: f64) -> f64 {
        if self.window == 0 { context } else { context.min(f64::from(self.window)) }
    }

    /// Pairs of a token and one it attends to in a prompt of `tokens`.
    pub(super) fn pairs(&self, tokens: f64) -> f64 {
        let window = self.seen(tokens);
        window * (window + 1.0) / 2.0 + (tokens - window) * window
    }
}

/// The prompts that those of another shape are read from.
pub(super) struct PromptsAround<'a> {
    low: &'a PrefillTable,
    high: &'a PrefillTable,
}

impl PromptsAround<'_> {
    /// The time of `shape`: between both by the logarithms of heads, because a few heads leave an accelerator idle that more of
    /// them fill; outside of both in proportion.
    pub(super) fn us_of(&self, shape: &AttentionShape, tokens: f64) -> f64 {
        let [low, high] = [self.low, self.high].map(|table| table.shape.heads);
        if low == high {
            return self.low.us_of(shape, tokens);
        }
        let with = |heads| AttentionShape { heads, ..*shape };
        let (low_us, high_us) = (self.low.us_of(&with(low), tokens), self.high.us_of(&with(high), tokens));
        log_between(f64::from(low), low_us, f64::from(high), high_us, f64::from(shape.heads))
    }

    /// Tokens of the knots of both.
    pub(super) fn tokens(&self) -> Vec<u32> {
        let knots: BTreeSet<u32> = self.low.tokens.iter().chain(&self.high.tokens).copied().collect();
        knots.into_iter().collect()
    }
}

impl PrefillTable {
    /// The time of `shape`: beyond what any prompt takes, in proportion to pairs, heads and their width.
    fn us_of(&self, shape: &AttentionShape, tokens: f64) -> f64 {
        let beyond = if self.shape.window == 0 { Beyond::Square } else { Beyond::Linear };
        let us = at(&self.tokens, &self.us, tokens, beyond);
        let kind = |shape: &AttentionShape| (shape.heads, shape.head_dim, shape.window);
        if kind(shape) == kind(&self.shape) {
            return us;
        }
        let fixed = self.us.first().map_or(us, |first| first.min(us));
        let tokens = tokens.max(1.0);
        fixed + (us - fixed) * shape.tiled_work(tokens) / self.shape.tiled_work(tokens)
    }
}

impl DecodeTable {
    /// The time of `shape`. A sequence's keys of one head are what a kernel works on apart, so that half the heads of twice the
    /// sequences are the same to it, and half the bytes of a token those of half the context.
    pub(super) fn us_of(&self, shape: &AttentionShape, sequences: f64, context: f64) -> Option<f64> {
        let seen = if shape.window == self.shape.window { context } else { shape.seen(context) };
        let bytes = |shape: &AttentionShape| f64::from(shape.head_dim) * shape.kv.bytes();
        let heads = f64::from(shape.kv_heads) / f64::from(self.shape.kv_heads);
        let seen = seen * bytes(shape) / bytes(&self.shape);
        on_grid((&self.sequences, &self.context, &self.us), sequences * heads, seen)
    }
}

impl ExpertTable {
    /// What it was measured for.
    pub fn shape(&self) -> ExpertShape {
        let ExpertTable { precision, hidden, inter, top_k, experts, .. } = *self;
        ExpertShape { precision, hidden, inter, top_k, experts }
    }

    /// The time of `shape`: as many tokens to an expert take as long for each weight.
    pub(super) fn us_of(&self, shape: &ExpertShape, tokens: f64) -> f64 {
        let load = |shape: &ExpertShape| f64::from(shape.top_k) / f64::from(shape.experts);
        let weights = |shape: &ExpertShape| f64::from(shape.experts) * f64::from(shape.hidden) * f64::from(shape.inter);
        let here = self.shape();
        if here == *shape {
            return at(&self.tokens, &self.us, tokens, Beyond::Linear);
        }
        let tokens = tokens * load(shape) / load(&here);
        at(&self.tokens, &self.us, tokens, Beyond::Linear) * weights(shape) / weights(&here)
    }
}

impl LatentTable {
    /// The share of its work that `shape` does.
    pub(super) fn work(&self, shape: &LatentShape) -> f64 {
        f64::from(shape.heads) / f64::from(self.heads)
    }
}
