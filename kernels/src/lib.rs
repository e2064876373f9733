//! CUDA sources as text, what is needed to launch them, and what they must compute.
//!
//! ```
//! use kvtide_kernels::BLOCK_COPY;
//!
//! assert!(BLOCK_COPY.source.contains(BLOCK_COPY.entries[0]), "a backend compiles the one and launches the other");
//! ```
//!
//! The sources are compiled by NVRTC at run time, for the device that is there; each uses built-in types only, so that it
//! compiles without any header. This crate never runs anything on a device: backends that launch these kernels live in
//! `kvtide-cuda`, and `kvtide-emulator` compiles the sources for the CPU. What it can say about them without one:
//! - [`launch`]: grids, blocks and shared memory from sizes, and how attention is split into items;
//! - [`mod@reference`]: the same results from plain Rust, in `f64` where there is arithmetic;
//! - [`check`]: properties that hold on anything that can launch a kernel.
#![forbid(unsafe_code)]

pub mod check;
pub mod launch;
pub mod reference;

/// A CUDA source with its entry points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// File name, for compiler messages.
    pub name: &'static str,
    /// The source.
    pub source: &'static str,
    /// The `extern "C"` functions to launch.
    pub entries: &'static [&'static str],
}

/// Swap-out, swap-in and copy-on-write: whole blocks from one pool to another through a mapping.
pub const BLOCK_COPY: Kernel =
    Kernel { name: "block_copy.cu", source: include_str!("cuda/block_copy.cu"), entries: &["kvtide_block_copy"] };

/// Checksums of blocks where they lie.
pub const BLOCK_CHECKSUM: Kernel = Kernel {
    name: "block_checksum.cu",
    source: include_str!("cuda/block_checksum.cu"),
    entries: &["kvtide_block_checksum"],
};

/// Predictable contents for the KV rows of tokens, from a seed each.
pub const KV_FILL: Kernel =
    Kernel { name: "kv_fill.cu", source: include_str!("cuda/kv_fill.cu"), entries: &["kvtide_kv_fill"] };

/// New keys and values into their slots of the pool.
pub const KV_SCATTER: Kernel =
    Kernel { name: "kv_scatter.cu", source: include_str!("cuda/kv_scatter.cu"), entries: &["kvtide_kv_scatter"] };

/// Attention of one token a sequence over a paged cache, and the merge of sequences that were split.
pub const PAGED_DECODE: Kernel = Kernel {
    name: "paged_decode.cu",
    source: concat!(
        include_str!("cuda/element.cuh"),
        include_str!("cuda/tensor.cuh"),
        include_str!("cuda/paged_decode.cu")
    ),
    entries: &[
        "kvtide_paged_decode_bf16_64",
        "kvtide_paged_decode_bf16_128",
        "kvtide_paged_decode_fp16_64",
        "kvtide_paged_decode_fp16_128",
        "kvtide_paged_merge_bf16",
        "kvtide_paged_merge_fp16",
    ],
};

/// Causal attention of chunks of prompts over a paged cache.
pub const PAGED_PREFILL: Kernel = Kernel {
    name: "paged_prefill.cu",
    source: concat!(
        include_str!("cuda/element.cuh"),
        include_str!("cuda/tensor.cuh"),
        include_str!("cuda/paged_prefill.cu")
    ),
    entries: &[
        "kvtide_paged_prefill_bf16_64",
        "kvtide_paged_prefill_bf16_128",
        "kvtide_paged_prefill_fp16_64",
        "kvtide_paged_prefill_fp16_128",
    ],
};

/// Residual addition and root mean square normalisation.
pub const RMS_NORM: Kernel = Kernel {
    name: "rms_norm.cu",
    source: concat!(include_str!("cuda/element.cuh"), include_str!("cuda/rms_norm.cu")),
    entries: &["kvtide_rms_norm_bf16", "kvtide_rms_norm_fp16"],
};

/// The gate of a `SwiGLU` feed-forward layer.
pub const SILU_MUL: Kernel = Kernel {
    name: "silu_mul.cu",
    source: concat!(include_str!("cuda/element.cuh"), include_str!("cuda/silu_mul.cu")),
    entries: &["kvtide_silu_mul_bf16", "kvtide_silu_mul_fp16"],
};

/// Rotary position embedding, in place.
pub const ROPE: Kernel = Kernel {
    name: "rope.cu",
    source: concat!(include_str!("cuda/element.cuh"), include_str!("cuda/rope.cu")),
    entries: &["kvtide_rope_bf16", "kvtide_rope_fp16"],
};

/// Rows of an embedding table by token id.
pub const EMBED: Kernel =
    Kernel { name: "embed.cu", source: include_str!("cuda/embed.cu"), entries: &["kvtide_embed"] };

/// Greedy sampling.
pub const ARGMAX: Kernel = Kernel {
    name: "argmax.cu",
    source: concat!(include_str!("cuda/element.cuh"), include_str!("cuda/argmax.cu")),
    entries: &["kvtide_argmax_bf16", "kvtide_argmax_fp16"],
};

/// What cached blocks are worth above their price, and the one that is worth least.
pub const BLOCK_PRICE: Kernel =
    Kernel { name: "block_price.cu", source: include_str!("cuda/block_price.cu"), entries: &["kvtide_block_price"] };

/// Every kernel.
pub const ALL: &[Kernel] = &[
    BLOCK_COPY,
    BLOCK_CHECKSUM,
    KV_FILL,
    KV_SCATTER,
    PAGED_DECODE,
    PAGED_PREFILL,
    RMS_NORM,
    SILU_MUL,
    ROPE,
    EMBED,
    ARGMAX,
    BLOCK_PRICE,
];
