//! Accelerators: published peaks, and the shares of them that kernels reach.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cards::{CARDS, Card};
use super::hardware_file::HardwareFile;
use super::keys::of_hardware;
use super::measured;
use super::{
    ClockKind, ClockSpread, HardwareProfile, HostTimes, KernelTables, KernelTimes, Model, Precision, Setting,
    SettingError,
};

/// One accelerator.
///
/// Peaks are the vendor's data sheets (dense bf16 with 32-bit accumulation, no sparsity). Efficiencies, overheads and
/// effective link speeds are engineering defaults for an eager-scheduled engine of vLLM's V0 time, not measurements of
/// a particular server: a calibrated [`HardwareProfile`] replaces them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "HardwareFile", into = "HardwareFile")]
pub struct Hardware {
    /// Name as in `--env model@hardware`.
    pub name: String,
    /// Peak dense bf16 compute, FLOP/s.
    pub peak_flops: f64,
    /// The same in fp8; 0 where the accelerator multiplies none, or where that is not known.
    pub peak_fp8_flops: f64,
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
    pub kernels: Option<KernelTimes>,
    /// The same by shape, in place of one curve for all.
    pub tables: Option<Arc<KernelTables>>,
    /// The host's share of a step in more than `step_overhead` and `sequence_overhead`, for which it then stands.
    pub host: Option<HostTimes>,
    /// How far its constants may be off; `None` for what is known of profiles of its kind.
    pub spread: Option<ClockSpread>,
}

pub(super) const GIB: f64 = (1u64 << 30) as f64;

/// Its name.
const MEASURED: &str = "rtx-4090-measured";
/// The measured profile, as `kvtide calibrate` wrote it; what it was fitted to and how stands in it.
const RTX_4090_MEASURED: &str = include_str!("profiles/rtx-4090-measured.toml");

/// What stands behind a card's name where its clock is known otherwise than under the plain name.
const CLOCKS: [&str; 3] = ["-datasheet", "-estimated", "-measured"];

/// What measured kernels stand for.
const ROOFS: [&str; 5] =
    ["peak_flops", "peak_fp8_flops", "peak_bandwidth", "compute_efficiency", "bandwidth_efficiency"];

impl Hardware {
    /// Names of the built-in profiles: cards, then what else there is of some of them.
    pub const NAMES: [&'static str; CARDS.len() + 1 + measured::NAMES.len()] = {
        let mut names = [MEASURED; CARDS.len() + 1 + measured::NAMES.len()];
        names[0] = CARDS[0].name;
        let mut index = 1;
        // The measured one beside the one it is.
        while index < CARDS.len() {
            names[index + 1] = CARDS[index].name;
            index += 1;
        }
        let mut other = 0;
        while other < measured::NAMES.len() {
            names[CARDS.len() + 1 + other] = measured::NAMES[other];
            other += 1;
        }
        names
    };

    /// The built-in profile of that name: with measured kernels where the card was measured, or named `-estimated` and a relative of it
    /// was; else, and named `-datasheet`, with one share of each peak for all kernels.
    pub fn named(name: &str) -> Option<Hardware> {
        if name.eq_ignore_ascii_case(MEASURED) {
            return Some(HardwareProfile::parse(RTX_4090_MEASURED).expect("the built-in profile is tested").hardware);
        }
        measured::named(name).or_else(|| Hardware::data_sheet(name))
    }

    /// The accelerator of that name as its data sheet has it, with one share of each peak for all kernels.
    pub fn data_sheet(name: &str) -> Option<Hardware> {
        let card = CARDS.iter().find(|card| card.name.eq_ignore_ascii_case(name))?;
        Some(Hardware {
            name: card.name.to_owned(),
            peak_flops: card.tflops * 1e12,
            peak_fp8_flops: card.fp8_tflops * 1e12,
            peak_bandwidth: card.gb_per_s * 1e9,
            memory_bytes: card.memory_gib * GIB,
            pcie_bandwidth: card.pcie_gb * 1e9,
            link_bandwidth: card.link_gb * 1e9,
            compute_efficiency: 0.7,
            bandwidth_efficiency: 0.8,
            step_overhead: 3e-3,
            sequence_overhead: 15e-6,
            swap_overhead: 100e-6,
            kernels: None,
            tables: None,
            host: None,
            spread: None,
        })
    }

    /// The built-in profile of what names itself `device`, such as `NVIDIA H100 80GB HBM3`.
    pub fn of_device(device: &str) -> Option<&'static str> {
        let words: Vec<String> = device.split([' ', '-', '_']).map(str::to_lowercase).collect();
        let says = |word: &&str| words.iter().any(|other| other == word);
        let is_it = |card: &&Card| card.words.iter().all(says);
        // The one that asks for most words is the nearest.
        CARDS.iter().filter(is_it).max_by_key(|card| card.words.len()).map(|card| card.name)
    }

    /// The card it is, however its clock is known: `h100` of `h100-datasheet`. What is named after no built-in card is its own.
    pub fn card(&self) -> &str {
        Hardware::card_of(&self.name)
    }

    /// [`card`](Self::card) by the name alone.
    pub(super) fn card_of(name: &str) -> &str {
        let is_card = |plain: &&str| CARDS.iter().any(|card| card.name.eq_ignore_ascii_case(plain));
        CLOCKS.iter().find_map(|clock| name.strip_suffix(clock)).filter(is_card).unwrap_or(name)
    }

    /// Where its times come from.
    pub fn clock_kind(&self) -> ClockKind {
        ClockKind::of(self)
    }

    /// Whether it is a built-in data sheet with engineering defaults, by its name.
    pub(super) fn is_data_sheet(&self) -> bool {
        let plain = self.name.strip_suffix("-datasheet").unwrap_or(&self.name);
        CARDS.iter().any(|card| card.name.eq_ignore_ascii_case(plain))
    }

    /// Peak of products with the weights of `model`, FLOP/s: an accelerator without fp8 multiplies those in 16 bits.
    pub(crate) fn product_flops_of(&self, model: &Model) -> f64 {
        let is_fp8 = model.structure.precision == Precision::Fp8 && self.peak_fp8_flops > 0.0;
        if is_fp8 { self.peak_fp8_flops } else { self.peak_flops }
    }

    /// This accelerator with `overrides`, later ones winning. Settings of the engine are passed over. Another peak or
    /// efficiency turns measured kernels off, which would not follow it; another overhead is that of [`HostTimes`] too.
    #[must_use]
    pub fn with(mut self, overrides: &[Setting]) -> Hardware {
        for setting in overrides {
            if !setting.apply_to_hardware(&mut self) {
                continue;
            }
            if ROOFS.contains(&setting.key()) {
                self.kernels = None;
                self.tables = None;
            }
            if let Some(host) = &mut self.host {
                match setting.key() {
                    "step_overhead" => host.step = self.step_overhead,
                    "sequence_overhead" => host.sequence = self.sequence_overhead,
                    _ => {}
                }
            }
        }
        self
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first value out of its range.
    pub fn validate(&self) -> Result<(), SettingError> {
        self.validate_by_section().map_err(|(_, error)| error)
    }

    /// The same, with the table of a profile in which the value stands.
    pub(super) fn validate_by_section(&self) -> Result<(), (&'static str, SettingError)> {
        let mut hardware = self.clone();
        for (name, range, of) in of_hardware() {
            let value = *of(&mut hardware);
            if !range.takes(value) {
                return Err(("hardware", SettingError::value(name, &value.to_string(), range.expected)));
            }
        }
        let parts = [
            ("hardware.spread", self.spread.as_ref().map_or(Ok(()), ClockSpread::validate)),
            ("hardware.kernels", self.kernels.as_ref().map_or(Ok(()), KernelTimes::validate)),
            ("hardware.kernels", self.tables.as_deref().map_or(Ok(()), KernelTables::validate)),
            ("hardware.host", self.host.as_ref().map_or(Ok(()), HostTimes::validate)),
        ];
        parts.into_iter().try_for_each(|(section, checked)| checked.map_err(|error| (section, error)))
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
        let [measured, sheet] = ["h100", "H100-DataSheet"].map(|name| Hardware::named(name).unwrap());
        assert!(measured.tables.is_some() && measured.host.is_some() && sheet.tables.is_none() && sheet.host.is_none());
        let estimated = Hardware::named("rtx-5090-estimated").unwrap();
        assert_eq!(estimated.memory_bytes, Hardware::named("rtx-5090").unwrap().memory_bytes);
        assert!(estimated.tables.unwrap().source.as_ref().unwrap().modelled[0].contains("rtx-pro-6000"));
        assert_eq!(Hardware::NAMES[..4], ["rtx-4090", "rtx-4090-measured", "a10", "a100-80g"]);
    }

    #[test]
    fn a_card_is_the_same_however_its_clock_is_known() {
        for name in Hardware::NAMES {
            let hardware = Hardware::named(name).unwrap();
            let card = Hardware::data_sheet(hardware.card()).unwrap_or_else(|| panic!("{name} is of no card"));
            assert!(name.starts_with(&card.name), "{name} {}", card.name);
            assert_eq!(hardware.memory_bytes, card.memory_bytes, "{name}");
        }
        for (name, card) in [
            ("h100-datasheet", "h100"),
            ("rtx-4090-measured", "rtx-4090"),
            ("rtx-5090-estimated", "rtx-5090"),
            ("h100-pcie", "h100-pcie"),
            ("h100-pcie-estimated", "h100-pcie"),
            ("mine-measured", "mine-measured"),
            ("-datasheet", "-datasheet"),
        ] {
            assert_eq!(Hardware::card_of(name), card);
        }
    }

    #[test]
    fn devices_are_known_by_the_names_they_give_themselves() {
        for (device, name) in [
            ("NVIDIA GeForce RTX 4090", Some("rtx-4090")),
            ("NVIDIA H100 80GB HBM3", Some("h100")),
            ("NVIDIA H100 PCIe", Some("h100-pcie")),
            ("NVIDIA H100 NVL", Some("h100-nvl")),
            ("NVIDIA A100-SXM4-80GB", Some("a100-80g")),
            ("NVIDIA A100-SXM4-40GB", Some("a100-40g")),
            ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", Some("rtx-pro-6000")),
            ("NVIDIA RTX 6000 Ada Generation", Some("rtx-6000-ada")),
            ("AMD Instinct MI300X", Some("mi300x")),
            ("Tesla V100-SXM2-32GB", Some("v100")),
            ("NVIDIA A10G", None),
            ("abacus", None),
        ] {
            assert_eq!(Hardware::of_device(device), name, "{device}");
        }
    }
}
