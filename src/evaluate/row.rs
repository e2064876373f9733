//! One run, as it is written.

use kvtide_envs::metrics::Summary;
use serde::{Deserialize, Serialize};

use crate::policy::{PolicyName, PolicySpec};

/// One policy on one draw: the `data` of a `run` line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The policy as it was named.
    pub policy: PolicyName,
    /// What a policy of hindsight turned out to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<PolicySpec>,
    /// The traffic.
    pub trace: String,
    /// Whether that is a recorded trace, of which every seed is a draw; a generator's seeds are traces of their own.
    #[serde(default)]
    pub recorded: bool,
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

impl RunRow {
    /// Whether both are of the same window at the same load.
    pub(super) fn is_same_cell(&self, other: &RunRow) -> bool {
        self.window == other.window && self.load == other.load
    }

    /// A run of a generator's traffic like no other, with 10 requests.
    #[cfg(test)]
    pub(crate) fn sample(policy: &str, load: f64, seed: u64, slo_attainment: f64) -> RunRow {
        use serde_json::json;
        let times = json!({"p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0});
        let row: RunRow = serde_json::from_value(json!({
            "policy": "default", "trace": "t", "env": "e", "window": "all", "load": load, "seed": seed, "slo": "s",
            "requests": 10, "completed": 10, "rejected": 0, "slo_attainment": slo_attainment, "goodput_rps": 1.0,
            "output_tok_s": 1.0, "on_time_tokens": 1.0, "ttft_ms": times, "tpot_ms": null, "itl_ms": null,
            "e2e_ms": null, "longest_wait_ms": 1.0, "longest_stall_ms": null, "preemptions": 0, "swap_out_blocks": 0,
            "swap_in_blocks": 0, "recomputed_tokens": 0, "kv_usage_mean": 0.5, "makespan_s": 1.0,
            "scheduler_steps": 1, "hash": format!("{policy}/{load}/{seed}")
        }))
        .expect("a row as it is written");
        RunRow { policy: PolicyName::sample(policy), ..row }
    }
}
