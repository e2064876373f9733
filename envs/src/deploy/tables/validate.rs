//! What a table must be before it prices anything.

use super::KernelTables;
use crate::deploy::SettingError;

/// Most knots of a table, and most tables or rows of a family.
const KNOTS: usize = 256;
const TABLES: usize = 1 << 14;
/// Largest size of anything.
const LARGEST: u32 = 1 << 30;

type Checked = Result<(), SettingError>;

fn wrong(key: &str, value: impl ToString, expected: &'static str) -> Checked {
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
            return wrong(key, format!("{count} tables"), "at most 16384 tables");
        }
        for table in &self.products {
            ascending("tokens", &table.tokens)?;
            if table.rows.is_empty() || table.rows.len() > TABLES {
                return wrong("rows", format!("{} rows", table.rows.len()), "1 to 16384 rows");
            }
            for row in &table.rows {
                sizes(&[("n", row.n), ("k", row.k)])?;
                times("us", &row.us, table.tokens.len())?;
            }
        }
        for table in &self.prefill {
            table.shape.validate()?;
            ascending("tokens", &table.tokens)?;
            times("us", &table.us, table.tokens.len())?;
        }
        for table in &self.decode {
            table.shape.validate()?;
            grid("us", &table.sequences, &table.context, &table.us)?;
        }
        for table in &self.all_reduce {
            if !(2..=1024).contains(&table.devices) {
                return wrong("devices", table.devices, "devices, from 2 to 1024");
            }
            ascending("bytes", &table.bytes)?;
            times("us", &table.us, table.bytes.len())?;
        }
        for table in &self.experts {
            sizes(&[("hidden", table.hidden), ("inter", table.inter), ("experts", table.experts)])?;
            if !(1..=table.experts).contains(&table.top_k) {
                return wrong("top_k", table.top_k, "from 1 to the number of experts");
            }
            ascending("tokens", &table.tokens)?;
            times("us", &table.us, table.tokens.len())?;
        }
        for table in &self.latent {
            sizes(&[("hidden", table.hidden), ("heads", table.heads)])?;
            ascending("tokens", &table.tokens)?;
            times("prefill_us", &table.prefill_us, table.tokens.len())?;
            grid("decode_us", &table.sequences, &table.context, &table.decode_us)?;
        }
        self.scales.validate()
    }
}

impl super::AttentionShape {
    fn validate(&self) -> Checked {
        sizes(&[("heads", self.heads), ("kv_heads", self.kv_heads), ("head_dim", self.head_dim)])?;
        if self.kv_heads > self.heads {
            return wrong("kv_heads", self.kv_heads, "no more than heads");
        }
        if self.window > LARGEST {
            return wrong("window", self.window, "tokens, from 0 to 1073741824");
        }
        Ok(())
    }
}

fn sizes(sizes: &[(&str, u32)]) -> Checked {
    match sizes.iter().find(|(_, size)| !(1..=LARGEST).contains(size)) {
        Some((key, size)) => wrong(key, size, "a size from 1 to 1073741824"),
        None => Ok(()),
    }
}

fn ascending(key: &str, knots: &[u32]) -> Checked {
    if knots.is_empty() || knots.len() > KNOTS {
        return wrong(key, format!("{} knots", knots.len()), "1 to 256 knots");
    }
    if let Some(knot) = knots.iter().find(|knot| !(1..=LARGEST).contains(*knot)) {
        return wrong(key, knot, "numbers from 1 to 1073741824");
    }
    match knots.array_windows().find(|[left, right]| left >= right) {
        Some([left, right]) => wrong(key, format!("{left}, {right}"), "ascending numbers"),
        None => Ok(()),
    }
}

fn times(key: &str, us: &[f64], knots: usize) -> Checked {
    if us.len() != knots {
        return wrong(key, format!("{} values", us.len()), "as many values as there are knots");
    }
    each(key, us)
}

fn each(key: &str, us: &[f64]) -> Checked {
    match us.iter().find(|time| !(1e-3..=1e9).contains(*time)) {
        Some(time) => wrong(key, time, "microseconds, from 0.001 to 1e9"),
        None => Ok(()),
    }
}

/// Rows may be shorter than `context`, and from some number of sequences on there may be none.
fn grid(key: &str, sequences: &[u32], context: &[u32], us: &[Vec<f64>]) -> Checked {
    ascending("sequences", sequences)?;
    ascending("context", context)?;
    if us.len() != sequences.len() {
        return wrong(key, format!("{} rows", us.len()), "as many rows as sequences has numbers");
    }
    if let Some(row) = us.iter().find(|row| row.is_empty() || row.len() > context.len()) {
        return wrong(key, format!("{} values", row.len()), "a value at least and no more than context has");
    }
    us.iter().try_for_each(|row| each(key, row))
}
