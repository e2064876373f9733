//! Tables out of the columns of each family. What the columns mean, and how that is known, stands in `docs/CLOCK.md`.

use std::collections::{BTreeMap, BTreeSet};

use kvtide_envs::deploy::{
    AttentionShape, Curve, DecodeTable, ExpertTable, KvPrecision, LatentTable, Precision, PrefillTable, ProductRow,
    ProductTable, ReduceTable,
};

use super::PerfDbError;
use super::columns::Columns;
use super::samples::{Samples, never_falling};

/// Tokens of a product's knots, those of them that were measured. Aligned numbers only: a step of vLLM is padded to a captured size
/// or filled to its budget, and what an odd number of tokens costs beyond is how a kernel fails, not how it grows.
const TOKENS: [u32; 24] = [
    1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768,
];
/// Fewest context tokens kept; attention of fewer takes as long.
const LEAST_CONTEXT: u32 = 16;
/// Width of the residual stream of `DeepSeek`-V3, the only model whose latent attention is measured.
const LATENT_HIDDEN: u32 = 7168;

/// Which of several kernels that were measured for the same point counts: the first of these that is there, as vLLM would choose
/// (`FlashAttention` 3 on Hopper), else the one measured most.
const PREFERRED: [&str; 4] = ["vllm_flash_attn_fa3", "vllm_flash_attn_fa2", "vllm_flash_attn", "vllm_flashinfer"];

type Result<T> = std::result::Result<T, PerfDbError>;

/// Place of each row's kernel among those of the file, the one to take first.
fn ranks(columns: &Columns) -> Result<Vec<usize>> {
    if !columns.has("kernel_source") {
        return Ok(vec![0; columns.rows]);
    }
    let kernel = columns.text("kernel_source")?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    (0..columns.rows).for_each(|row| *counts.entry(kernel(row)).or_default() += 1);
    let mut order: Vec<&str> = counts.keys().copied().collect();
    let preferred = |name: &str| PREFERRED.iter().position(|known| name.starts_with(known)).unwrap_or(PREFERRED.len());
    order.sort_by_key(|name| (preferred(name), std::cmp::Reverse(counts[name])));
    let place: BTreeMap<&str, usize> = order.iter().enumerate().map(|(place, name)| (*name, place)).collect();
    Ok((0..columns.rows).map(|row| place[kernel(row)]).collect())
}

/// Kernels of a file, in order of their names.
pub(super) fn kernels(columns: &Columns) -> Result<Vec<String>> {
    if !columns.has("kernel_source") {
        return Ok(Vec::new());
    }
    let kernel = columns.text("kernel_source")?;
    let names: BTreeSet<&str> = (0..columns.rows).map(kernel).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}

pub(super) const PRODUCT_COLUMNS: &[&str] = &["kernel_source", "gemm_dtype", "m", "n", "k", "latency"];

/// Products in bf16, and in fp8 with a scale for each block of weights or for all; with one for all, where blocks were not measured.
pub(super) fn products(columns: &Columns, by_blocks: bool) -> Result<Vec<ProductTable>> {
    let dtype = columns.text("gemm_dtype")?;
    let (m, n, k) = (columns.sizes("m")?, columns.sizes("n")?, columns.sizes("k")?);
    let (us, rank) = (columns.microseconds()?, ranks(columns)?);
    let of = |name: &str| {
        let mut samples = Samples::new();
        for row in (0..columns.rows).filter(|row| dtype(*row) == name) {
            if m[row] >= 1 && (m[row] <= 16 || m[row].is_multiple_of(16)) && n[row] > 0 && k[row] > 0 {
                samples.add((n[row], k[row]), m[row], rank[row], us[row]);
            }
        }
        samples.medians().collect::<Vec<_>>()
    };
    let whole = of("fp8");
    let blocks = if by_blocks { of("fp8_block") } else { Vec::new() };
    // A handful of shapes says nothing of the others.
    let fp8 = if blocks.len() * 2 > whole.len() { blocks } else { whole };
    let tables = [(Precision::Bf16, of("bfloat16")), (Precision::Fp8, fp8)];
    Ok(tables.into_iter().filter_map(|(precision, shapes)| product_table(precision, shapes)).collect())
}

type Measured = Vec<(u32, f64)>;

fn product_table(precision: Precision, shapes: Vec<((u32, u32), Measured)>) -> Option<ProductTable> {
    let count = |tokens: &u32| shapes.iter().filter(|(_, us)| us.iter().any(|(at, _)| at == tokens)).count();
    let tokens: Vec<u32> = TOKENS.into_iter().filter(|tokens| 2 * count(tokens) > shapes.len()).collect();
    let row = |((n, k), points): ((u32, u32), Measured)| {
        let has = |tokens: &&u32| points.iter().any(|(at, _)| at == *tokens);
        // Where memory ran out the rest is in proportion; where most is missing, something else was wrong.
        let is_whole = 3 * tokens.iter().filter(has).count() >= 2 * tokens.len();
        let curve = curve(points);
        is_whole.then(|| ProductRow { n, k, us: tokens.iter().map(|at| curve.at(f64::from(*at))).collect() })
    };
    let rows: Vec<ProductRow> = shapes.into_iter().filter_map(row).collect();
    (!rows.is_empty()).then_some(ProductTable { precision, tokens, rows })
}

/// Points as a curve that never falls.
fn curve(points: Measured) -> Curve {
    let (knots, mut us): (Vec<f64>, Vec<f64>) = points.into_iter().map(|(at, us)| (f64::from(at), us)).unzip();
    never_falling(&mut us);
    Curve { knots, us }
}

/// The same with whole knots.
fn series(points: Measured) -> (Vec<u32>, Vec<f64>) {
    let (knots, mut us): (Vec<u32>, Vec<f64>) = points.into_iter().filter(|(at, _)| *at > 0).unzip();
    never_falling(&mut us);
    (knots, us)
}

pub(super) const ATTENTION_COLUMNS: &[&str] = &[
    "kernel_source",
    "batch_size",
    "isl",
    "step",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "kv_cache_dtype",
    "window_size",
    "latency",
];

/// The shape of each row; `None` of what is not read.
fn shapes(columns: &Columns) -> Result<Vec<Option<AttentionShape>>> {
    let (heads, kv_heads) = (columns.sizes("num_heads")?, columns.sizes("num_key_value_heads")?);
    let (width, dtype) = (columns.sizes("head_dim")?, columns.text("kv_cache_dtype")?);
    // Older versions measured no windows.
    let window = if columns.has("window_size") { columns.sizes("window_size")? } else { vec![0; columns.rows] };
    let shape = |row: usize| {
        let kv = kv_precision(dtype(row))?;
        let is_shape = (1..=heads[row]).contains(&kv_heads[row]) && width[row] > 0;
        is_shape.then(|| AttentionShape {
            heads: heads[row],
            kv_heads: kv_heads[row],
            head_dim: width[row],
            window: window[row],
            kv,
        })
    };
    Ok((0..columns.rows).map(shape).collect())
}

fn kv_precision(dtype: &str) -> Option<KvPrecision> {
    match dtype {
        "bfloat16" | "float16" => Some(KvPrecision::Bf16),
        "fp8" => Some(KvPrecision::Fp8),
        _ => None,
    }
}

/// Attention of one prompt of which nothing is cached.
pub(super) fn prefill(columns: &Columns) -> Result<Vec<PrefillTable>> {
    let (shapes, rank, us) = (shapes(columns)?, ranks(columns)?, columns.microseconds()?);
    let (batch, tokens, cached) = (columns.sizes("batch_size")?, columns.sizes("isl")?, columns.sizes("step")?);
    let mut samples = Samples::new();
    for row in 0..columns.rows {
        if let Some(shape) = shapes[row].filter(|_| batch[row] == 1 && cached[row] == 0) {
            samples.add(shape, tokens[row], rank[row], us[row]);
        }
    }
    let table = |(shape, points): (AttentionShape, Measured)| {
        let (tokens, us) = series(points);
        PrefillTable { shape, tokens, us }
    };
    Ok(samples.medians().map(table).filter(|table| table.tokens.len() > 1).collect())
}

/// Attention of sequences that generate a token each: it attends to those before it, and to itself.
pub(super) fn decode(columns: &Columns) -> Result<Vec<DecodeTable>> {
    let (shapes, rank, us) = (shapes(columns)?, ranks(columns)?, columns.microseconds()?);
    let (batch, new, before) = (columns.sizes("batch_size")?, columns.sizes("isl")?, columns.sizes("step")?);
    let mut samples = Samples::new();
    for row in 0..columns.rows {
        let context = new[row].saturating_add(before[row]);
        if let Some(shape) = shapes[row].filter(|_| batch[row] > 0 && context >= LEAST_CONTEXT) {
            samples.add(shape, (batch[row], context), rank[row], us[row]);
        }
    }
    let table = |(shape, points)| {
        let (sequences, context, us) = grid(points);
        DecodeTable { shape, sequences, context, us }
    };
    Ok(samples.medians().map(table).filter(|table| table.context.len() > 1).collect())
}

/// Points as rows along context, each as long as it was measured without a gap.
fn grid(points: Vec<((u32, u32), f64)>) -> (Vec<u32>, Vec<u32>, Vec<Vec<f64>>) {
    let context: BTreeSet<u32> = points.iter().map(|((_, context), _)| *context).collect();
    let context: Vec<u32> = context.into_iter().collect();
    let mut rows: BTreeMap<u32, BTreeMap<u32, f64>> = BTreeMap::new();
    for ((sequences, context), us) in points {
        rows.entry(sequences).or_default().insert(context, us);
    }
    let row = |(sequences, points): (u32, BTreeMap<u32, f64>)| {
        let mut us: Vec<f64> = context.iter().map_while(|context| points.get(context).copied()).collect();
        never_falling(&mut us);
        (!us.is_empty()).then_some((sequences, us))
    };
    let (sequences, us) = rows.into_iter().filter_map(row).unzip();
    (sequences, context, us)
}

pub(super) const REDUCE_COLUMNS: &[&str] =
    &["kernel_source", "allreduce_dtype", "num_gpus", "message_size", "latency", "backend"];

/// All-reduces as a captured graph launches them, where that was measured. Messages are counted in elements.
pub(super) fn all_reduce(columns: &Columns) -> Result<Vec<ReduceTable>> {
    let (devices, elements) = (columns.sizes("num_gpus")?, columns.sizes("message_size")?);
    let (backend, dtype, us) = (columns.text("backend")?, columns.text("allreduce_dtype")?, columns.microseconds()?);
    let is_graph = |row: &usize| backend(*row).ends_with("_graph");
    let has_graphs = (0..columns.rows).any(|row| is_graph(&row));
    let mut samples = Samples::new();
    for row in (0..columns.rows).filter(|row| !has_graphs || is_graph(row)) {
        let width = if dtype(row) == "float32" { 4 } else { 2 };
        let bytes = elements[row].checked_mul(width).filter(|bytes| (1..=1 << 30).contains(bytes));
        if let Some(bytes) = bytes.filter(|_| devices[row] > 1) {
            samples.add(devices[row], bytes, 0, us[row]);
        }
    }
    let table = |(devices, points)| {
        let (bytes, us) = series(points);
        ReduceTable { devices, bytes, us }
    };
    Ok(samples.medians().map(table).collect())
}

pub(super) const EXPERT_COLUMNS: &[&str] = &[
    "kernel_source",
    "moe_dtype",
    "num_tokens",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
    "distribution",
    "latency",
];

/// How tokens spread over experts, the first of these that is there: a power law is how those of real traffic do.
const DISTRIBUTIONS: [&str; 3] = ["power_law_1.2", "power_law_1.01", "balanced"];

/// Routed experts, each device having all of them in part. In fp8 with scales of blocks first, if `by_blocks`.
pub(super) fn experts(columns: &Columns, by_blocks: bool) -> Result<(Vec<ExpertTable>, String)> {
    let (dtype, spread) = (columns.text("moe_dtype")?, columns.text("distribution")?);
    let (tokens, hidden, inter) =
        (columns.sizes("num_tokens")?, columns.sizes("hidden_size")?, columns.sizes("inter_size")?);
    let (top_k, count) = (columns.sizes("topk")?, columns.sizes("num_experts")?);
    let (parts, groups) = (columns.sizes("moe_tp_size")?, columns.sizes("moe_ep_size")?);
    let (us, kernel) = (columns.microseconds()?, ranks(columns)?);
    let names: BTreeSet<&str> = (0..columns.rows).map(&spread).collect();
    let known = DISTRIBUTIONS.into_iter().find(|name| names.contains(name));
    let taken = known.or_else(|| names.iter().next().copied()).unwrap_or_default().to_owned();
    let mut samples = Samples::new();
    for row in (0..columns.rows).filter(|row| groups[*row] == 1 && spread(*row) == taken) {
        let Some((precision, rank)) = expert_precision(dtype(row), by_blocks) else { continue };
        let is_split = parts[row] > 0 && inter[row].is_multiple_of(parts[row]) && inter[row] > 0;
        if is_split && (1..=count[row]).contains(&top_k[row]) && hidden[row] > 0 && tokens[row] > 0 {
            let shape = (precision, hidden[row], inter[row] / parts[row], top_k[row], count[row]);
            samples.add(shape, tokens[row], rank * columns.rows + kernel[row], us[row]);
        }
    }
    let table = |((precision, hidden, inter, top_k, experts), points)| {
        let (tokens, us) = series(points);
        ExpertTable { precision, hidden, inter, top_k, experts, tokens, us }
    };
    Ok((samples.medians().map(table).collect(), taken))
}

/// Our name of a precision, and which of those of the same name comes first.
fn expert_precision(dtype: &str, by_blocks: bool) -> Option<(Precision, usize)> {
    match dtype {
        "bfloat16" => Some((Precision::Bf16, 0)),
        "fp8" => Some((Precision::Fp8, usize::from(by_blocks))),
        "fp8_block" => Some((Precision::Fp8, usize::from(!by_blocks))),
        "int4_wo" => Some((Precision::Int4, 0)),
        "w4a16_mxfp4" => Some((Precision::ExpertsMxfp4, 0)),
        _ => None,
    }
}

pub(super) const LATENT_COLUMNS: &[&str] = &[
    "kernel_source",
    "architecture",
    "mla_dtype",
    "kv_cache_dtype",
    "gemm_type",
    "num_heads",
    "batch_size",
    "isl",
    "tp_size",
    "step",
    "latency",
];

/// What a module of latent attention was measured for.
type Module = (u32, Precision, KvPrecision);

/// The module of each row, and which of its attention's precisions comes first; `None` of what is not read.
fn modules(columns: &Columns) -> Result<Vec<Option<(Module, usize)>>> {
    let (model, attention) = (columns.text("architecture")?, columns.text("mla_dtype")?);
    let (kv, weights) = (columns.text("kv_cache_dtype")?, columns.text("gemm_type")?);
    let (heads, parts, kernel) = (columns.sizes("num_heads")?, columns.sizes("tp_size")?, ranks(columns)?);
    let module = |row: usize| {
        let precision = match weights(row) {
            "bfloat16" => Precision::Bf16,
            "fp8_block" => Precision::Fp8,
            _ => return None,
        };
        let is_read = model(row).starts_with("DeepseekV3") && parts[row] == 1 && heads[row] > 0;
        let rank = usize::from(attention(row) != "bfloat16") * columns.rows + kernel[row];
        is_read.then_some(((heads[row], precision, kv_precision(kv(row))?), rank))
    };
    Ok((0..columns.rows).map(module).collect())
}

/// Latent attention with all its projections.
pub(super) fn latent(prefill: &Columns, decode: &Columns) -> Result<Vec<LatentTable>> {
    let mut prompts = Samples::new();
    let (batch, tokens, us) = (prefill.sizes("batch_size")?, prefill.sizes("isl")?, prefill.microseconds()?);
    let cached = prefill.sizes("step")?;
    for (row, module) in modules(prefill)?.into_iter().enumerate() {
        if let Some((module, rank)) = module.filter(|_| batch[row] == 1 && cached[row] == 0) {
            prompts.add(module, tokens[row], rank, us[row]);
        }
    }
    let mut steps = Samples::new();
    let (batch, new, us) = (decode.sizes("batch_size")?, decode.sizes("isl")?, decode.microseconds()?);
    let before = decode.sizes("step")?;
    for (row, module) in modules(decode)?.into_iter().enumerate() {
        let context = new[row].saturating_add(before[row]);
        if let Some((module, rank)) = module.filter(|_| batch[row] > 0 && context >= LEAST_CONTEXT) {
            steps.add(module, (batch[row], context), rank, us[row]);
        }
    }
    let mut steps: BTreeMap<Module, Vec<_>> = steps.medians().collect();
    let table = |(module, points): (Module, Measured)| {
        let (tokens, prefill_us) = series(points);
        let (sequences, context, decode_us) = grid(steps.remove(&module)?);
        let (heads, precision, kv) = module;
        let hidden = LATENT_HIDDEN;
        Some(LatentTable { hidden, heads, precision, kv, tokens, prefill_us, sequences, context, decode_us })
    };
    Ok(prompts.medians().filter_map(table).collect())
}
