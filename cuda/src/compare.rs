//! The same traffic on a device and in the model.

use std::fmt::Write;
use std::sync::Arc;

use kvtide_envs::env::{EngineDefault, Node, NodeConfig, RunError, run};
use kvtide_envs::memory::MemorySource;
use kvtide_envs::metrics::{Collector, Percentiles, Summary};
use kvtide_envs::time::Micros;
use kvtide_envs::trace::Request;
use kvtide_envs::workload::{SyntheticSpec, WorkloadError};
use serde::{Deserialize, Serialize};

/// What arrives until then is served once before it counts.
const WARM_UP: Micros = Micros::from_millis(2000);
/// Steps between decisions: the engine's defaults are constant, so any number does.
const INTERVAL: u32 = 8;

/// One number, on the device and in the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Which: `output_tok_s`, `ttft_p50_ms`, …
    pub name: String,
    /// On the device.
    pub device: f64,
    /// In the model.
    pub model: f64,
    /// What the model may be off by, as a share.
    pub bound: f64,
}

impl Agreement {
    /// Relative error of the model; negative where it says less.
    pub fn error(&self) -> f64 {
        self.model / self.device - 1.0
    }

    /// Whether the model is within its bound.
    pub fn holds(&self) -> bool {
        self.error().abs() <= self.bound
    }
}

/// A run on the device beside the same run in the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceComparison {
    /// What was served, and how.
    pub name: String,
    /// On the device.
    pub device: Summary,
    /// In the model.
    pub model: Summary,
    /// Their numbers.
    pub agreement: Vec<Agreement>,
}

/// Serves `requests` under the engine's defaults with blocks in `memory`, whose measured time counts, and once more in the
/// cost model of `config`.
///
/// # Errors
/// The device failed, a block does not hold what was written to it, or the engine cannot serve this.
pub fn compare(
    name: &str,
    config: &NodeConfig,
    requests: &Arc<[Request]>,
    memory: &MemorySource,
) -> Result<DeviceComparison, RunError> {
    let serve = |requests: &Arc<[Request]>, memory: &MemorySource| {
        let node = Node::new(config, Arc::clone(requests), Collector::with_gaps());
        let node = node.expect("the settings were validated when they were read");
        run(&mut node.with_memory(memory.memory(&config.engine)?), &mut EngineDefault, INTERVAL)
    };
    // The device once over the first seconds, uncounted: code is loaded, and a cold library would be in the percentiles.
    let first: Arc<[Request]> = requests.iter().filter(|request| request.arrival < WARM_UP).cloned().collect();
    serve(&first, memory)?;
    let (device, model) = (serve(requests, memory)?, serve(requests, &MemorySource::Modelled)?);
    Ok(DeviceComparison { name: name.to_owned(), agreement: agreement(&device, &model), device, model })
}

/// Requests of a generator, such as `chat:rate=8,duration=60`.
///
/// # Errors
/// It cannot draw.
pub fn traffic(spec: &SyntheticSpec) -> Result<Arc<[Request]>, WorkloadError> {
    Ok(spec.generate()?.share())
}

/// One of a run's latencies.
type LatencyOf = fn(&Summary) -> Option<Percentiles>;

/// Throughput within 3 %, medians within 5 %, 99th percentiles within 10 %.
fn agreement(device: &Summary, model: &Summary) -> Vec<Agreement> {
    let mut all = Vec::new();
    let mut tell = |name: String, device: f64, model: f64, bound: f64| {
        if device > 0.0 {
            all.push(Agreement { name, device, model, bound });
        }
    };
    tell("output_tok_s".to_owned(), device.output_tok_s, model.output_tok_s, 0.03);
    let times: [(&str, LatencyOf); 2] = [("ttft", |summary| summary.ttft_ms), ("itl", |summary| summary.itl_ms)];
    for (name, of) in times {
        if let (Some(device), Some(model)) = (of(device), of(model)) {
            tell(format!("{name}_p50_ms"), device.p50, model.p50, 0.05);
            tell(format!("{name}_p99_ms"), device.p99, model.p99, 0.10);
        }
    }
    all
}

/// A comparison for people.
pub(super) fn render(comparison: &DeviceComparison) -> String {
    let mut text = format!("{}\n", comparison.name);
    for row in &comparison.agreement {
        let _ = writeln!(
            text,
            "  {:<14} device {:>12.2}  model {:>12.2}  {:>+7.2} %  (within {:.0} %: {})",
            row.name,
            row.device,
            row.model,
            row.error() * 100.0,
            row.bound * 100.0,
            if row.holds() { "yes" } else { "NO" }
        );
    }
    if let Some(memory) = &comparison.device.memory {
        let _ = writeln!(
            text,
            "  {} requests, {} preemptions, {} blocks out, {} back; {} blocks checked, {} back from the host",
            comparison.device.requests,
            comparison.device.preemptions,
            memory.blocks_out,
            memory.blocks_in,
            memory.blocks_checked,
            memory.round_trips_checked
        );
    }
    text
}
