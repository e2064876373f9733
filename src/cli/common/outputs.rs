//! What a command writes, looked at before it works: hours of work shall not end at a folder that is not there, or on top of what
//! it was made from.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use kvtide_envs::files::resolved;
use tempfile::tempfile_in;

use crate::checkpoint;
use crate::policy::PolicySpec;
use crate::world::WorldSpec;

/// The files a command reads and writes, each with the option that names it.
#[derive(Debug, Default)]
pub(in crate::cli) struct Outputs {
    inputs: Vec<Named>,
    outputs: Vec<(Named, Kind)>,
}

#[derive(Debug)]
struct Named {
    option: String,
    path: PathBuf,
}

/// How an output comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Written beside its place, which it takes when it is finished.
    Replaced,
    /// Written in its place, line by line: a pipe or a device will do.
    InPlace,
    /// A folder that is made where it is not there.
    Folder,
}

impl Outputs {
    pub(in crate::cli) fn new() -> Outputs {
        Outputs::default()
    }

    /// A file that is read, or a folder whose files are.
    #[must_use]
    pub(in crate::cli) fn reads<'a>(mut self, option: &str, path: impl Into<Option<&'a Path>>) -> Outputs {
        if let Some(path) = path.into() {
            self.input(option, path);
            let entries = fs::read_dir(path).into_iter().flatten().flatten();
            entries.for_each(|entry| self.input(option, &entry.path()));
        }
        self
    }

    /// A checkpoint that is read: what else lies in its folder, a table or a card, is not of it.
    #[must_use]
    pub(in crate::cli) fn reads_checkpoint(mut self, option: &str, path: &Path) -> Outputs {
        self.input(option, path);
        for name in checkpoint::FILES {
            self.input(option, &path.join(name));
        }
        self
    }

    /// What traffic and node are read from.
    #[must_use]
    pub(in crate::cli) fn reads_world(mut self, world: &WorldSpec) -> Outputs {
        self = self.reads("--trace", world.trace.as_deref());
        self.reads_env(&world.env.to_string())
    }

    /// The files that model and hardware are read from, if any are.
    #[must_use]
    pub(in crate::cli) fn reads_env(mut self, env: &str) -> Outputs {
        for part in env.split('@') {
            // `2xmine.toml`
            let (count, rest) = part.split_once('x').unwrap_or(("", part));
            let rest = if count.chars().all(|digit| digit.is_ascii_digit()) { rest } else { part };
            for path in [part, rest].map(Path::new).into_iter().filter(|path| path.is_file()) {
                self.input("--env", path);
            }
        }
        self
    }

    /// What policies are read from.
    #[must_use]
    pub(in crate::cli) fn reads_policies(mut self, policies: &[PolicySpec]) -> Outputs {
        for policy in policies {
            self = match policy.of_heads() {
                PolicySpec::Table(path) | PolicySpec::BestTrain(Some(path)) => self.reads("--policy", path.as_path()),
                PolicySpec::Checkpoint(path) => self.reads_checkpoint("--policy", path),
                _ => self,
            };
        }
        self
    }

    /// A file that is written whole or not at all.
    #[must_use]
    pub(in crate::cli) fn file<'a>(self, option: &str, path: impl Into<Option<&'a Path>>) -> Outputs {
        self.output(option, path.into(), Kind::Replaced)
    }

    /// A file that is written as the work goes on.
    #[must_use]
    pub(in crate::cli) fn log<'a>(self, option: &str, path: impl Into<Option<&'a Path>>) -> Outputs {
        self.output(option, path.into(), Kind::InPlace)
    }

    /// A folder that is written into, and made where it is not there.
    #[must_use]
    pub(in crate::cli) fn folder<'a>(self, option: &str, path: impl Into<Option<&'a Path>>) -> Outputs {
        self.output(option, path.into(), Kind::Folder)
    }

    /// Refuses what cannot be written, and what is an input or another output as well, by whatever name.
    ///
    /// # Errors
    /// The first such output, with its option.
    pub(in crate::cli) fn check(self) -> anyhow::Result<()> {
        for (index, (output, kind)) in self.outputs.iter().enumerate() {
            let Named { option, path } = output;
            kind.check(path).with_context(|| format!("{option}: cannot write {}", path.display()))?;
            let place = Place::of(path)?;
            if place == Place::Elsewhere {
                continue;
            }
            let same = |other: &&Named| Place::of(&other.path).is_ok_and(|other| other == place);
            if let Some(input) = self.inputs.iter().find(same) {
                let (what, read) = (path.display(), input.path.display());
                bail!("{option} {what}: that is {read}, which is read ({}); write to another file", input.option);
            }
            if let Some(other) = self.outputs[..index].iter().map(|(other, _)| other).find(same) {
                bail!(
                    "{option} {}: {} writes there as well; each needs a file of its own",
                    path.display(),
                    other.option
                );
            }
        }
        Ok(())
    }

    fn input(&mut self, option: &str, path: &Path) {
        self.inputs.push(Named { option: option.to_owned(), path: path.to_owned() });
    }

    fn output(mut self, option: &str, path: Option<&Path>, kind: Kind) -> Outputs {
        self.outputs.extend(path.map(|path| (Named { option: option.to_owned(), path: path.to_owned() }, kind)));
        self
    }
}

impl Kind {
    /// Whether something of this kind can be written at `path`: tried, since nothing else knows.
    fn check(self, path: &Path) -> anyhow::Result<()> {
        let there = fs::metadata(path).ok();
        if self == Kind::Folder {
            ensure!(there.is_none_or(|there| there.is_dir()), "it is a file, not a folder");
            let mut nearest = path;
            while !nearest.exists() {
                nearest = parent(nearest);
            }
            ensure!(nearest.is_dir(), "{} is not a folder", nearest.display());
            return Ok(tempfile_in(nearest).map(drop)?);
        }
        let folder = parent(path);
        ensure!(folder.is_dir(), "there is no folder {}", folder.display());
        ensure!(!there.as_ref().is_some_and(Metadata::is_dir), "it is a folder");
        ensure!(path.file_name().is_some(), "that names no file");
        match (self, there) {
            // Opened for writing and left as it is.
            (Kind::InPlace, Some(there)) if there.is_file() => Ok(File::options().append(true).open(path).map(drop)?),
            // To open a pipe is to wait for who reads it.
            (Kind::InPlace, Some(_)) => Ok(()),
            (_, Some(there)) if !there.is_file() => bail!("it is no ordinary file, and would be replaced by one"),
            _ => Ok(tempfile_in(folder).map(drop)?),
        }
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Which file a path means, whatever it is called.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// One that is there: its device and number.
    There(u64, u64),
    /// One that is not there yet.
    Planned(PathBuf),
    /// A pipe or a device: what goes in there meets nothing.
    Elsewhere,
}

impl Place {
    fn of(path: &Path) -> anyhow::Result<Place> {
        match fs::metadata(path) {
            Ok(there) if there.is_file() || there.is_dir() => Ok(Place::There(there.dev(), there.ino())),
            Ok(_) => Ok(Place::Elsewhere),
            // A folder yet to be made in folders yet to be made is known by its name alone.
            Err(_) => Ok(Place::Planned(resolved(path).unwrap_or(std::path::absolute(path)?))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::{TempDir, tempdir};

    use super::*;

    fn folder() -> TempDir {
        let folder = tempdir().unwrap();
        fs::write(folder.path().join("trace.csv"), "a").unwrap();
        fs::create_dir(folder.path().join("day")).unwrap();
        fs::write(folder.path().join("day/chunk-0-trace.csv"), "a").unwrap();
        folder
    }

    fn refusal(outputs: Outputs) -> String {
        outputs.check().map_or_else(|error| format!("{error:#}"), |()| String::new())
    }

    #[test]
    fn an_input_is_no_output_whatever_it_is_called() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        symlink(at("trace.csv"), at("link")).unwrap();
        fs::hard_link(at("trace.csv"), at("hard")).unwrap();
        symlink(folder.path(), at("again")).unwrap();
        for name in ["trace.csv", "link", "hard", "again/trace.csv", "day/../trace.csv"] {
            for output in
                [Outputs::new().file("--out", at(name).as_path()), Outputs::new().log("--out", at(name).as_path())]
            {
                let said = refusal(output.reads("--trace", at("trace.csv").as_path()));
                assert!(
                    said.starts_with("--out ") && said.ends_with("which is read (--trace); write to another file"),
                    "{said}"
                );
            }
        }
        let inside = Outputs::new().reads("--trace", at("day").as_path());
        assert!(refusal(inside.file("--out", at("day/chunk-0-trace.csv").as_path())).contains("which is read"));
        let new = Outputs::new().reads("--trace", at("day").as_path()).file("--out", at("day/new.jsonl").as_path());
        assert_eq!(refusal(new), "");
        let table = Outputs::new().reads_checkpoint("--checkpoint", &at("day"));
        assert_eq!(refusal(table.file("--out", at("day/policy.kvt").as_path())), "");
        fs::write(at("day/manifest.json"), "").unwrap();
        let own = Outputs::new().reads_checkpoint("--checkpoint", &at("day"));
        assert!(refusal(own.file("--out", at("day/manifest.json").as_path())).contains("which is read (--checkpoint)"));
    }

    #[test]
    fn two_outputs_are_two_files() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let two = |one: &str, other: &str| {
            refusal(Outputs::new().log("--out", at(one).as_path()).file("--report", at(other).as_path()))
        };
        assert_eq!(two("a", "b"), "");
        assert!(two("a", "day/../a").contains("--out writes there as well"), "{}", two("a", "day/../a"));
    }

    #[test]
    fn what_cannot_be_written_is_refused_with_its_reason() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        for (name, reason) in
            [("no/such", "there is no folder"), ("day", "it is a folder"), ("trace.csv/a", "there is no folder")]
        {
            for output in
                [Outputs::new().file("--svg", at(name).as_path()), Outputs::new().log("--svg", at(name).as_path())]
            {
                let said = refusal(output);
                assert!(said.starts_with("--svg: cannot write ") && said.contains(reason), "{said}");
            }
        }
        let folder_output = |name: &str| refusal(Outputs::new().folder("--out", at(name).as_path()));
        assert_eq!((folder_output("day"), folder_output("no/such")), (String::new(), String::new()));
        assert!(folder_output("trace.csv").contains("it is a file"));
        assert!(folder_output("trace.csv/a/b").contains("is not a folder"));
        let device = |outputs: Outputs| refusal(outputs);
        assert!(device(Outputs::new().file("--out", Path::new("/dev/null"))).contains("no ordinary file"));
        let null = Path::new("/dev/null");
        assert_eq!(device(Outputs::new().log("--out", null).reads("--trace", null)), "");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }
}
