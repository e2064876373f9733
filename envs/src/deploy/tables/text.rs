//! Tables as a file has them: a line for each row, so that a profile can be read and compared.

use std::fmt::{Display, Write};

use super::{AttentionShape, KernelScales, KernelTables, KvPrecision, TableSource};

/// Where a file's tables stand.
const PLACE: &str = "hardware.kernels";

/// Numbers in brackets.
fn list<T: Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("[{}]", values.join(", "))
}

/// Rows of times, one beneath the other.
fn grid(text: &mut String, key: &str, rows: &[Vec<f64>]) {
    let _ = writeln!(text, "{key} = [");
    for row in rows {
        let _ = writeln!(text, "  {},", list(row));
    }
    text.push_str("]\n");
}

fn kv(precision: KvPrecision) -> &'static str {
    match precision {
        KvPrecision::Bf16 => "bf16",
        KvPrecision::Fp8 => "fp8",
    }
}

fn heads(shape: &AttentionShape) -> String {
    let AttentionShape { heads, kv_heads, head_dim, window, kv: precision } = shape;
    let kv = kv(*precision);
    format!("{{ heads = {heads}, kv_heads = {kv_heads}, head_dim = {head_dim}, window = {window}, kv = \"{kv}\" }}")
}

impl TableSource {
    fn write(&self, text: &mut String) {
        let _ = writeln!(text, "\n[{PLACE}.source]");
        let quoted = |value: &str| toml::Value::String(value.to_owned()).to_string();
        for (key, value) in [
            ("database", &self.database),
            ("licence", &self.licence),
            ("date", &self.date),
            ("system", &self.system),
            ("device", &self.device),
            ("command", &self.command),
        ] {
            let _ = writeln!(text, "{key} = {}", quoted(value));
        }
        for (key, values) in [("files", &self.files), ("modelled", &self.modelled)] {
            let _ = writeln!(text, "{key} = [");
            for value in values {
                let _ = writeln!(text, "  {},", quoted(value));
            }
            text.push_str("]\n");
        }
    }
}

impl KernelTables {
    /// What stands below `[hardware.kernels]`, which a file may have after everything else.
    pub(in crate::deploy) fn to_toml(&self) -> String {
        let mut text = String::new();
        if let Some(source) = &self.source {
            source.write(&mut text);
        }
        if !self.scales.is_one() {
            let KernelScales { products, prefill, decode, sustained } = self.scales;
            let _ = writeln!(text, "\n[{PLACE}.scales]\nproducts = {products}\nprefill = {prefill}\ndecode = {decode}");
            let _ = writeln!(text, "sustained = {sustained}");
        }
        self.write_products(&mut text);
        self.write_attention(&mut text);
        for table in &self.all_reduce {
            let _ = writeln!(text, "\n[[{PLACE}.all_reduce]]\ndevices = {}", table.devices);
            let _ = writeln!(text, "bytes = {}\nus = {}", list(&table.bytes), list(&table.us));
        }
        for table in &self.experts {
            let _ = writeln!(text, "\n[[{PLACE}.experts]]\nprecision = \"{}\"", table.precision.key());
            let _ = writeln!(text, "hidden = {}\ninter = {}", table.hidden, table.inter);
            let _ = writeln!(text, "top_k = {}\nexperts = {}", table.top_k, table.experts);
            let _ = writeln!(text, "tokens = {}\nus = {}", list(&table.tokens), list(&table.us));
        }
        for table in &self.latent {
            let _ = writeln!(text, "\n[[{PLACE}.latent]]\nhidden = {}\nheads = {}", table.hidden, table.heads);
            let _ = writeln!(text, "precision = \"{}\"\nkv = \"{}\"", table.precision.key(), kv(table.kv));
            let _ = writeln!(text, "tokens = {}\nprefill_us = {}", list(&table.tokens), list(&table.prefill_us));
            let _ = writeln!(text, "sequences = {}\ncontext = {}", list(&table.sequences), list(&table.context));
            grid(&mut text, "decode_us", &table.decode_us);
        }
        text
    }

    fn write_products(&self, text: &mut String) {
        for table in &self.products {
            let _ = writeln!(text, "\n[[{PLACE}.products]]\nprecision = \"{}\"", table.precision.key());
            let _ = writeln!(text, "tokens = {}\nrows = [", list(&table.tokens));
            for row in &table.rows {
                let _ = writeln!(text, "  {{ n = {}, k = {}, us = {} }},", row.n, row.k, list(&row.us));
            }
            text.push_str("]\n");
        }
    }

    fn write_attention(&self, text: &mut String) {
        for table in &self.prefill {
            let _ = writeln!(text, "\n[[{PLACE}.prefill]]\nshape = {}", heads(&table.shape));
            let _ = writeln!(text, "tokens = {}\nus = {}", list(&table.tokens), list(&table.us));
        }
        for table in &self.decode {
            let _ = writeln!(text, "\n[[{PLACE}.decode]]\nshape = {}", heads(&table.shape));
            let _ = writeln!(text, "sequences = {}\ncontext = {}", list(&table.sequences), list(&table.context));
            grid(text, "us", &table.us);
        }
    }

    /// Times to so many digits: what is measured is not known to more.
    pub fn round(&mut self, digits: i32) {
        let round = |us: &mut f64| {
            let step = 10_f64.powi(us.abs().log10().floor() as i32 + 1 - digits);
            // By way of a text, so that what is written is what was meant: 0.1 and not 0.1000…1.
            let places = usize::try_from(-step.log10().round() as i64).unwrap_or(0);
            let rounded = format!("{:.places$}", (*us / step).round() * step);
            *us = rounded.parse().unwrap_or(*us);
        };
        self.each_time(round);
    }

    fn each_time(&mut self, change: impl Fn(&mut f64)) {
        self.products.iter_mut().flat_map(|table| &mut table.rows).flat_map(|row| &mut row.us).for_each(&change);
        self.prefill.iter_mut().flat_map(|table| &mut table.us).for_each(&change);
        self.decode.iter_mut().flat_map(|table| &mut table.us).flatten().for_each(&change);
        self.all_reduce.iter_mut().flat_map(|table| &mut table.us).for_each(&change);
        self.experts.iter_mut().flat_map(|table| &mut table.us).for_each(&change);
        for table in &mut self.latent {
            table.prefill_us.iter_mut().chain(table.decode_us.iter_mut().flatten()).for_each(&change);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{DecodeTable, ExpertTable, LatentTable, PrefillTable, ProductRow, ProductTable, ReduceTable};
    use super::*;
    use crate::deploy::{Hardware, HardwareProfile, HostTimes, Precision};

    fn every_family() -> KernelTables {
        let shape = AttentionShape { heads: 4, kv_heads: 1, head_dim: 128, window: 512, kv: KvPrecision::Fp8 };
        let tokens = vec![1, 16];
        KernelTables {
            source: Some(TableSource {
                database: "a \"database\" 1.0".to_owned(),
                files: vec!["one.parquet".to_owned(), "two.parquet".to_owned()],
                ..TableSource::default()
            }),
            scales: KernelScales { sustained: 1.1, ..KernelScales::ONE },
            products: [Precision::Bf16, Precision::Fp8]
                .map(|precision| ProductTable {
                    precision,
                    tokens: tokens.clone(),
                    rows: vec![ProductRow { n: 8, k: 4, us: vec![1.5, 1234.0] }],
                })
                .to_vec(),
            prefill: vec![PrefillTable { shape, tokens: tokens.clone(), us: vec![0.001, 2.0] }],
            decode: vec![DecodeTable {
                shape,
                sequences: vec![1, 2],
                context: vec![9, 99],
                us: vec![vec![1.0, 2.0], vec![3.0]],
            }],
            all_reduce: vec![ReduceTable { devices: 2, bytes: vec![128], us: vec![4.25] }],
            experts: vec![ExpertTable {
                precision: Precision::ExpertsMxfp4,
                hidden: 64,
                inter: 32,
                top_k: 2,
                experts: 8,
                tokens: tokens.clone(),
                us: vec![7.0, 8.0],
            }],
            latent: vec![LatentTable {
                hidden: 7168,
                heads: 16,
                precision: Precision::Fp8,
                kv: KvPrecision::Bf16,
                tokens,
                prefill_us: vec![80.0, 81.0],
                sequences: vec![1],
                context: vec![3],
                decode_us: vec![vec![70.0]],
            }],
        }
    }

    #[test]
    fn a_file_has_every_family_and_reads_back() {
        let (tables, host) = (Some(Arc::new(every_family())), Some(HostTimes::default()));
        let hardware = Hardware { tables, host, ..Hardware::named("l4").unwrap() };
        let profile = HardwareProfile { hardware, provenance: None };
        let text = profile.to_toml();
        assert!(text.contains("\n  { n = 8, k = 4, us = [1.5, 1234] },\n"), "{text}");
        assert_eq!(HardwareProfile::parse(&text), Ok(profile));
    }

    #[test]
    fn times_are_rounded_to_what_is_known() {
        let mut tables = every_family();
        tables.prefill[0].us = vec![0.012_345_6, 98_765.4];
        tables.all_reduce[0].us = vec![9.9999];
        tables.round(4);
        assert_eq!((&tables.prefill[0].us[..], tables.all_reduce[0].us[0]), (&[0.01235, 98_770.0][..], 10.0));
    }
}
