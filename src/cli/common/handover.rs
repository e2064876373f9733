//! Training by PPO is the one thing that needs libtorch, and is done by another program.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use anyhow::{Context, bail};

/// The program that can train by PPO: this tool, with libtorch.
pub(in crate::cli) const PROGRAM: &str = "kvtide-train";

/// Whether it is where it would be looked for.
pub(in crate::cli) fn is_possible() -> bool {
    program().is_ok_and(|program| is_another(&program))
}

fn program() -> anyhow::Result<PathBuf> {
    Ok(env::current_exe().context("cannot find where this program is")?.with_file_name(PROGRAM))
}

/// Whether `program` is there and not this one by another name, which would hand over to itself for ever.
fn is_another(program: &Path) -> bool {
    let this = env::current_exe().and_then(fs::canonicalize);
    program.is_file() && matches!((this, fs::canonicalize(program)), (Ok(this), Ok(that)) if this != that)
}

/// What `--version` says after the name: two programs of one build say the same.
pub(in crate::cli) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| match option_env!("KVTIDE_COMMIT") {
        Some(commit) => format!("{} ({})", env!("CARGO_PKG_VERSION"), &commit[..commit.len().min(12)]),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Asks `program` what it is before it takes this process's place: one that does not start says so in the loader's words, and one
/// of another build would train by other rules without a word.
fn is_of_this_build(program: &Path) -> anyhow::Result<()> {
    let asked = Command::new(program).arg0("kvtide").arg("--version").stdin(Stdio::null()).output();
    let asked = asked.with_context(|| format!("cannot start {}", program.display()))?;
    let (said, complained) = (String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
    if !asked.status.success() {
        let reason = complained.lines().next().unwrap_or("it says nothing").trim().to_owned();
        bail!(
            "{} does not start ({}): {reason}; `make setup` fetches the libtorch it needs, and `cargo build --release` builds it",
            program.display(),
            asked.status
        );
    }
    let own = format!("kvtide {}", version());
    if said.trim() != own {
        warn!(
            "{} is of another build ({}) than this program ({own}): build both with `cargo build --release`",
            program.display(),
            said.trim()
        );
    }
    Ok(())
}

/// Goes on as `kvtide-train`, in the place of this process, with what this process was asked for.
///
/// # Errors
/// It does not return otherwise.
pub(in crate::cli) fn hand_over() -> anyhow::Result<Infallible> {
    let program = program()?;
    if !is_another(&program) {
        bail!(
            "training by PPO needs libtorch and is done by {}, which is not there: build it with `cargo build --release`, or \
             train with method = \"cross-entropy\", which needs neither",
            program.display()
        );
    }
    is_of_this_build(&program)?;
    // Who reads the usage shall not see two names of one tool.
    let error = Command::new(&program).arg0("kvtide").args(env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
