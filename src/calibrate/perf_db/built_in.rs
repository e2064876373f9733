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
/// Digits kept of a time.
const DIGITS: i32 = 3;

/// A grid of `tables`.
pub(super) fn built_in(tables: &KernelTables) -> KernelTables {
    let mut kept = tables.clone();
    for table in &mut kept.products {
        let tokens: Vec<u32> = table.tokens.iter().copied().filter(|tokens| TOKENS.contains(tokens)).collect();
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
    let experts = expert_shapes();
    kept.experts.retain(|table| experts.contains(&key(&table.shape())));
    kept.latent.retain(|table| table.heads >= 8 && !(table.heads == 8 && table.kv == KvPrecision::Fp8));
    kept.latent.iter_mut().for_each(thin_latent);
    kept.round(DIGITS);
    kept
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
    // Its contexts are one more than these.
    table.context.iter_mut().for_each(|context| *context -= *context % 2);
    thin(&mut table.sequences, &mut table.context, &mut table.decode_us);
}
