//! Attention of a token over the blocks of its sequence, on the device and written out in `f64`.
//!
//!     cargo run -p kvtide-cuda --example 02-attention
#![expect(unsafe_code, reason = "a kernel believes its arguments")]

use std::error::Error;

use kvtide_cuda::{Kernels, devices};
use kvtide_kernels::check::CheckArg;
use kvtide_kernels::launch::{self, BLOCK_SIZE, DecodeItem, NO_PARTIAL};
use kvtide_kernels::reference::{Element, KvLayer, KvSequence, attend};

/// Four query heads over two key/value heads.
const HEADS: (usize, usize) = (4, 2);
const HEAD_DIM: usize = 64;
const ELEMENT: Element = Element::Bf16;
/// Tokens of the sequence: three blocks, the last of them not full.
const TOKENS: u32 = 41;

/// What a kernel is given starts at a multiple of 16.
#[repr(align(16))]
struct Aligned<const N: usize>([u8; N]);

impl<const N: usize> Aligned<N> {
    fn of<const M: usize>(numbers: impl Iterator<Item = [u8; M]>) -> Self {
        let mut bytes = Self([0; N]);
        bytes.0.chunks_exact_mut(M).zip(numbers).for_each(|(to, number)| to.copy_from_slice(&number));
        bytes
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    if devices() == 0 {
        eprintln!("skipped: 02-attention: no CUDA device");
        return Ok(());
    }
    let kernels = Kernels::open(0)?;

    // A pool of four blocks of one layer; the sequence has blocks 3, 0 and 2 of it.
    let layer = KvLayer::new(1, 0, HEADS.1, BLOCK_SIZE as usize, HEAD_DIM);
    let table = [3_u32, 0, 2];
    let number = |i: usize, step: f32| ELEMENT.narrow((i as f32 * step).sin());
    let pool: Vec<u16> = (0..4 * layer.block_stride).map(|i| number(i, 0.37)).collect();
    let query: Vec<u16> = (0..HEADS.0 * HEAD_DIM).map(|i| number(i, 0.11)).collect();
    let scale = 1.0 / (HEAD_DIM as f32).sqrt();

    // The whole sequence is one item, so that there are no partial results to merge.
    let item = DecodeItem { row: 0, table: 0, begin: 0, end: TOKENS, partial: NO_PARTIAL };
    let bytes_of = |numbers: &[u16]| numbers.iter().map(|number| number.to_le_bytes()).collect::<Vec<_>>().into_iter();
    let words_of = |numbers: &[u32]| numbers.iter().map(|number| number.to_le_bytes()).collect::<Vec<_>>().into_iter();
    let (query_bytes, pool_bytes) = (Aligned::<512>::of(bytes_of(&query)), Aligned::<32_768>::of(bytes_of(&pool)));
    let (tables, items) = (Aligned::<16>::of(words_of(&table)), Aligned::<32>::of(words_of(&item.words())));
    let mut out = Aligned::<512>::of(std::iter::empty::<[u8; 2]>());
    let width = (HEADS.0 * HEAD_DIM) as u64;
    let (kv_heads, group) = (HEADS.1 as u32, (HEADS.0 / HEADS.1) as u32);
    let arguments = &mut [
        CheckArg::In(&query_bytes.0),
        CheckArg::U64(width),
        CheckArg::In(&pool_bytes.0),
        CheckArg::U64(layer.block_stride as u64),
        CheckArg::U64(layer.key_offset as u64),
        CheckArg::U64(layer.value_offset as u64),
        CheckArg::In(&tables.0),
        CheckArg::In(&items.0),
        CheckArg::Null,
        CheckArg::Null,
        CheckArg::Out(&mut out.0),
        CheckArg::U64(width),
        CheckArg::U32(kv_heads),
        CheckArg::U32(group),
        CheckArg::F32(scale),
    ];
    let geometry = launch::paged_decode(1, kv_heads, group);
    // SAFETY: the kernel's arguments in its order; table, items and pool are as large as they say.
    unsafe { kernels.launch("kvtide_paged_decode_bf16_64", geometry, arguments)? };

    let sequence = KvSequence { element: ELEMENT, pool: &pool, layer: &layer, table: &table };
    let mut largest = 0.0_f64;
    for head in 0..HEADS.0 {
        let query = &query[head * HEAD_DIM..][..HEAD_DIM];
        let attended = attend(&sequence, query, head / group as usize, 0..TOKENS as usize, scale);
        for (i, value) in attended.values.iter().enumerate() {
            let at = 2 * (head * HEAD_DIM + i);
            let found = ELEMENT.widen(u16::from_le_bytes([out.0[at], out.0[at + 1]]));
            largest = largest.max((f64::from(found) - value / attended.sum).abs());
        }
    }
    println!("{} heads over {TOKENS} tokens: off by {largest:.5} at most", HEADS.0);
    if largest > 0.02 {
        return Err("that is more than bf16 explains".into());
    }
    Ok(())
}
