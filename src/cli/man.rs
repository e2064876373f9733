//! `kvtide man`: the help as pages of the manual.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use kvtide_envs::files;

use super::output::Output;
use super::{Exit, command_line};

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// Write a page for each command into this folder, made where needed; without it the tool's own page goes to stdout.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn run(args: &ManArgs) -> anyhow::Result<Exit> {
    // Built, so that the pages of subcommands have their whole names.
    let mut command = command_line().disable_help_subcommand(true);
    command.build();
    let Some(folder) = &args.out else {
        Output::new().text(&page(&command)?)?;
        return Ok(Exit::Done);
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot write {}", folder.display()))?;
    let pages = write(&command, folder)?;
    say!("{pages} pages written to {}", folder.display());
    Ok(Exit::Done)
}

/// Writes the page of `command` and of those below it; how many.
fn write(command: &Command, folder: &Path) -> anyhow::Result<usize> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = folder.join(format!("{name}.1"));
    let text = page(command)?;
    files::replace(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    let below = command.get_subcommands().map(|one| write(one, folder));
    below.sum::<anyhow::Result<usize>>().map(|pages| pages + 1)
}

fn page(command: &Command) -> anyhow::Result<String> {
    let version = format!("kvtide {}", env!("CARGO_PKG_VERSION"));
    let mut text = Vec::new();
    Man::new(command.clone()).source(version).manual("kvtide").render(&mut text)?;
    Ok(String::from_utf8(text)?)
}
