//! Widths of a decoder, and the weights they add up to.

use super::structure::{Experts, Latent, Precision, Structure, Widths, Window};

/// A decoder by its widths: what the catalogue and a `config.json` both say.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Architecture {
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    /// Width of a query and a key.
    pub(super) head_dim: u32,
    /// Width of the feed-forward part of layers without experts.
    pub(super) intermediate: u32,
    /// Matrices of the feed-forward part: three where it is gated, else two.
    pub(super) matrices: u32,
    pub(super) vocabulary: u32,
    pub(super) length: u32,
    pub(super) tied: bool,
    pub(super) latent: Option<LatentWidths>,
    pub(super) window: Option<Window>,
    pub(super) experts: Option<ExpertWidths>,
    pub(super) precision: Precision,
    /// Whether weights in fp8 have a scale for each block of them rather than for all.
    pub(super) by_blocks: bool,
    pub(super) notes: Vec<String>,
}

/// Widths of latent attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LatentWidths {
    pub(super) kv: Latent,
    /// Width queries are compressed to; `None` if they are not.
    pub(super) query_rank: Option<u32>,
}

/// Widths of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExpertWidths {
    /// Layers that have them; the others have `intermediate`.
    pub(super) layers: u32,
    pub(super) count: u32,
    pub(super) per_token: u32,
    /// Of one routed expert.
    pub(super) width: u32,
    /// Of all shared experts of a layer together; 0 for none.
    pub(super) shared: u32,
}

impl Architecture {
    /// Weights of the layers but for routed experts.
    pub(super) fn layer_params(&self) -> f64 {
        let [hidden, layers, matrices] = [self.hidden, self.layers, self.matrices].map(f64::from);
        let feed_forward = |width: u32| matrices * hidden * f64::from(width);
        let (sparse, per_sparse) = self.experts.map_or((0.0, 0.0), |experts| {
            let router = hidden * f64::from(experts.count);
            (f64::from(experts.layers), feed_forward(experts.shared) + router)
        });
        let attention = self.latent.map_or_else(|| self.grouped(), |latent| self.latent(latent));
        layers * attention + (layers - sparse) * feed_forward(self.intermediate) + sparse * per_sparse
    }

    /// Weights of grouped-query attention: queries, keys, values, output.
    fn grouped(&self) -> f64 {
        let heads = 2.0 * f64::from(self.heads) + 2.0 * f64::from(self.kv_heads);
        f64::from(self.hidden) * f64::from(self.head_dim) * heads
    }

    /// Weights of latent attention: queries, the compression of keys and values, their expansion for each head, output.
    fn latent(&self, LatentWidths { kv, query_rank }: LatentWidths) -> f64 {
        let [hidden, heads, key] = [self.hidden, self.heads, self.head_dim].map(f64::from);
        let [rank, rotary, value] = [kv.rank, kv.rotary, kv.value].map(f64::from);
        let queries = query_rank.map_or(hidden * heads * key, |width| f64::from(width) * (hidden + heads * key));
        queries + hidden * (rank + rotary) + rank * heads * (key - rotary + value) + heads * value * hidden
    }

    pub(super) fn widths(&self) -> Widths {
        Widths {
            intermediate: self.intermediate,
            matrices: self.matrices,
            vocabulary: self.vocabulary,
            expert: self.experts.map_or(0, |experts| experts.width),
            shared: self.experts.map_or(0, |experts| experts.shared),
            query_rank: self.latent.and_then(|latent| latent.query_rank).unwrap_or(0),
            by_blocks: self.by_blocks,
        }
    }

    pub(super) fn structure(&self) -> Structure {
        let experts = self.experts.map(|experts| Experts {
            layers: experts.layers,
            count: experts.count,
            per_token: experts.per_token,
            params: f64::from(self.matrices) * f64::from(self.hidden) * f64::from(experts.width),
            weight_bytes: self.precision.bytes(),
        });
        Structure {
            latent: self.latent.map(|latent| latent.kv),
            window: self.window,
            experts,
            precision: self.precision,
            notes: self.notes.clone(),
        }
    }
}
