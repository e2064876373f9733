//! Training by PPO is the one thing that needs libtorch, and is done by another program.

use std::convert::Infallible;
use std::env;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};

/// The program that can train by PPO: this tool, with libtorch.
pub(in crate::cli) const PROGRAM: &str = "kvtide-train";

/// Whether it is where it would be looked for.
pub(in crate::cli) fn is_possible() -> bool {
    program().is_ok_and(|program| program.is_file())
}

fn program() -> anyhow::Result<PathBuf> {
    Ok(env::current_exe().context("cannot find where this program is")?.with_file_name(PROGRAM))
}

/// Goes on as `kvtide-train`, in the place of this process, with what this process was asked for.
///
/// # Errors
/// It does not return otherwise.
pub(in crate::cli) fn hand_over() -> anyhow::Result<Infallible> {
    let program = program()?;
    if !program.is_file() {
        bail!(
            "training by PPO needs libtorch and is done by {}, which is not there: build it with `cargo build --release`, or \
             train with method = \"cross-entropy\", which needs neither",
            program.display()
        );
    }
    // Who reads the usage shall not see two names of one tool.
    let error = Command::new(&program).arg0("kvtide").args(env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
