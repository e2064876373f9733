//! What results call a policy.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::PolicySpec;

/// A policy as results name it: which one it is, and the text that stands for it, which is the spec's own unless a shorter
/// one was given. In files it is that text.
///
/// Two names are equal if they are of the same policy.
#[derive(Debug, Clone)]
pub struct PolicyName {
    spec: PolicySpec,
    text: String,
}

impl PolicyName {
    /// The network, of runs before there was `tune`, and the table of a run, by the names they have in its results, which lie beside
    /// them.
    const AGENT: (&str, &str) = ("agent", "policy");
    const TABLE: (&str, &str) = ("table", "policy.kvt");

    /// `spec` under a text of its own.
    fn titled(spec: PolicySpec, title: &str) -> PolicyName {
        PolicyName { spec, text: title.to_owned() }
    }

    /// A run's table.
    pub fn table(path: &Path) -> PolicyName {
        PolicyName::titled(PolicySpec::Table(path.to_owned()), PolicyName::TABLE.0)
    }

    /// The best constant choice, where only one profile can be meant.
    pub fn best_static(profile: kvtide_runtime::ActionProfile) -> PolicyName {
        PolicyName::titled(PolicySpec::BestStatic(profile), "best-static")
    }

    /// Which policy it is.
    pub fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// A name of any text.
    #[cfg(test)]
    pub fn sample(text: &str) -> PolicyName {
        let spec = text.parse().unwrap_or_else(|_| PolicySpec::Checkpoint(text.into()));
        PolicyName::titled(spec, text)
    }
}

impl From<PolicySpec> for PolicyName {
    fn from(spec: PolicySpec) -> PolicyName {
        PolicyName { text: spec.to_string(), spec }
    }
}

impl PartialEq for PolicyName {
    fn eq(&self, other: &PolicyName) -> bool {
        self.spec == other.spec
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl Serialize for PolicyName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for PolicyName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<PolicyName, D::Error> {
        let text = String::deserialize(from)?;
        let spec = match text.as_str() {
            agent if agent == PolicyName::AGENT.0 => PolicySpec::Checkpoint(PolicyName::AGENT.1.into()),
            table if table == PolicyName::TABLE.0 => PolicySpec::Table(PolicyName::TABLE.1.into()),
            spec => spec.parse().map_err(de::Error::custom)?,
        };
        // As it was written, whatever it would be called today.
        Ok(PolicyName { spec, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_written_as_it_was_read() {
        for text in ["default", "fixed:0.05,victim=most-blocks", "best-static", "best-static:core", "agent", "table"] {
            let json = format!("{text:?}");
            let name: PolicyName = serde_json::from_str(&json).unwrap();
            assert_eq!((name.as_str(), serde_json::to_string(&name).unwrap()), (text, json));
        }
        let unknown = serde_json::from_str::<PolicyName>("\"lru\"").unwrap_err().to_string();
        assert!(unknown.starts_with("unknown policy \"lru\"; known: default"), "{unknown}");
    }

    #[test]
    fn a_policy_is_itself_under_every_name() {
        let full = kvtide_runtime::ActionProfile::Full;
        assert_eq!(PolicyName::best_static(full), PolicySpec::BestStatic(full).into());
        assert_ne!(PolicyName::table(Path::new("a")), PolicyName::table(Path::new("b")));
        assert_eq!(
            format!("{:>9}|{:<9}|", PolicyName::from(PolicySpec::Default), PolicyName::table(Path::new("t"))),
            "  default|table    |"
        );
    }
}
