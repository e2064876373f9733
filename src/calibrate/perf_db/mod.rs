//! Hardware profiles out of a database of measured kernels: the Parquet files of `aiconfigurator-core`, as they lie in its wheel.
//!
//! What is read of which columns stands in `families.rs`, which file of which version in `database.rs`. The tables of a whole system
//! (`PerfDb::tables`) are what a model's (`KernelTables::for_model`) and the built-in ones (`built_in.rs`) are made of.
//! All of it is behind the feature `perf-db` but for what the command line names.

#[cfg(feature = "perf-db")]
mod account;
#[cfg(feature = "perf-db")]
mod built_in;
#[cfg(feature = "perf-db")]
mod columns;
#[cfg(feature = "perf-db")]
mod database;
#[cfg(feature = "perf-db")]
mod error;
#[cfg(feature = "perf-db")]
mod families;
#[cfg(feature = "perf-db")]
mod lacking;
#[cfg(feature = "perf-db")]
mod samples;
#[cfg(feature = "perf-db")]
mod source;
#[cfg(feature = "perf-db")]
mod system;
#[cfg(all(test, feature = "perf-db"))]
mod tests;

use std::str::FromStr;

#[cfg(feature = "perf-db")]
pub use self::{
    account::{PerfDbAccount, PerfDbData, TablesMade},
    error::PerfDbError,
    system::{FamilyTaken, PerfDb},
};

/// A serving framework whose kernels were measured, and its version: `vllm@0.24.0`; without one, the newest that will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Framework {
    /// Its name, as the database's folders have it.
    pub name: String,
    /// Its version; `None` for the newest that has products and attention.
    pub version: Option<String>,
}

impl FromStr for Framework {
    type Err = String;

    fn from_str(text: &str) -> Result<Framework, String> {
        let (name, version) = text.split_once('@').map_or((text, None), |(name, version)| (name, Some(version)));
        let is_plain = |part: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || b".+-_".contains(&byte);
            !part.is_empty() && part.bytes().all(known) && !part.starts_with('.')
        };
        if !is_plain(name) || !version.is_none_or(is_plain) {
            return Err(format!("{text:?}: expected NAME or NAME@VERSION, such as vllm@0.24.0"));
        }
        Ok(Framework { name: name.to_owned(), version: version.map(str::to_owned) })
    }
}

#[cfg(test)]
mod named {
    use super::*;

    #[test]
    fn frameworks_are_named_with_or_without_a_version() {
        let named = |text: &str| text.parse::<Framework>().map(|framework| (framework.name, framework.version));
        assert_eq!(named("vllm"), Ok(("vllm".to_owned(), None)));
        assert_eq!(named("vllm@0.24.0"), Ok(("vllm".to_owned(), Some("0.24.0".to_owned()))));
        for bad in ["", "@1", "vllm@", "../x", "vllm@..", "a/b"] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }
}
