//! `kvtide export`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail, ensure};
use clap::Args;
use kvtide_envs::env::ServingArena;
use kvtide_envs::seed;
use kvtide_runtime::{GuardConfig, Host, Table};

use super::frontier::Frontier;
use super::output::Output;
use super::train::same_traffic;
use super::{Exit, stop};
use crate::agent::Validator;
use crate::checkpoint;
use crate::distil::{self, DistilConfig, DistilError, Fidelity, HeadFidelity, Loss, Reference, Student};
use crate::evaluate::Interval;
use crate::experiment::Experiment;
use crate::export::{self, Chosen, Provenance};
use crate::world::{World, Written};

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// Checkpoint to distil.
    #[arg(long, value_name = "DIR")]
    checkpoint: PathBuf,
    /// Decision table to write.
    #[arg(long, value_name = "FILE.kvt")]
    out: PathBuf,
    /// Also write the table as Rust source with a `static`.
    #[arg(long, value_name = "FILE.rs")]
    rust: Option<PathBuf>,
    /// Most leaves; a leaf takes 16 bytes. Of the sizes of this one halved again and again, the table takes the one that does
    /// best on the validation traffic.
    #[arg(long, value_name = "N", default_value_t = 256)]
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

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<Exit> {
    let mut experiment = experiment_of(&args.checkpoint)?;
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
    let world = experiment.world.world().context("the checkpoint's world (see --trace)")?;
    same_traffic(&world, &args.checkpoint)?;
    let host = world.node.host;
    writable(&args.out)?;
    args.rust.as_deref().map(writable).transpose()?;
    args.frontier.as_deref().map(writable).transpose()?;
    ensure!(args.max_loss.is_finite(), "--max-loss {}: must be a number", args.max_loss);
    ensure!((0.0..=1.0).contains(&args.min_fidelity), "--min-fidelity {}: must be in 0 to 1", args.min_fidelity);
    let config = DistilConfig { max_leaves: args.leaves, seed: args.seed, ..DistilConfig::default() };
    let stop = stop::on_interrupt();
    // Before the work: there may be nothing to judge on.
    let (unseen, is_unseen) = experiment.unseen_config(&world)?;
    let traffic = if is_unseen { "unseen" } else { "validation" };
    let Some(taught) = distilled(&args.checkpoint, &experiment, &world, &config, stop)? else {
        return Ok(Exit::Interrupted);
    };
    let Some(Chosen { student, deployed, .. }) = chosen(&taught, &experiment, &world, &config, stop)? else {
        return Ok(Exit::Interrupted);
    };
    let Taught { student: largest, mut provenance, .. } = taught;
    eprintln!("{}", Exported::of(&student, deployed.bytes()));

    let arena = ServingArena::new(&unseen)?;
    let seed = seed::derive(args.seed, "export", 0);
    let validator = Validator::new(Box::new(arena), args.episodes as usize, seed);
    let teacher = checkpoint::load_policy(&args.checkpoint)?;
    let judged = || -> Result<_, DistilError> {
        let reference = Reference::of(&teacher, &validator, stop)?;
        let loss = reference.loss(&deployed)?;
        let per_head = reference.loss(&student.per_head.0)?;
        let frontier = args.frontier.as_ref().map(|_| Frontier::of(&largest, &reference)).transpose()?;
        Ok((loss, per_head, frontier))
    };
    let (loss, per_head, frontier) = match judged() {
        Ok(judged) => judged,
        Err(DistilError::Stopped) => return Ok(Exit::Interrupted),
        Err(error) => return Err(error.into()),
    };
    eprintln!("{}", loss_text(&loss, traffic));
    eprintln!(
        "in one tree for each head, {} leaves together, it would agree in {:.1} % and lose {} points",
        student.per_head.0.leaves(),
        student.per_head.1.joint * 100.0,
        interval_text(&per_head.points)
    );
    if let (Some(path), Some(frontier)) = (&args.frontier, frontier) {
        Output::new().text(&frontier.text())?;
        export::save(path, frontier.figure(&experiment.name, traffic).to_svg().as_bytes())?;
    }
    let unfit = unfit(deployed.bytes(), &host, world.node.engine.enable_prefix_caching);
    if let Some(reason) = unfit.or_else(|| refusal(&student.fidelity, &loss, args)) {
        eprintln!("refused: {reason}; nothing is written to {}", args.out.display());
        return Ok(Exit::GateFailed);
    }
    provenance.training.insert("host".to_owned(), host.name.to_owned());
    provenance.training.insert("loss.episodes".to_owned(), loss.episodes.to_string());
    provenance.training.insert("loss.traffic".to_owned(), traffic.to_owned());
    provenance.training.insert("loss.points".to_owned(), interval_text(&loss.points));
    write(&student, &provenance, &args.out, args.rust.as_deref())?;
    eprintln!("written: {}", args.out.display());
    Ok(Exit::Done)
}

/// Why `host` would refuse the table, if it would.
fn unfit(bytes: &[u8], host: &Host, has_prefix_cache: bool) -> Option<String> {
    let table = Table::parse(bytes).expect("what was encoded for this build can be read by it");
    host.check(&table, has_prefix_cache, GuardConfig::default().range_tolerance).err().map(|unfit| unfit.to_string())
}

/// Why the table is not good enough, if it is not.
fn refusal(fidelity: &Fidelity, loss: &Loss, args: &ExportArgs) -> Option<String> {
    if loss.points.mean > args.max_loss {
        return Some(format!("{:.2} points lost are more than --max-loss {}", loss.points.mean, args.max_loss));
    }
    let worst = fidelity.heads.iter().min_by(|a, b| a.by_regret.total_cmp(&b.by_regret))?;
    (worst.by_regret < args.min_fidelity).then(|| {
        let HeadFidelity { head, by_regret, .. } = worst;
        format!("head {head} agrees in {by_regret:.4} by regret, less than --min-fidelity {}", args.min_fidelity)
    })
}

/// `attains 95.2 % where its teacher attains 95.3 %, on 64 unseen episodes: 0.10 points lost [-0.02, 0.21]`.
fn loss_text(loss: &Loss, traffic: &str) -> String {
    format!(
        "attains {:.1} % where its teacher attains {:.1} %, on {} {traffic} episodes: {} points lost",
        loss.student * 100.0,
        loss.teacher * 100.0,
        loss.episodes,
        interval_text(&loss.points)
    )
}

/// `0.10 [-0.02, 0.21]`.
pub(super) fn interval_text(points: &Interval) -> String {
    match (points.low, points.high) {
        (Some(low), Some(high)) => format!("{:.2} [{low:.2}, {high:.2}]", points.mean),
        _ => format!("{:.2}", points.mean),
    }
}

/// Says now what would otherwise be found out after the work.
fn writable(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(folder.is_dir(), "cannot write {}: {} is not a folder", path.display(), folder.display());
    ensure!(!path.is_dir(), "cannot write {}: it is a folder", path.display());
    Ok(())
}

fn experiment_of(path: &Path) -> anyhow::Result<Experiment> {
    let manifest = checkpoint::inspect(path)?;
    match Experiment::parse(&manifest.experiment) {
        Ok(experiment) => Ok(experiment),
        Err(reason) => bail!("{}: its experiment: {reason}", path.display()),
    }
}

/// What came of a distillation.
pub(super) struct Exported {
    bytes: usize,
    leaves: usize,
    depth: usize,
    samples: usize,
    fidelity: Fidelity,
}

impl Exported {
    /// Of a student and its bytes.
    fn of(student: &Student, bytes: &[u8]) -> Exported {
        let table = Table::parse(bytes).expect("what was encoded for this build can be read by it");
        Exported {
            bytes: bytes.len(),
            leaves: student.tree.leaves(),
            depth: table.depth().into(),
            samples: student.samples,
            fidelity: student.fidelity.clone(),
        }
    }
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes, {} leaves, at most {} comparisons, from {} samples; on {} others the student drove it agrees \
             with its teacher in {:.1} %:",
            self.bytes,
            self.leaves,
            self.depth,
            self.samples,
            self.fidelity.samples,
            self.fidelity.joint * 100.0
        )?;
        for head in &self.fidelity.heads {
            write!(f, " {} {:.1} % ({:.1} % by regret)", head.head, head.by_visits * 100.0, head.by_regret * 100.0)?;
        }
        Ok(())
    }
}

/// Distils the checkpoint on the traffic it was trained on and writes the table; `None` if interrupted.
pub(super) fn distil_into(
    folder: &Path,
    world: &World,
    config: &DistilConfig,
    out: &Path,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Exported>> {
    let experiment = experiment_of(folder)?;
    let Some(taught) = distilled(folder, &experiment, world, config, stop)? else { return Ok(None) };
    let Some(Chosen { student, .. }) = chosen(&taught, &experiment, world, config, stop)? else { return Ok(None) };
    let bytes = write(&student, &taught.provenance, out, None)?;
    Ok(Some(Exported::of(&student, &bytes)))
}

/// A student of the checkpoint, and where it comes from.
struct Taught {
    student: Student,
    provenance: Provenance,
}

/// The checkpoint as a tree, and where that comes from; `None` if interrupted.
fn distilled(
    folder: &Path,
    experiment: &Experiment,
    world: &World,
    config: &DistilConfig,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Taught>> {
    let manifest = checkpoint::inspect(folder)?;
    let teacher = checkpoint::load_policy(folder)?;
    let env_config = experiment.env_config(world)?;
    let mut tell = |progress: distil::Progress| {
        eprintln!(
            "   iteration {} of {}: {} samples, {} leaves",
            progress.iteration, progress.iterations, progress.samples, progress.leaves
        );
    };
    let student = match distil::distil(&teacher, &env_config, config, &mut tell, stop) {
        Ok(student) => student,
        Err(DistilError::Stopped) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let weights = manifest.files.get("weights.safetensors").map(|file| file.blake3.clone());
    let teacher = format!("{}, {} decisions", manifest.method(), manifest.decisions);
    let provenance = Provenance {
        experiment: experiment.name.clone(),
        commit: manifest.commit.unwrap_or_else(|| "unknown".to_owned()),
        seed: manifest.seed,
        checkpoint: weights.unwrap_or_default(),
        teacher,
        training: manifest.metadata,
    };
    Ok(Some(Taught { student, provenance }))
}

/// The size that does best on the traffic that training validated on, with the margin of that traffic; without validation the
/// largest, as it was taught. `None` if interrupted.
fn chosen(
    taught: &Taught,
    experiment: &Experiment,
    world: &World,
    config: &DistilConfig,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Chosen>> {
    let (mut student, engine) = (taught.student.clone(), world.node.engine.default_controls());
    let (Some(validation), Some(judged)) = (experiment.validation, experiment.validation_config(world)?) else {
        let deployed = export::deploy(&student, &taught.provenance, engine)?;
        return Ok(Some(Chosen { student, deployed, attainment: 1.0, worst_loss: 0.0 }));
    };
    match export::add_margin(&mut student, &judged, config.seed, stop) {
        Ok(()) => {}
        Err(DistilError::Stopped) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let validator = Validator::new(Box::new(ServingArena::new(&judged)?), validation.episodes, experiment.seed());
    let chosen = export::choose(&student, &taught.provenance, engine, &validator, stop)?;
    if let Some(chosen) = &chosen {
        let (leaves, attained) = (chosen.student.tree.leaves(), chosen.attainment * 100.0);
        eprintln!(
            "   of its sizes the one with {leaves} leaves does best on validation traffic: {attained:.1} %, at most {:.1} \
             points below its fallback in any world",
            chosen.worst_loss * 100.0
        );
    }
    Ok(chosen)
}

/// Writes the table, and its Rust source where that is asked for; returns the table's bytes.
fn write(student: &Student, provenance: &Provenance, out: &Path, rust: Option<&Path>) -> anyhow::Result<Vec<u8>> {
    let bytes = export::encode(student, provenance)?;
    export::save(out, &bytes)?;
    if let Some(rust) = rust {
        let source = export::rust_source(&bytes).expect("what was encoded for this build can be read by it");
        export::save(rust, source.as_bytes())?;
    }
    Ok(bytes)
}
