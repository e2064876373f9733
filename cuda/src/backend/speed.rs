//! How fast blocks are moved and read, beside the ceilings of the same device in the same call.

use std::sync::Arc;

use kvtide_envs::calibrate::{Direction, Timing};
use kvtide_envs::kv::BlockId;
use kvtide_envs::memory::{Filled, KvShape, MemoryError};
use kvtide_envs::sched::BlockCopy;
use kvtide_envs::seed;
use kvtide_kernels::launch::{self, DecodeItem, MergeItem, decode_items};
use rand::seq::SliceRandom;

use super::device::{Device, LaunchArg};
use super::driver::{CudaStream, DeviceBuffer, Event, Pinned, copy};
use super::pools::{CopyMethod, Pools};
use crate::{Ceiling, Speed};

/// How often everything is done before it counts, so that clocks and caches settle.
const WARM_UP: u32 = 3;
/// Shares of the ceilings that are aimed at.
const SWAP_TARGET: f64 = 0.9;
const ATTENTION_TARGET: f64 = 0.8;
const BLOCK_TARGET: f64 = 0.85;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// How often each is repeated.
    pub(super) repeats: u32,
    /// Blocks swapped at once.
    pub(super) swapped: u32,
    /// The attention that is measured: sequences, and tokens of each.
    pub(super) batch: u32,
    pub(super) context: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { repeats: 20, swapped: 512, batch: 64, context: 4096 }
    }
}

/// Everything needed to measure, on pools large enough for it.
struct Bench<'a> {
    device: Arc<Device>,
    shape: KvShape,
    group: u32,
    sizes: Sizes,
    num_blocks: u32,
    pools: Pools,
    started: Event,
    ended: Event,
    report: &'a mut dyn FnMut(&Speed),
}

/// Measures every speed of blocks of `shape` on `device`, whose query heads are `group` to a key/value head, and hands each
/// over as it is there. A pool of `num_blocks` blocks, twice what is read at once, keeps caches out of it.
///
/// # Errors
/// The device failed, or is too small.
pub(super) fn speeds(
    device: &Arc<Device>,
    shape: KvShape,
    group: u32,
    sizes: Sizes,
    report: &mut dyn FnMut(&Speed),
) -> Result<(), MemoryError> {
    device.enter()?;
    // The batch, and as much again for copies of blocks to go to.
    let batch = sizes.batch * sizes.context / shape.block_size;
    let swapped = sizes.swapped;
    let free = super::driver::Context::memory()?.0 as f64 * 0.8;
    let num_blocks = ((free / shape.block_bytes() as f64) as u32).min(2 * batch);
    if num_blocks < 2 * swapped {
        let wrong = format!("{num_blocks} blocks fit on the device; at least {} are measured", 2 * swapped);
        return Err(MemoryError::Unsupported(wrong));
    }
    let mut bench = Bench {
        pools: Pools::new(device, shape, num_blocks, swapped)?,
        started: device.event()?,
        ended: device.event()?,
        device: Arc::clone(device),
        num_blocks,
        shape,
        group,
        sizes,
        report,
    };
    // Zeros are fine numbers for every kernel; a poisoned pool would be read as such by attention.
    bench.pools.fill(0)?;
    let copied = bench.device_ceiling()?;
    for direction in [Direction::Out, Direction::In] {
        let ceiling = bench.host_ceiling(direction)?;
        for method in [CopyMethod::Engine, CopyMethod::Kernel, CopyMethod::ByLayer] {
            bench.swap(direction, method, ceiling)?;
        }
    }
    bench.block_copy(copied)?;
    bench.checksum(copied)?;
    bench.attention(copied)
}

impl Bench<'_> {
    /// Times `send`, which sends work to `stream`.
    fn time(
        &mut self,
        is_swap: bool,
        mut send: impl FnMut(&mut Pools) -> Result<(), MemoryError>,
    ) -> Result<Timing, MemoryError> {
        let device = Arc::clone(&self.device);
        let stream: &CudaStream = if is_swap { &device.swap } else { &device.compute };
        let mut seconds = Vec::new();
        for repeat in 0..WARM_UP + self.sizes.repeats {
            self.started.record(stream)?;
            send(&mut self.pools)?;
            self.ended.record(stream)?;
            self.ended.synchronise()?;
            if repeat >= WARM_UP {
                seconds.push(self.started.seconds_to(&self.ended)?);
            }
        }
        Timing::of(&seconds).ok_or_else(|| MemoryError::Unsupported("nothing was timed".to_owned()))
    }

    fn tell(&mut self, name: &str, bytes: u64, timing: Timing, ceiling: Option<Ceiling>) -> f64 {
        let of = |seconds: f64| bytes as f64 / seconds.max(1e-12);
        let Timing { seconds, spread: [low, high], repeats } = timing;
        let speed = Speed {
            name: name.to_owned(),
            bytes_per_s: of(seconds),
            spread: [of(high), of(low)],
            repeats,
            bytes,
            ceiling,
        };
        (self.report)(&speed);
        speed.bytes_per_s
    }

    /// One large copy within the device: bytes read and written.
    fn device_ceiling(&mut self) -> Result<f64, MemoryError> {
        let half = u64::from(self.num_blocks / 2) * self.shape.block_bytes();
        let (from, device) = (self.pools.address(), Arc::clone(&self.device));
        // SAFETY: both halves are in the pool.
        let timing = self.time(false, |_| unsafe { copy(from + half, from, half, &device.compute) })?;
        Ok(self.tell("device copy, read and write", 2 * half, timing, None))
    }

    /// One large copy between device and pinned memory.
    fn host_ceiling(&mut self, direction: Direction) -> Result<f64, MemoryError> {
        let bytes = u64::from(self.sizes.swapped) * self.shape.block_bytes();
        let device = Arc::clone(&self.device);
        let gpu = DeviceBuffer::new(&device.context, bytes, "one large copy")?;
        let host = Pinned::new(&device.context, bytes, "one large copy")?;
        let (to, from) = match direction {
            Direction::Out => (host.address(), gpu.address()),
            Direction::In => (gpu.address(), host.address()),
        };
        // SAFETY: both are so long, and live until the copies are waited for.
        let timing = self.time(true, |_| unsafe { copy(to, from, bytes, &device.swap) })?;
        Ok(self.tell(&format!("one large pinned copy {}", way(direction)), bytes, timing, None))
    }

    /// Scattered blocks swapped.
    fn swap(&mut self, direction: Direction, method: CopyMethod, ceiling: f64) -> Result<(), MemoryError> {
        let mut stream = seed::stream(0, "speed.swap", 0);
        let mut gpu: Vec<BlockId> = (0..self.num_blocks).map(BlockId).collect();
        let mut host: Vec<BlockId> = (0..self.sizes.swapped).map(BlockId).collect();
        gpu.shuffle(&mut stream);
        host.shuffle(&mut stream);
        let copies: Vec<BlockCopy> = gpu
            .iter()
            .zip(&host)
            .map(|(&gpu, &host)| match direction {
                Direction::Out => BlockCopy { src: gpu, dst: host },
                Direction::In => BlockCopy { src: host, dst: gpu },
            })
            .collect();
        let usual = self.pools.method();
        self.pools.set_method(method);
        let timing = self.time(true, |pools| pools.copy(direction, &copies));
        self.pools.set_method(usual);
        let (what, target) = match method {
            CopyMethod::Engine => ("copy engine, one copy a block", Some(SWAP_TARGET)),
            CopyMethod::Kernel => ("kernel", Some(SWAP_TARGET)),
            CopyMethod::ByLayer => ("copy engine, one copy a layer and block, as vLLM's V0", None),
        };
        // The target is that of the method in use.
        let target = target.filter(|_| method == usual);
        let bytes = u64::from(self.sizes.swapped) * self.shape.block_bytes();
        let name = format!("{} scattered blocks {}, {what}", self.sizes.swapped, way(direction));
        let pinned = Ceiling { name: "one large pinned copy".to_owned(), bytes_per_s: ceiling, target };
        self.tell(&name, bytes, timing?, Some(pinned));
        Ok(())
    }

    /// Scattered blocks copied within the device, as copy-on-write does.
    fn block_copy(&mut self, ceiling: f64) -> Result<(), MemoryError> {
        let mut blocks: Vec<u32> = (0..self.num_blocks).collect();
        blocks.shuffle(&mut seed::stream(0, "speed.block_copy", 0));
        let half = blocks.len() / 2;
        let pairs: Vec<[u32; 2]> = blocks[..half].iter().zip(&blocks[half..]).map(|(&from, &to)| [from, to]).collect();
        let list = DeviceBuffer::new(&self.device.context, pairs.len() as u64 * 8, "a list of copies")?;
        list.write(&pairs, &self.device.compute)?;
        let vectors = self.shape.block_bytes() / 16;
        let geometry = launch::block_copy(pairs.len() as u32, vectors, self.device.multiprocessors());
        let pool = self.pools.address();
        let args = [
            LaunchArg::Long(pool),
            LaunchArg::Long(pool),
            LaunchArg::Long(list.address()),
            LaunchArg::Int(pairs.len() as u32),
            LaunchArg::Long(vectors),
        ];
        let device = Arc::clone(&self.device);
        let timing = self.time(false, |_| {
            // SAFETY: the kernel's arguments; both halves are in the pool and have no block in common.
            unsafe { device.launch("kvtide_block_copy", geometry, &device.compute, &args) }
        })?;
        let bytes = 2 * pairs.len() as u64 * self.shape.block_bytes();
        self.tell(
            "block copy within the device, read and write",
            bytes,
            timing,
            Some(on_device(ceiling, BLOCK_TARGET)),
        );
        Ok(())
    }

    fn checksum(&mut self, ceiling: f64) -> Result<(), MemoryError> {
        let block_size = self.shape.block_size;
        let mut filled: Vec<Filled> =
            (0..self.num_blocks).map(|block| Filled { block: BlockId(block), tokens: block_size }).collect();
        filled.shuffle(&mut seed::stream(0, "speed.checksum", 0));
        self.pools.prepare_checksums(&filled)?;
        let timing = self.time(false, |pools| pools.launch_prepared(filled.len() as u32))?;
        let bytes = u64::from(self.num_blocks) * self.shape.block_bytes();
        self.tell("block checksum, read", bytes, timing, Some(on_device(ceiling, BLOCK_TARGET)));
        Ok(())
    }

    /// Attention of one decode step.
    fn attention(&mut self, ceiling: f64) -> Result<(), MemoryError> {
        let (shape, group, device) = (self.shape, self.group, Arc::clone(&self.device));
        if ![64, 128].contains(&shape.head_dim) || shape.block_size != launch::BLOCK_SIZE {
            return Ok(());
        }
        let context = self.sizes.context;
        let of_each = context / shape.block_size;
        let batch = self.sizes.batch.min(self.num_blocks / of_each).max(1);
        let mut tables: Vec<u32> = (0..batch * of_each).collect();
        tables.shuffle(&mut seed::stream(0, "speed.tables", 0));
        let starts: Vec<u32> = (0..batch).map(|sequence| sequence * of_each).collect();
        let lengths = vec![context; batch as usize];
        let (items, merges) = decode_items(&lengths, &starts, shape.kv_heads, device.multiprocessors());
        let partials: u32 = merges.iter().map(|merge| merge.count).sum();
        let heads = shape.kv_heads * group;
        let row = u64::from(heads) * u64::from(shape.head_dim);
        let buffer = |bytes: u64| DeviceBuffer::new(&device.context, bytes, "an attention to be timed");
        let list = |words: &[u32]| {
            let buffer = buffer(words.len() as u64 * 4)?;
            buffer.write(words, &device.compute)?;
            Ok::<_, MemoryError>(buffer)
        };
        let (query, out) = (buffer(u64::from(batch) * row * 2)?, buffer(u64::from(batch) * row * 2)?);
        query.fill(0, &device.compute)?;
        let tables = list(&tables)?;
        let item_list = list(&items.iter().flat_map(DecodeItem::words).collect::<Vec<_>>())?;
        let merge_list = list(&merges.iter().flat_map(MergeItem::words).collect::<Vec<_>>())?;
        let partial = buffer(u64::from(partials) * row * 4)?;
        let state = buffer(u64::from(partials) * u64::from(heads) * 8)?;
        let decode = if shape.head_dim == 64 { "kvtide_paged_decode_bf16_64" } else { "kvtide_paged_decode_bf16_128" };
        let pool = self.pools.address();
        let layer = |layer: u32| {
            let keys = shape.layer_offset(layer);
            let args = [
                LaunchArg::Long(query.address()),
                LaunchArg::Long(row),
                LaunchArg::Long(pool),
                LaunchArg::Long(shape.block_bytes() / 2),
                LaunchArg::Long(keys),
                LaunchArg::Long(keys + shape.layer_elements()),
                LaunchArg::Long(tables.address()),
                LaunchArg::Long(item_list.address()),
                LaunchArg::Long(partial.address()),
                LaunchArg::Long(state.address()),
                LaunchArg::Long(out.address()),
                LaunchArg::Long(row),
                LaunchArg::Int(shape.kv_heads),
                LaunchArg::Int(group),
                LaunchArg::Float(1.0 / (shape.head_dim as f32).sqrt()),
            ];
            // SAFETY: the kernel's arguments, as large as it needs them.
            unsafe {
                device.launch(
                    decode,
                    launch::paged_decode(items.len(), shape.kv_heads, group),
                    &device.compute,
                    &args,
                )?;
            }
            if merges.is_empty() {
                return Ok(());
            }
            let args = [
                LaunchArg::Long(partial.address()),
                LaunchArg::Long(state.address()),
                LaunchArg::Long(merge_list.address()),
                LaunchArg::Long(out.address()),
                LaunchArg::Long(row),
                LaunchArg::Int(heads),
                LaunchArg::Int(shape.head_dim),
            ];
            let geometry = launch::paged_merge(merges.len(), heads, shape.head_dim);
            // SAFETY: as above.
            unsafe { device.launch("kvtide_paged_merge_bf16", geometry, &device.compute, &args) }
        };
        // All layers, as a step has them: no cache holds what the next reads, and the start of the first hardly counts.
        let timing = self.time(false, |_| (0..shape.layers).try_for_each(layer))?;
        let of_a_layer =
            u64::from(batch) * u64::from(context) * shape.layer_elements() * 4 / u64::from(shape.block_size);
        let bytes = u64::from(shape.layers) * of_a_layer;
        let name = format!("paged decode attention, {batch} sequences of {context} tokens, keys and values read");
        self.tell(&name, bytes, timing, Some(on_device(ceiling, ATTENTION_TARGET)));
        Ok(())
    }
}

fn on_device(bytes_per_s: f64, target: f64) -> Ceiling {
    Ceiling { name: "device copy".to_owned(), bytes_per_s, target: Some(target) }
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Out => "to the host",
        Direction::In => "to the device",
    }
}
