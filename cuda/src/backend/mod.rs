//! The device as the driver has it: pools, streams, kernels, and the backend over them.
#![expect(unsafe_code, reason = "the CUDA driver is a C library: this is the one place that talks to it")]

mod blas;
mod compile;
mod decoder;
mod device;
mod driver;
mod launcher;
mod library;
mod pools;
mod speed;
mod step;
mod timer;
mod weights;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use kvtide_envs::calibrate::{DeviceAbout, Direction, TimedDevice};
use kvtide_envs::deploy::{Deployment, EngineConfig, Model};
use kvtide_envs::memory::{Contents, Filled, KvShape, MemoryBackend, MemoryError, MemorySource, Work};
use kvtide_envs::tier::{Route, Tier};
use kvtide_envs::time::Micros;
use kvtide_kernels::launch;
use kvtide_kernels::reference::Element;

pub use device::devices;
pub use launcher::Kernels;

use self::decoder::{Decoder, StepLimits};
use self::device::{Device, LaunchArg};
use self::driver::Event;
use self::pools::Pools;
use self::speed::Sizes;
use self::step::{Builder, Inputs, Layout, StepQueue};
use self::timer::Timer;
use self::weights::Widths;
use crate::{KernelCheck, Speed};

/// Real blocks on a device, and a decoder over them.
struct CudaMemory {
    writer: Writer,
    pools: Pools,
    steps: StepQueue,
    builder: Builder,
    layout: Layout,
    /// Copies to the host that may be under way: the blocks they read, and when they are done.
    leaving: Vec<(BTreeSet<u32>, Event)>,
    device: Arc<Device>,
}

/// Who writes keys and values.
#[derive(Debug)]
enum Writer {
    /// A kernel that draws them from seeds, as host memory does.
    Fill,
    /// A model.
    Decoder(Box<Decoder>),
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaMemory")
            .field("device", &self.device.name())
            .field("shape", &self.pools.shape())
            .finish_non_exhaustive()
    }
}

/// What device `ordinal` is.
///
/// # Errors
/// There is no such device.
pub fn about(ordinal: u32) -> Result<DeviceAbout, MemoryError> {
    device::about(ordinal)
}

/// Device `ordinal` with the model of `deployment` on it, in bf16, and pools of `engine`.
///
/// # Errors
/// There is no such device, the model does not fit or cannot be computed, or a kernel does not compile.
pub fn open(
    ordinal: u32,
    deployment: &Deployment,
    engine: &EngineConfig,
) -> Result<Box<dyn MemoryBackend>, MemoryError> {
    if deployment.devices != 1 {
        let wrong = format!("{}: one device is supported", deployment.name());
        return Err(MemoryError::Unsupported(wrong));
    }
    let device = Arc::new(Device::open(ordinal)?);
    Ok(Box::new(CudaMemory::decoder(&device, &deployment.model, Element::Bf16, engine)?))
}

/// The same, lent to one node at a time.
///
/// # Errors
/// As [`open`].
pub fn lend(ordinal: u32, deployment: &Deployment, engine: &EngineConfig) -> Result<MemorySource, MemoryError> {
    let shape = KvShape::of(&deployment.model, engine.block_size)?;
    Ok(MemorySource::lend(open(ordinal, deployment, engine)?, shape, engine))
}

/// Device `ordinal` with blocks of `shape` whose contents are drawn, as those of [`HostMemory`](kvtide_envs::memory::HostMemory)
/// are: every checksum is the same there.
///
/// # Errors
/// As [`open`].
pub fn open_drawn(ordinal: u32, shape: KvShape, engine: &EngineConfig) -> Result<Box<dyn MemoryBackend>, MemoryError> {
    Ok(Box::new(CudaMemory::drawn(&Arc::new(Device::open(ordinal)?), shape, engine)?))
}

/// The same, lent to one node at a time.
///
/// # Errors
/// As [`open`].
pub fn lend_drawn(ordinal: u32, shape: KvShape, engine: &EngineConfig) -> Result<MemorySource, MemoryError> {
    Ok(MemorySource::lend(open_drawn(ordinal, shape, engine)?, shape, engine))
}

/// Device `ordinal` with the model of `deployment` on it, to be timed step by step. `commit` is what this was built from.
///
/// # Errors
/// As [`open`].
pub fn timer(
    ordinal: u32,
    deployment: &Deployment,
    engine: &EngineConfig,
    commit: &str,
) -> Result<Box<dyn TimedDevice>, MemoryError> {
    let device = Arc::new(Device::open(ordinal)?);
    let memory = CudaMemory::decoder(&device, &deployment.model, Element::Bf16, engine)?;
    Ok(Box::new(Timer::new(memory, &deployment.model.name, commit)?))
}

/// How fast device `ordinal` moves and reads blocks of the model of `deployment`. Each speed is handed over as it is there.
///
/// # Errors
/// There is no such device, it is too small, or it failed.
pub fn speeds(ordinal: u32, deployment: &Deployment, report: &mut dyn FnMut(&Speed)) -> Result<(), MemoryError> {
    let device = Arc::new(Device::open(ordinal)?);
    let shape = KvShape::of(&deployment.model, launch::BLOCK_SIZE)?;
    let group = Widths::of(&deployment.model)?.group();
    speed::speeds(&device, shape, group, Sizes::default(), report)
}

/// Every kernel against its reference on device `ordinal`. Each check is handed over as it is done.
///
/// # Errors
/// There is no such device, or it failed.
pub fn check_kernels(
    ordinal: u32,
    seeds: std::ops::Range<u64>,
    report: &mut dyn FnMut(&KernelCheck),
) -> Result<(), MemoryError> {
    launcher::check_kernels(&Arc::new(Device::open(ordinal)?), seeds, report)
}

impl CudaMemory {
    /// A model with random weights over the pools of `engine`.
    ///
    /// # Errors
    /// It does not fit, or is not a decoder the kernels can do.
    fn decoder(
        device: &Arc<Device>,
        model: &Model,
        element: Element,
        engine: &EngineConfig,
    ) -> Result<CudaMemory, MemoryError> {
        device.enter()?;
        let shape = KvShape::of(model, engine.block_size)?;
        // What decodes is in no budget where nothing is chunked.
        let tokens = engine.max_num_batched_tokens.max(engine.max_num_seqs);
        let limits = StepLimits { tokens, sampled: engine.max_num_seqs };
        let decoder = Decoder::new(device, model, shape, element, limits)?;
        CudaMemory::new(device, shape, engine, Writer::Decoder(Box::new(decoder)))
    }

    /// Blocks of `shape` whose contents are drawn.
    ///
    /// # Errors
    /// The pools do not fit.
    fn drawn(device: &Arc<Device>, shape: KvShape, engine: &EngineConfig) -> Result<CudaMemory, MemoryError> {
        device.enter()?;
        CudaMemory::new(device, shape, engine, Writer::Fill)
    }

    fn new(
        device: &Arc<Device>,
        shape: KvShape,
        engine: &EngineConfig,
        writer: Writer,
    ) -> Result<CudaMemory, MemoryError> {
        let (group, vocabulary) = match &writer {
            Writer::Fill => (1, 1),
            Writer::Decoder(decoder) => (decoder.group(), decoder.vocabulary()),
        };
        Ok(CudaMemory {
            layout: Layout { shape, group, vocabulary, multiprocessors: device.multiprocessors() },
            pools: Pools::new(device, shape, engine.num_gpu_blocks, engine.num_cpu_blocks)?,
            steps: StepQueue::new(device)?,
            builder: Builder::default(),
            leaving: Vec::new(),
            device: Arc::clone(device),
            writer,
        })
    }

    /// The device.
    fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Blocks of the device pool and of the host pool.
    fn counts(&self) -> (u32, u32) {
        self.pools.counts()
    }

    /// Tokens of the largest step there is room for; without a decoder any step is.
    fn most_tokens(&self) -> u32 {
        match &self.writer {
            Writer::Fill => u32::MAX,
            Writer::Decoder(decoder) => decoder.most_tokens(),
        }
    }

    /// The shape of its blocks.
    fn shape(&self) -> KvShape {
        self.pools.shape()
    }

    /// Sends the copies of a step to the swap stream, and makes the compute stream wait for what it needs of them.
    fn swap(&mut self, work: &Work<'_>) -> Result<(), MemoryError> {
        if !work.copies[Route::GpuToHost].is_empty() || !work.copies[Route::HostToGpu].is_empty() {
            if let Some(end) = self.steps.last_end() {
                self.device.swap.wait(end)?;
            }
            self.pools.copy(Direction::Out, work.copies[Route::GpuToHost])?;
            if !work.copies[Route::GpuToHost].is_empty() {
                let done = self.device.event()?;
                done.record(&self.device.swap)?;
                let sources = work.copies[Route::GpuToHost].iter().map(|copy| copy.src.0).collect();
                self.leaving.push((sources, done));
            }
            self.pools.copy(Direction::In, work.copies[Route::HostToGpu])?;
            if !work.copies[Route::HostToGpu].is_empty() {
                // Whoever comes back runs in this step.
                let done = self.device.event()?;
                done.record(&self.device.swap)?;
                self.device.compute.wait(&done)?;
            }
        }
        self.wait_for_leaving(work)
    }

    /// Blocks that this step writes must have left before. A step that computes nothing waits for all of its copies.
    fn wait_for_leaving(&mut self, work: &Work<'_>) -> Result<(), MemoryError> {
        let mut kept = Vec::new();
        for (sources, done) in self.leaving.drain(..) {
            if done.is_past()? {
                continue;
            }
            let is_written = || {
                let written = work.spans.iter().flat_map(|span| {
                    let first = (span.context / work.block_size) as usize;
                    work.table(span)[first..].iter()
                });
                written.into_iter().any(|block| sources.contains(&block.0))
            };
            if work.spans.is_empty() || is_written() {
                self.device.compute.wait(&done)?;
            } else {
                kept.push((sources, done));
            }
        }
        self.leaving = kept;
        Ok(())
    }

    /// Sends the writes of a step to the compute stream.
    fn write(&mut self, inputs: &Inputs, lists: u64) -> Result<(), MemoryError> {
        match &mut self.writer {
            Writer::Decoder(decoder) => decoder.forward(inputs, lists, self.pools.address()),
            Writer::Fill if inputs.tokens == 0 => Ok(()),
            Writer::Fill => {
                let shape = self.pools.shape();
                let (planes, words) = (shape.planes(), shape.words_per_row());
                let list = |offset: u32| LaunchArg::Long(lists + u64::from(offset) * 4);
                let args = [
                    LaunchArg::Long(self.pools.address()),
                    list(inputs.seeds.offset),
                    list(inputs.slots.offset),
                    LaunchArg::Int(inputs.tokens),
                    LaunchArg::Int(planes),
                    LaunchArg::Int(shape.block_size),
                    LaunchArg::Int(words),
                ];
                let geometry = launch::kv_fill(inputs.tokens, planes, words);
                // SAFETY: the kernel's arguments; slots are of blocks in the pool.
                unsafe { self.device.launch("kvtide_kv_fill", geometry, &self.device.compute, &args) }
            }
        }
    }
}

impl MemoryBackend for CudaMemory {
    fn name(&self) -> String {
        self.device.name().to_owned()
    }

    fn contents(&self) -> Contents {
        match self.writer {
            Writer::Fill => Contents::Drawn,
            Writer::Decoder(_) => Contents::Computed,
        }
    }

    fn submit(&mut self, work: &Work<'_>) -> Result<(), MemoryError> {
        self.device.enter()?;
        let (count, _) = self.pools.counts();
        assert!(work.tables.iter().all(|block| block.0 < count), "a table leads out of the pool");
        let mut builder = std::mem::take(&mut self.builder);
        let (inputs, words) = builder.build(work, &self.layout);
        // The clock starts before the copies, so that what compute waits for is part of the step.
        let lists = self.steps.start(words);
        let sent = lists.and_then(|lists| {
            self.swap(work)?;
            self.write(&inputs, lists)
        });
        self.builder = builder;
        sent?;
        self.steps.end()
    }

    fn wait(&mut self) -> Result<Option<Micros>, MemoryError> {
        self.device.enter()?;
        let seconds = self.steps.wait()?;
        Ok(seconds.map(|seconds| Micros::from_secs_f64(seconds).max(Micros(1))))
    }

    fn checksums(&mut self, tier: Tier, blocks: &[Filled], sums: &mut Vec<u64>) -> Result<(), MemoryError> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.device.enter()?;
        if tier == Tier::Host {
            for (_, done) in &self.leaving {
                self.device.compute.wait(done)?;
            }
        }
        self.pools.checksums(tier, blocks, sums)
    }

    fn reset(&mut self) -> Result<(), MemoryError> {
        self.device.enter()?;
        self.pools.synchronise()?;
        while self.steps.wait()?.is_some() {}
        self.leaving.clear();
        self.pools.poison()
    }
}

#[cfg(test)]
mod tests;
