//! What a database has of one system: families of kernels, in versions of a framework.

use std::path::Path;

use super::columns::Columns;
use super::source::Source;
use super::{Framework, PerfDbError};

/// A family of kernels: its folder, and the file of its latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Family {
    pub(super) folder: &'static str,
    pub(super) file: &'static str,
}

pub(super) const PRODUCTS: Family = Family { folder: "gemm", file: "gemm_perf.parquet" };
pub(super) const PREFILL: Family = Family { folder: "attention", file: "context_attention_perf.parquet" };
pub(super) const DECODE: Family = Family { folder: "attention", file: "generation_attention_perf.parquet" };
pub(super) const REDUCE: Family = Family { folder: "comm", file: "custom_allreduce_perf.parquet" };
pub(super) const EXPERTS: Family = Family { folder: "moe", file: "moe_perf.parquet" };
pub(super) const LATENT_PREFILL: Family = Family { folder: "mla", file: "mla_context_module_perf.parquet" };
pub(super) const LATENT_DECODE: Family = Family { folder: "mla", file: "mla_generation_module_perf.parquet" };

/// One system of a database, in one version of a framework.
pub(super) struct Database {
    source: Source,
    system: String,
    framework: String,
    version: String,
}

/// A version's numbers, by which it is newer or older; what is no number is oldest.
fn order(version: &str) -> Vec<u64> {
    let parts = version.split(['.', '+', '-', 'r']);
    parts.map(|part| part.parse().map_or(0, |number: u64| number + 1)).collect()
}

impl Database {
    /// The system of that name in the database at `path`; without a version the newest that has products and attention.
    pub(super) fn open(path: &Path, system: &str, framework: &Framework) -> Result<Database, PerfDbError> {
        let source = Source::open(path)?;
        let mut database = Database {
            source,
            system: system.to_owned(),
            framework: framework.name.clone(),
            version: framework.version.clone().unwrap_or_default(),
        };
        database.check_system(path)?;
        let has = |version: &String| [PRODUCTS, PREFILL, DECODE].iter().all(|family| database.has(*family, version));
        let found = database.versions(PRODUCTS);
        if framework.version.is_some() {
            if !found.contains(&database.version) && !has(&database.version) {
                let Database { framework, version, system, .. } = &database;
                let there = listed(&found);
                let reason = format!("no matrix products of {framework} {version} on {system}; there are {there}");
                return Err(PerfDbError::new(path, reason));
            }
            return Ok(database);
        }
        let newest = found.iter().rfind(|version| has(version)).cloned();
        database.version = newest.ok_or_else(|| {
            let Database { framework, system, .. } = &database;
            let reason = format!("no version of {framework} has both products and attention on {system}");
            PerfDbError::new(path, reason)
        })?;
        Ok(database)
    }

    fn check_system(&self, path: &Path) -> Result<(), PerfDbError> {
        let systems = self.source.names("data");
        if systems.contains(&self.system) && !self.system.is_empty() {
            return Ok(());
        }
        let has = |system: &&String| {
            let folder = format!("data/{system}/{}/{}", PRODUCTS.folder, self.framework);
            !self.source.names(&folder).is_empty()
        };
        let there: Vec<String> = systems.iter().filter(has).cloned().collect();
        let reason = format!("unknown system {:?}; of {} there are {}", self.system, self.framework, listed(&there));
        Err(PerfDbError::new(path, reason))
    }

    fn file(&self, family: Family, version: &str) -> String {
        format!("data/{}/{}/{}/{version}/{}", self.system, family.folder, self.framework, family.file)
    }

    fn has(&self, family: Family, version: &str) -> bool {
        self.source.has(&self.file(family, version))
    }

    /// Versions that have a family, the newest last.
    fn versions(&self, family: Family) -> Vec<String> {
        let folder = format!("data/{}/{}/{}", self.system, family.folder, self.framework);
        let mut versions = self.source.names(&folder);
        versions.retain(|version| self.has(family, version));
        versions.sort_by_key(|version| order(version));
        versions
    }

    /// The version a family is taken from: the one asked for, else the newest; `None` if the database has none.
    pub(super) fn version_of(&self, family: Family) -> Option<String> {
        if self.has(family, &self.version) {
            return Some(self.version.clone());
        }
        self.versions(family).pop()
    }

    /// Columns of a family, and the file's path in the database; `None` if the database has none.
    pub(super) fn read(&self, family: Family, wanted: &[&str]) -> Result<Option<(String, Columns)>, PerfDbError> {
        let Some(version) = self.version_of(family) else { return Ok(None) };
        let file = self.file(family, &version);
        let columns = Columns::read(&self.source.shown(&file), self.source.read(&file)?, wanted)?;
        if columns.rows == 0 {
            return Err(columns.error("has no rows"));
        }
        Ok(Some((file, columns)))
    }

    /// The same of a family that must be there.
    pub(super) fn need(&self, family: Family, wanted: &[&str]) -> Result<(String, Columns), PerfDbError> {
        self.read(family, wanted)?.ok_or_else(|| {
            let folder = format!("data/{}/{}/{}", self.system, family.folder, self.framework);
            PerfDbError::new(&self.source.shown(&folder), format!("no version has {}", family.file))
        })
    }

    /// A number of the system's description, `None` where it has none of that key.
    pub(super) fn described(&self, key: &str) -> Result<Option<f64>, PerfDbError> {
        let file = format!("{}.yaml", self.system);
        if !self.source.has(&file) {
            return Ok(None);
        }
        let text = self.source.read(&file)?;
        let text = String::from_utf8_lossy(&text);
        let of = |line: &str| {
            let (name, value) = line.trim().split_once(':')?;
            let value = value.split('#').next().unwrap_or_default();
            (name == key).then(|| value.trim().parse().ok())?
        };
        Ok(text.lines().find_map(of))
    }

    /// The newest day that what says how `files` were taken names.
    pub(super) fn newest_day(&self, files: &[String]) -> String {
        let days = files.iter().filter_map(|file| {
            let (folder, _) = file.rsplit_once('/')?;
            let text = self.source.read(&format!("{folder}/collection_meta.yaml")).ok()?;
            days_in(&String::from_utf8_lossy(&text)).max()
        });
        days.max().unwrap_or_default()
    }

    /// The database's name and version, and its licence.
    pub(super) fn published_as(&self) -> (String, String) {
        self.source.published_as()
    }

    /// The framework and its version, as results name it.
    pub(super) fn framework(&self) -> String {
        format!("{}@{}", self.framework, self.version)
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Every `2026-08-01` of a text.
fn days_in(text: &str) -> impl Iterator<Item = String> {
    let is_day = |word: &&str| {
        let parts: Vec<&str> = word.split('-').collect();
        let digits = |part: &str, count: usize| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.len() == 3 && digits(parts[0], 4) && digits(parts[1], 2) && digits(parts[2], 2)
    };
    let words = text.split(|letter: char| !letter.is_ascii_digit() && letter != '-');
    words.filter(is_day).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_their_order() {
        let mut versions = ["0.24.0", "0.9.1", "0.1.dev19262", "0.24.1", "1.0.0rc2", "0.24.0rc1"];
        versions.sort_by_key(|version| order(version));
        assert_eq!(versions[..3], ["0.1.dev19262", "0.9.1", "0.24.0"]);
        assert_eq!(versions.last(), Some(&"1.0.0rc2"));
    }

    #[test]
    fn days_are_found() {
        let text = "  # 2026-08-12: appended 1,134 rows (2026-07-2, 12-34-56)\n  # 2026-08-02: more, a key-1-2";
        assert_eq!(days_in(text).collect::<Vec<_>>(), ["2026-08-12", "2026-08-02"]);
    }
}
