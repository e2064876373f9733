//! A world as text: what the command line and experiment files say.

use std::path::{Path, PathBuf};

use clap::Args;
use kvtide_envs::sched::Setting;
use kvtide_envs::workload::{Scaling, duration};
use serde::{Deserialize, Serialize};

use super::{Traffic, World, WorldError};

/// Traffic, node and targets.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorldSpec {
    /// Recorded workload: Azure LLM CSV, Mooncake JSONL or kvtide JSONL, plain, gzip or zstd.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// Generated workload, such as chat:rate=2,duration=600 (chat, code, reasoning, mix, uniform).
    #[arg(long, value_name = "SPEC")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Model and hardware: llama-3-8b, qwen2.5-7b or llama-3-70b on [N x]rtx-4090, a10, a100-80g, h100 or h200.
    #[arg(long, value_name = "MODEL@HARDWARE", default_value = "llama-3-8b@rtx-4090")]
    pub env: String,
    /// Targets: ttft:MS,tpot:MS,stall:MS, or a class: chat, agent, document, batch, real-time.
    #[arg(long, default_value = "ttft:2000,tpot:100,stall:3000")]
    pub slo: String,
    /// Engine setting under vLLM's name, such as `num_gpu_blocks=2000`. Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
    /// How a trace's load is scaled: thin (keep a share of the requests, overlay copies) or stretch (scale its clock).
    #[arg(long, value_name = "thin|stretch", default_value = "thin")]
    pub scale: String,
    /// Spread arrivals over the step of a quantised clock, such as 3s.
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<String>,
    /// Scheduler steps between decisions.
    #[arg(long, value_name = "STEPS", default_value_t = 8)]
    pub interval: u32,
}

impl Default for WorldSpec {
    fn default() -> WorldSpec {
        WorldSpec {
            trace: None,
            workload: None,
            env: "llama-3-8b@rtx-4090".to_owned(),
            slo: "ttft:2000,tpot:100,stall:3000".to_owned(),
            set: Vec::new(),
            scale: "thin".to_owned(),
            jitter: None,
            interval: 8,
        }
    }
}

/// Longest decision interval.
const MAX_INTERVAL: u32 = 1_000_000;

impl WorldSpec {
    /// Reads the trace, if there is one, and resolves everything.
    ///
    /// # Errors
    /// What is wrong, with the option it stands in.
    pub fn world(&self) -> Result<World, WorldError> {
        let settings: Result<Vec<Setting>, _> = self.set.iter().map(|text| text.parse()).collect();
        if !(1..=MAX_INTERVAL).contains(&self.interval) {
            return Err(wrong("interval", &self.interval.to_string(), "1 to 1000000 steps"));
        }
        World::new(&self.traffic()?, &self.env, &settings?, self.slo.parse()?, self.interval)
    }

    /// Where traffic comes from.
    fn traffic(&self) -> Result<Traffic, WorldError> {
        let scaling = match self.scale.as_str() {
            "thin" => Scaling::Thin,
            "stretch" => Scaling::Stretch,
            other => return Err(wrong("scale", other, "thin or stretch")),
        };
        let jitter = self.jitter.as_deref().map(duration::parse).transpose()?;
        match (&self.trace, &self.workload) {
            (Some(path), None) => Ok(Traffic::Trace { path: path.clone(), scaling, jitter }),
            (None, Some(spec)) => Ok(Traffic::Synthetic(spec.parse()?)),
            (None, None) => Err(WorldError::NoTraffic),
            (Some(_), Some(_)) => Err(WorldError::TwoTraffics),
        }
    }

    /// The same world with paths that were relative to `folder`.
    #[must_use]
    pub fn relative_to(mut self, folder: &Path) -> WorldSpec {
        self.trace = self.trace.map(|path| folder.join(path));
        self
    }
}

fn wrong(option: &'static str, value: &str, expected: &'static str) -> WorldError {
    WorldError::Option { option, value: value.to_owned(), expected }
}
