//! Accelerators: published peaks, and the shares of them that kernels reach.

use serde::{Deserialize, Serialize};

use super::keys::of_hardware;
use super::{HardwareProfile, KernelTimes, Setting, SettingError};

/// One accelerator.
///
/// Peaks are the vendor's data sheets (dense bf16 with 32-bit accumulation, no sparsity). Efficiencies, overheads and
/// effective link speeds are engineering defaults for an eager-scheduled engine of vLLM's V0 time, not measurements of
/// a particular server: a calibrated [`HardwareProfile`] replaces them.
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
    pub kernels: Option<KernelTimes>,
}

const GIB: f64 = (1u64 << 30) as f64;

/// The measured profile, as `kvtide calibrate` wrote it; what it was fitted to and how stands in it.
const RTX_4090_MEASURED: &str = include_str!("profiles/rtx-4090-measured.toml");

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
                return Some(
                    HardwareProfile::parse(RTX_4090_MEASURED).expect("the built-in profile is tested").hardware,
                );
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

    /// This accelerator with `overrides`, later ones winning. Settings of the engine are passed over. Another peak or
    /// efficiency turns measured kernels off, which would not follow it.
    #[must_use]
    pub fn with(mut self, overrides: &[Setting]) -> Hardware {
        for setting in overrides {
            if setting.apply_to_hardware(&mut self) && ROOFS.contains(&setting.key()) {
                self.kernels = None;
            }
        }
        self
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn validate(&self) -> Result<(), SettingError> {
        let mut hardware = self.clone();
        for (name, range, of) in of_hardware() {
            let value = *of(&mut hardware);
            if !range.takes(value) {
                return Err(SettingError::value(name, &value.to_string(), range.expected));
            }
        }
        self.kernels.as_ref().map_or(Ok(()), KernelTimes::validate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(settings: &[&str]) -> Result<Hardware, SettingError> {
        let settings: Result<Vec<Setting>, SettingError> = settings.iter().map(|text| text.parse()).collect();
        Ok(Hardware::named("rtx-4090").unwrap().with(&settings?))
    }

    #[test]
    fn every_number_can_be_set_and_nothing_else_changes() {
        let before = hardware(&[]).unwrap();
        for (name, range, of) in of_hardware() {
            let [low, high] = [range.low, range.high].map(|value| {
                let mut after = hardware(&[&format!("{name}={value:e}")]).unwrap();
                assert_eq!(std::mem::replace(of(&mut after), 0.0), value, "{name}");
                *of(&mut after) = *of(&mut before.clone());
                after
            });
            assert_eq!((&low, &high), (&before, &before), "{name}");
        }
        let json = serde_json::to_value(&before).unwrap();
        let names: Vec<&str> =
            json.as_object().unwrap().keys().map(String::as_str).filter(|key| *key != "name").collect();
        let mut keys: Vec<&str> = of_hardware().map(|(name, ..)| name).collect();
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
