//! Kernels that move or hash bytes: bit for bit.

use super::buffer::{AlignedBuffer, guarded, poisoned, same};
use super::random::Random;
use super::{Check, CheckArg, Launcher};
use crate::launch;
use crate::reference::{self, KvLayer};

pub(super) const CHECKS: &[(&str, Check)] = &[
    ("block_copy", block_copy),
    ("block_checksum", block_checksum),
    ("kv_fill", kv_fill),
    ("kv_scatter", kv_scatter),
    ("embed", embed),
];

fn block_copy(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let vectors = random.one_of(&[1, 33, 256, 1023, 1024, 1025, 2500]);
    let (from_blocks, to_blocks) = (random.range(1, 6) as usize, random.range(1, 6) as usize);
    let pair_count = random.range(0, to_blocks as u32);
    let source = random.bits32(from_blocks * vectors * 4);
    let targets = random.distinct(pair_count as usize, to_blocks);
    // A source may go to several destinations.
    let pairs: Vec<[u32; 2]> =
        targets.iter().map(|&target| [random.range(0, from_blocks as u32 - 1), target]).collect();
    let mut want = poisoned::<u32>(to_blocks * vectors * 4);
    let mut out = AlignedBuffer::of(&want);
    for &[from, to] in &pairs {
        let (from, to) = (from as usize * vectors * 4, to as usize * vectors * 4);
        want[to..to + vectors * 4].copy_from_slice(&source[from..from + vectors * 4]);
    }
    let usual = launch::block_copy(pair_count, vectors as u64, launcher.multiprocessors());
    let geometry = random.geometry(usual, false, 256);
    launcher.launch(
        "kvtide_block_copy",
        &geometry,
        &mut [
            CheckArg::In(AlignedBuffer::of(&source).bytes()),
            CheckArg::Out(out.bytes_mut()),
            CheckArg::In(AlignedBuffer::of(&guarded(pairs.concat())).bytes()),
            CheckArg::U32(pair_count),
            CheckArg::U64(vectors as u64),
        ],
    )?;
    same("destination", &out, &want)
}

fn block_checksum(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let block_size = random.one_of(&[16, 8, 5]);
    let vectors_per_row = random.one_of(&[8, 16, 3]);
    let vectors = random.range(1, 30) * block_size * vectors_per_row;
    let (pool_blocks, count) = (random.range(1, 5), random.range(0, 7));
    let pool = random.bits32((pool_blocks * vectors * 4) as usize);
    let blocks: Vec<[u32; 2]> = (0..count)
        .map(|_| {
            let valid = if random.coin() { block_size } else { random.range(0, block_size) };
            [random.range(0, pool_blocks - 1), valid]
        })
        .collect();
    let sum = |&[block, valid]: &[u32; 2]| {
        let words = &pool[(block * vectors * 4) as usize..][..(vectors * 4) as usize];
        reference::block_checksum(words, valid, vectors_per_row, block_size)
    };
    let want = guarded(blocks.iter().map(sum).collect());
    let mut sums = AlignedBuffer::of(&guarded(vec![0_u64; count as usize]));
    let usual = launch::block_checksum(count, vectors, launcher.multiprocessors());
    let geometry = random.geometry(usual, true, 256);
    launcher.launch(
        "kvtide_block_checksum",
        &geometry,
        &mut [
            CheckArg::In(AlignedBuffer::of(&pool).bytes()),
            CheckArg::In(AlignedBuffer::of(&guarded(blocks.concat())).bytes()),
            CheckArg::U32(count),
            CheckArg::U32(vectors),
            CheckArg::U32(vectors_per_row),
            CheckArg::U32(block_size),
            CheckArg::Out(sums.bytes_mut()),
        ],
    )?;
    same("sums", &sums, &want)
}

fn kv_fill(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let (planes, block_size) = (random.range(1, 24), random.one_of(&[16, 16, 7]));
    let words_per_row = random.one_of(&[32, 64, 12, 5]);
    let blocks = random.range(1, 4);
    let all_slots = blocks * block_size;
    let tokens = random.range(0, all_slots);
    let slots = random.distinct(tokens as usize, all_slots as usize);
    let seeds: Vec<u64> = (0..tokens).map(|_| random.next()).collect();
    let mut want = poisoned::<u32>((all_slots * planes * words_per_row) as usize);
    let mut pool = AlignedBuffer::of(&want);
    reference::kv_fill(&mut want, &seeds, &slots, planes as usize, block_size as usize, words_per_row as usize);
    let geometry = random.geometry(launch::kv_fill(tokens, planes, words_per_row), true, 256);
    launcher.launch(
        "kvtide_kv_fill",
        &geometry,
        &mut [
            CheckArg::Out(pool.bytes_mut()),
            CheckArg::In(AlignedBuffer::of(&guarded(seeds)).bytes()),
            CheckArg::In(AlignedBuffer::of(&guarded(slots)).bytes()),
            CheckArg::U32(tokens),
            CheckArg::U32(planes),
            CheckArg::U32(block_size),
            CheckArg::U32(words_per_row),
        ],
    )?;
    same("pool", &pool, &want)
}

fn kv_scatter(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let (layers, blocks) = (random.range(1, 3) as usize, random.range(1, 4) as usize);
    let (kv_heads, head_dim) = (random.range(1, 5) as usize, random.one_of(&[64, 128, 8, 24]));
    let block_size = random.one_of(&[16, 16, 5]);
    let layer = KvLayer::new(layers, random.range(0, layers as u32 - 1) as usize, kv_heads, block_size, head_dim);
    let tokens = random.range(0, (blocks * block_size) as u32) as usize;
    let slots = random.distinct(tokens, blocks * block_size);
    let row_stride = kv_heads * head_dim + 8 * random.range(0, 3) as usize;
    let (key, value) = (random.bits16(tokens * row_stride), random.bits16(tokens * row_stride));
    let mut want = poisoned::<u16>(blocks * layer.block_stride);
    let mut pool = AlignedBuffer::of(&want);
    reference::kv_scatter(&mut want, &layer, &key, &value, row_stride, &slots);
    let usual = launch::kv_scatter(tokens as u32, kv_heads as u32, head_dim as u32);
    let geometry = random.geometry(usual, false, 256);
    launcher.launch(
        "kvtide_kv_scatter",
        &geometry,
        &mut [
            CheckArg::In(AlignedBuffer::of(&guarded(key)).bytes()),
            CheckArg::In(AlignedBuffer::of(&guarded(value)).bytes()),
            CheckArg::U64(row_stride as u64),
            CheckArg::Out(pool.bytes_mut()),
            CheckArg::In(AlignedBuffer::of(&guarded(slots)).bytes()),
            CheckArg::U32(tokens as u32),
            CheckArg::U32(kv_heads as u32),
            CheckArg::U32(head_dim as u32),
            CheckArg::U32(block_size as u32),
            CheckArg::U64(layer.block_stride as u64),
            CheckArg::U64(layer.key_offset as u64),
            CheckArg::U64(layer.value_offset as u64),
        ],
    )?;
    same("pool", &pool, &want)
}

fn embed(launcher: &mut dyn Launcher, seed: u64) -> Result<(), String> {
    let random = &mut Random::new(seed);
    let (rows, width) = (random.range(1, 20), random.one_of(&[8, 64, 1024, 4096, 1000]));
    let tokens = random.range(0, 9);
    let table = random.bits16(rows as usize * width);
    let ids: Vec<u32> = (0..tokens).map(|_| random.range(0, rows - 1)).collect();
    let mut out = AlignedBuffer::of(&poisoned::<u16>(tokens as usize * width));
    let want: Vec<u16> = ids.iter().flat_map(|&id| reference::embed(&table, id, width).to_vec()).collect();
    let geometry = random.geometry(launch::embed(tokens, width as u32), false, 256);
    launcher.launch(
        "kvtide_embed",
        &geometry,
        &mut [
            CheckArg::In(AlignedBuffer::of(&table).bytes()),
            CheckArg::In(AlignedBuffer::of(&guarded(ids)).bytes()),
            CheckArg::Out(out.bytes_mut()),
            CheckArg::U32(tokens),
            CheckArg::U32(width as u32),
        ],
    )?;
    same("out", &out, &guarded(want))
}
