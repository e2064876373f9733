//! `kvtide inspect`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

use super::Exit;
use super::output::Output;
use super::outputs::Outputs;
use super::run_folder::RunFolder;
use crate::checkpoint;
use crate::export::{self, Inspection};
use crate::text::{self, wrapped};

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// A decision table (.kvt), a checkpoint's folder, or the folder of a run.
    path: PathBuf,
    /// Most lines of a table's rules.
    #[arg(long, value_name = "N", default_value_t = 40)]
    rules: usize,
    /// Also draw a table's tree.
    #[arg(long, value_name = "FILE.svg")]
    svg: Option<PathBuf>,
    /// Most comparisons down to which it is drawn, a summary as wide as a screen unless more are asked for; what is below is
    /// counted. 255 draws everything.
    #[arg(long, value_name = "N", default_value_t = 4, requires = "svg")]
    depth: usize,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// A summary in plain language first; beneath it everything, for who knows what it means.
pub(super) fn run(args: &InspectArgs) -> anyhow::Result<Exit> {
    Outputs::new().reads("PATH", args.path.as_path()).file("--svg", args.svg.as_deref()).check()?;
    let mut output = Output::new();
    let width = text::width();
    if let Some(run) = RunFolder::at(&args.path)? {
        ensure!(args.svg.is_none(), "{}: a run has no tree to draw; its policy.kvt has", args.path.display());
        if args.json { output.json("run_folder", &run.json())? } else { output.text(&run.text(width))? }
    } else if args.path.is_dir() {
        ensure!(args.svg.is_none(), "{}: a checkpoint has no tree to draw", args.path.display());
        let manifest = checkpoint::inspect(&args.path)?;
        if args.json {
            output.json("checkpoint", &manifest)?;
        } else {
            output.text(&manifest.summary(&args.path, width))?;
            output.text(&format!("\n{}", wrapped(&manifest.text(&args.path), width, 4)))?;
        }
    } else {
        let bytes = export::load(&args.path)?;
        let inspection = Inspection::of(&bytes).with_context(|| args.path.display().to_string())?;
        if let Some(svg) = &args.svg {
            export::save(svg, inspection.svg(args.depth).as_bytes())?;
        }
        if args.json {
            output.json("table", &inspection.json())?;
        } else {
            output.text(&inspection.summary(&args.path, width))?;
            output.text(&format!("\n{}", wrapped(&inspection.text(args.rules), width, 4)))?;
        }
    }
    Ok(Exit::Done)
}
