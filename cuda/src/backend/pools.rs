//! Both pools of a device, and what is done to whole blocks.

use std::sync::Arc;

use kvtide_envs::calibrate::Direction;
use kvtide_envs::kv::BlockId;
use kvtide_envs::memory::{Filled, KvShape, MemoryError};
use kvtide_envs::sched::BlockCopy;
use kvtide_envs::tier::Tier;
use kvtide_kernels::launch;

use super::device::{Device, LaunchArg};
use super::driver::{DeviceBuffer, Event, Pinned, copy};

/// How scattered blocks are copied between device and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CopyMethod {
    /// By the copy engine, one copy a block: a block is contiguous on both sides.
    Engine,
    /// By a kernel that reads and writes pinned memory itself, on a few multiprocessors.
    Kernel,
    /// By the copy engine, `2 · layers` copies a block, as an engine does whose pools are apart by layer (vLLM's V0).
    /// Nothing here is stored so; it is what the others are compared with.
    ByLayer,
}

/// From this block size on the copy engine is used, bytes: a copy of it takes some 5 µs at the speed of `PCIe` 5.0, against 1 to 2 µs
/// for its start. An estimate until a device says otherwise; `kvtide-device` measures every method.
const ENGINE_FROM_BYTES: u64 = 256 << 10;
/// Multiprocessors' worth of CTAs that a copying kernel may take.
const COPY_CTAS: u32 = 32;
/// Lists of copies that may be in use at once.
const LISTS: usize = 4;
/// Largest batch of one checksum launch, blocks.
const MOST_CHECKED: usize = 1 << 16;

/// Device pool and pinned host pool.
#[derive(Debug)]
pub(super) struct Pools {
    shape: KvShape,
    gpu: DeviceBuffer,
    host: Pinned,
    counts: (u32, u32),
    method: CopyMethod,
    /// `(source, destination)` of the copies that kernels are doing, and when they are done; used in turn.
    pairs: Vec<(Pinned, Event)>,
    filled: DeviceBuffer,
    sums: DeviceBuffer,
    device: Arc<Device>,
}

impl Pools {
    pub(super) fn new(
        device: &Arc<Device>,
        shape: KvShape,
        num_gpu_blocks: u32,
        num_cpu_blocks: u32,
    ) -> Result<Pools, MemoryError> {
        let bytes = |blocks: u32| u64::from(blocks) * shape.block_bytes();
        let context = &device.context;
        let most = num_gpu_blocks.max(num_cpu_blocks).max(1);
        let checked = u64::from(most).min(MOST_CHECKED as u64);
        let method = if shape.block_bytes() >= ENGINE_FROM_BYTES { CopyMethod::Engine } else { CopyMethod::Kernel };
        Ok(Pools {
            shape,
            gpu: DeviceBuffer::new(context, bytes(num_gpu_blocks), &format!("the pool of {num_gpu_blocks} blocks"))?,
            host: Pinned::new(context, bytes(num_cpu_blocks), &format!("the host pool of {num_cpu_blocks} blocks"))?,
            counts: (num_gpu_blocks, num_cpu_blocks),
            method,
            pairs: (0..LISTS)
                .map(|_| Ok((Pinned::new(context, u64::from(most) * 8, "a list of copies")?, device.event()?)))
                .collect::<Result<_, MemoryError>>()?,
            filled: DeviceBuffer::new(context, checked * 8, "the list of blocks to check")?,
            sums: DeviceBuffer::new(context, checked * 8, "checksums")?,
            device: Arc::clone(device),
        })
    }

    pub(super) fn shape(&self) -> KvShape {
        self.shape
    }

    pub(super) fn address(&self) -> u64 {
        self.gpu.address()
    }

    /// Blocks of the device pool and of the host pool.
    pub(super) fn counts(&self) -> (u32, u32) {
        self.counts
    }

    pub(super) fn method(&self) -> CopyMethod {
        self.method
    }

    pub(super) fn set_method(&mut self, method: CopyMethod) {
        self.method = method;
    }

    /// Fills the device pool with a pattern nobody writes.
    pub(super) fn poison(&mut self) -> Result<(), MemoryError> {
        self.fill(0xa5)
    }

    /// Sets every byte of the device pool.
    pub(super) fn fill(&mut self, byte: u8) -> Result<(), MemoryError> {
        self.gpu.fill(byte, &self.device.compute)?;
        self.device.compute.synchronise()
    }

    /// Copies blocks on the swap stream.
    ///
    /// # Panics
    /// If a block is not in its pool.
    pub(super) fn copy(&mut self, direction: Direction, copies: &[BlockCopy]) -> Result<(), MemoryError> {
        let (from, to) = match direction {
            Direction::Out => ((self.gpu.address(), self.counts.0), (self.host.address(), self.counts.1)),
            Direction::In => ((self.host.address(), self.counts.1), (self.gpu.address(), self.counts.0)),
        };
        let is_inside = |copy: &BlockCopy| copy.src.0 < from.1 && copy.dst.0 < to.1;
        assert!(copies.iter().all(is_inside), "a copy leads out of its pool");
        if copies.is_empty() {
            return Ok(());
        }
        let bytes = self.shape.block_bytes();
        let pieces = match self.method {
            CopyMethod::Kernel => return self.copy_by_kernel(from.0, to.0, copies),
            CopyMethod::Engine => 1,
            CopyMethod::ByLayer => 2 * u64::from(self.shape.layers),
        };
        let piece = bytes / pieces;
        for block in copies {
            let (from, to) = (from.0 + u64::from(block.src.0) * bytes, to.0 + u64::from(block.dst.0) * bytes);
            for index in 0..pieces {
                // SAFETY: the blocks are in their pools, which live as long as the stream's work: `self` waits when dropped.
                unsafe { copy(to + index * piece, from + index * piece, piece, &self.device.swap)? };
            }
        }
        Ok(())
    }

    fn copy_by_kernel(&mut self, from: u64, to: u64, copies: &[BlockCopy]) -> Result<(), MemoryError> {
        let vectors = self.shape.block_bytes() / 16;
        let room = self.pairs.first().map_or(1, |list| list.0.bytes() as usize / 8);
        for copies in copies.chunks(room) {
            self.pairs.rotate_left(1);
            let (list, done) = &mut self.pairs[0];
            done.synchronise()?;
            let pairs: Vec<[u32; 2]> = copies.iter().map(|copy| [copy.src.0, copy.dst.0]).collect();
            list.put(0, &pairs);
            let geometry = launch::block_copy_with(pairs.len() as u32, vectors, COPY_CTAS);
            let args = [
                LaunchArg::Long(from),
                LaunchArg::Long(to),
                LaunchArg::Long(list.address()),
                LaunchArg::Int(pairs.len() as u32),
                LaunchArg::Long(vectors),
            ];
            // SAFETY: the kernel's arguments; blocks are in their pools.
            unsafe { self.device.launch("kvtide_block_copy", geometry, &self.device.swap, &args)? };
            done.record(&self.device.swap)?;
        }
        Ok(())
    }

    /// Appends the checksums of blocks as they are when everything sent to the compute stream is done.
    ///
    /// # Panics
    /// If a block is not in its pool.
    pub(super) fn checksums(&mut self, tier: Tier, blocks: &[Filled], sums: &mut Vec<u64>) -> Result<(), MemoryError> {
        let (address, count) = match tier {
            Tier::Gpu => (self.gpu.address(), self.counts.0),
            Tier::Host => (self.host.address(), self.counts.1),
        };
        assert!(blocks.iter().all(|filled| filled.block.0 < count), "a block is not in its pool");
        for blocks in blocks.chunks(self.sums.bytes() as usize / 8) {
            self.prepare_checksums(blocks)?;
            self.launch_checksum(address, blocks.len() as u32)?;
            let first = sums.len();
            sums.resize(first + blocks.len(), 0);
            self.sums.read(&mut sums[first..], &self.device.compute)?;
        }
        Ok(())
    }

    /// Makes `blocks` the list to be checked.
    ///
    /// # Panics
    /// If they are more than the list holds.
    pub(super) fn prepare_checksums(&mut self, blocks: &[Filled]) -> Result<(), MemoryError> {
        let filled: Vec<[u32; 2]> = blocks.iter().map(|filled| [filled.block.0, filled.tokens]).collect();
        self.filled.write(&filled, &self.device.compute)?;
        self.sums.fill(0, &self.device.compute)
    }

    /// Sends the checksum of the first `count` blocks of the list, in the device pool, to the compute stream.
    pub(super) fn launch_prepared(&self, count: u32) -> Result<(), MemoryError> {
        self.launch_checksum(self.gpu.address(), count)
    }

    /// The same of blocks in the pool at `address`.
    fn launch_checksum(&self, address: u64, count: u32) -> Result<(), MemoryError> {
        let vectors = (self.shape.block_bytes() / 16) as u32;
        let geometry = launch::block_checksum(count, vectors, self.device.multiprocessors());
        let args = [
            LaunchArg::Long(address),
            LaunchArg::Long(self.filled.address()),
            LaunchArg::Int(count),
            LaunchArg::Int(vectors),
            LaunchArg::Int(self.shape.words_per_row() / 4),
            LaunchArg::Int(self.shape.block_size),
            LaunchArg::Long(self.sums.address()),
        ];
        // SAFETY: the kernel's arguments; blocks are in their pools.
        unsafe { self.device.launch("kvtide_block_checksum", geometry, &self.device.compute, &args) }
    }

    /// Everything that is being done to the pools, done.
    pub(super) fn synchronise(&self) -> Result<(), MemoryError> {
        self.device.swap.synchronise()?;
        self.device.compute.synchronise()
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        let _ = self.device.enter();
        let _ = self.synchronise();
    }
}

/// Blocks as slots of a pool.
pub(super) fn slot(block: BlockId, offset: u32, block_size: u32) -> u32 {
    block.0 * block_size + offset
}
