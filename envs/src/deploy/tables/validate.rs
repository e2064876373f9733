//! What a table must be before it prices anything.

use std::fmt::Display;

use super::{DecodeTable, ExpertTable, KernelTables, LatentTable, PrefillTable, ProductTable, ReduceTable};
use crate::deploy::SettingError;

/// Most knots of a table, and most tables or rows of a family.
const KNOTS: usize = 256;
const TABLES: usize = 1 << 14;
/// Largest size of anything.
const LARGEST: u32 = 1 << 30;

type Checked = Result<(), SettingError>;

fn wrong(key: &str, value: &dyn Display, expected: &'static str) -> Checked {
    Err(SettingError::value(key, &value.to_string(), expected))
}

impl KernelTables {
    /// Checks lengths, order and ranges.
    ///
    /// # Errors
    /// The first key that is wrong, its value, and what would do.
    pub fn validate(&self) -> Checked {
        let counts = [
            ("products", self.products.len()),
            ("prefill", self.prefill.len()),
            ("decode", self.decode.len()),
            ("all_reduce", self.all_reduce.len()),
            ("experts", self.experts.len()),
            ("latent", self.latent.len()),
        ];
        if let Some((key, count)) = counts.into_iter().find(|(_, count)| *count > TABLES) {
            return wrong(key, &format!("{count} tables"), "at most 16384 tables");
        }
        each_of("products", &self.products, ProductTable::validate)?;
        each_of("prefill", &self.prefill, PrefillTable::validate)?;
        each_of("decode", &self.decode, DecodeTable::validate)?;
        each_of("all_reduce", &self.all_reduce, ReduceTable::validate)?;
        each_of("experts", &self.experts, ExpertTable::validate)?;
        each_of("latent", &self.latent, LatentTable::validate)?;
        self.scales.validate().map_err(|error| error.within("scales"))
    }
}

/// Checks each item, and says which is wrong.
fn each_of<T>(name: &str, items: &[T], check: fn(&T) -> Checked) -> Checked {
    items
        .iter()
        .enumerate()
        .try_for_each(|(index, item)| check(item).map_err(|error| error.within(&format!("{name}[{index}]"))))
}

impl ProductTable {
    fn validate(&self) -> Checked {
        ascending("tokens", &self.tokens)?;
        if self.rows.is_empty() || self.rows.len() > TABLES {
            return wrong("rows", &format!("{} rows", self.rows.len()), "1 to 16384 rows");
        }
        for (index, row) in self.rows.iter().enumerate() {
            let checked = sizes(&[("n", row.n), ("k", row.k)]).and_then(|()| times("us", &row.us, self.tokens.len()));
            checked.map_err(|error| error.within(&format!("rows[{index}]")))?;
        }
        Ok(())
    }
}

impl PrefillTable {
    fn validate(&self) -> Checked {
        self.shape.validate()?;
        ascending("tokens", &self.tokens)?;
        times("us", &self.us, self.tokens.len())
    }
}

impl DecodeTable {
    fn validate(&self) -> Checked {
        self.shape.validate()?;
        grid("us", &self.sequences, &self.context, &self.us)
    }
}

impl ReduceTable {
    fn validate(&self) -> Checked {
        if !(2..=1024).contains(&self.devices) {
            return wrong("devices", &self.devices, "devices, from 2 to 1024");
        }
        ascending("bytes", &self.bytes)?;
        times("us", &self.us, self.bytes.len())
    }
}

impl ExpertTable {
    fn validate(&self) -> Checked {
        sizes(&[("hidden", self.hidden), ("inter", self.inter), ("experts", self.experts)])?;
        if !(1..=self.experts).contains(&self.top_k) {
            return wrong("top_k", &self.top_k, "from 1 to the number of experts");
        }
        ascending("tokens", &self.tokens)?;
        times("us", &self.us, self.tokens.len())
    }
}

impl LatentTable {
    fn validate(&self) -> Checked {
        sizes(&[("hidden", self.hidden), ("heads", self.heads)])?;
        ascending("tokens", &self.tokens)?;
        times("prefill_us", &self.prefill_us, self.tokens.len())?;
        grid("decode_us", &self.sequences, &self.context, &self.decode_us)
    }
}

impl super::AttentionShape {
    fn validate(&self) -> Checked {
        sizes(&[("heads", self.heads), ("kv_heads", self.kv_heads), ("head_dim", self.head_dim)])?;
        if self.kv_heads > self.heads {
            return wrong("kv_heads", &self.kv_heads, "no more than heads");
        }
        if self.window > LARGEST {
            return wrong("window", &self.window, "tokens, from 0 to 1073741824");
        }
        Ok(())
    }
}

fn sizes(sizes: &[(&str, u32)]) -> Checked {
    match sizes.iter().find(|(_, size)| !(1..=LARGEST).contains(size)) {
        Some((key, size)) => wrong(key, &size, "a size from 1 to 1073741824"),
        None => Ok(()),
    }
}

fn ascending(key: &str, knots: &[u32]) -> Checked {
    if knots.is_empty() || knots.len() > KNOTS {
        return wrong(key, &format!("{} knots", knots.len()), "1 to 256 knots");
    }
    if let Some(knot) = knots.iter().find(|knot| !(1..=LARGEST).contains(*knot)) {
        return wrong(key, &knot, "numbers from 1 to 1073741824");
    }
    match knots.array_windows().find(|[left, right]| left >= right) {
        Some([left, right]) => wrong(key, &format!("{left}, {right}"), "ascending numbers"),
        None => Ok(()),
    }
}

fn times(key: &str, us: &[f64], knots: usize) -> Checked {
    if us.len() != knots {
        return wrong(key, &format!("{} values", us.len()), "as many values as there are knots");
    }
    each(key, us)
}

fn each(key: &str, us: &[f64]) -> Checked {
    match us.iter().find(|time| !(1e-3..=1e9).contains(*time)) {
        // 1e300 is as good a value to name as its three hundred digits.
        Some(time) if time.abs() >= 1e9 => wrong(key, &format!("{time:e}"), "microseconds, from 0.001 to 1e9"),
        Some(time) => wrong(key, &time, "microseconds, from 0.001 to 1e9"),
        None => Ok(()),
    }
}

/// Rows may be shorter than `context`, and from some number of sequences on there may be none.
fn grid(key: &str, sequences: &[u32], context: &[u32], us: &[Vec<f64>]) -> Checked {
    ascending("sequences", sequences)?;
    ascending("context", context)?;
    if us.len() != sequences.len() {
        return wrong(key, &format!("{} rows", us.len()), "as many rows as sequences has numbers");
    }
    if let Some(row) = us.iter().find(|row| row.is_empty() || row.len() > context.len()) {
        return wrong(key, &format!("{} values", row.len()), "a value at least and no more than context has");
    }
    us.iter().try_for_each(|row| each(key, row))
}

#[cfg(test)]
mod tests {
    use super::super::{AttentionShape, KvPrecision, ProductRow};
    use super::*;
    use crate::deploy::Precision;

    fn tables() -> KernelTables {
        let shape = AttentionShape { heads: 8, kv_heads: 2, head_dim: 128, window: 0, kv: KvPrecision::Bf16 };
        let rows = vec![ProductRow { n: 64, k: 32, us: vec![2.0, 4.5] }];
        KernelTables {
            products: vec![ProductTable { precision: Precision::Bf16, tokens: vec![1, 8], rows }],
            decode: vec![DecodeTable {
                shape,
                sequences: vec![1, 2],
                context: vec![16, 64],
                us: vec![vec![1.0, 2.0], vec![3.0]],
            }],
            all_reduce: vec![ReduceTable { devices: 2, bytes: vec![64], us: vec![4.0] }],
            ..KernelTables::default()
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        assert_eq!(tables().validate(), Ok(()));
        let error = |change: fn(&mut KernelTables)| {
            let mut changed = tables();
            change(&mut changed);
            changed.validate().unwrap_err().to_string()
        };
        assert_eq!(
            error(|tables| tables.products[0].rows[0].us[1] = f64::NAN),
            "products[0].rows[0].us=\"NaN\": expected microseconds, from 0.001 to 1e9"
        );
        assert_eq!(
            error(|tables| tables.products[0].tokens = vec![8, 1]),
            "products[0].tokens=\"8, 1\": expected ascending numbers"
        );
        assert!(error(|tables| tables.products[0].rows[0].n = 0).starts_with("products[0].rows[0].n=\"0\""));
        assert!(error(|tables| tables.products[0].rows.clear()).starts_with("products[0].rows=\"0 rows\""));
        let short = error(|tables| tables.products[0].rows[0].us.truncate(1));
        assert_eq!(short, "products[0].rows[0].us=\"1 values\": expected as many values as there are knots");
        assert!(error(|tables| tables.decode[0].us[1].clear()).starts_with("decode[0].us=\"0 values\""));
        assert!(error(|tables| tables.decode[0].us.truncate(1)).contains("as many rows as sequences"));
        assert!(error(|tables| tables.decode[0].shape.kv_heads = 9).ends_with("expected no more than heads"));
        assert!(error(|tables| tables.all_reduce[0].devices = 1).starts_with("all_reduce[0].devices=\"1\""));
    }
}
