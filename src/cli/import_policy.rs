//! `kvtide import-policy`.

use std::path::PathBuf;

use clap::Args;
use kvtide_envs::files::Lock;

use super::outputs::Outputs;
use super::talk::Talk;
use super::{Exit, stop};
use crate::import::Imported;

#[derive(Debug, Args)]
pub(super) struct ImportPolicyArgs {
    /// What is imported, in a few lines of TOML or JSON: layout = "sb3", "cleanrl" or "rllib", weights = a safetensors or ONNX
    /// file, experiment = the TOML of the world it was trained in, schema = SCHEMA_HASH of the wheel's observations it was trained
    /// on. Where the layout does not say enough: tensors, activation, features, heads, profile, [normalise].
    manifest: PathBuf,
    /// Folder of the checkpoint to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(super) fn run(args: &ImportPolicyArgs) -> anyhow::Result<Exit> {
    let [weights, experiment] = Imported::files(&args.manifest)?;
    Outputs::new()
        .reads("MANIFEST", args.manifest.as_path())
        .reads("weights", weights.as_path())
        .reads("experiment", experiment.as_path())
        .folder("--out", args.out.as_path())
        .check()?;
    let imported = Imported::read(&args.manifest)?;
    let _lock = Lock::of_folder(&args.out)?;
    say!("{}", imported.summary());
    let left = imported.left_to_engine();
    if !left.is_empty() {
        say!("   the engine decides {}, which it has no outputs for", left.join(", "));
    }
    let Some(imported) = imported.with_fallback(&Talk, stop::on_interrupt())? else {
        return Ok(Exit::Interrupted);
    };
    imported.save(&args.out)?;
    let out = args.out.display();
    say!("imported: {out}; a table of it: kvtide export --checkpoint {out} --out policy.kvt");
    Ok(Exit::Done)
}
