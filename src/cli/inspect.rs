//! `kvtide inspect`.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;

use super::Exit;
use super::output::Output;
use crate::checkpoint::{self, Manifest};
use crate::export::{self, Inspection};

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// A decision table (.kvt), or a checkpoint's folder.
    path: PathBuf,
    /// Most lines of a table's rules.
    #[arg(long, value_name = "N", default_value_t = 40)]
    rules: usize,
    /// Also draw a table's tree.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Most comparisons down to which it is drawn; what is below is counted.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "svg")]
    depth: usize,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &InspectArgs) -> anyhow::Result<Exit> {
    let mut output = Output::new();
    if args.path.is_dir() {
        ensure!(args.svg.is_none(), "{}: a checkpoint has no tree to draw", args.path.display());
        let manifest = checkpoint::inspect(&args.path)?;
        if args.json { output.json("checkpoint", &manifest)? } else { output.text(&describe(&args.path, &manifest))? }
    } else {
        let bytes = export::load(&args.path)?;
        let inspection = Inspection::of(&bytes).with_context(|| args.path.display().to_string())?;
        if let Some(svg) = &args.svg {
            export::save(svg, inspection.svg(args.depth).as_bytes())?;
        }
        if args.json {
            output.json("table", &inspection.json())?;
        } else {
            output.text(&inspection.text(args.rules))?;
        }
    }
    Ok(Exit::Done)
}

/// A manifest for people.
fn describe(path: &Path, manifest: &Manifest) -> String {
    let mut lines = vec![
        format!("checkpoint  {}", path.display()),
        format!(
            "made by     kvtide {}, commit {}",
            manifest.kvtide_version,
            manifest.commit.as_deref().unwrap_or("unknown")
        ),
        format!(
            "trained     {} decisions in {} {}, seed {}, profile {}",
            manifest.decisions,
            manifest.iteration,
            if manifest.cross_entropy.is_some() { "generations of a cross-entropy search" } else { "iterations" },
            manifest.seed,
            manifest.profile
        ),
        format!("network     {:?} from {} features", manifest.config.hidden, manifest.observation_size),
    ];
    lines.extend(manifest.metadata.iter().map(|(key, value)| format!("{key:11} {value}")));
    lines.push("files".to_owned());
    lines.extend(manifest.files.iter().map(|(name, file)| {
        format!("  {name:24} {:>9} bytes  {}", file.bytes, &file.blake3[..16.min(file.blake3.len())])
    }));
    lines.push("experiment".to_owned());
    lines.extend(manifest.experiment.lines().map(|line| format!("  {line}")));
    lines.join("\n") + "\n"
}
