//! The tables that are built into kvtide: of every family a grid of shapes, from which those of any model are read.

use std::collections::{BTreeMap, BTreeSet};

use kvtide_envs::deploy::{
    AttentionShape, Curve, DecodeTable, ExpertShape, KernelShapes, KernelTables, KvPrecision, LatentTable, Model,
    Precision,
};

/// Degrees of tensor parallelism whose shapes are kept.
const DEVICES: [u32; 4] = [1, 2, 4, 8];
/// Outputs and inputs kept of products: every size that was measured from 128 on, but where two lie within a quarter.
const SIZES: [u32; 15] = [128, 256, 512, 1024, 1536, 2048, 2560, 3584, 4096, 5120, 7168, 8192, 12_288, 16_384, 65_536];
/// Tokens kept of products.
const TOKENS: [u32; 20] =
    [1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16_384, 32_768];
/// Knots kept of decodes.
const SEQUENCES: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CONTEXT: [u32; 11] = [16, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 131_072];
/// Query heads kept of prompts, and key/value heads of decodes: of every width, window and precision of keys and values, one with
/// a key for each query and one with a key for some.
const HEADS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 96];
const KV_HEADS: [u32; 4] = [1, 4, 8, 16];
/// Queries to a key where some share one.
const GROUP: u32 = 6;
/// Windows of so many tokens are read from attention over all.
const WIDE_WINDOW: u32 = 8192;
/// Tokens kept of prompts, and of experts.
const PROMPTS: [u32; 13] = [1, 16, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 8192, 16_384, 32_768];
const ROUTED: [u32; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16_384];
/// Digits kept of a time.
const DIGITS: i32 = 3;

/// A grid of `tables`.
pub(super) fn built_in(tables: &KernelTables) -> KernelTables {
    let mut kept = tables.clone();
    for table in &mut kept.products {
        let tokens = some_of(&table.tokens, &TOKENS);
        table.rows.retain(|row| SIZES.contains(&row.n) && SIZES.contains(&row.k));
        for row in &mut table.rows {
            row.us = at(&table.tokens, &row.us, &tokens);
        }
        table.tokens = tokens;
    }
    let mut shapes = attention_shapes(tables);
    shapes.extend(grid_of(tables.prefill.iter().map(|table| table.shape), &HEADS, |shape| shape.heads));
    kept.prefill.retain(|table| shapes.contains(&table.shape));
    let mut shapes = attention_shapes(tables);
    shapes.extend(grid_of(tables.decode.iter().map(|table| table.shape), &KV_HEADS, |shape| shape.kv_heads));
    kept.decode.retain(|table| shapes.contains(&table.shape));
    kept.decode.iter_mut().for_each(thin_decode);
    for table in &mut kept.prefill {
        let tokens = some_of(&table.tokens, &PROMPTS);
        table.us = at(&table.tokens, &table.us, &tokens);
        table.tokens = tokens;
    }
    let experts = expert_shapes();
    kept.experts.retain(|table| experts.contains(&key(&table.shape())));
    for table in &mut kept.experts {
        let tokens = some_of(&table.tokens, &ROUTED);
        table.us = at(&table.tokens, &table.us, &tokens);
        table.tokens = tokens;
    }
    kept.latent.retain(|table| table.heads >= 8 && !(table.heads == 8 && table.kv == KvPrecision::Fp8));
    kept.latent.iter_mut().for_each(thin_latent);
    kept.round(DIGITS);
    kept
}

/// Those of `knots` that are kept; all of them where that is too few.
fn some_of(knots: &[u32], kept: &[u32]) -> Vec<u32> {
    let some: Vec<u32> = knots.iter().copied().filter(|knot| kept.contains(knot)).collect();
    if some.len() < 4 { knots.to_vec() } else { some }
}

/// The values at some of the knots.
fn at(knots: &[u32], us: &[f64], kept: &[u32]) -> Vec<f64> {
    let curve = Curve { knots: knots.iter().copied().map(f64::from).collect(), us: us.to_vec() };
    kept.iter().map(|knot| curve.at(f64::from(*knot))).collect()
}

/// What the built-in models need, and what they are read from where theirs was not measured.
fn attention_shapes(tables: &KernelTables) -> BTreeSet<AttentionShape> {
    let mut shapes = BTreeSet::new();
    for model in Model::NAMES.into_iter().filter_map(Model::named) {
        for devices in DEVICES {
            for (shape, _) in KernelShapes::of(&model, devices).attention {
                shapes.extend(tables.for_attention(&shape));
            }
        }
    }
    shapes
}

/// Of each kind of attention and each of `sizes` the shapes nearest to a key for each query, and to one for [`GROUP`] of them.
fn grid_of(
    measured: impl Iterator<Item = AttentionShape>,
    sizes: &[u32],
    size: fn(&AttentionShape) -> u32,
) -> BTreeSet<AttentionShape> {
    let group = |shape: &AttentionShape| f64::from(shape.heads) / f64::from(shape.kv_heads);
    let mut found: BTreeMap<_, (f64, AttentionShape)> = BTreeMap::new();
    for shape in measured.filter(|shape| shape.window < WIDE_WINDOW && sizes.contains(&size(shape))) {
        let is_shared = shape.heads > shape.kv_heads;
        let wanted = if is_shared { f64::from(GROUP) } else { 1.0 };
        let far = (group(&shape) / wanted).ln().abs();
        let kind = (shape.head_dim, shape.window, shape.kv, size(&shape), is_shared);
        let kept = found.entry(kind).or_insert((far, shape));
        if far < kept.0 {
            *kept = (far, shape);
        }
    }
    found.into_values().map(|(_, shape)| shape).collect()
}

fn key(shape: &ExpertShape) -> (Precision, [u32; 4]) {
    (shape.precision, [shape.hidden, shape.inter, shape.top_k, shape.experts])
}

/// Experts of the built-in models, in the precisions they are served in.
fn expert_shapes() -> BTreeSet<(Precision, [u32; 4])> {
    let mut shapes = BTreeSet::new();
    for model in Model::NAMES.into_iter().filter_map(Model::named) {
        for devices in DEVICES {
            let Some((shape, _)) = KernelShapes::of(&model, devices).experts else { continue };
            for precision in [Precision::Bf16, Precision::Fp8, Precision::Int4, Precision::ExpertsMxfp4] {
                shapes.insert(key(&ExpertShape { precision, ..shape }));
            }
        }
    }
    shapes
}

/// Some of a grid's rows and columns; a row that was cut short stays so.
fn thin(sequences: &mut Vec<u32>, context: &mut Vec<u32>, us: &mut Vec<Vec<f64>>) {
    let columns: Vec<usize> = (0..context.len()).filter(|column| CONTEXT.contains(&context[*column])).collect();
    let rows: Vec<usize> = (0..sequences.len()).filter(|row| SEQUENCES.contains(&sequences[*row])).collect();
    // Where the knots are others, all of them stay.
    if columns.len() < 4 || rows.len() < 4 {
        return;
    }
    let kept = |row: &Vec<f64>| columns.iter().filter_map(|column| row.get(*column).copied()).collect::<Vec<f64>>();
    *us = rows.iter().map(|row| kept(&us[*row])).collect();
    *context = columns.iter().map(|column| context[*column]).collect();
    *sequences = rows.iter().map(|row| sequences[*row]).collect();
    let filled = us.iter().take_while(|row| !row.is_empty()).count();
    us.truncate(filled);
    sequences.truncate(filled);
}

fn thin_decode(table: &mut DecodeTable) {
    thin(&mut table.sequences, &mut table.context, &mut table.us);
}

fn thin_latent(table: &mut LatentTable) {
    let tokens = some_of(&table.tokens, &PROMPTS);
    table.prefill_us = at(&table.tokens, &table.prefill_us, &tokens);
    table.tokens = tokens;
    // Its contexts are one more than these.
    table.context.iter_mut().for_each(|context| *context -= *context % 2);
    thin(&mut table.sequences, &mut table.context, &mut table.decode_us);
}

#[cfg(test)]
mod tests {
    use super::super::{Framework, PerfDb};
    use super::*;

    /// Relative errors, and what they are of.
    #[derive(Default)]
    struct Errors(BTreeMap<String, Vec<f64>>);

    impl Errors {
        fn add(&mut self, kinds: &[&str], read: Option<f64>, measured: f64) {
            for kind in kinds {
                self.0.entry((*kind).to_owned()).or_default().extend(read.map(|us| (us / measured - 1.0).abs()));
            }
        }

        /// Holds the median and the 95th percentile of each kind against what they were when the grid was chosen.
        fn check(self, system: &str, bounds: &[(&str, f64, f64)]) {
            let mut beyond = Vec::new();
            for (kind, mut errors) in self.0 {
                errors.sort_by(f64::total_cmp);
                let at = |share: f64| errors[((errors.len() - 1) as f64 * share) as usize];
                let [median, p95, most] = [0.5, 0.95, 1.0].map(|share| at(share) * 100.0);
                println!(
                    "{system}, {kind}: {} points, median {median:.1} %, p95 {p95:.1} %, worst {most:.0} %",
                    errors.len()
                );
                let bound = bounds.iter().find(|bound| kind == bound.0);
                let (_, most_median, most_p95) = bound.expect("every kind has a bound");
                if median > *most_median || p95 > *most_p95 {
                    beyond.push(kind);
                }
            }
            assert!(beyond.is_empty(), "{system}: {beyond:?}");
        }
    }

    /// What the error of a shape of attention is told for: all, and what it is that is special to it.
    fn kinds<'a>(of: [&'a str; 4], shape: &AttentionShape) -> Vec<&'a str> {
        let is_common = (shape.head_dim, shape.window, shape.kv) == (128, 0, KvPrecision::Bf16);
        let [common, width, window, fp8] = of;
        let mut kinds = Vec::new();
        kinds.extend(is_common.then_some(common));
        kinds.extend((shape.head_dim != 128).then_some(width));
        kinds.extend((shape.window > 0).then_some(window));
        kinds.extend((shape.kv == KvPrecision::Fp8).then_some(fp8));
        kinds
    }

    /// Kinds of points, and the most that the median and the 95th percentile of their errors may be in per cent, of all six.
    const BOUNDS: [(&str, f64, f64); 11] = [
        ("products, bf16", 5.0, 28.0),
        ("products, fp8", 6.0, 30.0),
        ("prompts, heads of 128", 5.0, 16.0),
        ("prompts, other widths", 5.0, 28.0),
        ("prompts, windows", 8.0, 34.0),
        ("prompts, fp8 keys", 8.0, 33.0),
        ("decodes, heads of 128", 10.0, 34.0),
        ("decodes, other widths", 6.0, 75.0),
        ("decodes, windows", 9.0, 85.0),
        ("decodes, fp8 keys", 6.0, 55.0),
        ("experts", 32.0, 100.0),
    ];

    /// Of everything that was measured and whose shape is not kept: how far what is read from what is kept lies from it. With the
    /// wheel's path in `KVTIDE_PERF_DB`, because a database is no part of a clone.
    #[test]
    fn what_is_left_out_is_read_from_what_is_kept() {
        let Some(path) = std::env::var_os("KVTIDE_PERF_DB") else { return };
        for system in ["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000_server"] {
            let framework: Framework = "vllm".parse().unwrap();
            let all = PerfDb::read(path.as_ref(), system, &framework, [false, true]).unwrap();
            let (all, kept) = (all.tables(), built_in(all.tables()));
            let mut errors = Errors::default();
            for (table, kept_table) in all.products.iter().zip(&kept.products) {
                let is_kept = |n, k| kept_table.rows.iter().any(|row| (row.n, row.k) == (n, k));
                let kind = if table.precision == Precision::Fp8 { "products, fp8" } else { "products, bf16" };
                // Smaller ones no model has.
                for row in table.rows.iter().filter(|row| row.n >= 512 && row.k >= 512 && !is_kept(row.n, row.k)) {
                    for (us, tokens) in row.us.iter().zip(&table.tokens) {
                        errors.add(&[kind], kept.product_us(table.precision, row.n, row.k, f64::from(*tokens)), *us);
                    }
                }
            }
            let named = ["heads of 128", "other widths", "windows", "fp8 keys"];
            let [prompts, decodes] = ["prompts", "decodes"].map(|of| named.map(|kind| format!("{of}, {kind}")));
            let is_left = |shapes: &[AttentionShape], shape: &AttentionShape| !shapes.contains(shape);
            let shapes: Vec<AttentionShape> = kept.prefill.iter().map(|table| table.shape).collect();
            for table in all.prefill.iter().filter(|table| is_left(&shapes, &table.shape)) {
                let kinds = kinds(prompts.each_ref().map(String::as_str), &table.shape);
                for (us, tokens) in table.us.iter().zip(&table.tokens) {
                    errors.add(&kinds, kept.prefill_us(&table.shape, f64::from(*tokens)), *us);
                }
            }
            let shapes: Vec<AttentionShape> = kept.decode.iter().map(|table| table.shape).collect();
            for table in all.decode.iter().filter(|table| is_left(&shapes, &table.shape)) {
                let kinds = kinds(decodes.each_ref().map(String::as_str), &table.shape);
                for (row, sequences) in table.us.iter().zip(&table.sequences) {
                    for (us, context) in row.iter().zip(&table.context) {
                        let read = kept.decode_us(&table.shape, f64::from(*sequences), f64::from(*context));
                        errors.add(&kinds, read, *us);
                    }
                }
            }
            let shapes: Vec<_> = kept.experts.iter().map(|table| key(&table.shape())).collect();
            for table in all.experts.iter().filter(|table| !shapes.contains(&key(&table.shape()))) {
                for (us, tokens) in table.us.iter().zip(&table.tokens) {
                    errors.add(&["experts"], kept.experts_us(&table.shape(), f64::from(*tokens)), *us);
                }
            }
            errors.check(system, &BOUNDS);
        }
    }
}
