//! `kvtide export`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail, ensure};
use clap::Args;
use kvtide_runtime::Table;

use super::train::same_traffic;
use super::{Exit, stop};
use crate::checkpoint;
use crate::distil::{self, DistilConfig, DistilError, Fidelity};
use crate::experiment::Experiment;
use crate::export::{self, Provenance};
use crate::world::World;

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
    /// Most leaves; a leaf takes 16 bytes.
    #[arg(long, value_name = "N", default_value_t = 256)]
    leaves: u32,
    /// Seed of the episodes the student is taught on.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// The trace the checkpoint was trained on, if it is no longer where the experiment says.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub(super) fn run(args: &ExportArgs) -> anyhow::Result<Exit> {
    let mut experiment = experiment_of(&args.checkpoint)?;
    if let Some(trace) = &args.trace {
        experiment.world.trace = Some(trace.clone());
        experiment.world.workload = None;
    }
    let world = experiment.world.world().context("the checkpoint's world (see --trace)")?;
    same_traffic(&world, &args.checkpoint)?;
    writable(&args.out)?;
    args.rust.as_deref().map(writable).transpose()?;
    let config = DistilConfig { max_leaves: args.leaves, seed: args.seed, ..DistilConfig::default() };
    let rust = args.rust.as_deref();
    match distil_into(&args.checkpoint, &world, &config, &args.out, rust, stop::on_interrupt())? {
        Some(exported) => {
            eprintln!("{exported}");
            eprintln!("written: {}", args.out.display());
            Ok(Exit::Done)
        }
        None => Ok(Exit::Interrupted),
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

/// What was written.
pub(super) struct Exported {
    bytes: usize,
    leaves: usize,
    depth: usize,
    samples: usize,
    fidelity: Fidelity,
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
    rust: Option<&Path>,
    stop: &AtomicBool,
) -> anyhow::Result<Option<Exported>> {
    let manifest = checkpoint::inspect(folder)?;
    let experiment = experiment_of(folder)?;
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
        experiment: experiment.name,
        commit: manifest.commit.unwrap_or_else(|| "unknown".to_owned()),
        seed: manifest.seed,
        checkpoint: weights.unwrap_or_default(),
        teacher,
        training: manifest.metadata,
    };
    let bytes = export::encode(&student, &provenance)?;
    export::save(out, &bytes)?;
    if let Some(rust) = rust {
        let source = export::rust_source(&bytes).expect("what was encoded for this build can be read by it");
        export::save(rust, source.as_bytes())?;
    }
    let table = Table::parse(&bytes).expect("what was encoded for this build can be read by it");
    Ok(Some(Exported {
        bytes: bytes.len(),
        leaves: student.tree.leaves(),
        depth: table.depth().into(),
        samples: student.samples,
        fidelity: student.fidelity,
    }))
}
