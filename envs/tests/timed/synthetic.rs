//! Devices whose truth is known: formulas with the ways in which real kernels leave a roofline, and noise.

use kvtide_envs::calibrate::{DeviceAbout, Direction, Overlap, StepShape, TimedDevice, Timing};
use kvtide_envs::cost::Chunk;
use kvtide_envs::deploy::{Deployment, Hardware, Model};
use kvtide_envs::seed::{Stream, stream};
use rand_distr::{Distribution, StandardNormal};

/// How matrix products leave the roofline.
#[derive(Debug, Clone, Copy)]
pub enum Products {
    /// They do not.
    Roofline,
    /// Rows are padded to tiles of 64, from 65 rows on of 128.
    Tiles,
    /// So many tiles of 128 by 128 are computed at once; the last wave may be nearly empty.
    Waves { multiprocessors: u32 },
    /// The share of the peak rises with rows: half of it is reached at so many. Memory and arithmetic hinder each other.
    Rising { half: f64 },
}

/// How attention of decodes leaves the roofline.
#[derive(Debug, Clone, Copy)]
pub enum Decoding {
    /// It does not.
    Roofline,
    /// Contexts are split over this many workers; parts have a least size and are merged at a price.
    Split { workers: f64, merge_s: f64, fixed_s: f64 },
    /// The bandwidth reached depends on sequences and their lengths: half of it with so many (sequences × KV heads), half
    /// of it at so many tokens.
    Rising { half_batch: f64, half_length: f64, fixed_s: f64 },
}

#[derive(Debug, Clone)]
pub struct Synthetic {
    pub name: &'static str,
    pub deployment: Deployment,
    /// FLOP/s and bytes/s that are reached at best.
    pub flops: f64,
    pub bandwidth: f64,
    pub products: Products,
    pub decoding: Decoding,
    /// Queries of a chunk are padded to so many.
    pub query_tile: u32,
    /// Share of `flops` that attention of chunks reaches.
    pub chunk_share: f64,
    /// Time of each kernel beyond its work, ten to a layer.
    pub kernel_s: f64,
    pub launch_s: f64,
    /// Copies: each way's bytes/s, time of each copy, and the share hidden behind compute.
    pub link: [f64; 2],
    pub copy_s: f64,
    pub overlap: f64,
    pub noise: f64,
    pub stream: Stream,
}

fn deployment(name: &str) -> Deployment {
    name.parse().unwrap()
}

/// All devices, with one per cent of noise each.
pub fn all(seed: u64) -> Vec<Synthetic> {
    let base = |name: &'static str, env: &str| {
        let deployment = deployment(env);
        let Hardware { peak_flops, peak_bandwidth, pcie_bandwidth, .. } = deployment.hardware.clone();
        Synthetic {
            name,
            deployment,
            flops: 0.72 * peak_flops,
            bandwidth: 0.86 * peak_bandwidth,
            products: Products::Roofline,
            decoding: Decoding::Roofline,
            query_tile: 1,
            chunk_share: 1.0,
            kernel_s: 0.0,
            launch_s: 1e-6,
            link: [pcie_bandwidth; 2],
            copy_s: 50e-6,
            overlap: 0.0,
            noise: 0.01,
            stream: stream(seed, name, 0),
        }
    };
    vec![
        base("roofline", "llama-3-8b@h200-datasheet"),
        Synthetic {
            products: Products::Tiles,
            decoding: Decoding::Split { workers: 264.0, merge_s: 0.2e-6, fixed_s: 6e-6 },
            query_tile: 64,
            chunk_share: 0.65,
            kernel_s: 1.5e-6,
            launch_s: 1.2e-3,
            overlap: 0.9,
            ..base("tiles", "llama-3-8b@h200-datasheet")
        },
        Synthetic {
            products: Products::Waves { multiprocessors: 132 },
            decoding: Decoding::Rising { half_batch: 5.0, half_length: 150.0, fixed_s: 8e-6 },
            query_tile: 128,
            chunk_share: 0.55,
            kernel_s: 2e-6,
            launch_s: 2.5e-3,
            link: [53e9, 51e9],
            overlap: 0.6,
            ..base("waves", "llama-3-8b@h100-datasheet")
        },
        Synthetic {
            products: Products::Rising { half: 48.0 },
            decoding: Decoding::Split { workers: 256.0, merge_s: 0.4e-6, fixed_s: 5e-6 },
            query_tile: 64,
            chunk_share: 0.8,
            kernel_s: 2.5e-6,
            // Launched one by one: the floor hides the smallest steps.
            launch_s: 19e-3,
            link: [24.5e9, 25.5e9],
            overlap: 0.95,
            ..base("rising", "llama-3-8b@rtx-4090")
        },
        Synthetic {
            products: Products::Waves { multiprocessors: 72 },
            decoding: Decoding::Split { workers: 144.0, merge_s: 0.5e-6, fixed_s: 9e-6 },
            query_tile: 64,
            chunk_share: 0.7,
            kernel_s: 3e-6,
            launch_s: 6e-3,
            overlap: 0.3,
            ..base("small", "qwen2.5-7b@a10")
        },
    ]
}

impl Synthetic {
    /// The truth about a step, seconds.
    pub fn truth(&self, shape: &StepShape) -> f64 {
        let model = &self.deployment.model;
        let layers = f64::from(model.num_layers);
        let tokens = shape.decodes.len() as f64 + shape.chunks.iter().map(|chunk| f64::from(chunk.tokens)).sum::<f64>();
        let sequences = (shape.decodes.len() + shape.chunks.len()) as f64;
        let widths = widths(model);
        let layer: f64 = widths.iter().map(|&(inputs, outputs)| self.product(tokens, inputs, outputs)).sum();
        let vocabulary = model.head_params / f64::from(model.hidden_size);
        let head = self.product(sequences, f64::from(model.hidden_size), vocabulary);
        let attention = self.decode(&shape.decodes) + self.chunks(&shape.chunks);
        (layers * (layer + attention + 10.0 * self.kernel_s) + head).max(self.launch_s)
    }

    fn product(&self, rows: f64, inputs: f64, outputs: f64) -> f64 {
        let weights = inputs * outputs;
        let reading = 2.0 * weights / self.bandwidth;
        let padded = |tile: f64| (rows / tile).ceil() * tile;
        let computing = |rows: f64| 2.0 * rows * weights / self.flops;
        match self.products {
            Products::Roofline => reading.max(computing(rows)),
            Products::Tiles => reading.max(computing(padded(if rows <= 64.0 { 64.0 } else { 128.0 }))),
            Products::Waves { multiprocessors } => {
                let at_once = f64::from(multiprocessors);
                // Few tiles are cut along the inputs, so that a wave is never emptier than an eighth.
                let tiles = (rows / 128.0).ceil() * (outputs / 128.0).ceil() * 8.0;
                let waves = (tiles / at_once).ceil() / 8.0;
                let wave = 2.0 * 128.0 * 128.0 * inputs * at_once / self.flops;
                reading.max(waves * wave)
            }
            Products::Rising { half } => {
                let computing = computing(rows + half);
                (reading.powi(6) + computing.powi(6)).powf(1.0 / 6.0)
            }
        }
    }

    /// Attention of decodes in one layer.
    fn decode(&self, contexts: &[u32]) -> f64 {
        if contexts.is_empty() {
            return 0.0;
        }
        let model = &self.deployment.model;
        let heads = f64::from(model.num_kv_heads);
        let token_head = 2.0 * f64::from(model.head_dim) * model.kv_bytes;
        let lengths = contexts.iter().map(|context| f64::from(*context) + 1.0);
        let (sequences, total) = (contexts.len() as f64, lengths.clone().sum::<f64>());
        let reading = total * heads * token_head / self.bandwidth;
        match self.decoding {
            Decoding::Roofline => reading,
            Decoding::Split { workers, merge_s, fixed_s } => {
                let part = (total * heads / workers).max(128.0);
                let parts: f64 = lengths.map(|length| (length / part).ceil() * heads).sum();
                let longest = part.min(contexts.iter().copied().fold(0, u32::max).into());
                let one = longest * token_head * workers / self.bandwidth;
                fixed_s + reading.max(one) + sequences * merge_s + parts / workers * merge_s
            }
            Decoding::Rising { half_batch, half_length, fixed_s } => {
                let batch = sequences * heads / (sequences * heads + half_batch);
                let length = total / sequences / (total / sequences + half_length);
                fixed_s + reading / (batch * length)
            }
        }
    }

    /// Attention of chunks in one layer.
    fn chunks(&self, chunks: &[Chunk]) -> f64 {
        let model = &self.deployment.model;
        let token = 2.0 * f64::from(model.num_kv_heads * model.head_dim) * model.kv_bytes;
        let one = |chunk: &Chunk| {
            let queries = f64::from(chunk.tokens.next_multiple_of(self.query_tile));
            let pairs = queries * (f64::from(chunk.context) + f64::midpoint(f64::from(chunk.tokens), 1.0));
            let computing = 4.0 * f64::from(model.num_heads * model.head_dim) * pairs / (self.flops * self.chunk_share);
            let reading = f64::from(chunk.context + chunk.tokens) * token / self.bandwidth;
            computing.max(reading)
        };
        let fixed = if chunks.is_empty() { 0.0 } else { 4.0 * self.kernel_s };
        fixed + chunks.iter().map(one).sum::<f64>()
    }

    fn copy(&self, direction: Direction, blocks: u32) -> f64 {
        let bytes = 16.0 * self.deployment.model.kv_bytes_per_token() * f64::from(blocks);
        let link = self.link[usize::from(direction == Direction::Out)];
        self.copy_s + bytes / link
    }

    fn noisy(&mut self, seconds: f64) -> f64 {
        let normal: f64 = StandardNormal.sample(&mut self.stream);
        seconds * (self.noise * normal).exp()
    }

    fn timing(&mut self, seconds: f64, repeats: u32) -> Timing {
        let seconds = self.noisy(seconds);
        Timing { seconds, spread: [0.99 * seconds, 1.01 * seconds], repeats }
    }
}

/// Inputs and outputs of the products of a layer: queries, keys and values; output; gate and up; down.
fn widths(model: &Model) -> [(f64, f64); 4] {
    let hidden = f64::from(model.hidden_size);
    let heads = f64::from(model.num_heads * model.head_dim);
    let kv = f64::from(2 * model.num_kv_heads * model.head_dim);
    let inner = (model.layer_params / f64::from(model.num_layers) / hidden - 2.0 * heads - kv) / 3.0;
    [(hidden, heads + kv), (heads, hidden), (hidden, 2.0 * inner), (inner, hidden)]
}

impl TimedDevice for Synthetic {
    fn about(&self) -> DeviceAbout {
        DeviceAbout {
            name: self.name.to_owned(),
            driver: "none".to_owned(),
            memory_bytes: self.deployment.hardware.memory_bytes as u64,
            multiprocessors: 132,
            model: self.deployment.model.name.clone(),
            commit: "0000000".to_owned(),
        }
    }

    fn step(&mut self, shape: &StepShape, repeats: u32) -> Result<Timing, String> {
        let seconds = self.truth(shape);
        Ok(self.timing(seconds, repeats))
    }

    fn transfer(&mut self, direction: Direction, blocks: u32, repeats: u32) -> Result<Timing, String> {
        let seconds = self.copy(direction, blocks);
        Ok(self.timing(seconds, repeats))
    }

    fn overlap(&mut self, shape: &StepShape, blocks: u32, _repeats: u32) -> Result<Overlap, String> {
        let (compute, transfer) = (self.truth(shape), self.copy(Direction::Out, blocks));
        let together = compute + transfer - self.overlap * compute.min(transfer);
        Ok(Overlap {
            compute_s: self.noisy(compute),
            transfer_s: self.noisy(transfer),
            together_s: self.noisy(together),
        })
    }

    fn launch(&mut self, repeats: u32) -> Result<Timing, String> {
        let seconds = self.launch_s;
        Ok(self.timing(seconds, repeats))
    }
}
