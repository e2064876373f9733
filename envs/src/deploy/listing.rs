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
    let _ =
        writeln!(text, "  rtx-4090-measured is an rtx-4090 with efficiencies fitted to a served run. Rates are dense.");
    let measured: Vec<&str> = measured::cards().collect();
    let _ = writeln!(
        text,
        "  Kernels of {} were measured (docs/CLOCK.md); with -datasheet behind\n  the name they are one share of each peak for \
         all kernels, as all other cards are.",
        measured.join(", ")
    );
    let estimated: Vec<&str> = measured::ESTIMATED.iter().map(|estimated| estimated.card).collect();
    let _ = writeln!(
        text,
        "  With -estimated behind the name of {}\n  kernels are those of the nearest card that was measured, at the same share \
         of the roofline.",
        estimated.join(", ")
    );
    text
}
