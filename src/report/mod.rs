//! An evaluation as one page of HTML: nothing is fetched, nothing needs a script (its own sorts tables), equal evaluations on one
//! day give equal bytes.
//!
//! | file | holds |
//! |---|---|
//! | `page.rs` | the page, from top to bottom |
//! | `page.css`, `page.js` | how it looks, on a screen, a phone and paper; sorting |
//! | `tables.rs`, `cells.rs` | its tables: what they say; how they are written |
//! | `clocks.rs` | gains by drawn clocks: text, chart and table |
//! | `sheet.rs` | what stands around the sections of pages of other studies |
//! | `settings.rs` | what was run, and by what |
//! | `names.rs`, `wording.rs`, `day.rs` | what policies are called; numbers in words; the day |
//! | `figures.rs` | its charts: what is drawn |
//! | `close_up.rs` | one draw served once more by every policy, watched closely |
//! | `insight.rs` | what a learned policy decided, and which features it decided by |
//!
//! How charts are drawn is in [`plot`](crate::plot); they take their colours from the page, light or dark.

mod cells;
mod clocks;
mod close_up;
mod day;
mod figures;
mod insight;
mod names;
mod page;
mod settings;
mod sheet;
mod tables;
mod wording;

use std::path::{Path, PathBuf};

use kvtide_envs::env::RunError;
use kvtide_envs::files;
use kvtide_envs::workload::WorkloadError;

use crate::evaluate::{ClockGain, Comparison, FoundLoad, Matrix, RunRow};
use crate::policy::PolicyName;
use crate::world::World;
use close_up::CloseUp;

pub(crate) use cells::{Cell, table};
pub use day::today;
pub(crate) use page::last_part;
pub(crate) use sheet::Sheet;

/// What a report is made of.
#[derive(Debug, Clone)]
pub struct ReportInput<'a> {
    /// The command line, as a shell would take it.
    pub command: String,
    /// The day the page is made, as it says; see [`today`].
    pub made_on: String,
    /// What was simulated.
    pub world: &'a World,
    /// What was run.
    pub matrix: &'a Matrix,
    /// How the loads were found; empty if they were named.
    pub found: &'a [FoundLoad],
    /// Every run.
    pub rows: &'a [RunRow],
    /// Policies whose gains over them were asked for.
    pub versus: &'a [PolicyName],
    /// Every policy; at least one.
    pub comparisons: &'a [Comparison],
    /// What they gain by drawn clocks; empty where none was drawn.
    pub clocks: &'a [ClockGain],
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// There is no folder to write it to.
    #[error("cannot write {}: there is no folder {}", path.display(), folder.display())]
    NoFolder {
        /// The report.
        path: PathBuf,
        /// Its folder.
        folder: PathBuf,
    },
    /// The day that is given is none.
    #[error("{variable}={value:?}: must be seconds since 1970")]
    Day {
        /// The variable of the environment.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// The draw that is looked at closely cannot be drawn again.
    #[error("report: {0}")]
    Draw(#[from] WorkloadError),
    /// A policy cannot serve it again.
    #[error("report: policy {policy}: {error}")]
    Run {
        /// The policy that was run.
        policy: PolicyName,
        /// What ended the run.
        error: Box<RunError>,
    },
}

/// Makes sure that a report can be written before hours are spent on it.
///
/// # Errors
/// [`ReportError::NoFolder`].
pub fn check_folder(path: &Path) -> Result<(), ReportError> {
    let folder = folder_of(path);
    if folder.is_dir() {
        Ok(())
    } else {
        Err(ReportError::NoFolder { path: path.to_owned(), folder: folder.to_owned() })
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes the page beside `path` and renames it: whoever looks sees the old page or the new one.
///
/// # Errors
/// A draw cannot be served again, or the file cannot be written.
pub fn write(path: &Path, material: &ReportInput<'_>) -> Result<(), ReportError> {
    write_page(path, &page(material)?)
}

/// Writes a page that is finished, in the same way.
///
/// # Errors
/// [`ReportError::Write`].
pub(crate) fn write_page(path: &Path, page: &str) -> Result<(), ReportError> {
    files::replace(path, page.as_bytes()).map_err(|source| ReportError::Write { path: path.to_owned(), source })
}

/// The page.
///
/// # Errors
/// A draw cannot be served again.
pub fn page(material: &ReportInput<'_>) -> Result<String, ReportError> {
    let close_up = CloseUp::of(material)?;
    Ok(page::render(material, &close_up))
}
