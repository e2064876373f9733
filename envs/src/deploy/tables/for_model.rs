//! What of the tables one model needs: what a profile file holds.

use super::{
    DecodeTable, ExpertShape, ExpertTable, KernelShapes, KernelTables, LatentTable, PrefillTable, ProductRow,
    ProductTable, ReduceTable,
};
use crate::deploy::{Model, Precision};

impl KernelTables {
    /// What `model` needs on each of so many `devices`, and no more. A shape that was not measured is written as what it is read
    /// for, so that the tables say for this model what these do.
    #[must_use]
    pub fn for_model(&self, model: &Model, devices: &[u32]) -> KernelTables {
        let mut tables = KernelTables { source: self.source.clone(), scales: self.scales, ..KernelTables::default() };
        for shapes in devices.iter().map(|devices| KernelShapes::of(model, *devices)) {
            tables.take_products(self, &shapes);
            for (shape, _) in &shapes.attention {
                if tables.prefill.iter().all(|table| table.shape != *shape) {
                    tables.prefill.extend(self.prefill_of(shape));
                    tables.decode.extend(self.decode_of(shape));
                }
            }
            if let Some((shape, _)) = shapes.experts {
                let plain = ExpertShape { precision: Precision::Bf16, ..shape };
                let table = self.experts_of(&shape).or_else(|| self.experts_of(&plain));
                let is_new = |table: &ExpertTable| tables.experts.iter().all(|other| other.shape() != table.shape());
                tables.experts.extend(table.filter(is_new));
            }
            if let Some((shape, _)) = &shapes.latent
                && tables.latent.iter().all(|table| table.heads != shape.heads)
            {
                tables.latent.extend(self.latent_table(shape));
            }
        }
        let several = devices.iter().filter(|count| **count > 1);
        tables.all_reduce = several.filter_map(|count| self.reduce_of(*count)).collect();
        tables.all_reduce.sort_by_key(|table| table.devices);
        tables.all_reduce.dedup();
        tables
    }

    /// Rows of the products of one degree of parallelism that are not here yet. Projections of latent attention are left out where
    /// whole modules were measured.
    fn take_products(&mut self, from: &KernelTables, shapes: &KernelShapes) {
        let is_whole = shapes.latent.is_some_and(|(shape, _)| from.latent_table(&shape).is_some());
        let projections = if is_whole { &[][..] } else { &shapes.projections };
        for product in shapes.products.iter().chain(projections).chain([&shapes.head]) {
            // What was not measured is priced from 16 bits.
            let [own, plain] = [product.precision, Precision::Bf16]
                .map(|precision| Some((precision, from.product_curve(precision, product.n, product.k)?)));
            let Some((precision, curve)) = own.or(plain) else { continue };
            let tokens = curve.knots.iter().map(|knot| *knot as u32).collect();
            let table = self.products_in(precision, tokens);
            if table.rows.iter().all(|row| (row.n, row.k) != (product.n, product.k)) {
                table.rows.push(ProductRow { n: product.n, k: product.k, us: curve.us });
                table.rows.sort_by_key(|row| (row.n, row.k));
            }
        }
    }

    fn products_in(&mut self, precision: Precision, tokens: Vec<u32>) -> &mut ProductTable {
        let found = self.products.iter().position(|table| table.precision == precision);
        let index = found.unwrap_or_else(|| {
            self.products.push(ProductTable { precision, tokens, rows: Vec::new() });
            self.products.len() - 1
        });
        &mut self.products[index]
    }

    fn prefill_of(&self, shape: &super::AttentionShape) -> Option<PrefillTable> {
        let around = self.prefill_around(shape)?;
        let tokens = around.tokens();
        let us = tokens.iter().map(|tokens| around.us_of(shape, f64::from(*tokens))).collect();
        Some(PrefillTable { shape: *shape, tokens, us })
    }

    fn decode_of(&self, shape: &super::AttentionShape) -> Option<DecodeTable> {
        let near = self.decode_near(shape)?;
        let row = |(sequences, us): (&u32, &Vec<f64>)| -> Option<Vec<f64>> {
            let measured = &near.context[..us.len()];
            measured.iter().map(|context| near.us_of(shape, f64::from(*sequences), f64::from(*context))).collect()
        };
        let us: Option<Vec<Vec<f64>>> = near.sequences.iter().zip(&near.us).map(row).collect();
        Some(DecodeTable { shape: *shape, sequences: near.sequences.clone(), context: near.context.clone(), us: us? })
    }

    fn reduce_of(&self, devices: u32) -> Option<ReduceTable> {
        let near = self.reduce_near(devices)?;
        let us = near.bytes.iter().filter_map(|bytes| self.all_reduce_us(devices, f64::from(*bytes))).collect();
        Some(ReduceTable { devices, bytes: near.bytes.clone(), us })
    }

    fn experts_of(&self, shape: &ExpertShape) -> Option<ExpertTable> {
        let near = self.experts_near(shape)?;
        let ExpertShape { precision, hidden, inter, top_k, experts } = *shape;
        let us = near.tokens.iter().map(|tokens| near.us_of(shape, f64::from(*tokens))).collect();
        Some(ExpertTable { precision, hidden, inter, top_k, experts, tokens: near.tokens.clone(), us })
    }

    fn latent_table(&self, shape: &super::LatentShape) -> Option<LatentTable> {
        let near = self.latent_near(shape)?;
        let scaled = |us: &[f64]| us.iter().map(|time| time * near.work(shape)).collect();
        Some(LatentTable {
            heads: shape.heads,
            kv: shape.kv,
            prefill_us: scaled(&near.prefill_us),
            decode_us: near.decode_us.iter().map(|row| scaled(row)).collect(),
            ..near.clone()
        })
    }
}
