//! `kvtide explain`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Args;

use super::Exit;
use super::output::Output;
use crate::export::{self, Explanation};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A decision table (.kvt).
    table: PathBuf,
    /// Values of features: `free_fraction=0.02`. Those the table does not ask for on its way may be left out.
    #[arg(value_name = "FEATURE=VALUE")]
    values: Vec<String>,
    /// Values as a JSON object by name; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    observation: Option<PathBuf>,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Most bytes of an observation.
const MAX_BYTES: u64 = 1 << 20;

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let table = export::load_table(&args.table)?;
    let mut given = args.observation.as_ref().map(read).transpose()?.unwrap_or_default();
    for text in &args.values {
        let Some((name, value)) = text.split_once('=') else { bail!("{text:?}: expected FEATURE=VALUE") };
        let number = value.parse::<f64>().ok().with_context(|| format!("{text:?}: {value:?} is no number"))?;
        ensure!(given.insert(name.to_owned(), number).is_none(), "{name} is given twice");
    }
    let explanation = Explanation::of(&table, &given)?;
    let mut output = Output::new();
    if args.json {
        output.json("explanation", &explanation.json())?;
    } else {
        output.text(&explanation.text())?;
    }
    Ok(Exit::Done)
}

fn read(path: &PathBuf) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().take(MAX_BYTES).read_to_string(&mut text).context("stdin")?;
    } else {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        file.take(MAX_BYTES).read_to_string(&mut text).with_context(|| path.display().to_string())?;
    }
    serde_json::from_str(&text).with_context(|| format!("{}: expected {{\"feature\": number, ...}}", path.display()))
}
