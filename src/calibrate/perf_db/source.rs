//! Where a database lies: unpacked in a folder, or in the wheel it is published as.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use super::PerfDbError;

/// Folders below which `data` may lie, from the one that is given.
const INSIDE: [&str; 3] = ["", "systems", "aiconfigurator_core/systems"];
/// Largest file read, bytes: three times the largest there is.
const MAX_BYTES: u64 = 64 << 20;

/// The files of a database, by their paths below its `systems` folder.
pub(super) struct Source {
    given: PathBuf,
    kind: Kind,
}

enum Kind {
    /// The `systems` folder.
    Folder(PathBuf),
    /// A wheel, its files' names, and what comes before `data/` in them.
    Wheel { archive: RefCell<ZipArchive<File>>, names: BTreeSet<String>, prefix: String },
}

impl Source {
    /// The database at `path`: its `systems` folder, one above it, or the wheel.
    pub(super) fn open(path: &Path) -> Result<Source, PerfDbError> {
        let kind = if path.is_dir() { folder(path)? } else { wheel(path)? };
        Ok(Source { given: path.to_owned(), kind })
    }

    /// A file's path for people.
    pub(super) fn shown(&self, file: &str) -> PathBuf {
        match &self.kind {
            Kind::Folder(folder) => folder.join(file),
            Kind::Wheel { prefix, .. } => self.given.join(format!("{prefix}{file}")),
        }
    }

    /// What lies in `folder`, in order of names; nothing if it is not there.
    pub(super) fn names(&self, folder: &str) -> Vec<String> {
        match &self.kind {
            Kind::Folder(root) => {
                let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
                let names: BTreeSet<String> =
                    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
                names.into_iter().collect()
            }
            Kind::Wheel { names, prefix, .. } => {
                let start = format!("{prefix}{folder}/");
                let below = names.range(start.clone()..).take_while(|name| name.starts_with(&start));
                let first = below.filter_map(|name| name[start.len()..].split('/').next());
                let found: BTreeSet<&str> = first.filter(|name| !name.is_empty()).collect();
                found.into_iter().map(str::to_owned).collect()
            }
        }
    }

    pub(super) fn has(&self, file: &str) -> bool {
        match &self.kind {
            Kind::Folder(root) => root.join(file).is_file(),
            Kind::Wheel { names, prefix, .. } => names.contains(&format!("{prefix}{file}")),
        }
    }

    /// A whole file.
    pub(super) fn read(&self, file: &str) -> Result<Vec<u8>, PerfDbError> {
        let error = |reason: String| PerfDbError::new(&self.shown(file), reason);
        let bytes = match &self.kind {
            Kind::Folder(root) => File::open(root.join(file)).and_then(up_to_the_limit),
            Kind::Wheel { archive, prefix, .. } => {
                let mut archive = archive.borrow_mut();
                let entry = archive.by_name(&format!("{prefix}{file}"));
                entry.map_err(io::Error::from).and_then(up_to_the_limit)
            }
        };
        let bytes = bytes.map_err(|io| error(format!("cannot read: {io}")))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(error(format!("longer than {MAX_BYTES} bytes")));
        }
        Ok(bytes)
    }

    /// What the database calls itself: name, version and licence of its wheel, where that is there.
    pub(super) fn published_as(&self) -> (String, String) {
        let metadata = match &self.kind {
            Kind::Wheel { archive, names, .. } => {
                let name = names.iter().find(|name| name.ends_with(".dist-info/METADATA"));
                name.and_then(|name| up_to_the_limit(archive.borrow_mut().by_name(name).ok()?).ok())
            }
            Kind::Folder(root) => metadata_beside(root),
        };
        let text = metadata.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let of = |key: &str| {
            let mut header = text.lines().take_while(|line| !line.is_empty());
            header.find_map(|line| line.strip_prefix(key)).map(|value| value.trim().to_owned())
        };
        let name = of("Name:").unwrap_or_else(|| "aiconfigurator-core".to_owned());
        let version = of("Version:").map_or_else(String::new, |version| format!(" {version}"));
        let licence = of("License-Expression:").or_else(|| of("License:"));
        (format!("{name}{version}"), licence.unwrap_or_else(|| "Apache-2.0".to_owned()))
    }
}

fn up_to_the_limit(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn folder(path: &Path) -> Result<Kind, PerfDbError> {
    let found = INSIDE.iter().map(|inside| path.join(inside)).find(|folder| folder.join("data").is_dir());
    found.map(Kind::Folder).ok_or_else(|| {
        PerfDbError::new(
            path,
            "no database: expected the folder `systems` of aiconfigurator-core with `data` in it, one above it, or the wheel",
        )
    })
}

fn wheel(path: &Path) -> Result<Kind, PerfDbError> {
    let file = File::open(path).map_err(|io| PerfDbError::new(path, format!("cannot open: {io}")))?;
    let archive =
        ZipArchive::new(file).map_err(|zip| PerfDbError::new(path, format!("no wheel that can be read: {zip}")))?;
    let names: Result<BTreeSet<String>, _> = archive.file_names().map(|name| name.map(Cow::into_owned)).collect();
    let names = names.map_err(|zip| PerfDbError::new(path, format!("no wheel that can be read: {zip}")))?;
    let prefix = names.iter().find_map(|name| {
        let end = name.find("systems/data/")? + "systems/".len();
        Some(name[..end].to_owned())
    });
    let prefix = prefix.ok_or_else(|| PerfDbError::new(path, "no database: nothing lies in a folder systems/data"))?;
    Ok(Kind::Wheel { archive: RefCell::new(archive), names, prefix })
}

/// Of an unpacked or installed wheel.
fn metadata_beside(systems: &Path) -> Option<Vec<u8>> {
    let whole = systems.canonicalize().ok()?;
    let entries = fs::read_dir(whole.parent()?.parent()?).ok()?;
    let is_it = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("aiconfigurator_core-") && name.ends_with(".dist-info")
    };
    let folder = entries.flatten().map(|entry| entry.path()).find(is_it)?;
    File::open(folder.join("METADATA")).and_then(up_to_the_limit).ok()
}
