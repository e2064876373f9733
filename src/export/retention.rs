//! The second tree of a table: into a file, and back for people and programs.

use kvtide_runtime::format::{
    EncodeError, Extension, FeatureRange, RetentionSection, RetentionSpec, TableFile, TableSpec, encode_with_retention,
    encoded_len_with_retention,
};
use kvtide_runtime::{FeatureSpec, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, Retention, TreeNode};
use serde_json::{Value, json};

use super::ExportError;
use super::inspect::{exact, hex, match_line};
use super::rules::{leaves, short};
use crate::distil::RetentionTree;

/// The table in `bytes`, all of it as it is, with `tree` as its retention tree in place of any it has.
///
/// # Errors
/// [`ExportError::Encode`] if `bytes` are no table, or both do not fit into one file.
pub fn add_retention(bytes: &[u8], tree: &RetentionTree) -> Result<Vec<u8>, ExportError> {
    let refused = |error| ExportError::Encode(EncodeError::Format(error));
    let file = TableFile::parse(bytes).map_err(refused)?;
    let (ranges, nodes): (Vec<FeatureRange>, Vec<TreeNode>) = (file.ranges().collect(), file.nodes().collect());
    let (metadata, extensions): (Vec<(&str, &str)>, Vec<Extension<'_>>) =
        (file.metadata().collect(), file.extensions().collect());
    let spec = TableSpec {
        profile: file.profile(),
        heads: file.heads(),
        schema_hash: file.schema_hash(),
        action_set_hash: file.action_set_hash(),
        ranges: &ranges,
        nodes: &nodes,
        metadata: &metadata,
        extensions: &extensions,
    };
    let retention = RetentionSpec { schema_hash: RELEASE_SCHEMA_HASH, ranges: &tree.ranges, nodes: &tree.nodes };
    let mut out = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut out).map_err(ExportError::Encode)?;
    Ok(out)
}

/// What a retention section says. Where it was made for another schema, features have numbers instead of names.
#[derive(Debug, Clone, Copy)]
pub(super) struct RetentionText<'a>(pub(super) RetentionSection<'a>);

impl RetentionText<'_> {
    fn spec(self, feature: u8) -> Option<&'static FeatureSpec> {
        RELEASE_FEATURES.get(usize::from(feature)).filter(|_| self.0.schema_hash() == RELEASE_SCHEMA_HASH)
    }

    fn feature(self, feature: u8) -> String {
        self.spec(feature).map_or_else(|| format!("feature_{feature}"), |spec| spec.name.to_owned())
    }

    /// The features it decides by, with their trained ranges and the number of nodes that look at them, then its rules, at most
    /// `max_rules` lines of them.
    pub(super) fn write(self, out: &mut String, max_rules: usize) -> std::fmt::Result {
        use std::fmt::Write;
        let section = self.0;
        writeln!(out, "\nretention   {}, depth {}", leaves(section.leaves()), section.depth())?;
        writeln!(out, "schema      {}", match_line(section.schema_hash(), RELEASE_SCHEMA_HASH, false, "features"))?;
        writeln!(out, "\n{:<22}{:>10}{:>10}{:>8}  unit", "decides by", "min", "max", "splits")?;
        for (feature, range, splits) in self.features().filter(|(_, _, splits)| *splits > 0) {
            let unit = self.spec(feature).map_or("", |spec| spec.unit);
            let (name, min, max) = (self.feature(feature), short(range.min), short(range.max));
            writeln!(out, "{}", format!("  {name:<20}{min:>10}{max:>10}{splits:>8}  {unit}").trim_end())?;
        }
        if max_rules > 0 {
            let nodes: Vec<TreeNode> = section.nodes().collect();
            let mut lines = Vec::new();
            self.rules(&nodes, 0, 0, "always", &mut lines);
            writeln!(out, "\nretention rules")?;
            lines.iter().take(max_rules).try_for_each(|line| writeln!(out, "  {line}"))?;
            if lines.len() > max_rules {
                writeln!(out, "  ... {} more lines", lines.len() - max_rules)?;
            }
        }
        Ok(())
    }

    /// A node and what is below it. The format bounds the depth.
    fn rules(self, nodes: &[TreeNode], node: usize, depth: usize, condition: &str, lines: &mut Vec<String>) {
        let indent = "  ".repeat(depth);
        match nodes[node] {
            TreeNode::Leaf { choices } => lines.push(format!("{indent}{condition}: {}", class(choices[0]))),
            TreeNode::Split { feature, left, threshold } => {
                let mut below = 0;
                // The root has no condition.
                if node != 0 {
                    lines.push(format!("{indent}{condition}"));
                    below = depth + 1;
                }
                let test = format!("if {} <= {}", self.feature(feature), short(threshold));
                self.rules(nodes, usize::from(left), below, &test, lines);
                self.rules(nodes, usize::from(left) + 1, below, "else", lines);
            }
        }
    }

    /// As one JSON object, with every node. Ranges and thresholds are exact.
    pub(super) fn json(self) -> Value {
        let section = self.0;
        let node = |node: TreeNode| match node {
            TreeNode::Leaf { choices } => json!({"leaf": class(choices[0])}),
            TreeNode::Split { feature, left, threshold } => {
                json!({"feature": self.feature(feature), "threshold": exact(threshold), "left": left})
            }
        };
        json!({
            "schema": {"hash": hex(section.schema_hash()), "known": section.schema_hash() == RELEASE_SCHEMA_HASH},
            "leaves": section.leaves(),
            "depth": section.depth(),
            "features": self.features_json(),
            "nodes": section.nodes().map(node).collect::<Vec<Value>>(),
        })
    }

    /// Every feature it was trained on, in index order.
    pub(super) fn features_json(self) -> Vec<Value> {
        let json = |(feature, range, splits): (u8, FeatureRange, usize)| {
            let unit = self.spec(feature).map(|spec| spec.unit);
            let (min, max) = (exact(range.min), exact(range.max));
            json!({"name": self.feature(feature), "unit": unit, "min": min, "max": max, "splits": splits})
        };
        self.features().map(json).collect()
    }

    fn features(self) -> impl Iterator<Item = (u8, FeatureRange, usize)> {
        let mut splits = vec![0; self.0.ranges().len()];
        for node in self.0.nodes() {
            if let TreeNode::Split { feature, .. } = node {
                splits[usize::from(feature)] += 1;
            }
        }
        (0..).zip(self.0.ranges().zip(splits)).map(|(feature, (range, splits))| (feature, range, splits))
    }
}

/// What a reader has accepted is a class.
fn class(index: u8) -> &'static str {
    Retention::from_index(index).unwrap_or_default().name()
}
