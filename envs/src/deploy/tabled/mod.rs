//! What the kernels of a step take on a deployment whose accelerator was measured by shape. Everything is seconds over all
//! layers; devices of a tensor-parallel group work at the same time, so that one of them tells.
//!
//! What was measured is read from [`KernelTables`], what was not is modelled, and [`Deployment::modelled`] says so:
//!
//! - a precision without a table: the time in 16 bits, times what the roofline says of both
//! - a family without a table: the roofline, by `compute_efficiency` and `bandwidth_efficiency`
//! - what is done element by element: five kernels a layer (two norms with their residuals, rotation, gate, writing keys and
//!   values), each `max(3 µs, bytes / (0.47 · bandwidth))`, and 0.69 of bandwidths up to 1.9 TB/s, which leave less to wait for.
//!   Fitted to Vidur's published medians of Llama 2 and 3 (MIT, github.com/microsoft/vidur): 0.46 on A100, 0.49 on H100, 0.69 on A40,
//!   with median errors of 9, 8 and 5 % of that part, which is 9 % of the products
//! - what quantises the inputs of products in fp8: a kernel of the same kind for each
//! - sampling: logits read in 16 bits and written and read in 32, in four such kernels
//!
//! **Decodes.** Tables were measured with keys and values in the accelerator's cache, wherever they fit into it; on a server the
//! weights of a layer come between, and they come from memory. A time is therefore at least that of one sequence with
//! nothing to attend to, and all tokens at the rate at which the largest sizes were read.
//!
//! **Chunks.** A chunk takes what the prompt takes that has as many pairs of a token and one it attends to: the whole prompt is
//! exact, and a chunk after others is as far from the arithmetic's roofline as a prompt of its work. All chunks of a step share a
//! kernel, so that what is fixed is paid once, and not at all beside decodes that take as long; together they take at least as long
//! as the keys and values before them to be read, and as one row of tiles to walk through the longest of them. Rows of queries are worked on
//! in waves, a tile on each multiprocessor: what stands before a chunk is paid for whole waves of its rows, which other chunks fill, so that small chunks of a long
//! prompt cost more than large ones. (What a prompt attends to in itself was measured with its own waves.) Latent attention is
//! measured with its projections, so that there a chunk takes what a prompt of its tokens takes, and its pairs with tokens before
//! it what pairs add to long prompts.

mod attention;
mod peaks;
mod said;

pub(crate) use attention::{BeforeChunks, GroupedTimes, LatentTimes};

use self::peaks::Peaks;
use super::{Curve, Deployment, ExpertShape, KernelShapes, KernelTables, Precision, Product, UNQUANTISED_BYTES};

/// Least time of a kernel that works element by element, seconds.
const ELEMENT_FLOOR: f64 = 3e-6;
/// The share of the bandwidth it reaches, of a wide one and of others, and from which on one is wide, bytes/s.
const ELEMENT_BANDWIDTH: (f64, f64, f64) = (0.47, 0.69, 1.9e12);
/// Kernels of sampling, and the bytes they move for each word of the vocabulary.
const SAMPLING_KERNELS: f64 = 4.0;
const SAMPLING_BYTES: f64 = 10.0;
/// Tokens by which the price of one more is told.
const MANY_TOKENS: f64 = 8192.0;

/// Measured times of one deployment.
pub(crate) struct TabledTimes<'a> {
    deployment: &'a Deployment,
    tables: &'a KernelTables,
    peaks: Peaks<'a>,
    shapes: KernelShapes,
    products: Vec<ProductTimes>,
    head: ProductTimes,
    /// Over all tokens, and within a window.
    pub(crate) grouped: Vec<GroupedTimes<'a>>,
    pub(crate) latent: Option<LatentTimes<'a>>,
}

/// A product with its curve and what that was measured in; `None` for the roofline.
struct ProductTimes {
    product: Product,
    curve: Option<(Curve, Precision)>,
}

/// Microseconds as tables have them.
fn seconds(us: f64) -> f64 {
    us * 1e-6
}

impl<'a> TabledTimes<'a> {
    pub(crate) fn new(deployment: &'a Deployment, tables: &'a KernelTables) -> TabledTimes<'a> {
        let shapes = KernelShapes::of(&deployment.model, deployment.devices);
        let of = |product: &Product| ProductTimes::of(*product, tables);
        let is_module = shapes.latent.is_some_and(|(shape, _)| tables.latent_prefill_us(&shape, 1.0).is_some());
        let projections = if is_module { &[][..] } else { &shapes.projections };
        let grouped = shapes.attention.iter().map(|kind| GroupedTimes::new(deployment, tables, *kind));
        TabledTimes {
            products: shapes.products.iter().chain(projections).map(of).collect(),
            head: of(&shapes.head),
            grouped: grouped.collect(),
            latent: shapes.latent.map(|kind| LatentTimes::new(deployment, tables, kind)),
            peaks: Peaks { hardware: &deployment.hardware },
            deployment,
            tables,
            shapes,
        }
    }

    /// A time that was measured in `measured`, of a kernel in `precision`: as far from its roofline, and as it is when sustained.
    /// `bytes` are those of its traffic in a precision.
    fn as_measured(
        &self,
        time: f64,
        (precision, measured): (Precision, Precision),
        flops: f64,
        bytes: impl Fn(Precision) -> f64,
    ) -> f64 {
        let (arithmetic, traffic) = self.peaks.roofs(precision, flops, bytes(precision));
        let time = time * self.tables.scales.sustained_at(arithmetic / traffic);
        if precision == measured {
            return time;
        }
        let (other_arithmetic, other_traffic) = self.peaks.roofs(measured, flops, bytes(measured));
        time * arithmetic.max(traffic) / other_arithmetic.max(other_traffic)
    }

    fn product(&self, times: &ProductTimes, tokens: f64) -> f64 {
        let Product { n, k, layers, precision } = times.product;
        let [n, k] = [n, k].map(f64::from);
        let flops = 2.0 * n * k * tokens;
        let bytes = |precision: Precision| n * k * precision.bytes() + tokens * (n + k) * UNQUANTISED_BYTES;
        let time = match &times.curve {
            Some((curve, measured)) => {
                self.as_measured(seconds(curve.at(tokens)), (precision, *measured), flops, bytes)
            }
            None => self.peaks.roofline(precision, flops, bytes(precision)),
        };
        f64::from(layers) * time * self.tables.scales.products
    }

    /// Everything that goes by the token but attention: products, routed experts, what is done element by element, all-reduces.
    pub(crate) fn layers(&self, tokens: f64) -> f64 {
        let products: f64 = self.products.iter().map(|times| self.product(times, tokens)).sum();
        products + self.experts(tokens) + self.elements(tokens) + self.all_reduces(tokens)
    }

    fn experts(&self, tokens: f64) -> f64 {
        let Some((shape, layers)) = &self.shapes.experts else { return 0.0 };
        let Some(experts) = &self.deployment.model.structure.experts else { return 0.0 };
        let params = experts.params / f64::from(self.deployment.devices);
        let flops = 2.0 * tokens * f64::from(experts.per_token) * params;
        let bytes = |precision: Precision| experts.distinct(tokens) * params * precision.bytes();
        let measured = |precision: Precision| {
            let us = self.tables.experts_us(&ExpertShape { precision, ..*shape }, tokens)?;
            Some(self.as_measured(seconds(us), (shape.precision, precision), flops, bytes))
        };
        let modelled = || self.peaks.roofline(shape.precision, flops, bytes(shape.precision));
        let time = measured(shape.precision).or_else(|| measured(Precision::Bf16)).unwrap_or_else(modelled);
        f64::from(*layers) * time * self.tables.scales.experts
    }

    /// A kernel that moves so many bytes.
    fn moves(&self, bytes: f64) -> f64 {
        let bandwidth = self.deployment.hardware.peak_bandwidth;
        let (wide, other, from) = ELEMENT_BANDWIDTH;
        let share = if bandwidth >= from { wide } else { other };
        (bytes / (bandwidth * share)).max(ELEMENT_FLOOR) * self.tables.scales.products
    }

    fn elements(&self, tokens: f64) -> f64 {
        let Deployment { model, devices, .. } = self.deployment;
        let elements = tokens * UNQUANTISED_BYTES;
        let [hidden, head] = [model.hidden_size, model.head_dim].map(f64::from);
        let [heads, kv_heads] = [model.num_heads, model.num_kv_heads].map(|heads| f64::from(heads.div_ceil(*devices)));
        let gated = f64::from(model.widths.intermediate.max(model.widths.shared).div_ceil(*devices));
        let layer = 2.0 * self.moves(4.0 * hidden * elements)
            + self.moves(2.0 * (heads + kv_heads) * head * elements)
            + self.moves(3.0 * gated * elements)
            + self.moves(4.0 * kv_heads * head * elements);
        f64::from(model.num_layers) * layer + self.moves(2.0 * hidden * elements) + self.quantising(tokens)
    }

    /// What goes into products in fp8 is read in 16 bits and written in 8, which is no part of what was measured.
    fn quantising(&self, tokens: f64) -> f64 {
        let fp8 = self.products.iter().map(|times| times.product).filter(|product| product.precision == Precision::Fp8);
        let each = |product: Product| f64::from(product.layers) * self.moves(3.0 * f64::from(product.k) * tokens);
        fp8.map(each).sum()
    }

    fn all_reduces(&self, tokens: f64) -> f64 {
        let Deployment { model, devices, hardware, .. } = self.deployment;
        if *devices == 1 {
            return 0.0;
        }
        let bytes = tokens * self.shapes.reduced_bytes;
        let count = f64::from(*devices);
        let modelled = || 2.0 * (count - 1.0) / count * bytes / hardware.link_bandwidth;
        let each = self.tables.all_reduce_us(*devices, bytes).map_or_else(modelled, seconds);
        2.0 * f64::from(model.num_layers) * each * self.tables.scales.all_reduce
    }

    /// The output head and sampling from it.
    pub(crate) fn head(&self, sequences: f64) -> f64 {
        let words = f64::from(self.shapes.head.n);
        let sampling = SAMPLING_KERNELS * self.moves(sequences * words * SAMPLING_BYTES / SAMPLING_KERNELS);
        self.product(&self.head, sequences) + sampling
    }

    /// Attention of `sequences` that decode, which attend to `tokens` together.
    pub(crate) fn decodes(&self, sequences: f64, tokens: f64) -> f64 {
        let context = tokens / sequences;
        let grouped: f64 = self.grouped.iter().map(|kind| kind.decodes(sequences, context)).sum();
        grouped + self.latent.as_ref().map_or(0.0, |latent| latent.decodes(sequences, context))
    }

    /// What attention of chunks takes however small they are.
    pub(crate) fn chunks_fixed(&self) -> f64 {
        let grouped: f64 = self.grouped.iter().map(|kind| kind.fixed).sum();
        grouped + self.latent.as_ref().map_or(0.0, |latent| latent.fixed)
    }

    /// What a token of a long prompt takes by itself, and for each token before it: layers with a window are by the token, as if
    /// it were full.
    pub(crate) fn per_token_and_pair(&self) -> (f64, f64) {
        let by_itself = self.layers(MANY_TOKENS) / MANY_TOKENS;
        let latent = self.latent.as_ref().map_or((0.0, 0.0), |latent| {
            let pair = latent.pair();
            let projections = latent.alone(MANY_TOKENS) - pair * MANY_TOKENS * MANY_TOKENS / 2.0;
            (projections.max(0.0) / MANY_TOKENS, pair)
        });
        self.grouped.iter().fold((by_itself + latent.0, latent.1), |(token, pair), kind| {
            let window = kind.window();
            if window.is_finite() { (token + window * kind.pair(), pair) } else { (token, pair + kind.pair()) }
        })
    }
}

impl ProductTimes {
    fn of(product: Product, tables: &KernelTables) -> ProductTimes {
        let measured = |precision| Some((tables.product_curve(precision, product.n, product.k)?, precision));
        ProductTimes { product, curve: measured(product.precision).or_else(|| measured(Precision::Bf16)) }
    }
}
