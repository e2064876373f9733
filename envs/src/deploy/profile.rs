//! Hardware profiles as files: what `kvtide calibrate` writes and `--env model@FILE.toml` reads.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Hardware;
use super::line::line_of;

/// Largest file read, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// An accelerator, and where its numbers come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Tables", into = "Tables")]
pub struct HardwareProfile {
    /// The accelerator.
    pub hardware: Hardware,
    /// How the numbers were found, if they were fitted.
    pub provenance: Option<FittedTo>,
}

/// What a profile was fitted to.
#[derive(Debug, Clone, PartialEq)]
pub enum FittedTo {
    /// A run that an engine served; the table `[provenance]`.
    Run(ServedRun),
    /// Steps and copies timed one by one; the table `[timings]`.
    Timings(DeviceTimings),
    /// What clients saw of many runs; the table `[summaries]`.
    Summaries(ServedSummaries),
}

/// A profile as a file: each kind of provenance has its own table, so that a mistake is told with its line.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    hardware: Hardware,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provenance: Option<ServedRun>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timings: Option<DeviceTimings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    summaries: Option<ServedSummaries>,
}

impl TryFrom<Tables> for HardwareProfile {
    type Error = String;

    fn try_from(Tables { hardware, provenance, timings, summaries }: Tables) -> Result<HardwareProfile, String> {
        let fitted = [
            ("provenance", provenance.map(FittedTo::Run)),
            ("timings", timings.map(FittedTo::Timings)),
            ("summaries", summaries.map(FittedTo::Summaries)),
        ];
        let mut fitted = fitted.into_iter().filter_map(|(table, fitted)| Some((table, fitted?)));
        let provenance = fitted.next();
        if let (Some((one, _)), Some((other, _))) = (&provenance, fitted.next()) {
            return Err(format!("both [{one}] and [{other}]: a profile is fitted to one of them"));
        }
        let provenance = provenance.map(|(_, fitted)| fitted);
        Ok(HardwareProfile { hardware, provenance })
    }
}

impl From<HardwareProfile> for Tables {
    fn from(HardwareProfile { hardware, provenance: fitted }: HardwareProfile) -> Tables {
        let (mut provenance, mut timings, mut summaries) = (None, None, None);
        match fitted {
            Some(FittedTo::Run(run)) => provenance = Some(run),
            Some(FittedTo::Timings(all)) => timings = Some(all),
            Some(FittedTo::Summaries(all)) => summaries = Some(all),
            None => {}
        }
        Tables { hardware, provenance, timings, summaries }
    }
}

/// The runs of which clients' figures a profile was fitted to, and how well it tells those held out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedSummaries {
    /// The command that wrote it.
    pub command: String,
    /// What wrote it: `kvtide 0.1.0`.
    pub version: String,
    /// The folder of the runs.
    pub data: String,
    /// The accelerator, as the runs name it.
    pub gpu: String,
    /// The profile it was fitted from.
    pub hardware: String,
    /// The models of the runs, as they name them.
    pub models: Vec<String>,
    /// Runs it was fitted to.
    pub runs: u64,
    /// Median error of the mean time to the end of an answer, of the worst of the models, on runs held out, or where none were on
    /// those fitted; 0.01 is one per cent.
    pub median_e2e_error: f64,
}

/// The timings a profile was fitted to, and how well it predicts those held out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceTimings {
    /// The device, as its driver names it.
    pub device: String,
    /// The driver's version.
    pub driver: String,
    /// When it was measured, as whoever measured it says.
    pub date: String,
    /// The commit of what was measured.
    pub commit: String,
    /// Model and accelerator whose steps were timed.
    pub env: String,
    /// Points the constants were found from.
    pub points_fitted: u64,
    /// Points the errors were found from, none of them fitted.
    pub points_held_out: u64,
    /// Median relative error on those; 0.01 is one per cent.
    pub median_error: f64,
    /// Its 95th percentile.
    pub p95_error: f64,
}

/// The run a profile was fitted to, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServedRun {
    /// The command that wrote it.
    pub command: String,
    /// What wrote it: `kvtide 0.1.0`.
    pub version: String,
    /// The measured run: its file or folder.
    pub data: String,
    /// When the run was recorded, as it says.
    pub recorded: String,
    /// The engine that was measured: `vLLM 0.19.0`.
    pub engine: String,
    /// Model and accelerators the run was simulated on.
    pub env: String,
    /// Share of the run's time that was fitted.
    pub fit_fraction: f64,
    /// The same in seconds.
    pub fit_until_s: f64,
    /// Requests that had arrived by then.
    pub requests: u64,
    /// Running requests seen in the middle nine tenths of the time. Outside, the profile extrapolates.
    pub running: [f64; 2],
    /// Share of KV blocks in use seen in the middle nine tenths of the time.
    pub kv_usage: [f64; 2],
    /// Time the first step took beyond what the profile says: the run's cold start, which is no part of the profile.
    pub cold_start_s: f64,
}

/// A profile that cannot be used: file, line, reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}:{} {reason}", path.display(), line.map(|line| format!("{line}:")).unwrap_or_default())]
pub struct ProfileError {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1; `None` where the whole file is meant.
    pub line: Option<usize>,
    /// The reason.
    pub reason: String,
}

impl HardwareProfile {
    /// Reads a profile and checks its ranges.
    ///
    /// # Errors
    /// The file cannot be read, is no profile, or a value is out of range.
    pub fn read(path: &Path) -> Result<HardwareProfile, ProfileError> {
        let error = |line, reason| ProfileError { path: path.to_owned(), line, reason };
        let mut text = String::new();
        let file = File::open(path).map_err(|io| error(None, format!("cannot open: {io}")))?;
        let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
        read.map_err(|io| error(None, format!("cannot read: {io}")))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(error(None, format!("longer than {MAX_BYTES} bytes")));
        }
        HardwareProfile::parse(&text).map_err(|(line, reason)| error(line, reason))
    }

    /// `hardware`, fitted to something, as the profile in the file `path`: it bears the file's name.
    pub fn fitted(path: &Path, hardware: Hardware, provenance: FittedTo) -> HardwareProfile {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        HardwareProfile { hardware: Hardware { name, ..hardware }, provenance: Some(provenance) }
    }

    /// Reads a profile as [`to_toml`](Self::to_toml) writes it, and checks its ranges.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub fn parse(text: &str) -> Result<HardwareProfile, (Option<usize>, String)> {
        let profile: HardwareProfile = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            (line, error.message().to_owned())
        })?;
        profile.hardware.validate_by_section().map_err(|(section, error)| {
            let line = error.key().and_then(|key| line_of(text, section, key));
            (line, error.to_string())
        })?;
        Ok(profile)
    }

    /// The profile as a file.
    pub fn to_toml(&self) -> String {
        // Tables have a line for each row, which makes them last.
        let mut plain = self.clone();
        let tables = plain.hardware.tables.take().map_or_else(String::new, |tables| tables.to_toml());
        let body = toml::to_string(&plain).expect("a profile is plain tables and values");
        let unit = if tables.is_empty() { "" } else { "; times of kernels in microseconds" };
        format!(
            "# A hardware profile of kvtide: use it with --env MODEL@FILE.toml.\n\
             # FLOP/s, bytes/s, bytes, shares of the peaks, seconds{unit}.\n\n{body}{tables}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::{HostTimes, KernelTimes};
    use super::*;

    fn profile() -> HardwareProfile {
        HardwareProfile { hardware: Hardware::named("a10").unwrap(), provenance: None }
    }

    /// An accelerator with a curve.
    fn timed() -> Hardware {
        let kernels = KernelTimes {
            tokens: vec![1, 64],
            ps_per_weight: vec![0.5, 2.0],
            decode_bandwidth: 0.7,
            decode_sequence: 1e-6,
            chunk_compute: 0.5,
            chunk_tile: 128,
            attention_fixed: 1e-6,
            launch: 1e-4,
            swap_overlap: 0.0,
        };
        Hardware { kernels: Some(kernels), ..profile().hardware }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut fitted = profile();
        fitted.hardware.bandwidth_efficiency = 0.1 + 0.2;
        fitted.provenance = Some(FittedTo::Run(ServedRun {
            command: "kvtide calibrate --measured \"a b\"".to_owned(),
            version: "kvtide 0.1.0".to_owned(),
            data: "a b".to_owned(),
            recorded: "2026-08-20T23:19:39Z".to_owned(),
            engine: "vLLM 0.19.0".to_owned(),
            env: "llama-3-8b@a10".to_owned(),
            fit_fraction: 0.3,
            fit_until_s: 55.07,
            requests: 300,
            running: [2.0, 48.0],
            kv_usage: [0.1, 1.0],
            cold_start_s: 0.35,
        }));
        for profile in [profile(), fitted] {
            assert_eq!(HardwareProfile::parse(&profile.to_toml()), Ok(profile));
        }
    }

    #[test]
    fn mistakes_are_told_with_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.toml");
        let good = profile().to_toml();
        let error = |from: &str, to: &str| {
            assert!(good.contains(from), "{from}");
            std::fs::write(&path, good.replace(from, to)).unwrap();
            let error = HardwareProfile::read(&path).unwrap_err().to_string();
            error.strip_prefix(&path.display().to_string()).unwrap().to_owned()
        };
        assert!(error("name = ", "nam = ").starts_with(":5: unknown field `nam`"));
        assert!(error("compute_efficiency = 0.7\n", "").contains("missing field `compute_efficiency`"));
        assert!(error("0.7", "7.0").starts_with(":11: compute_efficiency=\"7\": expected a share from 0.01 to 1.5"));
        assert!(error("0.7", "\"much\"").starts_with(":11: invalid type: string"));
        assert!(error("[hardware]", "[hardware").starts_with(":4: "));
        // A curve and the host both have a `launch`.
        let both = HardwareProfile {
            hardware: Hardware { host: Some(HostTimes { launch: 7.0, ..HostTimes::default() }), ..timed() },
            provenance: None,
        };
        let text = both.to_toml();
        let (line, wrong) = HardwareProfile::parse(&text).unwrap_err();
        let place = text.lines().position(|line| line == "launch = 7.0").map(|index| index + 1);
        assert!(place.is_some() && line == place && wrong.starts_with("launch=\"7\""), "{line:?} {wrong}");
        let missing = HardwareProfile::read(Path::new("nowhere.toml")).unwrap_err().to_string();
        assert!(missing.starts_with("nowhere.toml: cannot open: No such file"), "{missing}");
    }
}
