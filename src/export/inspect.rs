//! A `.kvt` file for people and for programs.

use std::fmt::Write;
use std::path::Path;

use kvtide_runtime::format::{FeatureRange, TableFile};
use kvtide_runtime::{ACTION_SET_HASH, FormatError, Head, SCHEMA_HASH, Table, TreeNode};
use serde_json::{Map, Value, json};

use super::picture;
use super::retention::RetentionText;
use super::rules::{self, KnownNames, leaves, short};
use super::summary::TableText;
use crate::text::printable;

/// What a file says, whichever schema it was made for. Where that is not this build's, features and choices have numbers
/// instead of names.
#[derive(Debug, Clone, Copy)]
pub struct Inspection<'a> {
    file: TableFile<'a>,
    names: KnownNames,
    bytes: usize,
}

impl<'a> Inspection<'a> {
    /// Looks at a file.
    ///
    /// # Errors
    /// The file breaks a rule of the format, or claims to be for this build and is not.
    pub fn of(bytes: &'a [u8]) -> Result<Inspection<'a>, FormatError> {
        let file = TableFile::parse(bytes)?;
        match Table::from_file(file) {
            Err(error) if !error.is_unknown_meaning() => Err(error),
            _ => Ok(Inspection { file, names: KnownNames::of(&file), bytes: bytes.len() }),
        }
    }

    /// Whether this build can decide with it.
    pub fn is_usable(&self) -> bool {
        self.names.edition.is_some()
    }

    /// What the file at `path` is, does, was worth and is for, in plain language at most `width` columns wide.
    pub fn summary(&self, path: &Path, width: usize) -> String {
        TableText { file: self.file, names: self.names, bytes: self.bytes }.text(path, width)
    }

    /// The file as text, with at most `max_rules` lines of its rules.
    pub fn text(&self, max_rules: usize) -> String {
        let mut out = String::new();
        self.write_text(&mut out, max_rules).expect("a string takes everything");
        out
    }

    fn write_text(&self, out: &mut String, max_rules: usize) -> std::fmt::Result {
        let file = &self.file;
        let heads: Vec<&str> = KnownNames::heads(file).iter().map(|head| head.name()).collect();
        writeln!(out, "size        {} bytes, {}, depth {}", self.bytes, leaves(file.leaves()), file.depth())?;
        writeln!(out, "profile     {} ({})", file.profile().name(), heads.join(", "))?;
        writeln!(out, "schema      {}", match_line(file.schema_hash(), SCHEMA_HASH, self.names.schema, "features"))?;
        writeln!(
            out,
            "action set  {}",
            match_line(file.action_set_hash(), ACTION_SET_HASH, self.names.actions, "choices")
        )?;

        writeln!(out, "\nmetadata")?;
        let width = file.metadata().map(|(key, _)| printable(key).len()).max().unwrap_or(0);
        for (key, value) in file.metadata() {
            writeln!(out, "  {:width$}  {}", printable(key), printable(value))?;
        }

        writeln!(out, "\n{:<22}{:>10}{:>10}{:>8}  unit", "trained on", "min", "max", "splits")?;
        for (feature, (range, splits)) in self.features() {
            let unit = self.names.spec(feature).map_or("", |spec| spec.unit);
            let (name, min, max) = (self.names.feature(feature), short(range.min), short(range.max));
            writeln!(out, "{}", format!("  {name:<20}{min:>10}{max:>10}{splits:>8}  {unit}").trim_end())?;
        }

        if max_rules > 0 {
            let (lines, total) = rules::render(file, max_rules);
            writeln!(out, "\nrules")?;
            lines.iter().try_for_each(|line| writeln!(out, "  {line}"))?;
            if total > lines.len() {
                writeln!(out, "  ... {} more lines", total - lines.len())?;
            }
        }
        file.retention().map_or(Ok(()), |section| RetentionText(section).write(out, max_rules))
    }

    /// The tree as an SVG picture, down to `max_depth` comparisons.
    pub fn svg(&self, max_depth: usize) -> String {
        let experiment = self.file.metadata().find(|(key, _)| *key == "experiment");
        let name = experiment.map_or("a decision table", |(_, name)| name);
        picture::svg(&self.file, &format!("{name} · {} · {} bytes", self.file.profile().name(), self.bytes), max_depth)
    }

    /// The file as one JSON object, with every node. Ranges and thresholds are exact.
    pub fn json(&self) -> Value {
        let file = &self.file;
        let metadata: Map<String, Value> = file.metadata().map(|(key, value)| (key.to_owned(), value.into())).collect();
        let features: Vec<Value> = self
            .features()
            .map(|(feature, (range, splits))| {
                json!({
                    "name": self.names.feature(feature),
                    "unit": self.names.spec(feature).map(|spec| spec.unit),
                    "min": exact(range.min),
                    "max": exact(range.max),
                    "splits": splits,
                })
            })
            .collect();
        let mut all = json!({
            "bytes": self.bytes,
            "format_version": file.version(),
            "profile": file.profile().name(),
            "schema": {"hash": hex(file.schema_hash()), "known": self.names.schema},
            "action_set": {"hash": hex(file.action_set_hash()), "known": self.names.actions},
            "leaves": file.leaves(),
            "depth": file.depth(),
            "metadata": metadata,
            "features": features,
            "nodes": file.nodes().map(|node| self.node(node)).collect::<Vec<Value>>(),
        });
        if let Some(section) = file.retention() {
            all["retention"] = RetentionText(section).json();
        }
        all
    }

    fn node(&self, node: TreeNode) -> Value {
        match node {
            TreeNode::Split { feature, left, threshold } => {
                json!({"feature": self.names.feature(feature), "threshold": exact(threshold), "left": left})
            }
            TreeNode::Leaf { choices } => {
                let named = |&head: &Head| {
                    let name = self.names.choice(head, choices[head as usize]);
                    // A level is a number where it is known.
                    (head.name().to_owned(), name.parse::<f64>().map_or(Value::from(name), Value::from))
                };
                json!({"leaf": KnownNames::heads(&self.file).iter().map(named).collect::<Map<String, Value>>()})
            }
        }
    }

    /// Every feature with its trained range and the number of nodes that look at it.
    fn features(&self) -> impl Iterator<Item = (u8, (FeatureRange, usize))> {
        let mut splits = vec![0; self.file.ranges().len()];
        for node in self.file.nodes() {
            if let TreeNode::Split { feature, .. } = node {
                splits[usize::from(feature)] += 1;
            }
        }
        (0..).zip(self.file.ranges().zip(splits))
    }
}

pub(super) fn match_line(found: u64, expected: u64, is_known: bool, numbered: &str) -> String {
    if found == expected {
        format!("this build's ({})", hex(found))
    } else if is_known {
        format!("an earlier one, which this build reads ({}; its own is {})", hex(found), hex(expected))
    } else {
        format!("unknown ({}; this build's is {}): {numbered} are shown as numbers", hex(found), hex(expected))
    }
}

pub(super) fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

/// The shortest decimal that reads back to the same `f32`.
pub(super) fn exact(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}
