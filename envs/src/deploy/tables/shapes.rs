//! The kernels that a model launches on each device of a tensor-parallel group, by shape.

use super::{AttentionShape, ExpertShape, KvPrecision, LatentShape};
use crate::deploy::{Model, Precision, Widths};

/// A matrix product of a step: with weights of `n` outputs and `k` inputs, in so many layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Outputs of a token on one device.
    pub n: u32,
    /// Inputs of a token on one device.
    pub k: u32,
    /// How many layers have it.
    pub layers: u32,
    /// What its weights are kept in.
    pub precision: Precision,
}

/// Everything that a model's step launches on one of its devices and that may have been measured.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelShapes {
    /// Products of every token, but those of latent attention.
    pub products: Vec<Product>,
    /// Those of latent attention, which a measured module of it has in it; empty without.
    pub projections: Vec<Product>,
    /// The output head, of every token that is sampled from.
    pub head: Product,
    /// Grouped-query attention, and in how many layers: of all tokens, and within a window.
    pub attention: Vec<(AttentionShape, u32)>,
    /// Routed experts, and in how many layers.
    pub experts: Option<(ExpertShape, u32)>,
    /// Latent attention, and in how many layers.
    pub latent: Option<(LatentShape, u32)>,
    /// Bytes that an all-reduce adds up for each token, of which every layer has two.
    pub reduced_bytes: f64,
}

impl KernelShapes {
    /// Those of `model` on each of `devices`.
    pub fn of(model: &Model, devices: u32) -> KernelShapes {
        let devices = devices.max(1);
        let precision = match model.structure.precision {
            precision if precision.is_of_experts_only() => Precision::Bf16,
            precision => precision,
        };
        let layers = model.num_layers;
        let heads = model.num_heads.div_ceil(devices);
        let shape = Shape { model, widths: model.widths, devices, heads, precision };
        let latent = model.structure.latent.map(|_| (shape.latent(), layers));
        let (mut products, mut projections) = (Vec::new(), Vec::new());
        if latent.is_some() {
            projections = shape.projections();
        } else {
            products.extend(shape.grouped());
        }
        products.extend(shape.feed_forward());
        let vocabulary = model.widths.vocabulary.div_ceil(devices);
        KernelShapes {
            products,
            projections,
            head: Product { n: vocabulary, k: model.hidden_size, layers: 1, precision: Precision::Bf16 },
            attention: if latent.is_some() { Vec::new() } else { shape.attention() },
            experts: shape.experts(),
            latent,
            reduced_bytes: f64::from(model.hidden_size) * crate::deploy::UNQUANTISED_BYTES,
        }
    }
}

/// A model on one of its devices.
struct Shape<'a> {
    model: &'a Model,
    widths: Widths,
    devices: u32,
    heads: u32,
    precision: Precision,
}

impl Shape<'_> {
    fn product(&self, n: u32, k: u32, layers: u32) -> Product {
        Product { n, k, layers, precision: self.precision }
    }

    fn kv(&self) -> KvPrecision {
        if self.model.kv_bytes < KvPrecision::Bf16.bytes() { KvPrecision::Fp8 } else { KvPrecision::Bf16 }
    }

    /// Queries, keys and values in one product, and the output.
    fn grouped(&self) -> [Product; 2] {
        let Model { num_layers, hidden_size, head_dim, .. } = *self.model;
        let kv_heads = self.model.num_kv_heads.div_ceil(self.devices);
        [
            self.product(
                kv_heads.saturating_mul(2).saturating_add(self.heads).saturating_mul(head_dim),
                hidden_size,
                num_layers,
            ),
            self.product(hidden_size, self.heads.saturating_mul(head_dim), num_layers),
        ]
    }

    /// What compresses, what expands for each head, and the output.
    fn projections(&self) -> Vec<Product> {
        let Some(latent) = self.model.structure.latent else { return Vec::new() };
        let Model { num_layers, hidden_size, head_dim, .. } = *self.model;
        let compressed = latent.rank.saturating_add(latent.rotary);
        let queries = self.heads.saturating_mul(head_dim);
        let expanded = head_dim.saturating_sub(latent.rotary).saturating_add(latent.value);
        let rank = self.widths.query_rank;
        let mut products = vec![self.product(rank.saturating_add(compressed), hidden_size, num_layers)];
        // Queries that are not compressed are of the residual stream itself.
        products.push(self.product(queries, if rank == 0 { hidden_size } else { rank }, num_layers));
        products.push(self.product(self.heads.saturating_mul(expanded), latent.rank, num_layers));
        products.push(self.product(hidden_size, self.heads.saturating_mul(latent.value), num_layers));
        products
    }

    /// Dense layers; of layers with experts the router and what their tokens share.
    fn feed_forward(&self) -> Vec<Product> {
        let hidden = self.model.hidden_size;
        let sparse = self.model.structure.experts.map_or(0, |experts| experts.layers);
        let mut products = Vec::new();
        let mut gated = |width: u32, layers: u32| {
            let width = width.div_ceil(self.devices);
            let up = width.saturating_mul(self.widths.matrices.saturating_sub(1));
            if width > 0 && layers > 0 {
                products.extend([self.product(up, hidden, layers), self.product(hidden, width, layers)]);
            }
        };
        gated(self.widths.intermediate, self.model.num_layers.saturating_sub(sparse));
        gated(self.widths.shared, sparse);
        if let Some(experts) = &self.model.structure.experts {
            // The router is whole on every device, and in 16 bits.
            products.push(Product { n: experts.count, k: hidden, layers: sparse, precision: Precision::Bf16 });
        }
        products
    }

    fn attention(&self) -> Vec<(AttentionShape, u32)> {
        let kv_heads = self.model.num_kv_heads.div_ceil(self.devices);
        let shape = |window| AttentionShape {
            heads: self.heads,
            kv_heads,
            head_dim: self.model.head_dim,
            window,
            kv: self.kv(),
        };
        let (window, windowed) = self.model.structure.window.map_or((0, 0), |window| (window.tokens, window.layers));
        [(shape(0), self.model.num_layers.saturating_sub(windowed)), (shape(window), windowed)]
            .into_iter()
            .filter(|(_, layers)| *layers > 0)
            .collect()
    }

    fn experts(&self) -> Option<(ExpertShape, u32)> {
        let experts = self.model.structure.experts.as_ref()?;
        let precision = match self.model.structure.precision {
            Precision::ExpertsInt4 => Precision::Int4,
            precision => precision,
        };
        let shape = ExpertShape {
            precision,
            hidden: self.model.hidden_size,
            inter: self.widths.expert.div_ceil(self.devices),
            top_k: experts.per_token,
            experts: experts.count,
        };
        Some((shape, experts.layers))
    }

    fn latent(&self) -> LatentShape {
        LatentShape { hidden: self.model.hidden_size, heads: self.heads, precision: self.precision, kv: self.kv() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of all products over all devices, per device count.
    fn weights(name: &str, devices: u32) -> f64 {
        let shapes = KernelShapes::of(&Model::named(name).unwrap(), devices);
        let each = |product: &Product| {
            // What every device has whole counts once.
            let whole = product.precision != shapes.head.precision && devices > 1;
            assert!(!whole || product.n > 0);
            f64::from(product.layers) * f64::from(product.n) * f64::from(product.k)
        };
        shapes.products.iter().chain(&shapes.projections).map(each).sum()
    }

    #[test]
    fn the_products_are_all_weights_of_the_layers() {
        for name in Model::NAMES {
            let model = Model::named(name).unwrap();
            assert_eq!(weights(name, 1), model.layer_params, "{name}");
            let head = KernelShapes::of(&model, 1).head;
            assert_eq!(f64::from(head.n) * f64::from(head.k), model.head_params, "{name}");
        }
    }

    #[test]
    fn tensor_parallelism_shares_heads_and_widths() {
        let shapes = KernelShapes::of(&Model::named("llama-3-70b").unwrap(), 4);
        let sizes: Vec<(u32, u32)> = shapes.products.iter().map(|product| (product.n, product.k)).collect();
        assert_eq!(sizes, [(20 * 128, 8192), (8192, 2048), (14_336, 8192), (8192, 7168)]);
        let (attention, layers) = shapes.attention[0];
        assert_eq!((attention.heads, attention.kv_heads, layers, shapes.head.n), (16, 2, 80, 32_064));
        let latent = KernelShapes::of(&Model::named("deepseek-v3").unwrap(), 8);
        let (module, _) = latent.latent.unwrap();
        assert_eq!((module.hidden, module.heads, module.precision), (7168, 16, Precision::Fp8));
        let (experts, layers) = latent.experts.unwrap();
        assert_eq!((experts.inter, experts.experts, layers), (256, 256, 58));
        // More devices than KV heads keep a copy each.
        let (attention, _) = KernelShapes::of(&Model::named("llama-3-70b").unwrap(), 16).attention[0];
        assert_eq!((attention.heads, attention.kv_heads), (4, 1));
    }
}
