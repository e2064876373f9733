//! What a guard did in a run.

use std::collections::BTreeMap;
use std::fmt;

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

    /// Of all runs together, the last of which is the last of them; `None` of none.
    pub fn of_all<'a>(reports: impl IntoIterator<Item = &'a GuardReport>) -> Option<GuardReport> {
        reports.into_iter().cloned().reduce(|mut all, report| {
            all.decisions += report.decisions;
            for (reason, count) in report.fallbacks {
                *all.fallbacks.entry(reason).or_default() += count;
            }
            for (feature, count) in report.out_of_range {
                *all.out_of_range.entry(feature).or_default() += count;
            }
            all.last_fallback = report.last_fallback;
            all
        })
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

/// `guard: 12 of 1185 decisions fell back (out_of_range 12); out of range: waiting 20`.
impl fmt::Display for GuardReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<String>>().join(", ")
        };
        write!(f, "guard: {} of {} decisions fell back", self.fallen_back(), self.decisions)?;
        if !self.fallbacks.is_empty() {
            write!(f, " ({})", list(&self.fallbacks))?;
        }
        if !self.out_of_range.is_empty() {
            write!(f, "; out of range: {}", list(&self.out_of_range))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_add_up_and_say_so() {
        let counts = |pairs: &[(&str, u64)]| pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        let away = GuardReport {
            decisions: 10,
            fallbacks: counts(&[("out_of_range", 4)]),
            out_of_range: counts(&[("running", 6), ("waiting", 1)]),
            last_fallback: Some("out_of_range".to_owned()),
        };
        let home = GuardReport { decisions: 20, ..GuardReport::none() };
        assert_eq!(GuardReport::of_all([]), None);
        let both = GuardReport::of_all([&away, &home, &away]).unwrap();
        assert_eq!(
            both.to_string(),
            "guard: 8 of 40 decisions fell back (out_of_range 8); out of range: running 12, waiting 2"
        );
        assert_eq!(both.share(), 0.2);
        assert_eq!(both.last_fallback, away.last_fallback);
        assert_eq!(home.to_string(), "guard: 0 of 20 decisions fell back");
        assert_eq!(GuardReport::none().share(), 0.0);
    }
}
