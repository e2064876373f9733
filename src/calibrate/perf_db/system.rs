//! Everything a database says of one system, as tables.

use std::path::Path;

use kvtide_envs::deploy::{Hardware, KernelTables, TableSource};
use serde::Serialize;

use super::columns::Columns;
use super::database::{self, Database, Family};
use super::{Framework, PerfDbError, families};

/// The columns by which an accelerator names itself.
const DEVICE: &str = "device";

/// A system of a database, read.
pub struct PerfDb {
    database: Database,
    system: String,
    /// What the accelerator calls itself.
    device: String,
    hardware: Hardware,
    tables: KernelTables,
    taken: Vec<FamilyTaken>,
}

/// What was taken of a database for one family of kernels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FamilyTaken {
    /// What it is.
    pub family: &'static str,
    /// Its place among products, prefill, decode, all-reduce, experts and latents.
    #[serde(skip)]
    pub(super) place: usize,
    /// The file, below the database's folder.
    pub file: String,
    /// Its rows.
    pub rows: usize,
    /// Tables that were made of it.
    pub tables: usize,
    /// The kernels that were measured.
    pub kernels: Vec<String>,
    /// Which of several kinds of rows, where there are several.
    pub which: Option<String>,
}

impl PerfDb {
    /// Reads the system of that name. Products and experts in fp8 are those with a scale for each block of weights, where they were
    /// measured, if `[products, experts]` says so.
    ///
    /// # Errors
    /// No such system or version, products or attention are missing, or a file cannot be read.
    pub fn read(path: &Path, system: &str, framework: &Framework, by_blocks: [bool; 2]) -> Result<PerfDb, PerfDbError> {
        let database = Database::open(path, system, framework)?;
        let mut reading = Reading { database: &database, taken: Vec::new(), device: String::new() };
        let tables = reading.tables(by_blocks)?;
        let Reading { taken, device, .. } = reading;
        let hardware = hardware(&database, system, &device, path)?;
        Ok(PerfDb { database, system: system.to_owned(), device, hardware, tables, taken })
    }

    /// The accelerator as its data sheet has it: of the card it names itself as, else of the system's description.
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Every table that the database has.
    pub fn tables(&self) -> &KernelTables {
        &self.tables
    }

    /// What they were taken from.
    pub fn taken(&self) -> &[FamilyTaken] {
        &self.taken
    }

    /// The framework, and the version that counts where a family has it.
    pub fn framework(&self) -> String {
        self.database.framework()
    }

    /// Where the tables come from, made by `command`.
    pub fn source(&self, command: String, files: Vec<String>, modelled: Vec<String>) -> TableSource {
        let (database, licence) = self.database.published_as();
        let date = self.database.newest_day(&files);
        let (system, device) = (self.system.clone(), self.device.clone());
        TableSource { database, licence, date, system, device, command, files, modelled }
    }
}

/// A database as it is read.
struct Reading<'a> {
    database: &'a Database,
    taken: Vec<FamilyTaken>,
    device: String,
}

impl Reading<'_> {
    fn tables(&mut self, [products, experts]: [bool; 2]) -> Result<KernelTables, PerfDbError> {
        let mut tables = KernelTables::default();
        let (file, columns) = self.need(database::PRODUCTS, families::PRODUCT_COLUMNS)?;
        tables.products = families::products(&columns, products)?;
        self.take("products", file, &columns, tables.products.iter().map(|table| table.rows.len()).sum(), None)?;
        let (file, columns) = self.need(database::PREFILL, families::ATTENTION_COLUMNS)?;
        tables.prefill = families::prefill(&columns)?;
        self.take("prefill", file, &columns, tables.prefill.len(), None)?;
        let (file, columns) = self.need(database::DECODE, families::ATTENTION_COLUMNS)?;
        tables.decode = families::decode(&columns)?;
        self.take("decode", file, &columns, tables.decode.len(), None)?;
        if let Some((file, columns)) = self.database.read(database::REDUCE, families::REDUCE_COLUMNS)? {
            tables.all_reduce = families::all_reduce(&columns)?;
            self.take("all_reduce", file, &columns, tables.all_reduce.len(), None)?;
        }
        if let Some((file, columns)) = self.database.read(database::EXPERTS, families::EXPERT_COLUMNS)? {
            let (found, spread) = families::experts(&columns, experts)?;
            tables.experts = found;
            self.take("experts", file, &columns, tables.experts.len(), Some(format!("distribution {spread}")))?;
        }
        let prompts = self.database.read(database::LATENT_PREFILL, families::LATENT_COLUMNS)?;
        let steps = self.database.read(database::LATENT_DECODE, families::LATENT_COLUMNS)?;
        if let (Some((file, prompts)), Some((other, steps))) = (prompts, steps) {
            tables.latent = families::latent(&prompts, &steps)?;
            self.take("latent, prompts", file, &prompts, tables.latent.len(), None)?;
            self.take("latent, decodes", other, &steps, tables.latent.len(), None)?;
        }
        Ok(tables)
    }

    /// A family that must be there, and by its first row what the accelerator calls itself.
    fn need(&mut self, family: Family, wanted: &[&str]) -> Result<(String, Columns), PerfDbError> {
        let (file, columns) = self.database.need(family, &[wanted, &[DEVICE]].concat())?;
        if columns.has(DEVICE) && self.device.is_empty() {
            columns.text(DEVICE)?(0).clone_into(&mut self.device);
        }
        Ok((file, columns))
    }

    fn take(
        &mut self,
        family: &'static str,
        file: String,
        columns: &Columns,
        tables: usize,
        which: Option<String>,
    ) -> Result<(), PerfDbError> {
        if tables == 0 {
            return Err(columns.error("has nothing of what is read: another framework, or another way of measuring"));
        }
        let kernels = families::kernels(columns)?;
        let families = ["products", "prefill", "decode", "all_reduce", "experts"];
        let place = families.iter().position(|name| *name == family).unwrap_or(families.len());
        self.taken.push(FamilyTaken { family, place, file, rows: columns.rows, tables, kernels, which });
        Ok(())
    }
}

/// A known card, by the name it gives itself; else what the database says of the system, with the shares and overheads that a data
/// sheet is taken with.
fn hardware(database: &Database, system: &str, device: &str, path: &Path) -> Result<Hardware, PerfDbError> {
    if let Some(known) = Hardware::of_device(device).and_then(Hardware::data_sheet) {
        return Ok(known);
    }
    let number = |key: &str| -> Result<f64, PerfDbError> {
        database.described(key)?.filter(|value| *value > 0.0).ok_or_else(|| {
            PerfDbError::new(path, format!("{system}.yaml has no {key}, and {device:?} is no card known by name"))
        })
    };
    // As of the cards known by name: about four fifths of a link's one way are reached.
    let known = Hardware::data_sheet("h100").ok_or_else(|| PerfDbError::new(path, "no card is built in"))?;
    Ok(Hardware {
        name: system.to_owned(),
        peak_flops: number("bfloat16_tc_flops")?,
        peak_fp8_flops: database.described("fp8_tc_flops")?.unwrap_or_default(),
        peak_bandwidth: number("mem_bw")?,
        memory_bytes: number("mem_capacity")?,
        pcie_bandwidth: 0.8 * number("pcie_bw")?,
        link_bandwidth: 0.8 * number("intra_node_bw")?,
        ..known
    })
}
