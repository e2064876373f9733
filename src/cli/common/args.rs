//! Arguments several commands share, and what they mean.

use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use kvtide_envs::workload::{Window, windows};

use crate::cli::Exit;
use crate::evaluate::{
    AUTO_DRAWS, AUTO_TARGETS, FoundLoad, Matrix, RunRow, Watch, check_engine, find_loads, rps, unserved,
};
use crate::policy::{PolicyName, PolicySpec, Subject};
use crate::say::{self, Level};
use crate::world::World;

/// What is drawn of the traffic.
#[derive(Debug, Clone, Args)]
pub(in crate::cli) struct DrawArgs {
    /// Load factors, comma-separated; 1 is the traffic as recorded. In a closed loop they multiply the clients. `auto`
    /// looks for those at which the default attains about 0.95, 0.8, 0.6 and 0.4 of the first window.
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

/// Loads to run.
pub(in crate::cli) struct Loads {
    pub(in crate::cli) loads: Vec<f64>,
    /// How they were found, if they were not named.
    pub(in crate::cli) found: Vec<FoundLoad>,
}

impl DrawArgs {
    /// The loads named, or those `known` to have been found, or found on the first window and the first seeds. `None` if
    /// interrupted.
    pub(in crate::cli) fn loads(
        &self,
        world: &World,
        (windows, seeds): (&[Option<Window>], &[u64]),
        known: Option<&[FoundLoad]>,
        watch: &dyn Watch,
        stop: &AtomicBool,
    ) -> anyhow::Result<Option<Loads>> {
        if self.load == ["auto"] {
            let window = windows.first().copied().flatten();
            let seeds = &seeds[..seeds.len().min(AUTO_DRAWS)];
            let found = match known {
                Some(known) => Some(known.to_vec()),
                None => find_loads(world, window, seeds, &AUTO_TARGETS, watch, stop)?,
            };
            let Some(found) = found else { return Ok(None) };
            let mut loads: Vec<f64> = found.iter().filter_map(|found| found.load).collect();
            loads.sort_by(f64::total_cmp);
            loads.dedup();
            ensure!(
                !loads.is_empty(),
                "--loads auto: the default comes near none of {AUTO_TARGETS:?} at any load; name loads"
            );
            return Ok(Some(Loads { loads, found }));
        }
        Ok(Some(Loads { loads: self.named_loads()?, found: Vec::new() }))
    }

    /// What was asked for, as it was written.
    pub(in crate::cli) fn load_text(&self) -> String {
        self.load.join(",")
    }

    fn named_loads(&self) -> anyhow::Result<Vec<f64>> {
        let parse = |text: &String| {
            let load = text.parse::<f64>().ok().filter(|load| (1e-6..=1e3).contains(load));
            load.with_context(|| format!("--load {text:?}: expected a number from 0.000001 to 1000, or auto alone"))
        };
        let loads: Vec<f64> = self.load.iter().map(parse).collect::<anyhow::Result<_>>()?;
        if let Some((_, load)) = loads.iter().enumerate().find(|(index, load)| loads[..*index].contains(load)) {
            bail!("--load {load} is given twice");
        }
        Ok(loads)
    }

    pub(in crate::cli) fn seeds(&self) -> anyhow::Result<Vec<u64>> {
        parse_seeds(&self.seeds).with_context(|| format!("--seeds {:?}", self.seeds))
    }

    /// The windows asked for; `otherwise` if none was.
    pub(in crate::cli) fn windows(
        &self,
        world: &World,
        otherwise: Option<Window>,
    ) -> anyhow::Result<Vec<Option<Window>>> {
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

/// Seeds as they are written: 1..5, both included, or 1,2,7.
pub(in crate::cli) fn parse_seeds(text: &str) -> anyhow::Result<Vec<u64>> {
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

/// Loads that were found, in a line.
pub(in crate::cli) fn found_text(found: &[FoundLoad]) -> String {
    let one = |found: &FoundLoad| match (found.load, found.attained) {
        (Some(load), Some(attained)) => {
            let offered = found.offered_rps.map_or_else(String::new, |rate| format!(", {} req/s", rps(rate)));
            format!("{load} ({:.1} %{offered})", attained * 100.0)
        }
        _ => format!("none for {:.0} %", found.target * 100.0),
    };
    format!("loads by what the default attains: {}", found.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Whether tables are judged as a node runs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum GuardSwitch {
    On,
    Off,
}

/// Loads the policies, each under its name.
pub(in crate::cli) fn load_policies(
    specs: &[PolicySpec],
    guard: GuardSwitch,
) -> anyhow::Result<Vec<(PolicyName, Subject)>> {
    let mut policies: Vec<(PolicyName, Subject)> = Vec::new();
    for spec in specs {
        let name = PolicyName::from(spec.clone());
        ensure!(policies.iter().all(|(known, _)| *known != name), "policy {name} is given twice");
        let subject = Subject::load(spec)?;
        policies.push((name, if guard == GuardSwitch::On { subject } else { subject.unguarded() }));
    }
    Ok(policies)
}

/// Refuses to draw clocks where steps take what a device takes.
pub(in crate::cli) fn clocks_can_be_drawn(draws: Option<u32>, world: &World) -> anyhow::Result<()> {
    ensure!(
        draws.unwrap_or(0) == 0 || !world.memory.is_exclusive(),
        "--clock-spread: a device's steps take what they take, whatever a clock says; leave out --memory"
    );
    Ok(())
}

/// Refuses a policy that the world's host would refuse, or that was made for another engine.
pub(in crate::cli) fn check_policies(policies: &[(PolicyName, Subject)], world: &World) -> anyhow::Result<()> {
    for (name, subject) in policies {
        subject.check(name, &world.node)?;
        check_engine(world, name.spec())?;
    }
    Ok(())
}

/// Whether every policy served somebody; of one that did not, says why.
pub(in crate::cli) fn check_served(world: &World, matrix: &Matrix, rows: &[RunRow]) -> anyhow::Result<Exit> {
    let unserved = unserved(world, matrix, rows)?;
    for policy in &unserved {
        say::line(Level::Quiet, format_args!("error: {policy}"));
    }
    Ok(if unserved.is_empty() { Exit::Done } else { Exit::GateFailed })
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
