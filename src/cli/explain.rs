//! `kvtide explain`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Map, Value};

use super::Exit;
use super::output::Output;
use crate::export::{self, Explanation};
use crate::text::{self, wrapped};

#[derive(Debug, Args)]
pub(super) struct ExplainArgs {
    /// A decision table (.kvt).
    table: PathBuf,
    /// Values of features: `free_fraction=0.02`. Those the table does not ask for on its way may be left out. They replace what
    /// --from gives.
    #[arg(value_name = "FEATURE=VALUE")]
    values: Vec<String>,
    /// Values as JSON, `-` for stdin: an object of numbers by feature, as the adapters write an observation, or a line that has one
    /// as its `observation`, such as those of `kvtide explain --json`. Of several objects each is explained. `null` is no number,
    /// and counts as the least the feature can be.
    #[arg(long, value_name = "FILE|-", visible_alias = "observation")]
    from: Option<PathBuf>,
    /// Explain its second tree instead: how long blocks stay cached that a request gives back. Features are those of a release,
    /// such as `turn=2`; a line that `kvtide simulate --releases` writes has them all.
    #[arg(long)]
    retention: bool,
    /// One JSON line for each instead of text.
    #[arg(long)]
    json: bool,
}

/// Most bytes of observations.
const MAX_BYTES: u64 = 16 << 20;

type Values = BTreeMap<String, f64>;

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<Exit> {
    let table = export::load_table(&args.table)?;
    let tree = args.retention.then(|| export::retention_tree(&args.table, &table)).transpose()?;
    let typed = typed(&args.values)?;
    let given = match &args.from {
        Some(path) => read(path)?,
        None => vec![Values::new()],
    };
    let several = given.len() > 1;
    let mut output = Output::new();
    for (number, mut given) in (1..).zip(given) {
        given.extend(typed.clone());
        let explained = match &tree {
            Some(tree) => Explanation::of_release(tree, &given),
            None => Explanation::of(&table, &given),
        };
        let explanation = if several { explained.with_context(|| format!("object {number}"))? } else { explained? };
        if args.json {
            output.json("explanation", &explanation.json())?;
        } else {
            let gap = if number > 1 { "\n" } else { "" };
            output.text(&format!("{gap}{}", wrapped(&explanation.text(), text::width(), 2)))?;
        }
    }
    Ok(Exit::Done)
}

/// What stands on the command line.
fn typed(values: &[String]) -> anyhow::Result<Values> {
    let mut given = Values::new();
    for text in values {
        let Some((name, value)) = text.split_once('=') else { bail!("{text:?}: expected FEATURE=VALUE") };
        let number = value.parse::<f64>().ok().with_context(|| format!("{text:?}: {value:?} is no number"))?;
        ensure!(given.insert(name.to_owned(), number).is_none(), "{name} is given twice");
    }
    Ok(given)
}

/// The observations in a file.
fn read(path: &Path) -> anyhow::Result<Vec<Values>> {
    let name = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    let source: Box<dyn Read> = match name.as_str() {
        "stdin" => Box::new(io::stdin()),
        _ => Box::new(File::open(path).with_context(|| name.clone())?),
    };
    let mut text = String::new();
    source.take(MAX_BYTES + 1).read_to_string(&mut text).with_context(|| name.clone())?;
    ensure!(text.len() as u64 <= MAX_BYTES, "{name}: more than {} MiB", MAX_BYTES >> 20);
    let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let read = objects.map(|object| object.map_err(anyhow::Error::from).and_then(|object| observation(&object)));
    let found = read.collect::<anyhow::Result<Vec<Values>>>();
    let found = found.with_context(|| format!("{name}: expected {{\"feature\": number, …}}"))?;
    ensure!(!found.is_empty(), "{name}: nothing in it; expected {{\"feature\": number, …}}");
    Ok(found)
}

/// An object's own numbers, or those of its `observation`, or of that of its `data`.
fn observation(value: &Value) -> anyhow::Result<Values> {
    let object = value.as_object().context("not an object")?;
    let data = object.get("data").and_then(Value::as_object).unwrap_or(object);
    let features: &Map<String, Value> = data.get("observation").and_then(Value::as_object).unwrap_or(data);
    let number = |(name, value): (&String, &Value)| match value {
        Value::Null => Ok((name.clone(), f64::NAN)),
        value => Ok((name.clone(), value.as_f64().with_context(|| format!("{name}: {value} is no number"))?)),
    };
    features.iter().map(number).collect()
}
