//! Synthetic workloads as text: `chat:rate=5,duration=600`.

use std::fmt;
use std::str::FromStr;

use super::synthetic::{Extent, SyntheticSpec};
use super::{DayMix, Duration, LengthScale, LogNormal, TrafficProfile, WorkloadError, day};
use crate::time::Micros;

/// What every profile takes.
const KEYS: &str = "rate, duration, n, cv, lengths, seed";

/// Reads `[synthetic:]PROFILE:key=value,…`.
///
/// | key | meaning | default |
/// |---|---|---|
/// | `rate` | mean requests per second, or `inf`: everything arrives at time 0 | `inf` with `n` |
/// | `duration` | how long: `600`, `600s`, `10m`; needs a `rate` | one of the two |
/// | `n` | how many requests | is required |
/// | `cv` | coefficient of variation of the time between arrivals | the profile's |
/// | `lengths` | what lengths are multiplied by: `0.5`, or `PROMPT:OUTPUT` | 1 |
/// | `seed` | whole number | 0 |
///
/// Profiles are `chat`, `code`, `reasoning`, `mix`, `agentic` (where `rate` is sessions that start per second and `n` is
/// sessions, and `cv` is that of the time between their starts: `agentic:rate=0.05,duration=1h`), `uniform` and
/// `lognormal`; and `day`, a day of all kinds compressed into `duration` (default 2 h; it takes no `n`), with `peak` (the highest hour over the
/// mean, default 1.84) and `mix` (parts of chat, code, reasoning and agents' requests, default `50:20:20:10`):
/// `day:rate=4,peak=2.5,mix=40:20:30:10`. `uniform` and `lognormal` also take `in` and `out` (mean tokens, required). `uniform` takes `spread` (default 0):
/// `uniform:n=450,in=1000,out=5000,spread=0.2,rate=2`. `lognormal` takes the 95th percentiles `in_p95` and `out_p95`
/// (required; see [`LogNormal`]): `lognormal:rate=0.5,duration=1h,in=1000,in_p95=2500,out=3000,out_p95=9000`. Without `rate`,
/// that is what a closed loop takes its requests from: all are there, and each is sent when a client is free.
impl FromStr for SyntheticSpec {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<SyntheticSpec, WorkloadError> {
        let wrong = |reason: String| WorkloadError::spec(text, reason);
        let body = text.strip_prefix("synthetic:").unwrap_or(text);
        let (name, settings) = body.split_once(':').unwrap_or((body, ""));
        let mut settings = Settings::parse(text, settings)?;

        let rate_rps = settings.take("rate", "a number of requests per second, or inf")?;
        let count: Option<u64> = settings.take("n", "a number of requests")?;
        let duration =
            settings.take_text("duration").map(|text| text.parse().map(|Duration(length)| length)).transpose()?;
        let cv = settings.take("cv", "a number")?;
        let lengths = settings.take_text("lengths").map_or(Ok(LengthScale::ONE), |lengths| lengths.parse())?;
        let seed = settings.take("seed", "a whole number")?.unwrap_or(0);
        let profile = settings.profile(name)?;
        let is_usual = profile.is_day() && count.is_none() && duration.is_none();
        let duration = if is_usual { Some(Micros::from_secs_f64(day::USUAL_S as f64)) } else { duration };
        settings.finish(match profile {
            TrafficProfile::Uniform { .. } => "in, out, spread, ",
            TrafficProfile::LogNormal { .. } => "in, in_p95, out, out_p95, ",
            TrafficProfile::Day { .. } => "peak, mix, ",
            _ => "",
        })?;

        let (extent, rate_rps) = match (count, duration) {
            (Some(count), None) => (Extent::Requests(count), rate_rps.unwrap_or(f64::INFINITY)),
            (None, Some(duration)) => {
                let missing = || wrong("rate is missing: give rate=REQUESTS_PER_SECOND".to_owned());
                (Extent::Duration(duration), rate_rps.ok_or_else(missing)?)
            }
            (None, None) => return Err(wrong("has no end: give duration=SECONDS or n=REQUESTS".to_owned())),
            (Some(_), Some(_)) => return Err(wrong("has two ends: give duration or n, not both".to_owned())),
        };
        let spec = SyntheticSpec { profile, rate_rps, extent, cv, lengths, seed };
        match spec.check() {
            // As it was written, not as it was understood.
            Err(WorkloadError::Spec { reason, .. }) => Err(WorkloadError::spec(text, reason)),
            checked => checked.map(|()| spec),
        }
    }
}

/// Writes what [`FromStr`] reads back to the same spec.
impl fmt::Display for SyntheticSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:rate={}", self.profile, self.rate_rps)?;
        match self.extent {
            Extent::Requests(count) => write!(f, ",n={count}")?,
            Extent::Duration(length) => write!(f, ",duration={}", Duration(length))?,
        }
        if let TrafficProfile::Uniform { prompt_mean, output_mean, spread } = self.profile {
            write!(f, ",in={prompt_mean},out={output_mean},spread={spread}")?;
        }
        if let TrafficProfile::LogNormal { prompt, output } = self.profile {
            let (LogNormal { mean: prompt, p95: prompt_p95 }, LogNormal { mean: output, p95: output_p95 }) =
                (prompt, output);
            write!(f, ",in={prompt},in_p95={prompt_p95},out={output},out_p95={output_p95}")?;
        }
        if let TrafficProfile::Day { peak, mix } = self.profile {
            write!(f, ",peak={peak},mix={mix}")?;
        }
        if let Some(cv) = self.cv {
            write!(f, ",cv={cv}")?;
        }
        if self.lengths != LengthScale::ONE {
            write!(f, ",lengths={}", self.lengths)?;
        }
        write!(f, ",seed={}", self.seed)
    }
}

impl TryFrom<String> for SyntheticSpec {
    type Error = WorkloadError;

    fn try_from(text: String) -> Result<SyntheticSpec, WorkloadError> {
        text.parse()
    }
}

impl From<SyntheticSpec> for String {
    fn from(spec: SyntheticSpec) -> String {
        spec.to_string()
    }
}

/// The settings that have not been taken yet.
struct Settings<'a> {
    text: &'a str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    fn parse(text: &'a str, settings: &'a str) -> Result<Settings<'a>, WorkloadError> {
        let mut left: Vec<(&str, &str)> = Vec::new();
        for setting in settings.split(',').filter(|setting| !setting.trim().is_empty()) {
            let (key, value) = setting
                .split_once('=')
                .ok_or_else(|| WorkloadError::spec(text, format!("`{setting}` is not key=value")))?;
            if left.iter().any(|(known, _)| *known == key.trim()) {
                return Err(WorkloadError::spec(text, format!("{} is given twice", key.trim())));
            }
            left.push((key.trim(), value.trim()));
        }
        Ok(Settings { text, left })
    }

    fn take_text(&mut self, key: &str) -> Option<String> {
        let index = self.left.iter().position(|(known, _)| *known == key)?;
        Some(self.left.remove(index).1.to_owned())
    }

    fn take<T: FromStr>(&mut self, key: &str, expected: &str) -> Result<Option<T>, WorkloadError> {
        let Some(value) = self.take_text(key) else { return Ok(None) };
        let wrong = |_| WorkloadError::spec(self.text, format!("{key} `{value}` is not {expected}"));
        value.parse().map(Some).map_err(wrong)
    }

    /// A number of tokens that must be given.
    fn tokens(&mut self, key: &str) -> Result<u32, WorkloadError> {
        let expected = "a number of tokens";
        let missing = || WorkloadError::spec(self.text, format!("{key} is missing: give {key}={expected}"));
        self.take(key, expected)?.ok_or_else(missing)
    }

    /// The profile of that name, with the lengths it takes.
    fn profile(&mut self, name: &str) -> Result<TrafficProfile, WorkloadError> {
        Ok(match name {
            "chat" => TrafficProfile::Chat,
            "code" => TrafficProfile::Code,
            "reasoning" => TrafficProfile::Reasoning,
            "mix" => TrafficProfile::Mix,
            "agentic" => TrafficProfile::Agentic,
            "day" => TrafficProfile::Day {
                peak: self.take("peak", "a number from 1")?.unwrap_or(day::RECORDED_PEAK),
                mix: self
                    .take("mix", "parts of chat, code, reasoning and agents, as in 50:20:20:10")?
                    .unwrap_or(DayMix::USUAL),
            },
            "uniform" => TrafficProfile::Uniform {
                prompt_mean: self.tokens("in")?,
                output_mean: self.tokens("out")?,
                spread: self.take("spread", "a number from 0 to 1")?.unwrap_or(0.0),
            },
            "lognormal" => TrafficProfile::LogNormal {
                prompt: LogNormal { mean: self.tokens("in")?, p95: self.tokens("in_p95")? },
                output: LogNormal { mean: self.tokens("out")?, p95: self.tokens("out_p95")? },
            },
            _ => {
                let known = "known are chat, code, reasoning, mix, agentic, day, uniform, lognormal";
                return Err(WorkloadError::spec(self.text, format!("unknown profile `{name}`: {known}")));
            }
        })
    }

    fn finish(self, extra_keys: &str) -> Result<(), WorkloadError> {
        match self.left.first() {
            Some((key, _)) => {
                let reason = format!("unknown setting `{key}`: known are {extra_keys}{KEYS}");
                Err(WorkloadError::spec(self.text, reason))
            }
            None => Ok(()),
        }
    }
}
