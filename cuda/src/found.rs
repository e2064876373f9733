//! What is found out about a device.

use serde::{Deserialize, Serialize};

/// How fast something is, beside the ceiling that was measured in the same call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// What was measured.
    pub name: String,
    /// Bytes per second, at the median.
    pub bytes_per_s: f64,
    /// 10th and 90th percentile of the repeats.
    pub spread: [f64; 2],
    /// How often it was measured.
    pub repeats: u32,
    /// Bytes moved each time.
    pub bytes: u64,
    /// What it is held against; `None` for a ceiling itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Ceiling>,
}

/// A bandwidth nothing of its kind is expected to exceed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// What was measured for it, such as a plain copy.
    pub name: String,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The share of it that is aimed at; `None` if it is only shown for comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
}

impl Speed {
    /// Share of the ceiling; `None` for a ceiling.
    pub fn share(&self) -> Option<f64> {
        self.ceiling.as_ref().map(|ceiling| self.bytes_per_s / ceiling.bytes_per_s)
    }

    /// Whether it reaches its target; `None` if it has none.
    pub fn is_reached(&self) -> Option<bool> {
        let target = self.ceiling.as_ref()?.target?;
        Some(self.share()? >= target)
    }
}

/// A kernel checked against its reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelCheck {
    /// Name of the check.
    pub name: String,
    /// Seeds it was run with.
    pub seeds: u64,
    /// The first seed that failed, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<(u64, String)>,
}
