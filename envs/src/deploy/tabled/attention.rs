//! Attention of one kind, in the layers that have it, by tables. What is assumed stands at the head of `mod.rs`.

use super::peaks::Peaks;
use super::{ELEMENT_FLOOR, seconds};
use crate::deploy::cards::multiprocessors;
use crate::deploy::{AttentionShape, Deployment, Hardware, KernelTables, LatentShape, Precision, UNQUANTISED_BYTES};

/// Rows of queries in a tile of `FlashAttention` 2 over paged blocks, and of its successors on Hopper and the large Blackwell.
const TILE_ROWS: (f64, f64) = (64.0, 128.0);
/// Cards with those successors.
const LARGE_TILES: [&str; 5] = ["h100", "h200", "b200", "b300", "gb"];
/// Multiprocessors of an accelerator that is not known by name.
const MULTIPROCESSORS: f64 = 128.0;
/// Prompts by which the price of a pair is told, in tokens.
const LONG_PROMPT: f64 = 16_384.0;
/// Sequences and context by which the rate of reading keys and values is told.
const LARGE_DECODE: (f64, f64) = (16.0, 32_768.0);
/// Tokens of prompts among which the fixed time of attention is looked for.
const SHORT_PROMPTS: [f64; 4] = [1.0, 16.0, 32.0, 64.0];

/// What tokens before chunks cost them beyond their pairs, over all layers of a kind. Seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct BeforeChunks {
    /// Tokens of chunks that are worked on at once; what is left of a last wave idles. Not seconds.
    pub(crate) wave: f64,
    /// A token before the longest chunk, at least: it is walked through by one row of tiles.
    pub(crate) row: f64,
    /// A token before any chunk, at least: it is read.
    pub(crate) read: f64,
}

impl BeforeChunks {
    /// By what rows of `tokens`, rounded up to whole waves, are more than they are.
    #[inline]
    pub(crate) fn stretch(&self, tokens: f64) -> f64 {
        (tokens / self.wave).ceil() * self.wave / tokens.max(1.0)
    }
}

/// Grouped-query attention over all tokens or within a window.
pub(crate) struct GroupedTimes<'a> {
    tables: &'a KernelTables,
    peaks: Peaks<'a>,
    shape: AttentionShape,
    layers: f64,
    /// What it takes to read a token's keys and values for a sequence that decodes, in one layer.
    read: f64,
    /// A sequence that decodes with nothing to attend to, in one layer.
    least: f64,
    /// What a prompt takes however short it is.
    pub(crate) fixed: f64,
}

impl<'a> GroupedTimes<'a> {
    pub(super) fn new(
        deployment: &'a Deployment,
        tables: &'a KernelTables,
        (shape, layers): (AttentionShape, u32),
    ) -> GroupedTimes<'a> {
        let peaks = Peaks { hardware: &deployment.hardware };
        let mut times =
            GroupedTimes { tables, peaks, shape, layers: f64::from(layers), read: 0.0, least: 0.0, fixed: 0.0 };
        let at_best = times.kv_read();
        let rate = rate_of(|sequences, context| tables.decode_us(&shape, sequences, context));
        // A window is too short to tell a rate, and few heads on much context tell how little they can do at once.
        times.read = rate.filter(|_| shape.window == 0).unwrap_or(at_best).min(at_best);
        times.least = tables.decode_us(&shape, 1.0, 1.0).map_or(ELEMENT_FLOOR, seconds);
        times.fixed = shortest(|tokens| times.prompt(tokens));
        times
    }

    /// Tokens a token attends to, itself included; infinite for all.
    pub(crate) fn window(&self) -> f64 {
        if self.shape.window == 0 { f64::INFINITY } else { f64::from(self.shape.window) }
    }

    /// Reading a token's keys and values in one layer by the bandwidth that is reached.
    fn kv_read(&self) -> f64 {
        let elements = 2.0 * f64::from(self.shape.kv_heads) * f64::from(self.shape.head_dim);
        self.peaks.read(elements * self.shape.kv.bytes())
    }

    /// `sequences` that decode and attend to `context` tokens each.
    pub(super) fn decodes(&self, sequences: f64, context: f64) -> f64 {
        let from_memory = self.least + sequences * context.min(self.window()) * self.read;
        let time = self.tables.decode_us(&self.shape, sequences, context).map_or(0.0, seconds);
        self.layers * self.tables.scales.decode * time.max(from_memory)
    }

    fn flops_of_pair(&self) -> f64 {
        4.0 * f64::from(self.shape.heads) * f64::from(self.shape.head_dim)
    }

    /// One prompt of `tokens` of which nothing is cached.
    fn prompt(&self, tokens: f64) -> f64 {
        let scales = &self.tables.scales;
        let flops = self.flops_of_pair() * self.pairs_of(tokens);
        let elements = 2.0 * f64::from(self.shape.heads + self.shape.kv_heads) * f64::from(self.shape.head_dim);
        let bytes = elements * tokens * UNQUANTISED_BYTES;
        let (arithmetic, traffic) = self.peaks.roofs(Precision::Bf16, flops, bytes);
        let time = self.tables.prefill_us(&self.shape, tokens).map_or_else(
            || ELEMENT_FLOOR + self.peaks.roofline(Precision::Bf16, flops, bytes),
            |us| seconds(us) * scales.sustained_at(arithmetic / traffic),
        );
        self.layers * scales.prefill * time
    }

    /// Pairs of a token and one it attends to in a prompt of `tokens`.
    fn pairs_of(&self, tokens: f64) -> f64 {
        let window = self.window();
        if tokens <= window { up_to(tokens) } else { up_to(window) + (tokens - window) * window }
    }

    /// Tokens of the prompt that has so many pairs.
    fn tokens_of(&self, pairs: f64) -> f64 {
        let window = self.window();
        if pairs <= up_to(window) {
            ((8.0 * pairs + 1.0).sqrt() - 1.0) / 2.0
        } else {
            window + (pairs - up_to(window)) / window
        }
    }

    /// A chunk with so many pairs, beyond what any takes: as the prompt that has as many.
    pub(crate) fn chunk(&self, pairs: f64) -> f64 {
        (self.prompt(self.tokens_of(pairs)) - self.fixed).max(0.0)
    }

    /// One pair more in a long prompt.
    pub(crate) fn pair(&self) -> f64 {
        let [long, half] = [LONG_PROMPT, LONG_PROMPT / 2.0];
        (self.prompt(long) - self.prompt(half)) / (self.pairs_of(long) - self.pairs_of(half))
    }

    pub(crate) fn before(&self) -> BeforeChunks {
        let layers = self.layers * self.tables.scales.prefill;
        let wave = self.peaks.rows_at_once() / f64::from(self.shape.heads);
        BeforeChunks { wave, row: self.pair() * wave, read: layers * self.kv_read() }
    }
}

/// Latent attention. Its tables have the projections of its tokens in them, so that chunks are told by tokens and by pairs.
pub(crate) struct LatentTimes<'a> {
    deployment: &'a Deployment,
    tables: &'a KernelTables,
    peaks: Peaks<'a>,
    shape: LatentShape,
    layers: f64,
    /// Reading a token's latent for a sequence that decodes, in one layer.
    read: f64,
    /// A sequence that decodes with nothing to attend to, in one layer.
    least: f64,
    /// What a prompt takes however short it is.
    pub(crate) fixed: f64,
}

impl<'a> LatentTimes<'a> {
    pub(super) fn new(
        deployment: &'a Deployment,
        tables: &'a KernelTables,
        (shape, layers): (LatentShape, u32),
    ) -> LatentTimes<'a> {
        let peaks = Peaks { hardware: &deployment.hardware };
        let layers = f64::from(layers);
        let mut times = LatentTimes { deployment, tables, peaks, shape, layers, read: 0.0, least: 0.0, fixed: 0.0 };
        let at_best = peaks.read(times.bytes());
        let rate = rate_of(|sequences, context| tables.latent_decode_us(&shape, sequences, context));
        times.read = rate.unwrap_or(at_best).min(at_best);
        times.least = tables.latent_decode_us(&shape, 1.0, 1.0).map_or(ELEMENT_FLOOR, seconds);
        times.fixed = shortest(|tokens| times.alone(tokens));
        times
    }

    /// Of a token, in one layer.
    fn bytes(&self) -> f64 {
        self.deployment.model.kv_bytes_per_token() / self.layers
    }

    /// Of what all layers and devices have, what one layer has on one device.
    fn each(&self, all: f64) -> f64 {
        all / (self.layers * f64::from(self.deployment.devices))
    }

    pub(super) fn decodes(&self, sequences: f64, context: f64) -> f64 {
        let tokens = sequences * context;
        let from_memory = self.least + tokens * self.read;
        let measured = self.tables.latent_decode_us(&self.shape, sequences, context);
        let time = measured.map_or_else(
            || {
                let flops = self.each(self.deployment.model.decode_flops_per_pair()) * tokens;
                ELEMENT_FLOOR + self.peaks.roofline(Precision::Bf16, flops, 0.0)
            },
            seconds,
        );
        self.layers * self.tables.scales.decode * time.max(from_memory)
    }

    fn flops_of_pair(&self) -> f64 {
        self.each(self.deployment.model.attention_flops_per_pair())
    }

    /// One prompt of `tokens` of which nothing is cached.
    pub(crate) fn alone(&self, tokens: f64) -> f64 {
        let scales = &self.tables.scales;
        let flops = self.flops_of_pair() * up_to(tokens);
        let bytes = f64::from(self.deployment.model.hidden_size) * tokens * UNQUANTISED_BYTES;
        let (arithmetic, traffic) = self.peaks.roofs(Precision::Bf16, flops, bytes);
        let time = self.tables.latent_prefill_us(&self.shape, tokens).map_or_else(
            || ELEMENT_FLOOR + self.peaks.roofline(Precision::Bf16, flops, bytes),
            |us| seconds(us) * scales.sustained_at(arithmetic / traffic),
        );
        self.layers * scales.prefill * time
    }

    /// A token of a chunk and one before it: what grows with the square of a long prompt.
    pub(crate) fn pair(&self) -> f64 {
        let [long, half, quarter] = [1.0, 2.0, 4.0].map(|part| self.alone(LONG_PROMPT / part));
        // What is fixed and what goes by the token falls out.
        let bend = (long - 3.0 * half + 2.0 * quarter) / (3.0 * (LONG_PROMPT / 4.0).powi(2));
        let least = self.peaks.roofs(Precision::Bf16, self.flops_of_pair(), 0.0).0;
        bend.max(self.layers * self.tables.scales.prefill * least)
    }

    /// A token before a chunk, whose keys and values are expanded for it.
    pub(crate) fn expand(&self) -> f64 {
        let model = &self.deployment.model;
        let Some(latent) = &model.structure.latent else { return 0.0 };
        let width = f64::from(model.head_dim - latent.rotary) + f64::from(latent.value);
        let flops = 2.0 * f64::from(latent.rank) * f64::from(self.shape.heads) * width;
        self.layers * self.tables.scales.prefill * self.peaks.roofline(Precision::Bf16, flops, 0.0)
    }

    pub(crate) fn before(&self) -> BeforeChunks {
        let layers = self.layers * self.tables.scales.prefill;
        let wave = self.peaks.rows_at_once() / f64::from(self.shape.heads);
        BeforeChunks { wave, row: self.pair() * wave, read: layers * self.peaks.read(self.bytes()) }
    }
}

impl Peaks<'_> {
    /// Rows of queries, over all heads, that are worked on at once: a tile on every multiprocessor.
    fn rows_at_once(self) -> f64 {
        let name = self.hardware.name.as_str();
        let device =
            self.hardware.tables.as_ref().and_then(|tables| tables.source.as_ref()).map(|source| &source.device);
        let card = device.and_then(|device| Hardware::of_device(device)).unwrap_or(name);
        // A relative's tables name the relative: the name comes first.
        let card = if multiprocessors(name).is_some() { name } else { card };
        let (small, large) = TILE_ROWS;
        let rows = if LARGE_TILES.iter().any(|family| card.starts_with(family)) { large } else { small };
        rows * multiprocessors(card).map_or(MULTIPROCESSORS, f64::from)
    }
}

/// Sum of the numbers up to this one.
fn up_to(tokens: f64) -> f64 {
    tokens * (tokens + 1.0) / 2.0
}

fn shortest(prompt: impl Fn(f64) -> f64) -> f64 {
    SHORT_PROMPTS.into_iter().map(prompt).fold(f64::INFINITY, f64::min)
}

/// What a token more takes decodes at the largest sizes, `measured` in microseconds. Seconds.
fn rate_of(measured: impl Fn(f64, f64) -> Option<f64>) -> Option<f64> {
    let (many, long) = LARGE_DECODE;
    Some(seconds(measured(many, long)? - measured(many, 1.0)?) / (many * long))
}
