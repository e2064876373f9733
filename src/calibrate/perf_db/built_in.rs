//! The tables that are built into kvtide: of every family a grid of shapes, from which those of any model are read.

use std::collections::BTreeSet;

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
const SEQUENCES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 512];
const CONTEXT: [u32; 9] = [16, 128, 512, 1024, 2048, 4096, 8192, 32_768, 131_072];
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
    let shapes = attention_shapes(tables);
    kept.prefill.retain(|table| shapes.contains(&table.shape));
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
                let near = tables.for_attention(&shape);
                shapes.extend(near);
            }
        }
    }
    // Keys and values of one byte, of the most common heads: others are read from these.
    for (heads, kv_heads) in [(32, 8), (16, 4), (8, 2), (4, 1), (64, 8), (8, 1)] {
        shapes.insert(AttentionShape { heads, kv_heads, head_dim: 128, window: 0, kv: KvPrecision::Fp8 });
    }
    shapes
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
    use kvtide_envs::deploy::PrefillTable;

    use super::super::{Framework, PerfDb};
    use super::*;

    /// Relative errors, and what they are of.
    struct Errors(Vec<f64>);

    impl Errors {
        fn add(&mut self, read: Option<f64>, measured: f64) {
            self.0.extend(read.map(|us| (us / measured - 1.0).abs()));
        }

        /// Median and 95th percentile.
        fn told(mut self, what: &str) -> [f64; 2] {
            self.0.sort_by(f64::total_cmp);
            let at = |share: f64| self.0[((self.0.len() - 1) as f64 * share) as usize];
            println!("{what}: {} points, median {:.1} %, p95 {:.1} %", self.0.len(), at(0.5) * 100.0, at(0.95) * 100.0);
            [at(0.5), at(0.95)]
        }
    }

    /// Of everything that was measured and is not kept: how far what is read from what is kept lies from it. With the wheel's path
    /// in `KVTIDE_PERF_DB`, because a database is no part of a clone.
    #[test]
    fn what_is_left_out_is_read_from_what_is_kept() {
        let Some(path) = std::env::var_os("KVTIDE_PERF_DB") else { return };
        for system in ["a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "l40s", "rtx_pro_6000_server"] {
            let framework: Framework = "vllm".parse().unwrap();
            let all = PerfDb::read(path.as_ref(), system, &framework, [false, true]).unwrap();
            let (all, kept) = (all.tables(), built_in(all.tables()));
            let (mut shapes, mut prompts, mut decodes, mut experts) =
                (Errors(Vec::new()), Errors(Vec::new()), Errors(Vec::new()), Errors(Vec::new()));
            for (table, kept_table) in all.products.iter().zip(&kept.products) {
                let is_kept = |n, k| kept_table.rows.iter().any(|row| (row.n, row.k) == (n, k));
                // Smaller ones no model has.
                for row in table.rows.iter().filter(|row| row.n >= 512 && row.k >= 512 && !is_kept(row.n, row.k)) {
                    for (us, tokens) in row.us.iter().zip(&table.tokens) {
                        shapes.add(kept.product_us(table.precision, row.n, row.k, f64::from(*tokens)), *us);
                    }
                }
            }
            // What the grid is for: all tokens, keys and values in 16 bits, several queries to a key.
            let is_meant = |shape: &AttentionShape| {
                (shape.head_dim, shape.window, shape.kv) == (128, 0, KvPrecision::Bf16)
                    && shape.heads >= 2 * shape.kv_heads
            };
            for PrefillTable { shape, tokens, us } in all.prefill.iter().filter(|table| is_meant(&table.shape)) {
                for (us, tokens) in us.iter().zip(tokens) {
                    prompts.add(kept.prefill_us(shape, f64::from(*tokens)), *us);
                }
            }
            for table in all.decode.iter().filter(|table| is_meant(&table.shape)) {
                for (row, sequences) in table.us.iter().zip(&table.sequences) {
                    for (us, context) in row.iter().zip(&table.context) {
                        decodes.add(kept.decode_us(&table.shape, f64::from(*sequences), f64::from(*context)), *us);
                    }
                }
            }
            for table in &all.experts {
                for (us, tokens) in table.us.iter().zip(&table.tokens) {
                    experts.add(kept.experts_us(&table.shape(), f64::from(*tokens)), *us);
                }
            }
            let [median, p95] = shapes.told(&format!("{system}, products of shapes that are not kept"));
            assert!(median < 0.08 && p95 < 0.5, "{median} {p95}");
            let [median, p95] = prompts.told(&format!("{system}, prompts"));
            assert!(median < 0.1 && p95 < 0.6, "{median} {p95}");
            let [median, p95] = decodes.told(&format!("{system}, decodes"));
            assert!(median < 0.1 && p95 < 0.6, "{median} {p95}");
            let [median, p95] = experts.told(&format!("{system}, experts"));
            assert!(median < 0.2 && p95 < 1.5, "{median} {p95}");
        }
    }
}
