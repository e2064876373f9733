//! What an accelerator's kernels took when they were measured, by shape: tables rather than two shares of its peaks.
//!
//! All of **one** device, shapes as tensor parallelism leaves them, times in microseconds. Knots ascend. How a table is read
//! between and beyond its knots stands in `curve.rs`, how a shape that is in no table is read from its nearest relatives in
//! `lookup.rs`.

mod curve;
mod for_model;
mod lookup;
mod scaled;
mod scales;
mod shapes;
mod text;
mod validate;

use serde::{Deserialize, Serialize};

pub use curve::Curve;
pub use scales::KernelScales;
pub use shapes::{KernelShapes, Product};

use super::Precision;

/// Measured times of an accelerator's kernels, one list for each family of them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTables {
    /// Where they come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<TableSource>,
    /// Factors on all of them.
    #[serde(default, skip_serializing_if = "KernelScales::is_one")]
    pub scales: KernelScales,
    /// Matrix products, a table for each precision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<ProductTable>,
    /// Attention of one prompt of which nothing is cached, a table for each shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefill: Vec<PrefillTable>,
    /// Attention of sequences that decode, a table for each shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decode: Vec<DecodeTable>,
    /// All-reduces, a table for each number of devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all_reduce: Vec<ReduceTable>,
    /// Routed experts, a table for each shape.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub experts: Vec<ExpertTable>,
    /// Modules of latent attention, a table for each number of heads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latent: Vec<LatentTable>,
}

/// Where measured times come from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSource {
    /// The database and its version.
    pub database: String,
    /// The licence it is under.
    pub licence: String,
    /// When it was last added to, as its files say; empty where they do not.
    pub date: String,
    /// What the database calls the accelerator.
    pub system: String,
    /// What the accelerator calls itself.
    pub device: String,
    /// The command that made these tables of it.
    pub command: String,
    /// The files they were made of.
    pub files: Vec<String>,
    /// What was not measured, and what stands for it, in sentences.
    pub modelled: Vec<String>,
}

/// Matrix products with weights of one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductTable {
    /// What the weights are kept in.
    pub precision: Precision,
    /// Tokens multiplied at once at each knot.
    pub tokens: Vec<u32>,
    /// A row for each shape.
    pub rows: Vec<ProductRow>,
}

/// Matrix products of one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProductRow {
    /// Outputs of a token.
    pub n: u32,
    /// Inputs of a token.
    pub k: u32,
    /// Time at each of the table's tokens.
    pub us: Vec<f64>,
}

/// What keys and values are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvPrecision {
    /// Two bytes.
    #[default]
    Bf16,
    /// One byte.
    Fp8,
}

impl KvPrecision {
    /// Bytes of a key's or value's element.
    pub fn bytes(self) -> f64 {
        match self {
            KvPrecision::Bf16 => 2.0,
            KvPrecision::Fp8 => 1.0,
        }
    }
}

/// Heads of grouped-query attention on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
    /// Tokens a token attends to, itself included; 0 for all.
    #[serde(default)]
    pub window: u32,
    /// What keys and values are kept in.
    #[serde(default)]
    pub kv: KvPrecision,
}

/// Attention of one prompt, nothing of it cached.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefillTable {
    /// Its heads.
    pub shape: AttentionShape,
    /// Tokens of the prompt at each knot.
    pub tokens: Vec<u32>,
    /// Time at each of them.
    pub us: Vec<f64>,
}

/// Attention of sequences that generate a token each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeTable {
    /// Its heads.
    pub shape: AttentionShape,
    /// Sequences at each knot.
    pub sequences: Vec<u32>,
    /// Tokens each of them attends to at each knot.
    pub context: Vec<u32>,
    /// Time by sequences, then by context; a row is shorter where memory ran out.
    pub us: Vec<Vec<f64>>,
}

/// All-reduces among so many devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReduceTable {
    /// How many devices take part.
    pub devices: u32,
    /// Bytes reduced at each knot.
    pub bytes: Vec<u32>,
    /// Time at each of them.
    pub us: Vec<f64>,
}

/// Routed experts of one layer on one device: both their products, and gathering what was routed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertTable {
    /// What the weights are kept in.
    pub precision: Precision,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of one expert on this device.
    pub inter: u32,
    /// Experts of a layer that a token is routed to.
    pub top_k: u32,
    /// Experts of a layer.
    pub experts: u32,
    /// Tokens routed at each knot.
    pub tokens: Vec<u32>,
    /// Time at each of them.
    pub us: Vec<f64>,
}

/// Routed experts of one layer on one device, by which a table of them is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertShape {
    /// What the weights are kept in.
    pub precision: Precision,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of one expert on this device.
    pub inter: u32,
    /// Experts of a layer that a token is routed to.
    pub top_k: u32,
    /// Experts of a layer.
    pub experts: u32,
}

/// Multi-head latent attention of one layer with all its projections, by the heads on one device. Widths but that of the residual
/// stream are `DeepSeek`-V3's: queries compressed to 1,536, keys and values to 512, 64 for the position, heads of 128.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatentTable {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads on this device.
    pub heads: u32,
    /// What the projections' weights are kept in.
    pub precision: Precision,
    /// What the latents are kept in.
    pub kv: KvPrecision,
    /// Tokens of one prompt, nothing of it cached, at each knot.
    pub tokens: Vec<u32>,
    /// Time at each of them.
    pub prefill_us: Vec<f64>,
    /// Sequences that decode at each knot.
    pub sequences: Vec<u32>,
    /// Tokens each of them attends to at each knot.
    pub context: Vec<u32>,
    /// Time by sequences, then by context; a row is shorter where memory ran out.
    pub decode_us: Vec<Vec<f64>>,
}

/// The latent attention a table is looked up for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentShape {
    /// Width of the residual stream.
    pub hidden: u32,
    /// Query heads on this device.
    pub heads: u32,
    /// What the projections' weights are kept in.
    pub precision: Precision,
    /// What the latents are kept in.
    pub kv: KvPrecision,
}

/// Keys of tables in a file.
pub(super) const FAMILIES: [&str; 8] =
    ["source", "scales", "products", "prefill", "decode", "all_reduce", "experts", "latent"];
