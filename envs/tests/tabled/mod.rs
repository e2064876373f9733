//! Prices made from kernels measured by shape: what holds of all of them, what they say at the points that were measured, and
//! what the host adds.

mod host;
mod prices;

use kvtide_envs::cost::{Chunk, CostModel, StepLoad};
use kvtide_envs::deploy::{
    DecodeTable, Deployment, ExpertTable, Hardware, KernelShapes, KernelTables, LatentTable, Model, Precision,
    PrefillTable, ProductRow, ProductTable, ReduceTable,
};
use kvtide_envs::tier::Links;

/// A step without copies.
#[derive(Debug, Clone, Default)]
struct Step {
    decodes: u32,
    context: u64,
    /// `(tokens, context)`.
    chunks: Vec<(u32, u32)>,
}

impl Step {
    fn decodes(decodes: u32, each: u64) -> Step {
        Step { decodes, context: u64::from(decodes) * each, chunks: Vec::new() }
    }

    fn prompt(tokens: u32) -> Step {
        Step { chunks: vec![(tokens, 0)], ..Step::default() }
    }

    fn load(&self) -> StepLoad<impl ExactSizeIterator<Item = Chunk> + Clone> {
        let chunks = self.chunks.iter().map(|&(tokens, context)| Chunk { context, tokens });
        let decode_context = if self.decodes == 0 { 0 } else { self.context };
        StepLoad { decodes: self.decodes, decode_context, chunks, blocks: Links::default() }
    }
}

/// Models of every kind: dense, with experts, with windows, with latents, in fp8.
const KINDS: [(&str, &str); 5] = [
    ("llama-3-8b", "weight_dtype=bf16"),
    ("qwen3-30b-a3b", "weight_dtype=bf16"),
    ("gemma-3-27b", "weight_dtype=bf16"),
    ("deepseek-v2-lite", "weight_dtype=bf16"),
    ("llama-3-8b", "weight_dtype=fp8"),
];

fn deployment(kind: (&str, &str), devices: u32, tables: KernelTables) -> Deployment {
    let (model, setting) = kind;
    let hardware = Hardware { tables: Some(tables.into()), ..Hardware::named("h200").unwrap() };
    assert_eq!(hardware.validate(), Ok(()));
    Deployment::new(Model::named(model).unwrap(), hardware, devices).with(&[setting.parse().unwrap()]).unwrap()
}

fn price(deployment: &Deployment, step: &Step) -> f64 {
    CostModel::new(deployment, 16).device_seconds(&step.load())
}

/// Microseconds of a kernel: a fixed part, what it multiplies and what it reads, each at a rate.
fn us(fixed: f64, flops: f64, bytes: f64) -> f64 {
    fixed + (flops / 600e6).max(bytes / 3e6)
}

/// Tokens at which tables were measured, not all of them powers of two.
const KNOTS: [u32; 12] = [1, 8, 16, 48, 64, 128, 256, 512, 1024, 2048, 4096, 16_384];
const SEQUENCES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const CONTEXT: [u32; 15] = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// Tables of what a model launches on each of `devices`, as smooth as can be.
fn smooth(model: &Model, devices: u32) -> KernelTables {
    let shapes = KernelShapes::of(model, devices);
    let mut tables = KernelTables::default();
    for precision in [Precision::Bf16, Precision::Fp8] {
        let mut rows: Vec<ProductRow> = Vec::new();
        for product in shapes.products.iter().chain(&shapes.projections).chain([&shapes.head]) {
            let weights = f64::from(product.n) * f64::from(product.k);
            let at = |tokens: &u32| us(3.0, 2.0 * weights * f64::from(*tokens), weights * precision.bytes());
            if rows.iter().all(|row| (row.n, row.k) != (product.n, product.k)) {
                rows.push(ProductRow { n: product.n, k: product.k, us: KNOTS.iter().map(at).collect() });
            }
        }
        tables.products.push(ProductTable { precision, tokens: KNOTS.to_vec(), rows });
    }
    for (shape, _) in &shapes.attention {
        let [heads, kv_heads, width] = [shape.heads, shape.kv_heads, shape.head_dim].map(f64::from);
        let window = if shape.window == 0 { f64::INFINITY } else { f64::from(shape.window) };
        let pairs = |tokens: f64| tokens.min(window) * (tokens - tokens.min(window) / 2.0);
        let prompt = |tokens: &u32| us(10.0, 4.0 * heads * width * pairs(f64::from(*tokens)), 0.0);
        tables.prefill.push(PrefillTable {
            shape: *shape,
            tokens: KNOTS.to_vec(),
            us: KNOTS.iter().map(prompt).collect(),
        });
        let at = |sequences: u32, context: u32| {
            let read = f64::from(sequences) * f64::from(context).min(window) * 4.0 * kv_heads * width;
            us(10.0 + 0.05 * f64::from(sequences), 0.0, read)
        };
        let row = |sequences: &u32| CONTEXT.iter().map(|context| at(*sequences, *context)).collect();
        tables.decode.push(DecodeTable {
            shape: *shape,
            sequences: SEQUENCES.to_vec(),
            context: CONTEXT.to_vec(),
            us: SEQUENCES.iter().map(row).collect(),
        });
    }
    if devices > 1 {
        let bytes: Vec<u32> = (10..30).map(|power| 1 << power).collect();
        let times = bytes.iter().map(|bytes| 5.0 + f64::from(*bytes) / 4e5).collect();
        tables.all_reduce.push(ReduceTable { devices, bytes, us: times });
    }
    if let Some((shape, _)) = shapes.experts {
        let weights = 3.0 * f64::from(shape.hidden) * f64::from(shape.inter);
        let at = |tokens: &u32| {
            let routed = f64::from(*tokens) * f64::from(shape.top_k);
            us(20.0, 2.0 * routed * weights, 2.0 * weights * routed.min(f64::from(shape.experts)))
        };
        tables.experts.push(ExpertTable {
            precision: shape.precision,
            hidden: shape.hidden,
            inter: shape.inter,
            top_k: shape.top_k,
            experts: shape.experts,
            tokens: KNOTS.to_vec(),
            us: KNOTS.iter().map(at).collect(),
        });
    }
    if let Some((shape, _)) = shapes.latent {
        let weights: f64 = shapes.projections.iter().map(|product| f64::from(product.n) * f64::from(product.k)).sum();
        let prompt = |tokens: &u32| {
            let tokens = f64::from(*tokens);
            us(50.0, 2.0 * weights * tokens + f64::from(shape.heads) * 640.0 * tokens * tokens / 2.0, 2.0 * weights)
        };
        let at = |sequences: u32, context: u32| {
            let read = f64::from(sequences) * f64::from(context) * 1152.0;
            us(50.0 + f64::from(sequences), 0.0, 2.0 * weights + read)
        };
        let row = |sequences: &u32| CONTEXT.iter().map(|context| at(*sequences, *context)).collect();
        tables.latent.push(LatentTable {
            hidden: shape.hidden,
            heads: shape.heads,
            precision: shape.precision,
            kv: shape.kv,
            tokens: KNOTS.to_vec(),
            prefill_us: KNOTS.iter().map(prompt).collect(),
            sequences: SEQUENCES.to_vec(),
            context: CONTEXT.to_vec(),
            decode_us: SEQUENCES.iter().map(row).collect(),
        });
    }
    tables
}

fn smooth_deployment(kind: (&str, &str), devices: u32) -> Deployment {
    let plain = deployment(kind, devices, KernelTables::default());
    let tables = smooth(&plain.model, devices);
    Deployment { hardware: Hardware { tables: Some(tables.into()), ..plain.hardware }, ..plain }
}
