//! Accelerators: published peaks, and the shares of them that kernels reach.

use serde::{Deserialize, Serialize};

/// One accelerator.
///
/// Peaks are the vendor's data sheets (dense bf16 with 32-bit accumulation, no sparsity). Efficiencies, overheads and
/// effective link speeds are engineering defaults for an eager-scheduled engine of vLLM's V0 time, not measurements of
/// a particular server: a calibrated profile replaces them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Share of `peak_flops` reached by large matrix products, in `(0, 1]`.
    pub compute_efficiency: f64,
    /// Share of `peak_bandwidth` reached by streaming weights and KV blocks, in `(0, 1]`.
    pub bandwidth_efficiency: f64,
    /// Fixed time of a step on the host: scheduling, input preparation, launches, sampling. Seconds.
    pub step_overhead: f64,
    /// Host time a step spends on each scheduled sequence. Seconds.
    pub sequence_overhead: f64,
    /// Fixed time of a swap, whatever its size. Seconds.
    pub swap_overhead: f64,
}

const GIB: f64 = (1u64 << 30) as f64;

impl Hardware {
    /// Names of the built-in profiles.
    pub const NAMES: [&'static str; 5] = ["rtx-4090", "a10", "a100-80g", "h100", "h200"];

    /// The built-in profile of that name.
    pub fn named(name: &str) -> Option<Hardware> {
        // Data sheets: NVIDIA Ada GPU architecture whitepaper v2.1 (RTX 4090), A10 (2021), A100 80GB SXM (2021),
        // H100 SXM (2023), H200 SXM (2024). PCIe 4.0 and 5.0 x16 carry 32 and 64 GB/s; about 25 and 52 are reached.
        let (peak_tflops, peak_gb, memory_gib, pcie_gb, link_gb) = match name {
            "rtx-4090" => (165.2, 1008.0, 24.0, 25.0, 12.0),
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
        })
    }
}
