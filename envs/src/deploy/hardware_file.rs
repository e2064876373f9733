//! An accelerator as it stands in files: what was measured of its kernels, whichever form it has, stands below `kernels`.

use std::fmt;
use std::sync::Arc;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::tables::{FAMILIES, KernelTables};
use super::{ClockSpread, Hardware, HostTimes, KernelTimes};

/// [`Hardware`] as it is written and read; of its fields what each is stands there.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Hardware", deny_unknown_fields)]
pub(super) struct HardwareFile {
    name: String,
    peak_flops: f64,
    #[serde(default, skip_serializing_if = "is_zero")]
    peak_fp8_flops: f64,
    peak_bandwidth: f64,
    memory_bytes: f64,
    pcie_bandwidth: f64,
    link_bandwidth: f64,
    compute_efficiency: f64,
    bandwidth_efficiency: f64,
    step_overhead: f64,
    sequence_overhead: f64,
    swap_overhead: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kernels: Option<Kernels>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host: Option<HostTimes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spread: Option<ClockSpread>,
}

/// For serde: fields that are left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// What stands below `kernels`.
enum Kernels {
    Times(KernelTimes),
    Tables(Arc<KernelTables>),
}

impl From<HardwareFile> for Hardware {
    fn from(file: HardwareFile) -> Hardware {
        let (kernels, tables) = match file.kernels {
            Some(Kernels::Times(times)) => (Some(times), None),
            Some(Kernels::Tables(tables)) => (None, Some(tables)),
            None => (None, None),
        };
        Hardware {
            name: file.name,
            peak_flops: file.peak_flops,
            peak_fp8_flops: file.peak_fp8_flops,
            peak_bandwidth: file.peak_bandwidth,
            memory_bytes: file.memory_bytes,
            pcie_bandwidth: file.pcie_bandwidth,
            link_bandwidth: file.link_bandwidth,
            compute_efficiency: file.compute_efficiency,
            bandwidth_efficiency: file.bandwidth_efficiency,
            step_overhead: file.step_overhead,
            sequence_overhead: file.sequence_overhead,
            swap_overhead: file.swap_overhead,
            kernels,
            tables,
            host: file.host,
            spread: file.spread,
        }
    }
}

impl From<Hardware> for HardwareFile {
    fn from(hardware: Hardware) -> HardwareFile {
        let tables = hardware.tables.map(Kernels::Tables);
        HardwareFile {
            name: hardware.name,
            peak_flops: hardware.peak_flops,
            peak_fp8_flops: hardware.peak_fp8_flops,
            peak_bandwidth: hardware.peak_bandwidth,
            memory_bytes: hardware.memory_bytes,
            pcie_bandwidth: hardware.pcie_bandwidth,
            link_bandwidth: hardware.link_bandwidth,
            compute_efficiency: hardware.compute_efficiency,
            bandwidth_efficiency: hardware.bandwidth_efficiency,
            step_overhead: hardware.step_overhead,
            sequence_overhead: hardware.sequence_overhead,
            swap_overhead: hardware.swap_overhead,
            kernels: hardware.kernels.map(Kernels::Times).or(tables),
            host: hardware.host,
            spread: hardware.spread,
        }
    }
}

impl Serialize for Kernels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Kernels::Times(times) => times.serialize(serializer),
            Kernels::Tables(tables) => tables.serialize(serializer),
        }
    }
}

/// Told apart by the first key, so that a mistake in either is told as in a file that can only be it.
impl<'de> Deserialize<'de> for Kernels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Kernels, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = Kernels;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a curve of times or tables of them")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kernels, A::Error> {
                let first: Option<String> = map.next_key()?;
                let is_tables = first.as_deref().is_some_and(|key| FAMILIES.contains(&key));
                if let Some(other) = first.as_deref().filter(|key| !is_tables && !KernelTimes::KEYS.contains(key)) {
                    let [curve, tables] = [KernelTimes::KEYS.join(", "), FAMILIES.join(", ")];
                    return Err(serde::de::Error::custom(format!(
                        "unknown field `{other}` in kernels: a curve has {curve}; tables are {tables}"
                    )));
                }
                let whole = MapAccessDeserializer::new(Begun { first, rest: map });
                if is_tables {
                    KernelTables::deserialize(whole).map(|tables| Kernels::Tables(Arc::new(tables)))
                } else {
                    KernelTimes::deserialize(whole).map(Kernels::Times)
                }
            }
        }

        deserializer.deserialize_map(Either)
    }
}

/// A map whose first key has been read.
struct Begun<A> {
    first: Option<String>,
    rest: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Begun<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(key) => seed.deserialize(key.into_deserializer()).map(Some),
            None => self.rest.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.rest.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::HardwareProfile;
    use super::super::tables::{ProductRow, ProductTable};
    use super::*;

    #[test]
    fn tables_are_written_and_read_where_a_curve_would_be() {
        let rows = vec![ProductRow { n: 64, k: 32, us: vec![2.0, 4.5] }];
        let products = vec![ProductTable { precision: super::super::Precision::Bf16, tokens: vec![1, 8], rows }];
        let tables = KernelTables { products, ..KernelTables::default() };
        let hardware = Hardware { tables: Some(Arc::new(tables)), ..Hardware::named("a10").unwrap() };
        let profile = HardwareProfile { hardware, provenance: None };
        let text = profile.to_toml();
        assert_eq!(HardwareProfile::parse(&text), Ok(profile.clone()), "{text}");
        let json = serde_json::to_string(&profile).unwrap();
        assert_eq!(serde_json::from_str::<HardwareProfile>(&json).unwrap(), profile);
        let error = |from: &str, to: &str| {
            assert!(text.contains(from), "{text}");
            HardwareProfile::parse(&text.replace(from, to)).unwrap_err()
        };
        let (line, wrong) = error("4.5", "-4.5");
        let place = text.lines().position(|line| line.contains("4.5")).map(|index| index + 1);
        assert!(line == place && wrong.starts_with("products[0].rows[0].us=\"-4.5\": expected micro"), "{wrong}");
        assert!(error("kernels.products", "kernels.convolutions").1.ends_with("decode, all_reduce, experts, latent"));
        assert!(error("precision", "chunk_tile").1.starts_with("unknown field `chunk_tile`"));
    }
}
