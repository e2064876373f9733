//! `kvtide inspect`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Args;

use super::Exit;
use super::output::Output;
use super::outputs::Outputs;
use crate::checkpoint;
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
    Outputs::new().reads("PATH", args.path.as_path()).file("--svg", args.svg.as_deref()).check()?;
    let mut output = Output::new();
    if args.path.is_dir() {
        ensure!(args.svg.is_none(), "{}: a checkpoint has no tree to draw", args.path.display());
        let manifest = checkpoint::inspect(&args.path)?;
        if args.json { output.json("checkpoint", &manifest)? } else { output.text(&manifest.text(&args.path))? }
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
