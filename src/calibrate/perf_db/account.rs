//! What was made of a database, to be told.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use kvtide_envs::deploy::{Hardware, HardwareProfile, HostTimes, KernelTables, Model};
use serde::Serialize;

use super::built_in::built_in;
use super::lacking::{lacking, lacking_of_any};
use super::system::{FamilyTaken, PerfDb};
use crate::calibrate::Account;
use crate::plot::Figure;

/// Digits kept of a time.
const DIGITS: i32 = 4;

/// A hardware profile made of a database.
pub struct PerfDbAccount {
    hardware: Hardware,
    data: PerfDbData,
}

/// The same in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PerfDbData {
    /// What the database calls the accelerator.
    pub system: String,
    /// What the accelerator calls itself.
    pub device: String,
    /// The card whose data sheet stands for what was not measured.
    pub data_sheet: String,
    /// The framework and its version.
    pub framework: String,
    /// The model the tables are for; none for all.
    pub model: Option<String>,
    /// Degrees of tensor parallelism they are for.
    pub devices: Vec<u32>,
    /// What was taken.
    pub taken: Vec<FamilyTaken>,
    /// What was made of it.
    pub made: TablesMade,
    /// What was not measured, and what stands for it.
    pub modelled: Vec<String>,
}

/// How many tables of each family a profile has; of products how many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TablesMade {
    /// Shapes of matrix products.
    pub products: usize,
    /// Shapes of attention of prompts.
    pub prefill: usize,
    /// Shapes of attention of decodes.
    pub decode: usize,
    /// Numbers of devices that all-reduces are among.
    pub all_reduce: usize,
    /// Shapes of routed experts.
    pub experts: usize,
    /// Shapes of latent attention.
    pub latent: usize,
}

impl PerfDbAccount {
    /// The profile of `hardware`, with the tables of `database` for `model` on so many `devices`; for all models without one.
    pub fn new(
        database: &PerfDb,
        hardware: Hardware,
        model: Option<&Model>,
        devices: &[u32],
        command: String,
    ) -> PerfDbAccount {
        let all = database.tables();
        let (mut tables, modelled) = match model {
            Some(model) => (all.for_model(model, devices), lacking(all, model, devices)),
            None => (built_in(all), lacking_of_any(all)),
        };
        tables.round(DIGITS);
        let made = counts(&tables);
        let TablesMade { products, prefill, decode, all_reduce, experts, latent } = made;
        let by_place = [products, prefill, decode, all_reduce, experts, latent];
        let taken: Vec<FamilyTaken> =
            database.taken().iter().filter(|taken| by_place[taken.place] > 0).cloned().collect();
        let files = taken.iter().map(|taken| taken.file.clone()).collect();
        let source = database.source(command, files, modelled.clone());
        let data = PerfDbData {
            system: source.system.clone(),
            device: source.device.clone(),
            data_sheet: database.hardware().name.clone(),
            framework: database.framework(),
            model: model.map(|model| model.name.clone()),
            devices: devices.to_vec(),
            taken,
            made,
            modelled,
        };
        tables.source = Some(source);
        // The host's share is of an engine rather than of a card: built-in profiles have it from where it is known.
        let host = model.map(|_| HostTimes::default());
        let hardware = Hardware { tables: Some(Arc::new(tables)), kernels: None, host, ..hardware };
        PerfDbAccount { hardware, data }
    }
}

fn counts(tables: &KernelTables) -> TablesMade {
    TablesMade {
        products: tables.products.iter().map(|table| table.rows.len()).sum(),
        prefill: tables.prefill.len(),
        decode: tables.decode.len(),
        all_reduce: tables.all_reduce.len(),
        experts: tables.experts.len(),
        latent: tables.latent.len(),
    }
}

impl Account for PerfDbAccount {
    const KIND: &'static str = "perf_db";
    type Data = PerfDbData;

    fn data(&self) -> &[PerfDbData] {
        std::slice::from_ref(&self.data)
    }

    fn text(&self) -> String {
        let PerfDbData { system, device, data_sheet, framework, model, devices, taken, made, modelled } = &self.data;
        let mut text = format!("{system}: {device}; memory, links and peaks of {data_sheet}; {framework}\n");
        for FamilyTaken { family, file, rows, kernels, which, .. } in taken {
            let which = which.as_deref().map_or_else(String::new, |which| format!("; {which}"));
            let _ = writeln!(text, "  {family:<16} {rows:>7} rows of {file}{which}");
            let _ = writeln!(text, "  {:<16} {}", "", kernels.join(", "));
        }
        let TablesMade { products, prefill, decode, all_reduce, experts, latent } = made;
        let whom = model.as_deref().map_or_else(
            || "all models".to_owned(),
            |model| {
                let devices: Vec<String> = devices.iter().map(u32::to_string).collect();
                format!("{model} on {} of them", devices.join(", "))
            },
        );
        let _ = writeln!(
            text,
            "for {whom}: {products} products, {prefill} tables of prompts, {decode} of decodes, {all_reduce} of all-reduces, \
             {experts} of experts, {latent} of latent attention"
        );
        let _ = writeln!(text, "not measured:");
        for sentence in modelled {
            let _ = writeln!(text, "  {sentence}");
        }
        text
    }

    fn picture(&self) -> Option<Figure> {
        None
    }

    fn warnings(&self) -> &[String] {
        &[]
    }

    fn profile(&self, path: &Path) -> HardwareProfile {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        HardwareProfile { hardware: Hardware { name, ..self.hardware.clone() }, provenance: None }
    }

    fn model(&self) -> &str {
        self.data.model.as_deref().unwrap_or("MODEL")
    }
}
