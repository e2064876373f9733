//! A kernel with a defect does not pass the checks: each is one that a change could bring, and that compiles.

use crate::common::{Emulator, compiled, folder};
use kvtide_emulator::{compile_units, unit, unit_of};
use kvtide_kernels::{
    ARGMAX, BLOCK_CHECKSUM, BLOCK_COPY, BLOCK_PRICE, EMBED, KV_FILL, KV_SCATTER, Kernel, PAGED_DECODE, PAGED_PREFILL,
    RMS_NORM, ROPE, SILU_MUL, check,
};

/// What to replace, once, and by what.
struct Mutant {
    kernel: Kernel,
    what: &'static str,
    from: &'static str,
    to: &'static str,
}

const fn mutant(kernel: Kernel, what: &'static str, from: &'static str, to: &'static str) -> Mutant {
    Mutant { kernel, what, from, to }
}

const MOVES_AND_LAYERS: &[Mutant] = &[
    mutant(BLOCK_COPY, "a vector too many", "; vector < vectors_per_block;", "; vector <= vectors_per_block;"),
    mutant(BLOCK_COPY, "a short pair", "+ chunk - 1) / chunk", ") / chunk"),
    mutant(BLOCK_CHECKSUM, "sums read before they are there", "= sum;\n    __syncthreads();", "= sum;"),
    mutant(BLOCK_CHECKSUM, "sums overwritten", "    __syncthreads();\n  }\n}", "  }\n}"),
    mutant(BLOCK_CHECKSUM, "a token too many", "% block_size < block.y", "% block_size <= block.y"),
    mutant(BLOCK_CHECKSUM, "keys of another vector", "mix32(vector)", "mix32(vector + 1)"),
    mutant(KV_FILL, "words by place in the row", "seed + word * kGolden", "seed + column * kGolden"),
    mutant(KV_SCATTER, "values over keys", "is_key ? key_offset : value_offset", "key_offset"),
    mutant(KV_SCATTER, "always the first slot", "slot % block_size)", "0)"),
    mutant(EMBED, "a vector short", "i < vectors;", "i + 1 < vectors;"),
    mutant(RMS_NORM, "sums read before they are there", "= squares;\n    __syncthreads();", "= squares;"),
    mutant(RMS_NORM, "sums overwritten", "    __syncthreads();\n  }\n}", "  }\n}"),
    mutant(RMS_NORM, "no epsilon", "(float)width + epsilon", "(float)width"),
    mutant(SILU_MUL, "no gate", "gate[j] / (1.0f + expf(-gate[j])) * up[j]", "gate[j] * up[j]"),
    mutant(
        ROPE,
        "turns read before they are there",
        "    __syncthreads();\n    unsigned short* row",
        "    unsigned short* row",
    ),
    mutant(ROPE, "turns overwritten", "    __syncthreads();\n  }\n}", "  }\n}"),
    mutant(ROPE, "turned the other way", "x * turn.x - y * turn.y", "x * turn.x + y * turn.y"),
    mutant(ARGMAX, "the last of equals", "index < best.index", "index > best.index"),
    mutant(ARGMAX, "bests read before they are there", "= best;\n    __syncthreads();", "= best;"),
];

const PRICES: &[Mutant] = &[
    mutant(BLOCK_PRICE, "risk for nothing", "fmaf(-risk_aversion, risk, worth)", "worth"),
    mutant(BLOCK_PRICE, "risk as a gain", "-risk_aversion, risk", "risk_aversion, risk"),
    mutant(BLOCK_PRICE, "a price whatever it costs", "fmaf(-price, cost, ", "fmaf(-price, 1.0f, "),
    mutant(
        BLOCK_PRICE,
        "products rounded by themselves",
        "fmaf(-price, cost, fmaf(-risk_aversion, risk, worth))",
        "(worth - (float)(risk_aversion * risk) - (float)(price * cost))",
    ),
    mutant(BLOCK_PRICE, "two zeros", ") + 0.0f;", ");"),
    mutant(BLOCK_PRICE, "the largest of negatives", "bits >> 31 ? 0xFFFFFFFFu : 0x80000000u", "0x80000000u"),
    mutant(BLOCK_PRICE, "what is no number", "value == value && ", ""),
    mutant(BLOCK_PRICE, "the last of equals", "<< 32 | index;", "<< 32 | (0xFFFFFFFFu - index);"),
    mutant(BLOCK_PRICE, "a tail without a price", "i < count; i += step", "i < vectors * 4; i += step"),
    mutant(BLOCK_PRICE, "a vector too many", "vectors = count / 4", "vectors = (count + 3) / 4"),
    mutant(BLOCK_PRICE, "half a warp", "offset = 16;", "offset = 8;"),
    mutant(BLOCK_PRICE, "bests read before they are there", "= best;\n  __syncthreads();", "= best;"),
    mutant(BLOCK_PRICE, "the first warp alone", "i < blockDim.x / 32; ++i", "i < 1; ++i"),
    mutant(BLOCK_PRICE, "the CTA that comes last", "atomicMin(least, best)", "*least = best"),
];

const DECODE: &[Mutant] = &[
    mutant(PAGED_DECODE, "a wait for one stage too few", "cp_async_wait<kDepth - 2>", "cp_async_wait<kDepth - 1>"),
    mutant(PAGED_DECODE, "a stage refilled while it is read", "start(i + kDepth - 1, ", "start(i + kDepth, "),
    mutant(PAGED_DECODE, "warps that do not wait for each other", "  __syncthreads();\n\n", ""),
    mutant(PAGED_DECODE, "a token too many", "token < valid", "token <= valid"),
    mutant(PAGED_DECODE, "what lies behind the end", "= vector / kVectors < valid;", "= true;"),
    mutant(PAGED_DECODE, "sums that never decay", "sum[h] * decay[h]", "sum[h]"),
    mutant(PAGED_DECODE, "values that never decay", "values[m][c] *= decay[c % 2];", ";"),
    mutant(
        PAGED_DECODE,
        "a block number too early",
        "next_block = block_at(i + kDepth)",
        "next_block = block_at(i + kDepth - 1)",
    ),
    mutant(PAGED_DECODE, "keys of the first head", "(unsigned long long)kv_head * kBlockSize * kHeadDim", "0"),
    mutant(PAGED_DECODE, "the first eight heads", "eighth = blockIdx.x % eights", "eighth = 0"),
    mutant(PAGED_DECODE, "the first KV head", "kv_head = blockIdx.x / eights % kv_heads", "kv_head = 0"),
    mutant(PAGED_DECODE, "pieces of equal weight", "exp2_fast(their_maximum - origin)", "1.0f"),
    mutant(PAGED_DECODE, "pieces that never decay", "values.z * decay", "values.z"),
    mutant(PAGED_DECODE, "weights that nobody sums", "sum * decay + their_sum * weight", "sum * decay"),
    mutant(
        PAGED_DECODE,
        "slices read before they are there",
        "= make_float2(merged.maximum, merged.sum);\n  __syncthreads();",
        "= make_float2(merged.maximum, merged.sum);",
    ),
    mutant(PAGED_DECODE, "the last piece again and again", "piece != present", "false"),
    mutant(PAGED_DECODE, "a slice too few", "slice < slices;", "slice + 1 < slices;"),
    mutant(PAGED_DECODE, "the weight of what saw nothing", "largest == minus_infinity() ? 0.0f : largest", "largest"),
];

const PREFILL: &[Mutant] = &[
    mutant(PAGED_PREFILL, "a token that does not see itself", "> position)", ">= position)"),
    mutant(PAGED_PREFILL, "a mask that comes a tile too late", "+ kTile - 1 > warp_first", "> warp_first"),
    mutant(PAGED_PREFILL, "a wait for one stage too few", "cp_async_wait<1>", "cp_async_wait<2>"),
    mutant(
        PAGED_PREFILL,
        "a tile read before it is there",
        "    __syncthreads();\n    const uint4* keys",
        "    const uint4* keys",
    ),
    mutant(PAGED_PREFILL, "a stage refilled while it is read", "    __syncthreads();\n  }\n", "  }\n"),
    mutant(PAGED_PREFILL, "what lies behind the end", "* (kThreads / kVectors) < item.end;", ">= 0;"),
    mutant(PAGED_PREFILL, "blocks of the first tile", "__ldg(table + index)", "__ldg(table + index % kTileBlocks)"),
    mutant(PAGED_PREFILL, "the first KV head", "kv_head = blockIdx.x % kv_heads", "kv_head = 0"),
    mutant(PAGED_PREFILL, "a dropped mask", "> position) scores[i / 2][n][c] = minus_infinity();", "> position);"),
    mutant(PAGED_PREFILL, "a piece that begins at the first tile", "first_tile = item.begin / kTile", "first_tile = 0"),
    mutant(PAGED_PREFILL, "a piece that begins a tile late", "= item.begin / kTile,", "= item.begin / kTile + 1,"),
    mutant(PAGED_PREFILL, "a piece that ends with its tokens", "(item.end + kTile - 1)", "(item.context + kTile - 1)"),
    mutant(PAGED_PREFILL, "a forgotten partial", "item.partial == kNoPartial", "true"),
    mutant(PAGED_PREFILL, "partials of the first token", "(unsigned long long)token * item.stride", "0"),
    mutant(PAGED_PREFILL, "a forgotten state", "if (pair == 0) partial_state", "if (pair == 1) partial_state"),
    mutant(PAGED_PREFILL, "a maximum in other units", "maximum[m][half] * scale_log2, sum", "maximum[m][half], sum"),
    mutant(PAGED_PREFILL, "a row that sees nothing", "largest == minus_infinity() ? 0.0f : largest", "largest"),
    mutant(PAGED_PREFILL, "values that never decay", "values[m][n][2 * half] *= decay;", ""),
];

/// Seeds tried on a mutant before it counts as missed.
const SEEDS: u64 = 60;

/// Runs the kernel's checks until one fails; true if none does.
fn survives(mutant: &Mutant) -> Option<bool> {
    let Kernel { name, source, entries } = mutant.kernel;
    assert_eq!(source.matches(mutant.from).count(), 1, "{name}: {:?} is not there once", mutant.from);
    let mut units = vec![unit_of(name, &source.replace(mutant.from, mutant.to), entries)];
    // What the checks launch beside it.
    units.extend((name == PAGED_PREFILL.name).then(|| unit(&PAGED_DECODE)));
    let library = compiled(compile_units(folder(), &units, "mutant.so"))?;
    let mut device = Emulator::open(&library);
    let kernel = name.trim_end_matches(".cu");
    for seed in 0..SEEDS {
        device.seed = seed;
        let mut checks = check::all().filter(|(check, _)| check.starts_with(kernel));
        if checks.any(|(_, check)| check(&mut device, seed).is_err()) {
            return Some(false);
        }
    }
    Some(true)
}

fn none_survives(mutants: &[Mutant]) {
    let mut missed = Vec::new();
    for mutant in mutants {
        match survives(mutant) {
            None => return,
            Some(true) => missed.push(format!("{}: {}", mutant.kernel.name, mutant.what)),
            Some(false) => {}
        }
    }
    assert!(missed.is_empty(), "no check notices: {missed:#?}");
}

#[test]
fn defects_in_moves_and_layers_are_noticed() {
    none_survives(MOVES_AND_LAYERS);
}

#[test]
fn defects_in_prices_are_noticed() {
    none_survives(PRICES);
}

#[test]
fn defects_in_decode_are_noticed() {
    none_survives(DECODE);
}

#[test]
fn defects_in_prefill_are_noticed() {
    none_survives(PREFILL);
}
