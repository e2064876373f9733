//! Accelerators: published peaks, and the shares of them that kernels reach.

use serde::{Deserialize, Serialize};

use super::{Kernels, Profile, Setting, SettingError};

/// One accelerator.
///
/// Peaks are the vendor's data sheets (dense bf16 with 32-bit accumulation, no sparsity). Efficiencies, overheads and
/// effective link speeds are engineering defaults for an eager-scheduled engine of vLLM's V0 time, not measurements of
/// a particular server: a calibrated [`Profile`] replaces them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Name as in `--env model@hardware`.
    pub name: String,
    /// Peak dense bf16 compute, FLOP/s.
    pub peak_flops: f64,
    /// Peak memory bandwidth, bytes/s.
    pub peak_bandwidth: f64,
    /// Memory, bytes.
    pub memory_bytes: f64,
    /// Host link in one direction as reached by pinned copies, bytes/s.
    pub pcie_bandwidth: f64,
    /// Link between accelerators of one node as reached by an all-reduce, bytes/s.
    pub link_bandwidth: f64,
    /// Share of `peak_flops` reached by large matrix products; above 1 where clocks exceed the data sheet's.
    pub compute_efficiency: f64,
    /// Share of `peak_bandwidth` reached by streaming weights and KV blocks.
    pub bandwidth_efficiency: f64,
    /// Fixed time of a step on the host: scheduling, input preparation, launches, sampling. Seconds.
    pub step_overhead: f64,
    /// Host time a step spends on each scheduled sequence. Seconds.
    pub sequence_overhead: f64,
    /// Fixed time of a swap, whatever its size. Seconds.
    pub swap_overhead: f64,
    /// Measured times of its kernels, which then stand for the two efficiencies; `None` for the plain roofline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Kernels>,
}

const GIB: f64 = (1u64 << 30) as f64;

/// The measured profile, as `kvtide calibrate` wrote it; what it was fitted to and how stands in it.
const RTX_4090_MEASURED: &str = include_str!("profiles/rtx-4090-measured.toml");

/// A number of [`Hardware`] that can be set.
struct Field {
    name: &'static str,
    of: fn(&mut Hardware) -> &mut f64,
    range: (f64, f64),
    expected: &'static str,
}

impl Field {
    const fn new(
        name: &'static str,
        of: fn(&mut Hardware) -> &mut f64,
        range: (f64, f64),
        expected: &'static str,
    ) -> Field {
        Field { name, of, range, expected }
    }

    fn takes(&self, value: f64) -> bool {
        (self.range.0..=self.range.1).contains(&value)
    }
}

const FLOPS: ((f64, f64), &str) = ((1e9, 1e19), "FLOP/s, from 1e9 to 1e19");
const BANDWIDTH: ((f64, f64), &str) = ((1e6, 1e16), "bytes/s, from 1e6 to 1e16");
const BYTES: ((f64, f64), &str) = ((1e6, 1e15), "bytes, from 1e6 to 1e15");
const SHARE: ((f64, f64), &str) = ((0.01, 1.5), "a share from 0.01 to 1.5");
const SECONDS: ((f64, f64), &str) = ((0.0, 10.0), "seconds, from 0 to 10");

const FIELDS: [Field; 10] = [
    Field::new("peak_flops", |hardware| &mut hardware.peak_flops, FLOPS.0, FLOPS.1),
    Field::new("peak_bandwidth", |hardware| &mut hardware.peak_bandwidth, BANDWIDTH.0, BANDWIDTH.1),
    Field::new("memory_bytes", |hardware| &mut hardware.memory_bytes, BYTES.0, BYTES.1),
    Field::new("pcie_bandwidth", |hardware| &mut hardware.pcie_bandwidth, BANDWIDTH.0, BANDWIDTH.1),
    Field::new("link_bandwidth", |hardware| &mut hardware.link_bandwidth, BANDWIDTH.0, BANDWIDTH.1),
    Field::new("compute_efficiency", |hardware| &mut hardware.compute_efficiency, SHARE.0, SHARE.1),
    Field::new("bandwidth_efficiency", |hardware| &mut hardware.bandwidth_efficiency, SHARE.0, SHARE.1),
    Field::new("step_overhead", |hardware| &mut hardware.step_overhead, SECONDS.0, SECONDS.1),
    Field::new("sequence_overhead", |hardware| &mut hardware.sequence_overhead, SECONDS.0, SECONDS.1),
    Field::new("swap_overhead", |hardware| &mut hardware.swap_overhead, SECONDS.0, SECONDS.1),
];

/// What measured kernels stand for.
const ROOFS: [&str; 4] = ["peak_flops", "peak_bandwidth", "compute_efficiency", "bandwidth_efficiency"];

impl Hardware {
    /// Names of the built-in profiles.
    pub const NAMES: [&'static str; 6] = ["rtx-4090", "rtx-4090-measured", "a10", "a100-80g", "h100", "h200"];

    /// The built-in profile of that name.
    pub fn named(name: &str) -> Option<Hardware> {
        // Data sheets: NVIDIA Ada GPU architecture whitepaper v2.1 (RTX 4090), A10 (2021), A100 80GB SXM (2021),
        // H100 SXM (2023), H200 SXM (2024). PCIe 4.0 and 5.0 x16 carry 32 and 64 GB/s; about 25 and 52 are reached.
        let (peak_tflops, peak_gb, memory_gib, pcie_gb, link_gb) = match name {
            "rtx-4090" => (165.2, 1008.0, 24.0, 25.0, 12.0),
            "rtx-4090-measured" => {
                return Some(Profile::parse(RTX_4090_MEASURED).expect("the built-in profile is tested").hardware);
            }
            "a10" => (125.0, 600.0, 24.0, 25.0, 12.0),
            "a100-80g" => (312.0, 2039.0, 80.0, 25.0, 240.0),
            "h100" => (989.4, 3350.0, 80.0, 52.0, 360.0),
            "h200" => (989.4, 4800.0, 141.0 * 1e9 / GIB, 52.0, 360.0),
            _ => return None,
        };
        Some(Hardware {
            name: name.to_owned(),
            peak_flops: peak_tflops * 1e12,
            peak_bandwidth: peak_gb * 1e9,
            memory_bytes: memory_gib * GIB,
            pcie_bandwidth: pcie_gb * 1e9,
            link_bandwidth: link_gb * 1e9,
            compute_efficiency: 0.7,
            bandwidth_efficiency: 0.8,
            step_overhead: 3e-3,
            sequence_overhead: 15e-6,
            swap_overhead: 100e-6,
            kernels: None,
        })
    }

    /// Names of what can be set.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        FIELDS.iter().map(|field| field.name)
    }

    /// This accelerator with `overrides`, later ones winning. Settings of the engine are passed over. Another peak or
    /// efficiency turns measured kernels off, which would not follow it.
    ///
    /// # Errors
    /// A value that is no number or out of its range.
    pub fn with(mut self, overrides: &[Setting]) -> Result<Hardware, SettingError> {
        for setting in overrides {
            let Some(field) = FIELDS.iter().find(|field| field.name == setting.key()) else { continue };
            let value = setting.value().parse().ok().filter(|value| field.takes(*value));
            *(field.of)(&mut self) = value.ok_or_else(|| setting.wrong(field.expected))?;
            if ROOFS.contains(&field.name) {
                self.kernels = None;
            }
        }
        Ok(self)
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn validate(&self) -> Result<(), SettingError> {
        let mut hardware = self.clone();
        for field in &FIELDS {
            let value = *(field.of)(&mut hardware);
            if !field.takes(value) {
                return Err(SettingError::value(field.name, &value.to_string(), field.expected));
            }
        }
        self.kernels.as_ref().map_or(Ok(()), Kernels::validate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(settings: &[&str]) -> Result<Hardware, SettingError> {
        let settings: Result<Vec<Setting>, SettingError> = settings.iter().map(|text| text.parse()).collect();
        Hardware::named("rtx-4090").unwrap().with(&settings?)
    }

    #[test]
    fn every_number_can_be_set_and_nothing_else_changes() {
        let before = hardware(&[]).unwrap();
        for field in &FIELDS {
            let [low, high] = [field.range.0, field.range.1].map(|value| {
                let mut after = hardware(&[&format!("{}={value:e}", field.name)]).unwrap();
                assert_eq!(std::mem::replace((field.of)(&mut after), 0.0), value, "{}", field.name);
                *(field.of)(&mut after) = *(field.of)(&mut before.clone());
                after
            });
            assert_eq!((&low, &high), (&before, &before), "{}", field.name);
        }
        let json = serde_json::to_value(&before).unwrap();
        let names: Vec<&str> =
            json.as_object().unwrap().keys().map(String::as_str).filter(|key| *key != "name").collect();
        let mut keys: Vec<&str> = Hardware::keys().collect();
        keys.sort_unstable();
        assert_eq!(keys, names);
    }

    #[test]
    fn settings_of_the_engine_are_none_of_its_business() {
        assert_eq!(hardware(&["num_gpu_blocks=9"]), hardware(&[]));
        assert_eq!(hardware(&["step_overhead=1", "step_overhead=0"]).unwrap().step_overhead, 0.0);
    }

    #[test]
    fn values_out_of_range_are_named() {
        let error = |setting: &str| hardware(&[setting]).unwrap_err().to_string();
        assert_eq!(error("bandwidth_efficiency=90"), "bandwidth_efficiency=\"90\": expected a share from 0.01 to 1.5");
        for bad in ["step_overhead=-1", "step_overhead=NaN", "peak_flops=inf", "pcie_bandwidth=", "memory_bytes=24G"] {
            assert!(error(bad).starts_with(bad.split_once('=').unwrap().0), "{bad}");
        }
    }

    #[test]
    fn built_in_profiles_are_valid() {
        for name in Hardware::NAMES {
            let hardware = Hardware::named(name).unwrap();
            assert_eq!((hardware.name.as_str(), hardware.validate()), (name, Ok(())));
        }
        assert_eq!(Hardware::named("abacus"), None);
    }
}
