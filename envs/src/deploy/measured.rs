//! Accelerators whose kernels were measured, built in, and those that are read from a relative.
//!
//! The tables are made by `scripts/measured.sh`; where they come from stands in each, and in the file `NOTICE`.

use std::sync::{Arc, OnceLock};

use super::{Hardware, HardwareProfile, HostTimes, KernelTables};

/// A card with tables of its own.
struct Measured {
    card: &'static str,
    /// Its name with one share of each peak for all kernels.
    sheet: &'static str,
    profile: &'static str,
    tables: OnceLock<Arc<KernelTables>>,
}

const fn measured(card: &'static str, sheet: &'static str, profile: &'static str) -> Measured {
    Measured { card, sheet, profile, tables: OnceLock::new() }
}

static MEASURED: [Measured; 6] = [
    measured("a100-80g", "a100-80g-datasheet", include_str!("measured/a100-80g.toml")),
    measured("h100", "h100-datasheet", include_str!("measured/h100.toml")),
    measured("h200", "h200-datasheet", include_str!("measured/h200.toml")),
    measured("b200", "b200-datasheet", include_str!("measured/b200.toml")),
    measured("l40s", "l40s-datasheet", include_str!("measured/l40s.toml")),
    measured("rtx-pro-6000", "rtx-pro-6000-datasheet", include_str!("measured/rtx-pro-6000.toml")),
];

/// A card read from a relative.
pub(super) struct Estimated {
    pub(super) name: &'static str,
    pub(super) card: &'static str,
    /// The card that was measured.
    pub(super) relative: &'static str,
    /// Why that one.
    pub(super) reason: &'static str,
}

const fn estimated(name: &'static str, card: &'static str, relative: &'static str, reason: &'static str) -> Estimated {
    Estimated { name, card, relative, reason }
}

const ADA: &str = "both are Ada";
const AMPERE: &str = "both are Ampere, though of GDDR and other shared memory";
const HOPPER: &str = "both are Hopper";

/// Cards whose tables are those of a relative at the same share of the roofline. Volta, Turing and AMD's have none.
pub(super) const ESTIMATED: [Estimated; 10] = [
    estimated("rtx-4090-estimated", "rtx-4090", "l40s", ADA),
    estimated("l4-estimated", "l4", "l40s", ADA),
    estimated("rtx-6000-ada-estimated", "rtx-6000-ada", "l40s", ADA),
    estimated("a10-estimated", "a10", "a100-80g", AMPERE),
    estimated("rtx-3090-estimated", "rtx-3090", "a100-80g", AMPERE),
    estimated("a6000-estimated", "a6000", "a100-80g", AMPERE),
    estimated("a100-40g-estimated", "a100-40g", "a100-80g", "the same but for its memory"),
    estimated("h100-pcie-estimated", "h100-pcie", "h100", HOPPER),
    estimated("h100-nvl-estimated", "h100-nvl", "h100", HOPPER),
    estimated(
        "rtx-5090-estimated",
        "rtx-5090",
        "rtx-pro-6000",
        "both are Blackwell of GDDR7, with half the rate in bf16",
    ),
];

/// Names of the profiles here that are no card's own: data sheets of measured cards, then what is estimated.
pub(super) const NAMES: [&str; 16] = [
    "a100-80g-datasheet",
    "h100-datasheet",
    "h200-datasheet",
    "b200-datasheet",
    "l40s-datasheet",
    "rtx-pro-6000-datasheet",
    ESTIMATED[0].name,
    ESTIMATED[1].name,
    ESTIMATED[2].name,
    ESTIMATED[3].name,
    ESTIMATED[4].name,
    ESTIMATED[5].name,
    ESTIMATED[6].name,
    ESTIMATED[7].name,
    ESTIMATED[8].name,
    ESTIMATED[9].name,
];

impl Measured {
    /// The tables, read once.
    fn tables(&self) -> Arc<KernelTables> {
        let read = || {
            let profile = HardwareProfile::parse(self.profile).expect("the built-in profiles are tested");
            profile.hardware.tables.unwrap_or_default()
        };
        Arc::clone(self.tables.get_or_init(read))
    }
}

/// The cards that were measured.
pub(super) fn cards() -> impl Iterator<Item = &'static str> {
    MEASURED.iter().map(|measured| measured.card)
}

/// The profile of that name, if it is one of these: measured, the data sheet of what was measured, or estimated.
pub(super) fn named(name: &str) -> Option<Hardware> {
    let is = |known: &str| known.eq_ignore_ascii_case(name);
    let with = |card: &str, name: &str, tables| {
        let card = Hardware::data_sheet(card)?;
        Some(Hardware { name: name.to_owned(), tables: Some(tables), host: Some(HostTimes::default()), ..card })
    };
    if let Some(measured) = MEASURED.iter().find(|measured| is(measured.card)) {
        return with(measured.card, measured.card, measured.tables());
    }
    if let Some(measured) = MEASURED.iter().find(|measured| is(measured.sheet)) {
        return Some(Hardware { name: measured.sheet.to_owned(), ..Hardware::data_sheet(measured.card)? });
    }
    let Estimated { name, card, relative, reason } = ESTIMATED.iter().find(|estimated| is(estimated.name))?;
    let measured = MEASURED.iter().find(|measured| measured.card == *relative)?;
    let (from, to) = (Hardware::data_sheet(relative)?, Hardware::data_sheet(card)?);
    let mut tables = measured.tables().scaled(&from, &to);
    if let Some(source) = &mut tables.source {
        source
            .modelled
            .insert(0, format!("everything: kernels of {relative} at the same share of the roofline ({reason})"));
    }
    with(card, name, Arc::new(tables))
}

#[cfg(test)]
mod tests {
    use super::super::cards::CARDS;
    use super::super::{KernelShapes, Model, Precision};
    use super::*;

    #[test]
    fn every_card_with_a_relative_has_its_names() {
        for (name, measured) in NAMES.iter().zip(&MEASURED) {
            assert_eq!(*name, measured.sheet);
            assert_eq!(measured.sheet, format!("{}-datasheet", measured.card));
        }
        for Estimated { name, card, relative, .. } in &ESTIMATED {
            assert_eq!(*name, format!("{card}-estimated"));
            assert!(cards().any(|measured| measured == *relative), "{relative}");
        }
        let without = ["t4", "v100", "mi300x", "mi325x"];
        for card in CARDS {
            let is_known = cards().any(|measured| measured == card.name);
            let is_estimated = ESTIMATED.iter().any(|estimated| estimated.card == card.name);
            assert!(is_known != is_estimated || without.contains(&card.name), "{}", card.name);
        }
    }

    #[test]
    fn measured_tables_are_valid_and_say_where_they_come_from() {
        for measured in &MEASURED {
            let profile = HardwareProfile::parse(measured.profile).unwrap().hardware;
            let sheet = Hardware::data_sheet(measured.card).unwrap();
            assert_eq!(Hardware { tables: None, ..profile.clone() }, sheet, "made from another data sheet");
            let source = profile.tables.unwrap().source.clone().unwrap();
            assert_eq!(
                (source.licence.as_str(), source.database.as_str()),
                ("Apache-2.0", "aiconfigurator-core 0.12.0")
            );
            // The files of the A100 name no day.
            assert!(source.date.len() == 10 || measured.card == "a100-80g", "{}", source.date);
            assert!(measured.profile.len() < 256 << 10, "{}: {} bytes", measured.card, measured.profile.len());
        }
    }

    #[test]
    fn every_built_in_model_has_products_and_attention_on_every_card() {
        for name in cards() {
            let tables = named(name).unwrap().tables.unwrap();
            for model in Model::NAMES.into_iter().filter_map(Model::named) {
                for devices in [1, 8] {
                    let shapes = KernelShapes::of(&model, devices);
                    for product in shapes.products.iter().chain([&shapes.head]) {
                        assert!(tables.product_us(Precision::Bf16, product.n, product.k, 64.0).unwrap() > 0.0);
                    }
                    for (shape, _) in &shapes.attention {
                        let [prompt, decode] =
                            [tables.prefill_us(shape, 512.0), tables.decode_us(shape, 8.0, 512.0)].map(Option::unwrap);
                        assert!(prompt > 1.0 && prompt < 2e3 && decode > 1.0 && decode < 2e3, "{name} {}", model.name);
                    }
                }
            }
        }
    }

    /// Shapes of the grid, each read from the others: from farther away than any shape is in use.
    #[test]
    fn a_shape_that_is_left_out_is_near_what_is_read_for_it() {
        for measured in &MEASURED {
            let mut tables = KernelTables::clone(&measured.tables());
            let table = tables.products.swap_remove(0);
            assert_eq!(table.precision, Precision::Bf16);
            let mut errors = Vec::new();
            for (index, row) in table.rows.iter().enumerate() {
                if !(512..=16_384).contains(&row.n) || !(512..=16_384).contains(&row.k) {
                    continue;
                }
                let mut others = table.clone();
                // Its whole line and column, so that it lies between two others on both sides.
                let kept = others.rows.remove(index);
                others.rows.retain(|other| other.n != kept.n && other.k != kept.k);
                tables.products = vec![others];
                for (us, tokens) in row.us.iter().zip(&table.tokens) {
                    let read = tables.product_us(Precision::Bf16, row.n, row.k, f64::from(*tokens)).unwrap();
                    errors.push((read / us - 1.0).abs());
                }
            }
            errors.sort_by(f64::total_cmp);
            let [median, p95] = [errors.len() / 2, errors.len() * 95 / 100].map(|index| errors[index]);
            assert!(median < 0.08 && p95 < 0.35, "{}: median {median:.3}, p95 {p95:.3}", measured.card);
        }
    }
}
