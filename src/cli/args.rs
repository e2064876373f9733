//! Arguments several commands share, and what they mean.

use anyhow::{Context, bail, ensure};
use clap::Args;
use kvtide_envs::workload::{Window, windows};

use crate::evaluate::{PolicySpec, Subject};
use crate::world::World;

/// What is drawn of the traffic.
#[derive(Debug, Clone, Args)]
pub(super) struct DrawArgs {
    /// Load factors, comma-separated; 1 is the traffic as recorded.
    #[arg(
        long,
        visible_alias = "loads",
        value_name = "LOAD,…",
        value_delimiter = ',',
        default_value = "1",
        allow_hyphen_values = true
    )]
    load: Vec<String>,
    /// Seeds: 1..5 (both included) or 1,2,7.
    #[arg(long, value_name = "SEEDS", default_value = "1", allow_hyphen_values = true)]
    seeds: String,
    /// Only arrivals of this part of the traffic, such as 600s..1200s.
    #[arg(long, value_name = "START..END", allow_hyphen_values = true)]
    window: Option<String>,
    /// Cut the traffic (or --window) into this many equal windows.
    #[arg(long, value_name = "N", default_value_t = 1)]
    windows: u32,
}

/// Most seeds of one call.
const MAX_SEEDS: u64 = 10_000;

impl DrawArgs {
    pub(super) fn loads(&self) -> anyhow::Result<Vec<f64>> {
        let parse = |text: &String| {
            let load = text.parse::<f64>().ok().filter(|load| (1e-6..=1e3).contains(load));
            load.with_context(|| format!("--load {text:?}: expected a number from 0.000001 to 1000"))
        };
        let loads: Vec<f64> = self.load.iter().map(parse).collect::<anyhow::Result<_>>()?;
        if let Some((_, load)) = loads.iter().enumerate().find(|(index, load)| loads[..*index].contains(load)) {
            bail!("--load {load} is given twice");
        }
        Ok(loads)
    }

    pub(super) fn seeds(&self) -> anyhow::Result<Vec<u64>> {
        parse_seeds(&self.seeds).with_context(|| format!("--seeds {:?}", self.seeds))
    }

    /// The windows asked for; `otherwise` if none was.
    pub(super) fn windows(&self, world: &World, otherwise: Option<Window>) -> anyhow::Result<Vec<Option<Window>>> {
        let given: Option<Window> = self.window.as_deref().map(str::parse).transpose().context("--window")?;
        let whole = given.or(otherwise);
        ensure!(self.windows >= 1, "--windows 0: expected at least 1");
        if self.windows == 1 {
            return Ok(vec![whole]);
        }
        let start = whole.map_or_else(Default::default, |window| window.start);
        let span = match whole {
            Some(window) => window.length(),
            None => world.span()?,
        };
        let parts = windows::equal(span, self.windows).context("--windows")?;
        Ok(parts.into_iter().map(|part| Some(Window { start: start + part.start, end: start + part.end })).collect())
    }
}

fn parse_seeds(text: &str) -> anyhow::Result<Vec<u64>> {
    let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{text:?} is not a whole number"));
    let seeds: Vec<u64> = match text.split_once("..") {
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last.trim_start_matches('='))?);
            ensure!(first <= last, "the last seed is below the first");
            ensure!(last - first < MAX_SEEDS, "more than {MAX_SEEDS} seeds");
            (first..=last).collect()
        }
        None => text.split(',').map(number).collect::<anyhow::Result<_>>()?,
    };
    let repeated = seeds.iter().enumerate().find(|(index, seed)| seeds[..*index].contains(seed));
    if let Some((_, seed)) = repeated {
        bail!("seed {seed} is given twice");
    }
    Ok(seeds)
}

/// Loads the policies, each under the name it was given.
pub(super) fn load_policies(texts: &[String]) -> anyhow::Result<Vec<(String, Subject)>> {
    let mut policies: Vec<(String, Subject)> = Vec::new();
    for text in texts {
        let spec: PolicySpec = text.parse()?;
        let name = spec.to_string();
        ensure!(policies.iter().all(|(known, _)| *known != name), "policy {name} is given twice");
        policies.push((name, Subject::load(&spec)?));
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_ranges_or_lists() {
        assert_eq!(parse_seeds("1..3").unwrap(), [1, 2, 3]);
        assert_eq!(parse_seeds("7").unwrap(), [7]);
        assert_eq!(parse_seeds("4,1").unwrap(), [4, 1]);
        for bad in ["", "a", "3..1", "1,1", "0..99999"] {
            assert!(parse_seeds(bad).is_err(), "{bad}");
        }
    }
}
