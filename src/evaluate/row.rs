//! One run, as it is written.

use std::collections::BTreeMap;

use kvtide_envs::metrics::Summary;
use kvtide_envs::workload::Workload;
use kvtide_runtime::Controls;
use serde::{Deserialize, Serialize};

use super::matrix::{Cell, window_name};
use crate::policy::{PolicyName, PolicySpec};
use crate::record::OwnedEnvelope;
use crate::world::World;

/// One policy on one draw: the `data` of a `run` line.
///
/// Fields that are optional and not said to be so for a reason are those that lines from before kvtide wrote them lack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// The policy as it was named.
    pub policy: PolicyName,
    /// What a policy of hindsight, or the best on training traffic, turned out to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<PolicySpec>,
    /// The traffic.
    pub trace: String,
    /// Whether that is a recorded trace, of which every seed is a draw; a generator's seeds are traces of their own.
    #[serde(default)]
    pub recorded: bool,
    /// Model and hardware.
    pub env: String,
    /// Whose scheduling rules: `v0` or `v1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// The engine that policies are for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// `--set`, by key, as it was written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Other options that are not at their defaults, by name, as they were written.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
    /// The part of the traffic, or `all`.
    pub window: String,
    /// Load factor.
    pub load: f64,
    /// Clients of a closed loop at this load; none where requests come when they come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clients: Option<u32>,
    /// Requests that were offered a second; none in a closed loop, which offers what it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offered_rps: Option<f64>,
    /// Seed of the draw.
    pub seed: u64,
    /// Draw of the clock that priced its steps, from 1; left out where that is the profile's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_draw: Option<u32>,
    /// The targets.
    pub slo: String,
    /// The version of kvtide that ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvtide: Option<String>,
    /// The numbers.
    #[serde(flatten)]
    pub summary: Summary,
}

/// A constant that hindsight looked at, on one draw: the `data` of a `tried` line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TriedRow {
    /// Which constant.
    pub constant: PolicySpec,
    /// The part of the traffic, or `all`.
    pub window: String,
    /// Load factor.
    pub load: f64,
    /// Seed of the draw.
    pub seed: u64,
    /// Draw of the clock that priced its steps, from 1; left out where that is the profile's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_draw: Option<u32>,
    /// What came of it.
    #[serde(flatten)]
    pub tried: Tried,
}

/// What hindsight looks at of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// Attained requests / requests.
    pub slo_attainment: f64,
    /// Generated tokens per second.
    pub output_tok_s: f64,
    /// Whether anybody was preempted.
    pub preempted: bool,
}

impl Tried {
    pub(super) fn of(summary: &Summary) -> Tried {
        let Summary { slo_attainment, output_tok_s, preemptions, .. } = *summary;
        Tried { slo_attainment, output_tok_s, preempted: preemptions > 0 }
    }
}

impl RunRow {
    /// What came of the draw with that seed of `workload` in a cell of `world`, served by the policy called `name`, which hindsight
    /// may have `chosen`.
    pub fn new(
        world: &World,
        name: &PolicyName,
        chosen: Option<Controls>,
        cell: Cell,
        (seed, workload): (u64, &Workload),
        summary: Summary,
    ) -> RunRow {
        let node = world.node_at(cell.load);
        RunRow {
            policy: name.clone(),
            chosen: chosen.map(PolicySpec::Fixed),
            trace: world.trace.clone(),
            recorded: world.is_recorded(),
            env: world.deployment.name(),
            engine: Some(node.engine.engine.name().to_owned()),
            host: Some(node.host.name.to_owned()),
            set: world.asked.set.clone(),
            options: world.asked.options.clone(),
            window: window_name(cell.window),
            load: cell.load,
            clients: node.clients,
            offered_rps: world.offered_rps(workload),
            seed,
            clock_draw: world.clock_draw,
            slo: world.node.slo.to_string(),
            kvtide: Some(env!("CARGO_PKG_VERSION").to_owned()),
            summary,
        }
    }

    /// The run of a line of results, with or without its envelope, which lines had not always; `None` of a line of another type.
    ///
    /// # Errors
    /// It is no line of results.
    pub fn of_line(text: &str) -> serde_json::Result<Option<RunRow>> {
        match serde_json::from_str(text)? {
            OwnedEnvelope { kind: Some(kind), data: Some(data) } => {
                (kind == "run").then(|| serde_json::from_value(data)).transpose()
            }
            _ => serde_json::from_str(text).map(Some),
        }
    }

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
            "offered_rps": 2.0 * load, "requests": 10, "completed": 10, "rejected": 0, "slo_attainment": slo_attainment,
            "goodput_rps": 1.0, "output_tok_s": 1.0, "on_time_tokens": 1.0, "ttft_ms": times, "tpot_ms": null,
            "itl_ms": null, "e2e_ms": null, "longest_wait_ms": 1.0, "longest_stall_ms": null, "preemptions": 0,
            "swap_out_blocks": 0, "swap_in_blocks": 0, "recomputed_tokens": 0, "kv_usage_mean": 0.5, "makespan_s": 1.0,
            "scheduler_steps": 1, "hash": format!("{policy}/{load}/{seed}")
        }))
        .expect("a row as it is written");
        RunRow { policy: PolicyName::sample(policy), ..row }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Envelope;

    #[test]
    fn lines_of_today_and_of_before_are_read() {
        let row = RunRow::sample("default", 0.5, 1, 0.9);
        let bare = serde_json::to_string(&row).unwrap();
        let line = serde_json::to_string(&Envelope { r#type: "run", data: &row }).unwrap();
        // Before there were means it was written without.
        assert!(row.summary.ttft_ms.is_some_and(|times| times.mean.is_none()) && !bare.contains("\"mean\""), "{bare}");
        assert_eq!(RunRow::of_line(&bare).unwrap().as_ref(), Some(&row));
        assert_eq!(RunRow::of_line(&line).unwrap(), Some(row));
        assert_eq!(RunRow::of_line("{\"type\":\"load\",\"data\":{\"load\":1}}").unwrap(), None);
        assert!(RunRow::of_line("{\"load\":1}").is_err() && RunRow::of_line("{").is_err());
    }
}
