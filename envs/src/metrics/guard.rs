//! What a guard did in a run.

use std::collections::BTreeMap;

use kvtide_runtime::{FEATURES, Fallback, Feature, GuardState};
use serde::{Deserialize, Serialize};

/// What a guard did in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardReport {
    /// Decisions asked for.
    pub decisions: u64,
    /// Decisions that fell back, by reason; reasons that never held are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fallbacks: BTreeMap<String, u64>,
    /// Decisions at which a feature the table decides by was out of range, by its name, whether or not they fell back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub out_of_range: BTreeMap<String, u64>,
    /// Why the last decision fell back, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_fallback: Option<String>,
}

impl GuardReport {
    /// Of no decisions.
    pub fn none() -> GuardReport {
        GuardReport { decisions: 0, fallbacks: BTreeMap::new(), out_of_range: BTreeMap::new(), last_fallback: None }
    }

    /// What `state` has counted.
    pub fn of(state: &GuardState) -> GuardReport {
        let fallbacks = Fallback::ALL.map(|reason| (reason.name(), state.counters().fallbacks(reason)));
        let outside = Feature::ALL.map(|feature| (FEATURES[feature as usize].name, state.times_outside(feature)));
        let counted = |pairs: &[(&str, u64)]| {
            pairs.iter().filter(|(_, count)| *count > 0).map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        GuardReport {
            decisions: state.counters().decisions,
            fallbacks: counted(&fallbacks),
            out_of_range: counted(&outside),
            last_fallback: state.last_fallback().map(|reason| reason.name().to_owned()),
        }
    }

    /// Decisions that fell back.
    pub fn fallen_back(&self) -> u64 {
        self.fallbacks.values().sum()
    }

    /// Share of decisions that fell back; 0 of none.
    pub fn share(&self) -> f64 {
        if self.decisions == 0 { 0.0 } else { self.fallen_back() as f64 / self.decisions as f64 }
    }
}
