//! Why a table decides as it does.

use std::collections::BTreeMap;
use std::fmt::Write;

use kvtide_runtime::{Feature, Head, NUM_FEATURES, Observation, Table};
use serde_json::{Map, Value, json};
use thiserror::Error;

use super::rules::{KnownNames, short};

/// Why an observation explains nothing.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ExplainError {
    /// There is no such feature.
    #[error("{0:?} is no feature; `kvtide inspect` lists them")]
    Unknown(String),
    /// A value that is no number, or infinite.
    #[error("{name} = {value}: must be a finite number")]
    Value {
        /// The feature.
        name: String,
        /// What was given.
        value: String,
    },
    /// The table asks for something that was not given.
    #[error("the table asks for {0}, which is not given")]
    Missing(&'static str),
}

/// A decision, comparison by comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    comparisons: Vec<ExplainedStep>,
    leaf: u16,
    /// The heads the table decides, and what it says.
    choices: Vec<(Head, String)>,
    outside: Vec<Outside>,
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
    /// range, as an observation's are. Features the way does not ask for need not be given.
    ///
    /// # Errors
    /// An unknown feature, a value that is not finite, or a feature the table asks for and nobody gave.
    pub fn of(table: &Table<'_>, given: &BTreeMap<String, f64>) -> Result<Explanation, ExplainError> {
        let mut observation = Observation::ZERO;
        let mut known = [false; NUM_FEATURES];
        for (name, &value) in given {
            let feature = Feature::ALL.into_iter().find(|&feature| spec(feature).name == name);
            let feature = feature.ok_or_else(|| ExplainError::Unknown(name.clone()))?;
            if !value.is_finite() {
                return Err(ExplainError::Value { name: name.clone(), value: value.to_string() });
            }
            observation.set(feature, value as f32);
            known[feature as usize] = true;
        }
        let mut comparisons = Vec::new();
        for (feature, comparison) in table.path(&observation) {
            if !known[feature as usize] {
                return Err(ExplainError::Missing(spec(feature).name));
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
        let names = KnownNames::of(&table.file());
        let choice = |&head: &Head| (head, names.choice(head, action.get(head)));
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
            choices: table.profile().heads().iter().map(choice).collect(),
            outside: outside.collect(),
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
            "outside_trained_range": self.outside.iter().map(outside).collect::<Vec<Value>>(),
        })
    }
}

fn spec(feature: Feature) -> &'static kvtide_runtime::FeatureSpec {
    &kvtide_runtime::FEATURES[feature as usize]
}
