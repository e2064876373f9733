//! What the folder of a run holds: of `train`, and of what trains on the whole way.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::checkpoint::{self, Manifest};
use crate::experiment::{Experiment, Method};
use crate::export::{self, Inspection};
use crate::text::{labelled, printable};
use crate::train;

/// The folder of a run, as it was left.
pub(super) struct RunFolder {
    path: PathBuf,
    /// Where training stands.
    checkpoint: Option<Manifest>,
    /// What is to decide with.
    policy: Option<Manifest>,
    /// The table, if there is one: its bytes.
    table: Option<Vec<u8>>,
    /// Everything in it, by name.
    files: Vec<RunFile>,
}

/// A file or folder of a run.
#[derive(Debug, Clone, Serialize)]
struct RunFile {
    name: String,
    /// Of a file; none of a folder.
    bytes: Option<u64>,
}

/// The table of a run on the whole way.
const TABLE: &str = "policy.kvt";
/// Where what labels stand beside begins.
const AT: usize = 12;

impl RunFolder {
    /// The run in `path`; `None` if that is none: a file, a checkpoint, or a folder of something else.
    pub(super) fn at(path: &Path) -> anyhow::Result<Option<RunFolder>> {
        let (learned, kept) = (train::checkpoint_of(path), train::policy_of(path));
        if !path.is_dir() || !(learned.is_dir() || kept.is_dir()) {
            return Ok(None);
        }
        let manifest = |folder: &Path| folder.is_dir().then(|| checkpoint::inspect(folder)).transpose();
        let table = path.join(TABLE);
        Ok(Some(RunFolder {
            path: path.to_owned(),
            checkpoint: manifest(&learned)?,
            policy: manifest(&kept)?,
            table: table.is_file().then(|| export::load(&table)).transpose()?,
            files: files(path).with_context(|| format!("cannot read {}", path.display()))?,
        }))
    }

    fn inspection(&self) -> Option<Inspection<'_>> {
        Inspection::of(self.table.as_deref()?).ok()
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        serde_json::json!({
            "path": self.path.display().to_string(),
            "finished": self.progress().map(|(done, total, _)| done >= total),
            "files": self.files,
            "checkpoint": self.checkpoint,
            "policy": self.policy,
            "table": self.inspection().map(|inspection| inspection.json()),
        })
    }

    /// How far training is, how far it goes, counted in what; as far as the checkpoint says.
    fn progress(&self) -> Option<(u64, u64, &'static str)> {
        let manifest = self.checkpoint.as_ref()?;
        let experiment = Experiment::parse(&manifest.experiment).ok()?;
        Some(match experiment.method {
            Method::Ppo => (manifest.decisions, experiment.ppo.total_decisions, "decisions"),
            Method::CrossEntropy => (manifest.iteration, experiment.cross_entropy.generations, "generations"),
        })
    }

    /// For people, at most `width` columns wide.
    pub(super) fn text(&self, width: usize) -> String {
        let told = self.told();
        let mut out: String = told.iter().map(|(label, text)| labelled(label, text, AT, width)).collect();
        out.push_str("\nfiles\n");
        for RunFile { name, bytes } in &self.files {
            let size = bytes.map_or_else(|| "folder".to_owned(), |bytes| format!("{bytes} bytes"));
            out.push_str(&labelled(&format!("  {}", printable(name)), &size, 2 * AT, width));
        }
        out
    }

    fn told(&self) -> Vec<(&'static str, String)> {
        let path = printable(&self.path.display().to_string());
        let mut told = Vec::new();
        if let Some(manifest) = self.checkpoint.as_ref().or(self.policy.as_ref()) {
            let says = |key: &str| manifest.metadata.get(key).map(|value| printable(value));
            let name = says("name").unwrap_or_else(|| "a run".to_owned());
            let host = says("host").map_or_else(String::new, |host| format!(" for {host}"));
            told.push(("what", format!("the run {name}: a policy{host}, profile {}", manifest.profile)));
            told.push(("made by", format!("{}, seed {}", manifest.trained(), manifest.seed)));
            if let Some(trace) = says("trace") {
                let env = says("env").map_or_else(String::new, |env| format!(", on {env}"));
                told.push(("made of", format!("{trace}{env}")));
            }
            told.extend(says("slo").map(|slo| ("targets", slo)));
        }
        told.extend(self.progress().map(|(done, total, unit)| ("how far", how_far(done, total, unit))));
        if let Some(policy) = &self.policy {
            told.push(("how good", policy.how_good()));
        }
        let table = self.path.join(TABLE);
        let at = printable(&table.display().to_string());
        told.push(match (&self.table, self.inspection()) {
            (Some(_), Some(_)) => ("table", format!("{TABLE}; what it does: kvtide inspect {at}")),
            (Some(_), None) => ("table", format!("{TABLE} is damaged or of another build: kvtide inspect {at}")),
            (None, _) => ("table", "none yet".to_owned()),
        });
        told.push(("next", self.next(&path, &at)));
        told
    }

    fn next(&self, path: &str, table: &str) -> String {
        if self.progress().is_some_and(|(done, total, _)| done < total) {
            return format!("kvtide train --resume --out {path}");
        }
        if self.table.is_some() {
            return format!(
                "kvtide evaluate --trace TRACE --loads auto --policy default --policy best-fixed --policy table:{table}"
            );
        }
        let policy = if self.policy.is_some() { "policy" } else { "checkpoint" };
        format!("kvtide export --checkpoint {path}/{policy} --out {table}")
    }
}

fn how_far(done: u64, total: u64, unit: &str) -> String {
    if done >= total { format!("finished, {done} {unit}") } else { format!("{done} of {total} {unit}; it can go on") }
}

/// What stands in a folder, by name.
fn files(folder: &Path) -> std::io::Result<Vec<RunFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push(RunFile { name, bytes: metadata.is_file().then_some(metadata.len()) });
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}
