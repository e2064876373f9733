//! Why a table decides as it does.

use std::collections::BTreeMap;
use std::fmt::Write;

use kvtide_runtime::{FEATURES, Feature, Head, NUM_FEATURES, Observation, Table, TreeNode};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::rules::short;

/// Why an observation explains nothing.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ExplainError {
    /// There are no such features.
    #[error("{}: no such feature; known: {}", list(.0), FEATURES.map(|spec| spec.name).join(", "))]
    Unknown(Vec<String>),
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
    /// The heads the table decides, and what it says.
    choices: Vec<(Head, String)>,
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
        let mut observation = Observation::ZERO;
        let mut known = [false; NUM_FEATURES];
        let (mut unknown, mut seen, mut replaced) = (Vec::new(), Vec::new(), Vec::new());
        for (name, &value) in given {
            let Some(feature) = Feature::ALL.into_iter().find(|&feature| spec(feature).name == name) else {
                unknown.push(name.clone());
                continue;
            };
            observation.set(feature, value as f32);
            known[feature as usize] = true;
            let (feature, counts_as) = (spec(feature).name, observation[feature]);
            seen.push((feature, counts_as));
            if counts_as != value as f32 {
                replaced.push(Replaced { feature, given: value.to_string(), seen: counts_as });
            }
        }
        if !unknown.is_empty() {
            return Err(ExplainError::Unknown(unknown));
        }
        let mut comparisons = Vec::new();
        for (feature, comparison) in table.path(&observation) {
            if !known[feature as usize] {
                let asks = |feature: &Feature| {
                    table
                        .nodes()
                        .any(|node| matches!(node, TreeNode::Split { feature: asked, .. } if asked == *feature as u8))
                };
                let decides_by = Feature::ALL.into_iter().filter(asks).map(|feature| spec(feature).name).collect();
                return Err(ExplainError::Missing { asked: spec(feature).name, decides_by });
            }
            comparisons.push(ExplainedStep {
                node: comparison.node,
                feature: spec(feature).name,
                value: comparison.value,
                threshold: comparison.threshold,
                went_right: comparison.went_right,
            });
        }
        let (leaf, action) = table.leaf(&observation);
        let controls = action.controls();
        let choice = |&head: &Head| (head, controls.get(head).to_string());
        let outside = Feature::ALL
            .into_iter()
            .zip(table.ranges())
            .filter(|(feature, range)| known[*feature as usize] && !range.contains(observation[*feature], 0.0));
        let outside = outside.map(|(feature, range)| Outside {
            feature: spec(feature).name,
            value: observation[feature],
            min: range.min,
            max: range.max,
        });
        Ok(Explanation {
            comparisons,
            leaf,
            choices: table.heads().iter().map(choice).collect(),
            outside: outside.collect(),
            seen,
            replaced,
        })
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
        let choices: Vec<String> =
            self.choices.iter().map(|(head, choice)| format!("{} {choice}", head.name())).collect();
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
        let choice = |(head, name): &(Head, String)| {
            (head.name().to_owned(), name.parse::<f64>().map_or_else(|_| name.as_str().into(), Value::from))
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

fn spec(feature: Feature) -> &'static kvtide_runtime::FeatureSpec {
    &FEATURES[feature as usize]
}
