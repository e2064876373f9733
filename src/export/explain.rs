//! Why a table decides as it does.

use std::collections::BTreeMap;
use std::fmt::Write;

use kvtide_runtime::format::{FeatureRange, PathStep};
use kvtide_runtime::{
    FEATURES, FeatureSpec, Head, NUM_FEATURES, NUM_RELEASE_FEATURES, Observation, RELEASE_FEATURES, ReleaseObservation,
    RetentionTable, Table, TreeNode,
};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::rules::short;

/// Why an observation explains nothing.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ExplainError {
    /// There are no such features.
    #[error("{}: no such feature; known: {}", list(.names), .known.join(", "))]
    Unknown {
        /// What was given.
        names: Vec<String>,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// The table asks for something that was not given.
    #[error("the table asks for {asked}, which is not given; it decides by {}", .decides_by.join(", "))]
    Missing {
        /// The feature.
        asked: &'static str,
        /// Everything that some way through the table asks for.
        decides_by: Vec<&'static str>,
    },
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<String>>().join(", ")
}

/// A decision, comparison by comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    comparisons: Vec<ExplainedStep>,
    leaf: u16,
    /// What is decided, by name, and what the table says.
    choices: Vec<(&'static str, String)>,
    outside: Vec<Outside>,
    /// What was given, as the table sees it.
    seen: Vec<(&'static str, f32)>,
    replaced: Vec<Replaced>,
}

/// A value that no feature can have, and the one it counts as.
#[derive(Debug, Clone, PartialEq)]
struct Replaced {
    feature: &'static str,
    given: String,
    seen: f32,
}

#[derive(Debug, Clone, PartialEq)]
struct ExplainedStep {
    node: u16,
    feature: &'static str,
    value: f32,
    threshold: f32,
    went_right: bool,
}

/// A value the teacher never saw.
#[derive(Debug, Clone, PartialEq)]
struct Outside {
    feature: &'static str,
    value: f32,
    min: f32,
    max: f32,
}

impl Explanation {
    /// What `table` does where the features have the `given` values, by name, and why. Values are clamped to the feature's
    /// range and what is no number counts as the least, as in an observation. Features the way does not ask for need not be given.
    ///
    /// # Errors
    /// Unknown features, or a feature the table asks for and nobody gave.
    pub fn of(table: &Table<'_>, given: &BTreeMap<String, f64>) -> Result<Explanation, ExplainError> {
        let read = Given::<NUM_FEATURES>::read(&FEATURES, given)?;
        let observation = Observation { values: read.values };
        let path = table.path(&observation).map(|(_, step)| step);
        let comparisons = read.comparisons(path, &table.nodes())?;
        let (leaf, action) = table.leaf(&observation);
        let controls = action.controls();
        let choice = |&head: &Head| (head.name(), controls.get(head).to_string());
        let choices = table.heads().iter().map(choice).collect();
        Ok(read.explanation(comparisons, leaf, choices, table.ranges()))
    }

    /// How long blocks stay cached that are given back where the features of a release have the `given` values, and why;
    /// otherwise as [`of`](Self::of).
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn of_release(tree: &RetentionTable<'_>, given: &BTreeMap<String, f64>) -> Result<Explanation, ExplainError> {
        let read = Given::<NUM_RELEASE_FEATURES>::read(&RELEASE_FEATURES, given)?;
        let seen = ReleaseObservation { values: read.values };
        let comparisons = read.comparisons(tree.path(&seen).map(|(_, step)| step), &tree.nodes())?;
        let (leaf, class) = tree.leaf(&seen);
        let choices = vec![("retention", class.name().to_owned())];
        Ok(read.explanation(comparisons, leaf, choices, tree.section().ranges()))
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write_text(&mut out).expect("a string takes everything");
        out
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        for ExplainedStep { feature, value, threshold, went_right, .. } in &self.comparisons {
            let sign = if *went_right { ">" } else { "<=" };
            writeln!(out, "{feature} {} {sign} {}", short(*value), short(*threshold))?;
        }
        let choices: Vec<String> = self.choices.iter().map(|(name, choice)| format!("{name} {choice}")).collect();
        writeln!(out, "so: {} (node {})", choices.join(", "), self.leaf)?;
        for Replaced { feature, given, seen } in &self.replaced {
            writeln!(out, "beware: {feature} cannot be {given}; it counts as {}", short(*seen))?;
        }
        for Outside { feature, value, min, max } in &self.outside {
            let (value, min, max) = (short(*value), short(*min), short(*max));
            writeln!(out, "beware: {feature} {value} is outside the trained range [{min}, {max}]")?;
        }
        Ok(())
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let number = |value: f32| value.to_string().parse::<f64>().map_or(Value::Null, Value::from);
        let step = |step: &ExplainedStep| {
            json!({
                "node": step.node,
                "feature": step.feature,
                "value": number(step.value),
                "threshold": number(step.threshold),
                "greater": step.went_right,
            })
        };
        let outside = |one: &Outside| json!({"feature": one.feature, "value": number(one.value), "min": number(one.min), "max": number(one.max)});
        let choice = |(decided, name): &(&str, String)| {
            ((*decided).to_owned(), name.parse::<f64>().map_or_else(|_| name.as_str().into(), Value::from))
        };
        json!({
            "comparisons": self.comparisons.iter().map(step).collect::<Vec<Value>>(),
            "leaf": self.leaf,
            "action": self.choices.iter().map(choice).collect::<Map<String, Value>>(),
            "observation": self.seen.iter().map(|(name, value)| ((*name).to_owned(), number(*value))).collect::<Map<String, Value>>(),
            "outside_trained_range": self.outside.iter().map(outside).collect::<Vec<Value>>(),
        })
    }
}

/// Values as a tree over so many features sees them.
struct Given<const N: usize> {
    specs: &'static [FeatureSpec; N],
    values: [f32; N],
    /// Which of them were given.
    known: [bool; N],
    seen: Vec<(&'static str, f32)>,
    replaced: Vec<Replaced>,
}

impl<const N: usize> Given<N> {
    fn read(specs: &'static [FeatureSpec; N], given: &BTreeMap<String, f64>) -> Result<Given<N>, ExplainError> {
        let (seen, replaced) = (Vec::new(), Vec::new());
        let mut read = Given { specs, values: [0.0; N], known: [false; N], seen, replaced };
        let mut unknown = Vec::new();
        for (name, &value) in given {
            let Some(feature) = specs.iter().position(|spec| spec.name == name) else {
                unknown.push(name.clone());
                continue;
            };
            let FeatureSpec { name, min, max, .. } = specs[feature];
            let narrow = value as f32;
            let counts_as = if narrow.is_nan() { min } else { narrow.clamp(min, max) };
            (read.values[feature], read.known[feature]) = (counts_as, true);
            read.seen.push((name, counts_as));
            if counts_as != narrow {
                read.replaced.push(Replaced { feature: name, given: value.to_string(), seen: counts_as });
            }
        }
        if unknown.is_empty() {
            return Ok(read);
        }
        Err(ExplainError::Unknown { names: unknown, known: specs.iter().map(|spec| spec.name).collect() })
    }

    /// The way through a tree with these `nodes`.
    fn comparisons(
        &self,
        path: impl Iterator<Item = PathStep>,
        nodes: &(impl Iterator<Item = TreeNode> + Clone),
    ) -> Result<Vec<ExplainedStep>, ExplainError> {
        let asks = |feature: usize| {
            let is_asked =
                |node| matches!(node, TreeNode::Split { feature: asked, .. } if usize::from(asked) == feature);
            nodes.clone().any(is_asked)
        };
        let step = |PathStep { node, feature, value, threshold, went_right }| {
            let (feature, name) = (usize::from(feature), self.specs[usize::from(feature)].name);
            if !self.known[feature] {
                let decides_by = (0..N).filter(|&feature| asks(feature)).map(|feature| self.specs[feature].name);
                return Err(ExplainError::Missing { asked: name, decides_by: decides_by.collect() });
            }
            Ok(ExplainedStep { node, feature: name, value, threshold, went_right })
        };
        path.map(step).collect()
    }

    fn explanation(
        self,
        comparisons: Vec<ExplainedStep>,
        leaf: u16,
        choices: Vec<(&'static str, String)>,
        ranges: impl Iterator<Item = FeatureRange>,
    ) -> Explanation {
        let outside = ranges
            .take(N)
            .enumerate()
            .filter(|&(feature, range)| self.known[feature] && !range.contains(self.values[feature], 0.0));
        let outside = outside.map(|(feature, FeatureRange { min, max })| Outside {
            feature: self.specs[feature].name,
            value: self.values[feature],
            min,
            max,
        });
        Explanation { comparisons, leaf, choices, outside: outside.collect(), seen: self.seen, replaced: self.replaced }
    }
}
