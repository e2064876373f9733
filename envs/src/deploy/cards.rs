//! The accelerators known by name: figures of the vendors' data sheets.
//!
//! Data sheets print the rate with structured sparsity, which no model here has, in larger type: it stands here only to be told
//! apart. Host links: `PCIe` 3.0, 4.0 and 5.0 x16 carry 16, 32 and 64 GB/s one way; about 12, 25 and 52 are reached. Links between
//! accelerators: four fifths of one way of `NVLink` or Infinity Fabric, as all-reduces reach them; without, half of `PCIe`.

/// An accelerator known by name.
pub(super) struct Card {
    pub(super) name: &'static str,
    /// Words of the name it gives itself.
    pub(super) words: &'static [&'static str],
    /// Dense bf16 (fp16 where there is no bf16) with 32-bit accumulation, TFLOP/s.
    pub(super) tflops: f64,
    /// The rate with sparsity that the data sheet prints beside it; 0 where it has none.
    pub(super) sparse_tflops: f64,
    /// Dense fp8; 0 where there is none.
    pub(super) fp8_tflops: f64,
    pub(super) gb_per_s: f64,
    pub(super) memory_gib: f64,
    pub(super) pcie_gb: f64,
    pub(super) link_gb: f64,
    /// The data sheet.
    pub(super) source: &'static str,
}

/// `rates`: dense, sparse, fp8; `memory`: GB/s and GiB; `links`: `PCIe` and between accelerators, GB/s.
const fn card(
    name: &'static str,
    words: &'static [&'static str],
    [tflops, sparse_tflops, fp8_tflops]: [f64; 3],
    [gb_per_s, memory_gib]: [f64; 2],
    [pcie_gb, link_gb]: [f64; 2],
    source: &'static str,
) -> Card {
    Card { name, words, tflops, sparse_tflops, fp8_tflops, gb_per_s, memory_gib, pcie_gb, link_gb, source }
}

/// Streaming multiprocessors (compute units) of each card, by the same sources.
const MULTIPROCESSORS: &[(&str, u32)] = &[
    ("rtx-4090", 128),
    ("a10", 72),
    ("a100-80g", 108),
    ("h100", 132),
    ("h200", 132),
    ("t4", 40),
    ("v100", 80),
    ("rtx-3090", 82),
    ("a6000", 84),
    ("a100-40g", 108),
    ("l4", 58),
    ("l40s", 142),
    ("rtx-6000-ada", 142),
    ("h100-pcie", 114),
    ("h100-nvl", 132),
    ("b200", 148),
    ("rtx-5090", 170),
    ("rtx-pro-6000", 188),
    ("mi300x", 304),
    ("mi325x", 304),
];

/// Multiprocessors of the card called so, however its clock is known: `h100-datasheet` is an `h100`.
pub(super) fn multiprocessors(name: &str) -> Option<u32> {
    let is_it = |card: &str| name.strip_prefix(card).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'));
    let known = MULTIPROCESSORS.iter().filter(|(card, _)| is_it(card));
    known.max_by_key(|(card, _)| card.len()).map(|(_, count)| *count)
}

const H200_GIB: f64 = 141.0 * 1e9 / super::hardware::GIB;

pub(super) const CARDS: &[Card] = &[
    card(
        "rtx-4090",
        &["rtx", "4090"],
        [165.2, 330.4, 330.3],
        [1008.0, 24.0],
        [25.0, 12.0],
        "NVIDIA Ada GPU architecture whitepaper v2.1",
    ),
    card("a10", &["a10"], [125.0, 250.0, 0.0], [600.0, 24.0], [25.0, 12.0], "NVIDIA A10 data sheet (2021)"),
    card(
        "a100-80g",
        &["a100", "80gb"],
        [312.0, 624.0, 0.0],
        [2039.0, 80.0],
        [25.0, 240.0],
        "NVIDIA A100 80GB data sheet, SXM (2021)",
    ),
    card(
        "h100",
        &["h100"],
        [989.4, 1978.9, 1978.9],
        [3350.0, 80.0],
        [52.0, 360.0],
        "NVIDIA H100 data sheet, SXM (2023)",
    ),
    card(
        "h200",
        &["h200"],
        [989.4, 1978.9, 1978.9],
        [4800.0, H200_GIB],
        [52.0, 360.0],
        "NVIDIA H200 data sheet, SXM (2024)",
    ),
    card("t4", &["t4"], [65.0, 0.0, 0.0], [320.0, 16.0], [12.0, 6.0], "NVIDIA T4 data sheet (2019); fp16"),
    card(
        "v100",
        &["v100", "32gb"],
        [125.0, 0.0, 0.0],
        [900.0, 32.0],
        [12.0, 120.0],
        "NVIDIA V100 data sheet, SXM2 32 GB (2020); fp16",
    ),
    card(
        "rtx-3090",
        &["rtx", "3090"],
        [71.0, 142.0, 0.0],
        [936.0, 24.0],
        [25.0, 12.0],
        "NVIDIA Ampere GA102 GPU architecture whitepaper v2.1",
    ),
    card(
        "a6000",
        &["rtx", "a6000"],
        [154.8, 309.7, 0.0],
        [768.0, 48.0],
        [25.0, 12.0],
        "NVIDIA RTX A6000 data sheet (2022)",
    ),
    card(
        "a100-40g",
        &["a100", "40gb"],
        [312.0, 624.0, 0.0],
        [1555.0, 40.0],
        [25.0, 240.0],
        "NVIDIA A100 data sheet, SXM 40 GB (2020)",
    ),
    card("l4", &["l4"], [121.0, 242.0, 242.5], [300.0, 24.0], [25.0, 12.0], "NVIDIA L4 data sheet (2023)"),
    card("l40s", &["l40s"], [362.0, 733.0, 733.0], [864.0, 48.0], [25.0, 12.0], "NVIDIA L40S data sheet (2023)"),
    card(
        "rtx-6000-ada",
        &["rtx", "6000", "ada"],
        [364.2, 728.5, 728.5],
        [960.0, 48.0],
        [25.0, 12.0],
        "NVIDIA RTX 6000 Ada data sheet (2022)",
    ),
    card(
        "h100-pcie",
        &["h100", "pcie"],
        [756.0, 1513.0, 1513.0],
        [2000.0, 80.0],
        [52.0, 24.0],
        "NVIDIA H100 data sheet, PCIe (2022); without NVLink bridges",
    ),
    card(
        "h100-nvl",
        &["h100", "nvl"],
        [835.5, 1671.0, 1670.5],
        [3900.0, 94.0],
        [52.0, 240.0],
        "NVIDIA H100 data sheet, NVL (2024); bridged in pairs",
    ),
    card(
        "b200",
        &["b200"],
        [2250.0, 4500.0, 4500.0],
        [8000.0, 180.0],
        [52.0, 720.0],
        "NVIDIA DGX B200 data sheet, an eighth of it (2024)",
    ),
    card(
        "rtx-5090",
        &["rtx", "5090"],
        [209.5, 419.0, 419.0],
        [1792.0, 32.0],
        [52.0, 24.0],
        "NVIDIA RTX Blackwell GPU architecture whitepaper v1.1",
    ),
    card(
        "rtx-pro-6000",
        &["rtx", "pro", "6000"],
        [503.8, 1007.6, 1007.6],
        [1792.0, 96.0],
        [52.0, 24.0],
        "NVIDIA RTX PRO Blackwell GPU architecture whitepaper v1.0",
    ),
    card(
        "mi300x",
        &["mi300x"],
        [1307.4, 2614.9, 2614.9],
        [5300.0, 192.0],
        [52.0, 358.0],
        "AMD Instinct MI300X data sheet (2023)",
    ),
    card(
        "mi325x",
        &["mi325x"],
        [1307.4, 2614.9, 2614.9],
        [6000.0, 256.0],
        [52.0, 358.0],
        "AMD Instinct MI325X data sheet (2024)",
    ),
];

#[cfg(test)]
mod tests {
    use super::{CARDS, multiprocessors};

    #[test]
    fn multiprocessors_are_of_the_card_however_its_clock_is_known() {
        assert!(CARDS.iter().all(|card| multiprocessors(card.name).is_some()));
        let counts = ["h100-pcie-estimated", "h100-datasheet", "rtx-5090-estimated", "rtx-40900"].map(multiprocessors);
        assert_eq!(counts, [Some(114), Some(132), Some(170), None]);
    }

    #[test]
    fn no_rate_is_the_sparse_one() {
        for card in CARDS {
            let near = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.015;
            // Sparsity doubles, and so does half the width.
            assert!(card.sparse_tflops == 0.0 || near(card.sparse_tflops, 2.0 * card.tflops), "{}", card.name);
            assert!(card.fp8_tflops == 0.0 || near(card.fp8_tflops, 2.0 * card.tflops), "{}", card.name);
        }
    }
}
