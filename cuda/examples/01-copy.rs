//! Copies blocks from the device's pool to the host's and back, and checks that they hold what was written to them.
//!
//!     cargo run -p kvtide-cuda --example 01-copy

use std::error::Error;

use kvtide_cuda::{devices, open_drawn};
use kvtide_envs::deploy::EngineConfig;
use kvtide_envs::kv::BlockId;
use kvtide_envs::memory::{Filled, KvShape, Span, Work};
use kvtide_envs::sched::{BlockCopy, RequestId};
use kvtide_envs::tier::{Route, Routes, Tier};

/// Tokens of a block.
const BLOCK_SIZE: u32 = 16;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    if devices() == 0 {
        eprintln!("skipped: 01-copy: no CUDA device");
        return Ok(());
    }
    // Two pools of blocks of 4 KiB, whose contents are drawn from a seed for each token.
    let shape = KvShape::small(256, BLOCK_SIZE).ok_or("a multiple of 32 bytes a token")?;
    let pools =
        EngineConfig { block_size: BLOCK_SIZE, num_gpu_blocks: 8, num_cpu_blocks: 8, ..EngineConfig::default() };
    let mut device = open_drawn(0, shape, &pools)?;
    device.reset()?;
    println!("{}: blocks of {} bytes", device.name(), shape.block_bytes());

    // A request's first 40 tokens go to blocks 2, 5 and 3, of which the last is half full.
    let tables = [2, 5, 3].map(BlockId);
    let seeds: Vec<u64> = (1..=40).collect();
    let span = Span { id: RequestId(0), context: 0, tokens: 40, samples: true, table: 0, seeds: 0 };
    let write =
        Work { copies: Routes::default(), spans: &[span], tables: &tables, seeds: &seeds, block_size: BLOCK_SIZE };
    device.submit(&write)?;

    // Out to the host, and in the next step back into other blocks. Nobody waits in between: the order is the streams'.
    let copy = |(src, dst)| BlockCopy { src: BlockId(src), dst: BlockId(dst) };
    let (out, back) = ([(2, 0), (5, 1), (3, 2)].map(copy), [(0, 7), (1, 6), (2, 4)].map(copy));
    let nothing = Work { copies: Routes::default(), spans: &[], tables: &[], seeds: &[], block_size: BLOCK_SIZE };
    for (route, moved) in [(Route::GpuToHost, &out[..]), (Route::HostToGpu, &back[..])] {
        let mut copies = Routes::default();
        copies[route] = moved;
        device.submit(&Work { copies, ..nothing })?;
    }
    for step in ["write", "copy out", "copy in"] {
        if let Some(time) = device.wait()? {
            println!("{step:<9} {:>6} µs", time.0);
        }
    }

    let mut sums_of = |tier, blocks: [u32; 3]| {
        let filled =
            blocks.into_iter().zip([16, 16, 8]).map(|(block, tokens)| Filled { block: BlockId(block), tokens });
        let mut sums = Vec::new();
        device.checksums(tier, &filled.collect::<Vec<_>>(), &mut sums).map(|()| sums)
    };
    let written = sums_of(Tier::Gpu, [2, 5, 3])?;
    let (on_host, returned) = (sums_of(Tier::Host, [0, 1, 2])?, sums_of(Tier::Gpu, [7, 6, 4])?);
    println!("written   {written:016x?}\non host   {on_host:016x?}\nback      {returned:016x?}");
    if written != on_host || written != returned {
        return Err("a copy does not hold what was written".into());
    }
    println!("all three agree");
    Ok(())
}
