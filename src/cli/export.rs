//! `kvtide export`.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use kvtide_envs::files::Lock;
use kvtide_runtime::Host;

use super::output::Output;
use super::outputs::Outputs;
use super::{Exit, stop};
use crate::distil::{self, DistilConfig, Student};
use crate::experiment::Experiment;
use crate::export::{self, Chosen, ExportJob, Gate, RetentionRules, TableLoss, TableSummary, Turnover};
use crate::record::Envelope;
use crate::train;
use crate::world::Written;

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Checkpoint to distil.
    #[arg(long, value_name = "DIR", required_unless_present = "table")]
    checkpoint: Option<PathBuf>,
    /// Decision table to write; with --table the rules of one.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Write the retention rules of this table instead of distilling one: see --retention.
    #[arg(long, value_name = "FILE.kvt", requires = "retention", conflicts_with_all = OF_CHECKPOINTS)]
    table: Option<PathBuf>,
    /// How --table's second tree is written, which says how long blocks stay cached that a request gives back. json: every rule
    /// in the terms of TensorRT-LLM and SGLang, on which none of it has run.
    #[arg(long, value_name = "FORM", value_enum, requires = "table")]
    retention: Option<RetentionForm>,
    /// How long the node's pool takes to turn over, its blocks / cached blocks evicted a second: then the rules have durations
    /// in milliseconds.
    #[arg(long, value_name = "SECONDS", requires = "table")]
    turnover: Option<Turnover>,
    /// Also write the table as Rust source with a `static`.
    #[arg(long, value_name = "FILE.rs")]
    rust: Option<PathBuf>,
    /// Most leaves; a leaf takes 16 bytes. Of the sizes of this one halved again and again, the table takes the one that does
    /// best on the validation traffic.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=8192))]
    leaves: u32,
    /// Seed of the episodes the student is taught on.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The trace the checkpoint was trained on, if it is no longer where the experiment says.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Refuse a table that loses more than so many percentage points of attainment against its teacher on traffic neither
    /// has seen (of a trace trained on to its end: that is validated on): nothing is written, exit code 1.
    #[arg(long, value_name = "POINTS", default_value_t = 0.5, allow_negative_numbers = true)]
    max_loss: f64,
    /// Refuse a table that agrees with its teacher in less than this share of decisions, weighted by how much the teacher
    /// minds, in 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    min_fidelity: f64,
    /// Episodes on which the loss is measured.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    episodes: u32,
    /// The host the table is for, with whose heads, tiers and features it is taught, chosen and judged: vllm-0.33, sglang-0.5 or
    /// kvtide. A table that it would refuse is not written: exit code 1 [default: the host of the experiment].
    #[arg(long, value_name = "HOST")]
    host: Option<Written<Host>>,
    /// Also judge smaller tables, cut from this one, and draw size against loss.
    #[arg(long, value_name = "FILE.svg")]
    frontier: Option<PathBuf>,
}

/// What can be said only of a checkpoint.
const OF_CHECKPOINTS: [&str; 10] =
    ["checkpoint", "rust", "leaves", "seed", "trace", "max_loss", "min_fidelity", "episodes", "host", "frontier"];

/// In what form retention rules are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RetentionForm {
    Json,
}

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<Exit> {
    match (&args.checkpoint, &args.table) {
        (Some(checkpoint), _) => distil_into_table(args, checkpoint),
        (None, Some(table)) => write_rules(args, table),
        (None, None) => bail!("nothing to export: give --checkpoint or --table"),
    }
}

/// Writes the rules of a table's second tree.
fn write_rules(args: &ExportArgs, table: &Path) -> anyhow::Result<Exit> {
    Outputs::new().reads("--table", table).file("--out", args.out.as_path()).check()?;
    let tree = export::retention_tree(table, &export::load_table(table)?)?;
    let name = table.file_name().unwrap_or_default().to_string_lossy();
    let rules = RetentionRules::of(&name, &tree, args.turnover);
    let mut text = serde_json::to_string_pretty(&Envelope { r#type: "retention_rules", data: &rules })?;
    text.push('\n');
    export::save(&args.out, text.as_bytes())?;
    say!(
        "written: {}, {} rules, {} of which can be told when a request is submitted; not run on these engines",
        args.out.display(),
        rules.len(),
        rules.told_at_submission()
    );
    Ok(Exit::Done)
}

fn distil_into_table(args: &ExportArgs, checkpoint: &Path) -> anyhow::Result<Exit> {
    let experiment = experiment(args, checkpoint)?;
    check(args, checkpoint, &experiment)?;
    let _lock = Lock::of_file(&args.out)?;
    let world = experiment.world.world().context("the checkpoint's world (see --trace)")?;
    train::same_traffic(&world, checkpoint)?;
    let config = DistilConfig { max_leaves: args.leaves, seed: args.seed, ..DistilConfig::default() };
    let making =
        ExportJob { checkpoint, experiment: &experiment, world: &world, config: &config, stop: stop::on_interrupt() };
    export(args, &making)
}

/// The checkpoint's experiment, with what is given instead of its own.
fn experiment(args: &ExportArgs, checkpoint: &Path) -> anyhow::Result<Experiment> {
    let mut experiment = train::experiment_of(checkpoint)?;
    if let Some(trace) = &args.trace {
        experiment.world.trace = Some(trace.clone());
        experiment.world.workload = None;
    }
    if let Some(host) = &args.host {
        experiment.also.iter_mut().for_each(|also| also.world.host = Some(host.clone()));
        experiment.world.host = Some(host.clone());
    }
    // Distilled in the model, whatever it was trained on: a device may be elsewhere.
    experiment.world.memory = None;
    Ok(experiment)
}

/// Says now what would otherwise be found out after the work.
fn check(args: &ExportArgs, checkpoint: &Path, experiment: &Experiment) -> anyhow::Result<()> {
    Outputs::new()
        .reads_checkpoint("--checkpoint", checkpoint)
        .reads_world(&experiment.world)
        .file("--out", args.out.as_path())
        .file("--rust", args.rust.as_deref())
        .file("--frontier", args.frontier.as_deref())
        .check()?;
    ensure!(args.max_loss.is_finite(), "--max-loss {}: must be a number", args.max_loss);
    ensure!((0.0..=1.0).contains(&args.min_fidelity), "--min-fidelity {}: must be in 0 to 1", args.min_fidelity);
    Ok(())
}

fn export(args: &ExportArgs, making: &ExportJob<'_>) -> anyhow::Result<Exit> {
    // Before the work: there may be nothing to judge on.
    let trial = making.trial(args.episodes as usize)?;
    let Some(taught) = making.taught(&mut tell)? else { return Ok(Exit::Interrupted) };
    let Some(chosen) = making.chosen(&taught)? else { return Ok(Exit::Interrupted) };
    tell_choice(making, &chosen);
    say!("{}", TableSummary::of(&chosen.student, chosen.deployed.bytes()));
    let judged = making.judged(&taught, &chosen, &trial, args.frontier.is_some())?;
    let Some(TableLoss { loss, per_head, frontier }) = judged else { return Ok(Exit::Interrupted) };
    say!("{}", export::loss_text(&loss, trial.traffic()));
    say!("{}", per_head_text(&chosen.student, &export::interval_text(&per_head.points)));
    let sizes = match (&args.frontier, frontier) {
        (Some(path), Some(frontier)) => {
            let figure = frontier.figure(&making.experiment.name, trial.traffic(), chosen.student.tree.leaves());
            export::save(path, figure.to_svg().as_bytes())?;
            frontier.text()
        }
        _ => String::new(),
    };
    let host = making.world.node.host;
    let gate = Gate { max_loss: args.max_loss, min_fidelity: args.min_fidelity };
    let unfit = export::unfit(chosen.deployed.bytes(), &host, making.world.node.engine.enable_prefix_caching);
    if let Some(reason) = unfit.or_else(|| gate.refusal(&chosen.student.fidelity, &loss)) {
        say!("refused: {reason}; nothing is written to {}", args.out.display());
        return super::judged(Output::new().text(&sizes), Exit::GateFailed);
    }
    let provenance = taught.provenance.judged(&host, &loss, trial.traffic());
    export::write(&chosen.student, &provenance, &args.out, args.rust.as_deref())?;
    say!("written: {}", args.out.display());
    // Last: that nobody reads it any more shall cost no file.
    Output::new().text(&sizes)?;
    Ok(Exit::Done)
}

/// An iteration of distillation, on stderr.
pub(super) fn tell(distil::DaggerReport { iteration, iterations, samples, leaves, .. }: distil::DaggerReport) {
    say!("   iteration {iteration} of {iterations}: {samples} samples, {leaves} leaves");
}

/// Which size was chosen, on stderr, if one was.
pub(super) fn tell_choice(making: &ExportJob<'_>, chosen: &Chosen) {
    if let Some(choice) = making.choice(chosen) {
        say!("   {choice}");
    }
}

fn per_head_text(student: &Student, lost: &str) -> String {
    let (trees, fidelity) = &student.per_head;
    let (leaves, agreed) = (trees.leaves(), fidelity.joint * 100.0);
    format!(
        "in one tree for each head, {leaves} leaves together, it would agree in {agreed:.1} % and lose {lost} points"
    )
}
