//! The models and accelerators known by name, with their figures and where those stand.

use std::fmt::Write;

use super::cards::CARDS;
use super::catalog::CATALOG;
use super::{Hardware, Model, measured};

/// A model known by name.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRow {
    /// The model.
    pub model: Model,
    /// Other names of the same.
    pub also: &'static [&'static str],
    /// Where its widths stand: its name on Hugging Face.
    pub source: &'static str,
    /// Weights as published, in thousands of millions: all, and those that are active, where that is said.
    pub published: (f64, Option<f64>),
}

/// An accelerator known by name.
#[derive(Debug, Clone, PartialEq)]
pub struct CardRow {
    /// The accelerator.
    pub hardware: Hardware,
    /// What its data sheet prints beside the dense rate, FLOP/s with sparsity; 0 where it has none.
    pub sparse_flops: f64,
    /// The data sheet.
    pub source: &'static str,
}

/// Every model known by name.
pub fn model_rows() -> impl Iterator<Item = ModelRow> {
    CATALOG.iter().map(|entry| ModelRow {
        model: Model::of(entry.name, &entry.architecture()),
        also: entry.also,
        source: entry.source,
        published: entry.published,
    })
}

/// Every accelerator known by name whose figures are those of a data sheet.
pub fn card_rows() -> impl Iterator<Item = CardRow> {
    let row = |card: &super::cards::Card| {
        let hardware = Hardware::data_sheet(card.name)?;
        Some(CardRow { hardware, sparse_flops: card.sparse_tflops * 1e12, source: card.source })
    };
    CARDS.iter().filter_map(row)
}

/// What can stand in `--env MODEL@HARDWARE`, a line each.
pub fn describe() -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Models, or the path of any config.json of Hugging Face or of its folder:");
    let _ = writeln!(text, "  {:<22} {:>8} {:>8} {:>6} {:>8}  source", "", "weights", "active", "GB", "KB/token");
    for ModelRow { model, also, source, .. } in model_rows() {
        let thousand_millions = |params: f64| format!("{:.2}", params * 1e-9);
        let _ = write!(
            text,
            "  {:<22} {:>8} {:>8} {:>6.1} {:>8.1}  {source}",
            model.name,
            thousand_millions(model.total_params()),
            thousand_millions(model.active_params()),
            model.total_weight_bytes() * 1e-9,
            model.kv_bytes_per_token() * 1e-3,
        );
        let _ =
            writeln!(text, "{}", if also.is_empty() { String::new() } else { format!("; also {}", also.join(", ")) });
    }
    let _ = writeln!(
        text,
        "  Weights in thousands of millions; bytes as published, --set weight_dtype= and kv_cache_dtype= change them."
    );
    let _ = writeln!(text, "Accelerators, after N x for so many (4xh100), or a FILE.toml that kvtide calibrate wrote:");
    let _ = writeln!(text, "  {:<22} {:>8} {:>8} {:>6} {:>8}  source", "", "TFLOP/s", "in fp8", "GB/s", "GiB");
    for CardRow { hardware, source, .. } in card_rows() {
        let fp8 = if hardware.peak_fp8_flops > 0.0 {
            format!("{:.1}", hardware.peak_fp8_flops * 1e-12)
        } else {
            "-".to_owned()
        };
        let _ = writeln!(
            text,
            "  {:<22} {:>8.1} {fp8:>8} {:>6.0} {:>8.1}  {source}",
            hardware.name,
            hardware.peak_flops * 1e-12,
            hardware.peak_bandwidth * 1e-9,
            hardware.memory_bytes / f64::from(1_u32 << 30),
        );
    }
    let measured = measured::cards().collect::<Vec<&str>>().join(", ");
    let estimated = measured::ESTIMATED.iter().map(|estimated| estimated.card).collect::<Vec<&str>>().join(", ");
    let _ = writeln!(
        text,
        "  Rates are dense. What a step takes on a card is known in one of these ways, and the name says in which:"
    );
    let mut clock = |name: &str, meaning: &str| {
        let _ = writeln!(text, "  {name:<22} {meaning}");
    };
    clock("NAME", "measured, kernel times of vLLM by shape (docs/CLOCK.md):");
    clock("", &measured);
    clock("", "of every other card the data sheet, at one share of each peak for all kernels; not measured");
    clock("NAME-datasheet", "the data sheet of one that was measured, as above");
    clock("NAME-estimated", "not measured: kernels of the nearest card that was, at the same share of the roofline:");
    clock("", &estimated);
    clock("rtx-4090-measured", "the data sheet with efficiencies fitted to a served run");
    clock("FILE.toml", "what kvtide calibrate made of a run, of a device or of a database of kernels");
    text
}
