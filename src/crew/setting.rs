//! What many tasks have in common, and the files they read.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::{fs, io, path};

use serde::{Deserialize, Serialize};

use super::{BUILD, CrewError};

/// What many tasks have in common: told once, and known from then on by its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The digest of the text.
    pub id: String,
    /// As workers are told it.
    pub text: String,
    /// Where the files it names lie on this machine, in their order.
    pub files: Vec<PathBuf>,
}

/// A file that travels with a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shipped {
    /// Its path beneath the folder that a worker keeps files in; see [`shipped_name`].
    pub name: PathBuf,
    /// The digest of what it holds.
    pub blake3: String,
    /// Its length.
    pub bytes: u64,
}

/// The text of a setting.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told<W> {
    /// The [`BUILD`] that told it.
    pub build: String,
    /// What is read.
    pub files: Vec<Shipped>,
    /// What is done.
    pub work: W,
}

impl Setting {
    /// What `work` says, with the files it reads; of a folder, those that lie directly in it.
    ///
    /// # Errors
    /// A file cannot be read, or has a name that is no text.
    pub fn new(work: &impl Serialize, files: &[PathBuf]) -> Result<Setting, CrewError> {
        let mut paths: Vec<PathBuf> = Vec::new();
        for path in files {
            let named = |error: io::Error| CrewError(format!("{}: {error}", path.display()));
            paths.extend(plain_files(path).map_err(named)?);
        }
        paths.sort();
        paths.dedup();
        let shipped = |path: &PathBuf| {
            let named = |error: io::Error| CrewError(format!("{}: {error}", path.display()));
            let bytes = fs::metadata(path).map_err(named)?.len();
            let blake3 = digest(path).map_err(named)?;
            Ok(Shipped { name: shipped_name(path).map_err(named)?, blake3, bytes })
        };
        let files = paths.iter().map(shipped).collect::<Result<Vec<Shipped>, CrewError>>()?;
        let told = Told { build: BUILD.to_owned(), files, work };
        let text = serde_json::to_string(&told).map_err(|error| CrewError(error.to_string()))?;
        Ok(Setting { id: blake3::hash(text.as_bytes()).to_hex()[..32].to_owned(), text, files: paths })
    }
}

/// The path of a file without the root it stands under: what it is called beneath a worker's folder, so that it keeps its name.
///
/// # Errors
/// The folder it lies in is not there.
pub fn shipped_name(path: &Path) -> io::Result<PathBuf> {
    let path = path::absolute(path)?;
    let whole = match (path.parent(), path.file_name()) {
        // What a link is called is what results call it.
        (Some(folder), Some(name)) => fs::canonicalize(folder)?.join(name),
        _ => path,
    };
    Ok(whole.strip_prefix("/").map(Path::to_path_buf).unwrap_or(whole))
}

/// The digest of what a file holds.
///
/// # Errors
/// It cannot be read.
pub fn digest(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

fn plain_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(entries.into_iter().filter(|path| path.is_file()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_known_by_what_its_files_hold() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace.csv");
        let setting = |text: &str| {
            fs::write(&trace, text).unwrap();
            Setting::new(&"work", &[trace.clone(), trace.clone()]).unwrap()
        };
        let (first, same, other) = (setting("1"), setting("1"), setting("2"));
        assert_eq!((&first, first.files.len()), (&same, 1));
        assert_ne!(first.id, other.id);
        let told: Told<String> = serde_json::from_str(&first.text).unwrap();
        assert_eq!((told.work.as_str(), told.build.as_str(), told.files[0].bytes), ("work", BUILD, 1));
        assert!(told.files[0].name.is_relative() && told.files[0].name.ends_with("trace.csv"));
        let missing = Setting::new(&"work", &["nowhere/trace.csv".into()]).unwrap_err().to_string();
        assert!(missing.starts_with("nowhere/trace.csv: "), "{missing}");
    }
}
