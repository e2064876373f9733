//! Steps and copies timed one by one, as a node would send them.

use std::sync::Arc;

use kvtide_envs::calibrate::{DeviceAbout, Direction, Overlap, StepShape, TimedDevice, Timing};
use kvtide_envs::cost::Chunk;
use kvtide_envs::kv::{BlockId, blocks_for};
use kvtide_envs::memory::{MemoryBackend, MemoryError, Span, Work};
use kvtide_envs::sched::{BlockCopy, RequestId};
use kvtide_envs::seed;
use kvtide_envs::tier::Routes;
use kvtide_kernels::launch;
use rand::seq::SliceRandom;

use super::CudaMemory;
use super::device::{Device, LaunchArg};
use super::driver::Event;

/// Runs before the first that counts: code is loaded, caches settle.
const WARM_UP: u32 = 3;
/// Seconds of steps before anything is timed, until clocks are those of a working device.
const CLOCKS_SETTLE: f64 = 1.0;
/// Most of those steps.
const MOST_SETTLING: u32 = 500;
/// Kernels and products of a layer, and besides the layers: what a step sends to the device one by one. A product is taken to
/// be a launch like any other; cuBLAS takes somewhat longer.
const OF_A_LAYER: u32 = 12;
const BESIDE: u32 = 6;

/// A device whose steps are timed.
#[derive(Debug)]
pub(super) struct Timer {
    memory: CudaMemory,
    /// Blocks of the device pool and of the host pool in an order without order, as they are after a while of serving.
    gpu: Vec<BlockId>,
    host: Vec<BlockId>,
    started: Event,
    copied: Event,
    ended: Event,
    model: String,
    commit: String,
}

/// A step made up to a shape.
#[derive(Debug, Default)]
struct Made {
    spans: Vec<Span>,
    tables: Vec<BlockId>,
    seeds: Vec<u64>,
}

impl Timer {
    pub(super) fn new(memory: CudaMemory, model: &str, commit: &str) -> Result<Timer, MemoryError> {
        let (gpu, host) = memory.counts();
        let shuffled = |name, count: u32| {
            let mut blocks: Vec<BlockId> = (0..count).map(BlockId).collect();
            blocks.shuffle(&mut seed::stream(0, name, 0));
            blocks
        };
        Ok(Timer {
            gpu: shuffled("timer.gpu", gpu),
            host: shuffled("timer.host", host),
            started: memory.device().event()?,
            copied: memory.device().event()?,
            ended: memory.device().event()?,
            model: model.to_owned(),
            commit: commit.to_owned(),
            memory,
        })
    }

    fn device(&self) -> &Device {
        self.memory.device()
    }

    /// A step of `shape` on the first blocks of the order, and how many of them it takes.
    fn made(&self, shape: &StepShape) -> Result<(Made, usize), MemoryError> {
        let block_size = self.memory.shape().block_size;
        let decodes = shape.decodes.iter().map(|&context| (context, 1));
        let chunks = shape.chunks.iter().map(|chunk| (chunk.context, chunk.tokens));
        let mut made = Made::default();
        for (index, (context, tokens)) in (0..).zip(chunks.chain(decodes)) {
            let (table, seeds) = (made.tables.len(), made.seeds.len());
            let blocks = blocks_for(context + tokens, block_size) as usize;
            let Some(blocks) = self.gpu.get(table..table + blocks) else {
                let wrong = format!("the step needs more than the pool's {} blocks", self.gpu.len());
                return Err(MemoryError::Unsupported(wrong));
            };
            made.tables.extend_from_slice(blocks);
            made.seeds.extend((0..tokens).map(|token| seed::derive(u64::from(index), "timer.text", u64::from(token))));
            made.spans.push(Span { id: RequestId(index), context, tokens, samples: true, table, seeds });
        }
        let taken = made.tables.len();
        Ok((made, taken))
    }

    /// Seconds of one step.
    fn once(&mut self, made: &Made) -> Result<f64, MemoryError> {
        let block_size = self.memory.shape().block_size;
        let Made { spans, tables, seeds } = made;
        self.memory.submit(&Work { copies: Routes::default(), spans, tables, seeds, block_size })?;
        self.memory.steps.wait().map(Option::unwrap_or_default)
    }

    /// Copies between `blocks` blocks of either pool, those of the device from number `skip` of the order on.
    fn copies(&self, direction: Direction, blocks: u32, skip: usize) -> Result<Vec<BlockCopy>, MemoryError> {
        let blocks = blocks as usize;
        let (Some(gpu), Some(host)) = (self.gpu.get(skip..skip + blocks), self.host.get(..blocks)) else {
            let wrong =
                format!("{blocks} blocks are more than the pools' {} and {}", self.gpu.len() - skip, self.host.len());
            return Err(MemoryError::Unsupported(wrong));
        };
        let copies = gpu.iter().zip(host).map(|(&gpu, &host)| match direction {
            Direction::Out => BlockCopy { src: gpu, dst: host },
            Direction::In => BlockCopy { src: host, dst: gpu },
        });
        Ok(copies.collect())
    }

    /// Seconds of copies alone.
    fn copy_once(&mut self, direction: Direction, copies: &[BlockCopy]) -> Result<f64, MemoryError> {
        self.started.record(&self.memory.device.swap)?;
        self.memory.pools.copy(direction, copies)?;
        self.ended.record(&self.memory.device.swap)?;
        self.ended.synchronise()?;
        self.started.seconds_to(&self.ended)
    }

    /// Seconds until a step and the copies beside it are both done.
    fn together_once(&mut self, made: &Made, copies: &[BlockCopy]) -> Result<f64, MemoryError> {
        let device = Arc::clone(self.memory.device());
        self.started.record(&device.compute)?;
        device.swap.wait(&self.started)?;
        self.memory.pools.copy(Direction::Out, copies)?;
        self.copied.record(&device.swap)?;
        self.once(made)?;
        device.compute.wait(&self.copied)?;
        self.ended.record(&device.compute)?;
        self.ended.synchronise()?;
        self.started.seconds_to(&self.ended)
    }

    /// Computes prompts for a while. At most so many, where time is not what it seems.
    fn settle(&mut self) -> Result<(), MemoryError> {
        self.device().enter()?;
        let block_size = self.memory.shape().block_size;
        let tokens = self.memory.most_tokens().min(self.gpu.len() as u32 * block_size).min(2048);
        let (made, _) = self.made(&StepShape { decodes: Vec::new(), chunks: vec![Chunk { context: 0, tokens }] })?;
        let mut spent = 0.0;
        for _ in 0..MOST_SETTLING {
            if spent >= CLOCKS_SETTLE {
                break;
            }
            let step = self.once(&made)?;
            // A clock that hardly moves is no device's.
            if step < 1e-4 {
                break;
            }
            spent += step;
        }
        Ok(())
    }

    fn repeat(
        &mut self,
        repeats: u32,
        mut once: impl FnMut(&mut Timer) -> Result<f64, MemoryError>,
    ) -> Result<Timing, MemoryError> {
        self.device().enter()?;
        let mut seconds = Vec::with_capacity(repeats as usize);
        for repeat in 0..WARM_UP + repeats.max(1) {
            let taken = once(self)?;
            if repeat >= WARM_UP {
                seconds.push(taken);
            }
        }
        Timing::of(&seconds).ok_or_else(|| MemoryError::Unsupported("nothing was timed".to_owned()))
    }
}

impl TimedDevice for Timer {
    fn about(&self) -> DeviceAbout {
        let device = self.device();
        DeviceAbout {
            name: device.name().to_owned(),
            driver: device.driver_text(),
            memory_bytes: device.memory_bytes(),
            multiprocessors: device.multiprocessors(),
            model: self.model.clone(),
            commit: self.commit.clone(),
        }
    }

    fn step(&mut self, shape: &StepShape, repeats: u32) -> Result<Timing, String> {
        let (made, _) = self.made(shape).map_err(|error| error.to_string())?;
        self.repeat(repeats, |timer| timer.once(&made)).map_err(|error| error.to_string())
    }

    fn transfer(&mut self, direction: Direction, blocks: u32, repeats: u32) -> Result<Timing, String> {
        let copies = self.copies(direction, blocks, 0).map_err(|error| error.to_string())?;
        self.repeat(repeats, |timer| timer.copy_once(direction, &copies)).map_err(|error| error.to_string())
    }

    fn overlap(&mut self, shape: &StepShape, blocks: u32, repeats: u32) -> Result<Overlap, String> {
        let mut timed = || {
            let (made, taken) = self.made(shape)?;
            let copies = self.copies(Direction::Out, blocks, taken)?;
            Ok(Overlap {
                compute_s: self.repeat(repeats, |timer| timer.once(&made))?.seconds,
                transfer_s: self.repeat(repeats, |timer| timer.copy_once(Direction::Out, &copies))?.seconds,
                together_s: self.repeat(repeats, |timer| timer.together_once(&made, &copies))?.seconds,
            })
        };
        timed().map_err(|error: MemoryError| error.to_string())
    }

    fn launch(&mut self, repeats: u32) -> Result<Timing, String> {
        self.settle().map_err(|error| error.to_string())?;
        let once = |timer: &mut Timer| {
            let device = Arc::clone(timer.memory.device());
            let launches = OF_A_LAYER * timer.memory.shape().layers + BESIDE;
            timer.started.record(&device.compute)?;
            for _ in 0..launches {
                // No rows: the kernel returns at once, and reads and writes nothing.
                let args =
                    [LaunchArg::Long(0), LaunchArg::Long(0), LaunchArg::Long(0), LaunchArg::Int(0), LaunchArg::Int(8)];
                // SAFETY: the kernel's own arguments.
                unsafe { device.launch("kvtide_embed", launch::embed(0, 8), &device.compute, &args)? };
            }
            timer.ended.record(&device.compute)?;
            timer.ended.synchronise()?;
            timer.started.seconds_to(&timer.ended)
        };
        self.repeat(repeats, once).map_err(|error: MemoryError| error.to_string())
    }
}
