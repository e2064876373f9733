//! One run, as it is written.

use kvtide_envs::metrics::Summary;
use serde::{Deserialize, Serialize};

/// One policy on one draw: the `data` of a `run` line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The policy as it was named.
    pub policy: String,
    /// What a policy of hindsight turned out to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
    /// The traffic.
    pub trace: String,
    /// Model and hardware.
    pub env: String,
    /// The part of the traffic, or `all`.
    pub window: String,
    /// Load factor.
    pub load: f64,
    /// Seed of the draw.
    pub seed: u64,
    /// The targets.
    pub slo: String,
    /// The numbers.
    #[serde(flatten)]
    pub summary: Summary,
}
