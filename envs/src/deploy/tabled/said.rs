//! What of a step's price is measured and what is modelled, in sentences.

use super::TabledTimes;
use crate::deploy::{Deployment, ExpertShape, Precision};

impl Deployment {
    /// What of a step's price is modelled where its accelerator was measured by shape, in sentences; empty where it was not.
    pub fn modelled(&self) -> Vec<String> {
        self.hardware.tables.as_ref().map_or_else(Vec::new, |tables| TabledTimes::new(self, tables).modelled())
    }
}

impl TabledTimes<'_> {
    /// What of a step is modelled rather than measured, in sentences.
    fn modelled(&self) -> Vec<String> {
        let mut said = Vec::new();
        let mut precisions: Vec<(Precision, Option<Precision>)> = self
            .products
            .iter()
            .map(|times| (times.product.precision, times.curve.as_ref().map(|(_, measured)| *measured)))
            .filter(|(precision, measured)| *measured != Some(*precision))
            .collect();
        precisions.sort_unstable();
        precisions.dedup();
        for (precision, measured) in precisions {
            let how = measured.map_or("by the roofline".to_owned(), |measured| {
                format!("from those in {}, by both rooflines", measured.name())
            });
            said.push(format!("matrix products in {}: {how}", precision.name()));
        }
        if let Some((shape, _)) = &self.shapes.experts {
            let has = |precision| self.tables.experts_us(&ExpertShape { precision, ..*shape }, 1.0).is_some();
            if !has(shape.precision) {
                let how =
                    if has(Precision::Bf16) { "from those in bf16, by both rooflines" } else { "by the roofline" };
                said.push(format!("routed experts in {}: {how}", shape.precision.name()));
            }
        }
        for (shape, _) in &self.shapes.attention {
            let of = if shape.window == 0 { String::new() } else { format!(" within {} tokens", shape.window) };
            if self.tables.prefill_us(shape, 1.0).is_none() {
                said.push(format!("attention of prompts{of}: by the roofline"));
            }
            if self.tables.decode_us(shape, 1.0, 1.0).is_none() {
                said.push(format!("attention of decodes{of}: by the roofline"));
            }
        }
        if let Some((shape, _)) = &self.shapes.latent
            && self.tables.latent_prefill_us(shape, 1.0).is_none()
        {
            said.push("latent attention: its products as measured, the rest by the roofline".to_owned());
        }
        if self.deployment.devices > 1 && self.tables.all_reduce_us(self.deployment.devices, 1.0).is_none() {
            said.push("all-reduces: by the link's bandwidth".to_owned());
        }
        said.push(
            "norms, rotation, gates, writing of keys and values, sampling: by their bytes, with a least time"
                .to_owned(),
        );
        said.push("chunks after others of their prompt: by the pairs of tokens they add".to_owned());
        said
    }
}
