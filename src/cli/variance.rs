//! `kvtide variance`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::output::Output;
use super::outputs::Outputs;
use super::talk::Talk;
use super::{Exit, stop};
use crate::agent::{Architecture, NetworkPolicy, Prior, Weights};
use crate::checkpoint;
use crate::experiment::Experiment;
use crate::text::{self, Column, TextTable, wrapped};
use crate::train::{self, Listener};
use crate::variance::{Behaviour, Decomposition, Discount, HeldAdvantage, ServingBranches, VarianceConfig, decompose};

#[derive(Debug, Args)]
pub(super) struct VarianceArgs {
    /// Experiment file (TOML): its training traffic, rewards, discount, and the prior that training by PPO would start from.
    #[arg(long, value_name = "FILE")]
    experiment: PathBuf,
    /// Sample from the network of this checkpoint instead of from the prior.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Draws of world, load and node.
    #[arg(long, value_name = "N", default_value_t = VarianceConfig::default().scenes)]
    scenes: u32,
    /// Traffics in each of them.
    #[arg(long, value_name = "N", default_value_t = VarianceConfig::default().traffics)]
    traffics: u32,
    /// Seeds of sampled actions on each traffic.
    #[arg(long, value_name = "N", default_value_t = VarianceConfig::default().actions)]
    actions: u32,
    /// Moments of episodes in which one choice is held against another.
    #[arg(long, value_name = "N", default_value_t = VarianceConfig::default().states)]
    states: u32,
    /// Futures drawn for each of them.
    #[arg(long, value_name = "N", default_value_t = VarianceConfig::default().futures)]
    futures: u32,
    /// For how many decisions a choice is held, comma-separated.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = VarianceConfig::default().holds)]
    holds: Vec<u32>,
    /// Discount instead of the experiment's ppo.gamma.
    #[arg(long, value_name = "GAMMA")]
    gamma: Option<f64>,
    /// Instead of the experiment's `ppo.gae_lambda`.
    #[arg(long, value_name = "LAMBDA")]
    gae_lambda: Option<f64>,
    /// Seed of every draw.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// One JSON object a line on stdout: {"type":"component",…}, {"type":"advantage",…}.
    #[arg(long)]
    json: bool,
}

/// An `advantage` line: what was measured, and how many decisions each way to a gradient needs.
#[derive(Debug, Serialize)]
struct AdvantageLine<'a> {
    #[serde(flatten)]
    measured: &'a HeldAdvantage,
    samples_by_return: Option<f64>,
    samples_by_state: Option<f64>,
    samples_by_traffic: Option<f64>,
    samples_by_fork: Option<f64>,
}

pub(super) fn run(args: &VarianceArgs) -> anyhow::Result<Exit> {
    let mut experiment = Experiment::load(&args.experiment)?;
    experiment.ppo.gamma = args.gamma.unwrap_or(experiment.ppo.gamma);
    experiment.ppo.gae_lambda = args.gae_lambda.unwrap_or(experiment.ppo.gae_lambda);
    experiment.ppo.validate()?;
    let config = VarianceConfig {
        scenes: args.scenes,
        traffics: args.traffics,
        actions: args.actions,
        states: args.states,
        futures: args.futures,
        holds: args.holds.clone(),
        seed: args.seed,
    };
    config.validate()?;
    let worlds = experiment.also.iter().map(|also| &also.world).chain([&experiment.world]);
    let outputs = Outputs::new().reads("--experiment", args.experiment.as_path());
    worlds.fold(outputs, Outputs::reads_world).check()?;
    let of_experiment = || args.experiment.display().to_string();
    let world = experiment.world.world().with_context(of_experiment)?;
    let stop = stop::on_interrupt();
    let experiment = match &args.checkpoint {
        Some(_) => experiment,
        None => match train::with_prior(experiment, &world, &Talk, stop).with_context(of_experiment)? {
            Some(experiment) => experiment,
            None => return Ok(Exit::Interrupted),
        },
    };
    let policy = match &args.checkpoint {
        Some(folder) => checkpoint::load_policy(folder)?,
        None => first_policy(&experiment).with_context(of_experiment)?,
    };
    let branches = ServingBranches::new(&experiment.env_config(&world).with_context(of_experiment)?);
    let behaviour = Behaviour { policy, hold: experiment.ppo.hold as u32 };
    let discount = Discount { gamma: experiment.ppo.gamma, lambda: experiment.ppo.gae_lambda };
    let watch = Talk.watch();
    let found = decompose(&branches, &behaviour, discount, &config, &*watch, stop).with_context(of_experiment)?;
    drop(watch);
    let Some(found) = found else { return Ok(Exit::Interrupted) };
    let mut output = Output::new();
    if args.json {
        json(&mut output, &found)?;
    } else {
        output.text(&text(&found, text::width()))?;
    }
    Ok(Exit::Done)
}

/// What PPO would begin with: the prior, or every choice as likely as any other.
fn first_policy(experiment: &Experiment) -> anyhow::Result<NetworkPolicy> {
    use kvtide_runtime::{Head, NUM_FEATURES};
    let head_sizes = Head::ALL.map(Head::size).to_vec();
    let weights = Weights::zeros(Architecture { observation_size: NUM_FEATURES, hidden: Vec::new(), head_sizes });
    let weights = match &experiment.ppo.prior {
        Some(prior @ Prior { choices, .. }) => {
            weights.favouring(prior).with_context(|| format!("prior: no choices of this action are {choices:?}"))?
        }
        None => weights,
    };
    Ok(NetworkPolicy::new(&weights, None, experiment.profile())?)
}

fn json(output: &mut Output, found: &Decomposition) -> anyhow::Result<()> {
    found.components.iter().try_for_each(|component| output.json("component", component))?;
    found.advantages.iter().try_for_each(|measured| {
        let line = AdvantageLine {
            measured,
            samples_by_return: measured.samples(measured.return_noise),
            samples_by_state: measured.samples(measured.state_noise),
            samples_by_traffic: measured.samples(measured.traffic_noise),
            samples_by_fork: measured.samples(measured.fork_noise),
        };
        output.json("advantage", &line)
    })
}

fn text(found: &Decomposition, width: usize) -> String {
    let columns =
        [("a return varies by", ""), ("standard", "deviation"), ("share of", "variance, %"), ("95 %", "interval")];
    let mut table = TextTable::new(columns.map(|(top, bottom)| Column::new(top, bottom)).to_vec());
    for component in &found.components {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let interval = component.share.low.zip(component.share.high);
        let interval =
            interval.map_or_else(String::new, |(low, high)| format!("[{}, {}]", percent(low), percent(high)));
        table.row(vec![
            component.source.words().to_owned(),
            number(component.deviation),
            percent(component.share.mean),
            interval,
        ]);
    }
    let mut text = table.render(width);
    text.push('\n');
    text.push_str(&advantages(&found.advantages).render(width));
    text.push('\n');
    text.push_str(&wrapped(EXPLANATION, width, 0));
    text.push('\n');
    text
}

fn advantages(measured: &[HeldAdvantage]) -> TextTable {
    let columns = [
        ("held for", "decisions"),
        ("", "seconds"),
        ("advantage", "(signal)"),
        ("95 %", "interval"),
        ("without", "critic, γλ"),
        ("noise:", "returns"),
        ("of a", "state"),
        ("and", "traffic"),
        ("of two", "forks"),
        ("samples:", "state"),
        ("", "traffic"),
        ("", "forks"),
    ];
    let mut table = TextTable::new(columns.map(|(top, bottom)| Column::new(top, bottom)).to_vec());
    for held in measured {
        let interval = held.signal.low.zip(held.signal.high);
        let interval = interval.map_or_else(String::new, |(low, high)| format!("[{}, {}]", number(low), number(high)));
        let samples = |noise| held.samples(noise).map_or_else(|| "–".to_owned(), count);
        table.row(vec![
            held.decisions.to_string(),
            format!("{:.1}", held.seconds),
            number(held.signal.mean),
            interval,
            number(held.traced_signal),
            number(held.return_noise),
            number(held.state_noise),
            number(held.traffic_noise),
            number(held.fork_noise),
            samples(held.state_noise),
            samples(held.traffic_noise),
            samples(held.fork_noise),
        ]);
    }
    table
}

/// What the columns are, for whoever sees them for the first time.
const EXPLANATION: &str = "\
Advantage: root mean square over states of the expected difference in discounted return when a choice is held instead of the \
likeliest one. Noise: standard deviations, of discounted returns over everything, from a given state (what the best critic \
leaves), on given traffic as well (what an input-driven baseline leaves), and of the difference of two forks on one future. \
Samples: how often the choice must be tried until the error of the mean is as large as the advantage.";

/// To three digits.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn count(samples: f64) -> String {
    match samples {
        few if few < 10.0 => format!("{few:.1}"),
        some if some < 1e5 => format!("{some:.0}"),
        many => format!("{many:.0e}"),
    }
}
