//! What the kernels of a step take on a deployment whose accelerator was measured by shape. Everything is seconds over all
//! layers; devices of a tensor-parallel group work at the same time, so that one of them tells.
//!
//! What was measured is read from [`KernelTables`], what was not is modelled, and [`TabledTimes::modelled`] says so:
//!
//! - a precision without a table: the time in 16 bits, times what the roofline says of both
//! - a family without a table: the roofline, by `compute_efficiency` and `bandwidth_efficiency`
//! - what is done element by element: five kernels a layer (two norms with their residuals, rotation, gate, writing keys and
//!   values), each `max(3 µs, bytes / (0.47 · bandwidth))`. Fitted to Vidur's published medians of Llama 2 and 3 (MIT,
//!   github.com/microsoft/vidur) on A100 and H100, with a median error of 9 % of that part, which is 9 % of the products
//! - sampling: logits read in 16 bits and written and read in 32, in four such kernels
//!
//! **Decodes.** Tables were measured with keys and values in the accelerator's cache, wherever they fit into it; on a server the
//! weights of a layer come between, and they come from memory. A time is therefore at least that of the same sequences with
//! nothing to attend to, and all their tokens at the rate at which the largest sizes were read.
//!
//! **Chunks.** A chunk of `k` tokens after `c` is a prompt of `k`, as measured, and a rectangle of `k · c` pairs. A pair takes what
//! one more takes in the longest prompts measured; over all chunks of a step, because they share one kernel, and at least as long as
//! the keys and values before them take to be read, and as the longest of them takes one row of tiles to walk through.

use super::{AttentionShape, Curve, Deployment, KernelShapes, KernelTables, Precision, Product, UNQUANTISED_BYTES};

/// Least time of a kernel that works element by element, seconds, and the share of the bandwidth it reaches.
const ELEMENT_FLOOR: f64 = 3e-6;
const ELEMENT_BANDWIDTH: f64 = 0.47;
/// Kernels of sampling, and the bytes they move for each word of the vocabulary.
const SAMPLING_KERNELS: f64 = 4.0;
const SAMPLING_BYTES: f64 = 10.0;
/// Rows of queries, over all heads, that an accelerator works on at once: some 130 multiprocessors with tiles of 64.
const ROWS_AT_ONCE: f64 = 8192.0;
/// Prompts by which the price of a pair is told, in tokens.
const LONG_PROMPT: f64 = 16_384.0;
/// Sequences and context by which the rate of reading keys and values is told.
const LARGE_DECODE: (f64, f64) = (16.0, 32_768.0);
/// Most tokens of a prompt among which the fixed time of attention is looked for.
const SHORTEST_PROMPTS: [f64; 4] = [1.0, 16.0, 32.0, 64.0];
/// Tokens by which the price of one more is told.
const MANY_TOKENS: f64 = 8192.0;

/// Measured times of one deployment.
pub(crate) struct TabledTimes<'a> {
    deployment: &'a Deployment,
    tables: &'a KernelTables,
    shapes: KernelShapes,
    products: Vec<ProductTimes>,
    head: ProductTimes,
}

/// A product with its curve; `None` for the roofline.
struct ProductTimes {
    product: Product,
    curve: Option<(Curve, Precision)>,
}

/// What the tokens before a chunk cost it, over some of the layers. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BeforeChunk {
    /// A token of a chunk and one before it.
    pub(crate) pair: f64,
    /// A token before the longest chunk, at least.
    pub(crate) row: f64,
    /// A token before any chunk, at least.
    pub(crate) read: f64,
    /// A token before any chunk, on top: expanding a latent.
    pub(crate) expand: f64,
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
        let products = shapes.products.iter().chain(projections).map(of).collect();
        TabledTimes { head: of(&shapes.head), products, deployment, tables, shapes }
    }

    /// Peaks of one device for weights of `precision` and for 16 bits, FLOP/s and bytes/s.
    fn peak_flops(&self, precision: Precision) -> f64 {
        let hardware = &self.deployment.hardware;
        let is_fp8 = precision == Precision::Fp8 && hardware.peak_fp8_flops > 0.0;
        if is_fp8 { hardware.peak_fp8_flops } else { hardware.peak_flops }
    }

    /// Arithmetic and traffic at the peaks. Seconds.
    fn roofs(&self, precision: Precision, flops: f64, bytes: f64) -> (f64, f64) {
        (flops / self.peak_flops(precision), bytes / self.deployment.hardware.peak_bandwidth)
    }

    /// The roofline by the shares of the peaks that kernels reach. Seconds.
    fn roofline(&self, precision: Precision, flops: f64, bytes: f64) -> f64 {
        let hardware = &self.deployment.hardware;
        let (arithmetic, traffic) = self.roofs(precision, flops, bytes);
        (arithmetic / hardware.compute_efficiency).max(traffic / hardware.bandwidth_efficiency)
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
        let (arithmetic, traffic) = self.roofs(precision, flops, bytes(precision));
        let scales = &self.tables.scales;
        let time = time * scales.products * scales.sustained_at(arithmetic / traffic);
        if precision == measured {
            return time;
        }
        let (other_arithmetic, other_traffic) = self.roofs(measured, flops, bytes(measured));
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
            None => self.roofline(precision, flops, bytes(precision)) * self.tables.scales.products,
        };
        f64::from(layers) * time
    }

    /// Everything that goes by the token but attention: products, routed experts, what is done element by element, all-reduces.
    pub(crate) fn layers(&self, tokens: f64) -> f64 {
        let products: f64 = self.products.iter().map(|times| self.product(times, tokens)).sum();
        products + self.experts(tokens) + self.elements(tokens) + self.all_reduces(tokens)
    }

    /// What a token of a long prompt takes by itself, and for each token before it: layers with a window are by the token, as if
    /// it were full.
    pub(crate) fn per_token_and_pair(&self) -> (f64, f64) {
        let (full, window) = self.before_chunks();
        let windowed = window.map_or(0.0, |(width, price)| width * price.pair);
        (self.layers(MANY_TOKENS) / MANY_TOKENS + windowed, full.pair)
    }

    fn experts(&self, tokens: f64) -> f64 {
        let Some((shape, layers)) = &self.shapes.experts else { return 0.0 };
        let Some(experts) = &self.deployment.model.structure.experts else { return 0.0 };
        let params = experts.params / f64::from(self.deployment.devices);
        let flops = 2.0 * tokens * f64::from(experts.per_token) * params;
        let bytes = |precision: Precision| experts.distinct(tokens) * params * precision.bytes();
        let measured = |precision: Precision| {
            let us = self.tables.experts_us(&super::ExpertShape { precision, ..*shape }, tokens)?;
            Some(self.as_measured(seconds(us), (shape.precision, precision), flops, bytes))
        };
        let time = measured(shape.precision).or_else(|| measured(Precision::Bf16));
        let scale = self.tables.scales.products;
        f64::from(*layers)
            * time.unwrap_or_else(|| self.roofline(shape.precision, flops, bytes(shape.precision)) * scale)
    }

    /// Kernels that move so many bytes each. Seconds.
    fn moves(&self, bytes: f64) -> f64 {
        (bytes / (self.deployment.hardware.peak_bandwidth * ELEMENT_BANDWIDTH)).max(ELEMENT_FLOOR)
            * self.tables.scales.products
    }

    fn elements(&self, tokens: f64) -> f64 {
        let Deployment { model, devices, .. } = self.deployment;
        let devices = f64::from(*devices);
        let elements = tokens * UNQUANTISED_BYTES;
        let hidden = f64::from(model.hidden_size);
        let head = f64::from(model.head_dim);
        let [heads, kv_heads] =
            [model.num_heads, model.num_kv_heads].map(|heads| (f64::from(heads) / devices).ceil());
        let gated = f64::from(model.widths.intermediate.max(model.widths.shared)) / devices;
        let layer = 2.0 * self.moves(4.0 * hidden * elements)
            + self.moves(2.0 * (heads + kv_heads) * head * elements)
            + self.moves(3.0 * gated * elements)
            + self.moves(4.0 * kv_heads * head * elements);
        f64::from(model.num_layers) * layer + self.moves(2.0 * hidden * elements)
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
        2.0 * f64::from(model.num_layers) * each
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
        let grouped = self.shapes.attention.iter().map(|(shape, layers)| {
            f64::from(*layers) * self.grouped_decodes(shape, sequences, context)
        });
        let latent = self.shapes.latent.as_ref().map_or(0.0, |(_, layers)| {
            f64::from(*layers) * self.latent_decodes(sequences, context)
        });
        (grouped.sum::<f64>() + latent) * self.tables.scales.decode
    }

    fn grouped_decodes(&self, shape: &AttentionShape, sequences: f64, context: f64) -> f64 {
        let seen = if shape.window == 0 { context } else { context.min(f64::from(shape.window)) };
        let measured = |sequences, context| self.tables.decode_us(shape, sequences, context).map(seconds);
        // A window is short: its rate is not told by what was measured.
        let rate = if shape.window == 0 { rate_of(measured) } else { None };
        let read = self.kv_read(shape);
        from_memory(measured, sequences, context, seen * rate.unwrap_or(read).min(read))
            .unwrap_or_else(|| ELEMENT_FLOOR + sequences * seen * self.kv_read(shape))
    }

    /// Reading a token's keys and values of one layer from memory, at best.
    fn kv_read(&self, shape: &AttentionShape) -> f64 {
        let elements = 2.0 * f64::from(shape.kv_heads) * f64::from(shape.head_dim);
        let hardware = &self.deployment.hardware;
        elements * shape.kv.bytes() / (hardware.peak_bandwidth * hardware.bandwidth_efficiency)
    }

    /// The same of a layer's latents.
    fn latent_read(&self) -> f64 {
        let Deployment { model, hardware, .. } = self.deployment;
        let bytes = model.kv_bytes_per_token() / f64::from(model.num_layers);
        bytes / (hardware.peak_bandwidth * hardware.bandwidth_efficiency)
    }

    fn latent_decodes(&self, sequences: f64, context: f64) -> f64 {
        let Some((shape, _)) = &self.shapes.latent else { return 0.0 };
        let measured = |sequences, context| self.tables.latent_decode_us(shape, sequences, context).map(seconds);
        let model = &self.deployment.model;
        let flops = model.decode_flops_per_pair() / f64::from(model.num_layers) / f64::from(self.deployment.devices);
        let bytes = model.kv_bytes_per_token() / f64::from(model.num_layers);
        let read = self.latent_read();
        let memory = context * rate_of(measured).unwrap_or(read).min(read);
        from_memory(measured, sequences, context, memory).unwrap_or_else(|| {
            let tokens = sequences * context;
            ELEMENT_FLOOR + self.roofline(Precision::Bf16, flops * tokens, bytes * tokens)
        })
    }

    /// Attention of one prompt of `tokens` of which nothing is cached.
    fn prompt(&self, tokens: f64) -> f64 {
        let grouped = self.shapes.attention.iter().map(|(shape, layers)| {
            let flops = 4.0 * f64::from(shape.heads) * f64::from(shape.head_dim) * pairs(shape.window, tokens);
            let elements = 2.0 * (f64::from(shape.heads) + f64::from(shape.kv_heads)) * f64::from(shape.head_dim);
            let bytes = elements * tokens * UNQUANTISED_BYTES;
            let us = self.tables.prefill_us(shape, tokens);
            f64::from(*layers) * self.prompt_time(us, flops, bytes)
        });
        let latent = self.shapes.latent.as_ref().map_or(0.0, |(shape, layers)| {
            let model = &self.deployment.model;
            let share = f64::from(model.num_layers) * f64::from(self.deployment.devices);
            let flops = model.attention_flops_per_pair() / share * pairs(0, tokens);
            let bytes = f64::from(model.hidden_size) * tokens * UNQUANTISED_BYTES;
            f64::from(*layers) * self.prompt_time(self.tables.latent_prefill_us(shape, tokens), flops, bytes)
        });
        (grouped.sum::<f64>() + latent) * self.tables.scales.prefill
    }

    fn prompt_time(&self, us: Option<f64>, flops: f64, bytes: f64) -> f64 {
        let (arithmetic, traffic) = self.roofs(Precision::Bf16, flops, bytes);
        us.map_or_else(
            || ELEMENT_FLOOR + self.roofline(Precision::Bf16, flops, bytes),
            |us| seconds(us) * self.tables.scales.sustained_at(arithmetic / traffic),
        )
    }

    /// What attention of chunks takes however small they are.
    pub(crate) fn chunks_fixed(&self) -> f64 {
        SHORTEST_PROMPTS.into_iter().map(|tokens| self.prompt(tokens)).fold(f64::INFINITY, f64::min)
    }

    /// What a chunk of `tokens` takes beyond that, with nothing before it.
    pub(crate) fn chunk_alone(&self, tokens: f64) -> f64 {
        (self.prompt(tokens) - self.chunks_fixed()).max(0.0)
    }

    /// What the tokens before a chunk cost it: in layers that attend to all of them, and in those with a window of so many.
    pub(crate) fn before_chunks(&self) -> (BeforeChunk, Option<(f64, BeforeChunk)>) {
        let none = BeforeChunk { pair: 0.0, row: 0.0, read: 0.0, expand: 0.0 };
        if self.shapes.latent.is_some() {
            return (self.before_latent(), None);
        }
        let of = |(shape, layers): &(AttentionShape, u32)| self.before_grouped(shape, f64::from(*layers));
        let [full, window] = [false, true].map(|has_window| {
            self.shapes.attention.iter().find(|(shape, _)| (shape.window > 0) == has_window)
        });
        (full.map_or(none, of), window.map(|found| (f64::from(found.0.window), of(found))))
    }

    fn before_grouped(&self, shape: &AttentionShape, layers: f64) -> BeforeChunk {
        let scales = &self.tables.scales;
        let flops = 4.0 * f64::from(shape.heads) * f64::from(shape.head_dim);
        let least = flops / self.deployment.hardware.peak_flops;
        let measured = |tokens| self.tables.prefill_us(shape, tokens).map(seconds);
        let slope = measured(LONG_PROMPT).zip(measured(LONG_PROMPT / 2.0)).map(|(long, half)| {
            (long - half) / (pairs(shape.window, LONG_PROMPT) - pairs(shape.window, LONG_PROMPT / 2.0))
        });
        let sustained = slope.map(|slope| slope.max(least) * scales.sustained);
        let modelled = least / self.deployment.hardware.compute_efficiency;
        let pair = layers * scales.prefill * sustained.unwrap_or(modelled);
        BeforeChunk {
            pair,
            row: pair * ROWS_AT_ONCE / f64::from(shape.heads),
            read: layers * scales.prefill * self.kv_read(shape),
            expand: 0.0,
        }
    }

    /// Of latent attention, whose table has the projections of the prompt in it: what grows with the square is attention.
    fn before_latent(&self) -> BeforeChunk {
        let Deployment { model, hardware, devices, .. } = self.deployment;
        let (Some(latent), Some((shape, layers))) = (&model.structure.latent, &self.shapes.latent) else {
            return BeforeChunk { pair: 0.0, row: 0.0, read: 0.0, expand: 0.0 };
        };
        let scales = &self.tables.scales;
        let per_device = f64::from(model.num_layers) * f64::from(*devices);
        let least = model.attention_flops_per_pair() / per_device / hardware.peak_flops;
        let measured = |tokens| self.tables.latent_prefill_us(shape, tokens).map(seconds);
        let [long, half, quarter] = [1.0, 2.0, 4.0].map(|part| measured(LONG_PROMPT / part));
        let bend = long.zip(half).zip(quarter).map(|((long, half), quarter)| {
            let quarter_pairs = (LONG_PROMPT / 4.0).powi(2);
            (long - 3.0 * half + 2.0 * quarter) / (3.0 * quarter_pairs)
        });
        let sustained = bend.map(|bend| bend.max(least) * scales.sustained);
        let layers = f64::from(*layers) * scales.prefill;
        let pair = layers * sustained.unwrap_or(least / hardware.compute_efficiency);
        let width = f64::from(model.head_dim - latent.rotary) + f64::from(latent.value);
        let expand = 2.0 * f64::from(latent.rank) * f64::from(shape.heads) * width;
        BeforeChunk {
            pair,
            row: pair * ROWS_AT_ONCE / f64::from(shape.heads),
            read: layers * self.latent_read(),
            expand: layers * expand / (hardware.peak_flops * hardware.compute_efficiency),
        }
    }

    /// What of a step is modelled rather than measured, in sentences.
    pub(crate) fn modelled(&self) -> Vec<String> {
        let mut said = Vec::new();
        let mut precisions: Vec<(Precision, Option<Precision>)> = self
            .products
            .iter()
            .map(|times| (times.product.precision, times.curve.as_ref().map(|(_, measured)| *measured)))
            .filter(|(precision, measured)| *measured != Some(*precision))
            .collect();
        precisions.sort_unstable();
        precisions.dedup();
        for (precision, measured) in precisions {
            let how = measured.map_or("the roofline".to_owned(), |measured| {
                format!("those in {}, by their rooflines", measured.name())
            });
            said.push(format!("matrix products in {}: by {how}", precision.name()));
        }
        if let Some((shape, _)) = &self.shapes.experts {
            let has = |precision| self.tables.experts_us(&super::ExpertShape { precision, ..*shape }, 1.0).is_some();
            if !has(shape.precision) {
                let how = if has(Precision::Bf16) { "those in bf16, by their rooflines" } else { "the roofline" };
                said.push(format!("routed experts in {}: by {how}", shape.precision.name()));
            }
        }
        for (shape, _) in &self.shapes.attention {
            let of = if shape.window == 0 { String::new() } else { format!(" within {} tokens", shape.window) };
            if self.tables.prefill_us(shape, 1.0).is_none() {
                said.push(format!("attention of prompts{of}: by the roofline"));
            }
            if self.tables.decode_us(shape, 1.0, 1.0).is_none() {
                said.push(format!("attention of decodes{of}: by the roofline"));
            }
        }
        if let Some((shape, _)) = &self.shapes.latent
            && self.tables.latent_prefill_us(shape, 1.0).is_none()
        {
            said.push("latent attention: its products as measured, the rest by the roofline".to_owned());
        }
        if self.deployment.devices > 1 && self.tables.all_reduce_us(self.deployment.devices, 1.0).is_none() {
            said.push("all-reduces: by the link's bandwidth".to_owned());
        }
        said.push("norms, rotation, gates, writing of keys and values, sampling: by their bytes, with a least time".to_owned());
        said.push("chunks after others of their prompt: by the pairs of tokens they add".to_owned());
        said
    }
}

impl Deployment {
    /// What of a step's price is modelled where its accelerator was measured by shape, in sentences; empty where it was not.
    pub fn modelled(&self) -> Vec<String> {
        self.hardware.tables.as_ref().map_or_else(Vec::new, |tables| TabledTimes::new(self, tables).modelled())
    }
}

impl ProductTimes {
    fn of(product: Product, tables: &KernelTables) -> ProductTimes {
        let measured = |precision| Some((tables.product_curve(precision, product.n, product.k)?, precision));
        ProductTimes { product, curve: measured(product.precision).or_else(|| measured(Precision::Bf16)) }
    }
}

/// Pairs of a token and one it attends to in a prompt of `tokens`, within a window; 0 for all.
fn pairs(window: u32, tokens: f64) -> f64 {
    let growing = if window == 0 { tokens } else { tokens.min(f64::from(window)) };
    growing * (growing + 1.0) / 2.0 + (tokens - growing) * f64::from(window)
}

/// What a token more takes decodes at the largest sizes measured. Seconds.
fn rate_of(measured: impl Fn(f64, f64) -> Option<f64>) -> Option<f64> {
    let (many, long) = LARGE_DECODE;
    Some((measured(many, long)? - measured(many, 1.0)?) / (many * long))
}

/// A time of decodes as `measured`, and at least as long as they take when what they attend to comes from memory, which takes each
/// of them so long. `None` where nothing was measured.
fn from_memory(
    measured: impl Fn(f64, f64) -> Option<f64>,
    sequences: f64,
    context: f64,
    memory: f64,
) -> Option<f64> {
    let (time, alone) = (measured(sequences, context)?, measured(sequences, 1.0)?);
    Some(time.max(alone + sequences * memory))
}
