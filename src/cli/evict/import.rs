//! `kvtide evict import`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use kvtide_envs::deploy::Model;
use kvtide_envs::files::Packed;
use kvtide_envs::intent::{DraftEvent, ImportSpec, ProfileSpec, read_requests};

use super::super::output::Output;
use super::super::outputs::Outputs;
use super::super::{Exit, stop};

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "profile",
        help = "Log of requests, one JSON object a line, plain, gzip or zstd; - is standard input. Needs request_id, arrival_ms, \
                prompt_tokens and generated_tokens; may have start_ms, end_ms, request_priority (0 to 100), deadline_ms and status"
    )]
    requests: Option<PathBuf>,
    /// Write a generated stream instead, one that evict compare --profile replays.
    #[arg(long, value_name = "PROFILE")]
    profile: Option<ProfileSpec>,
    /// Where to write; .gz and .zst are compressed, - is standard output.
    output: PathBuf,
    /// Model that says how many bytes a token takes: a name, a config.json or the folder of one.
    #[arg(long, value_name = "MODEL", default_value = "llama-3-8b")]
    model: String,
    /// MiB of a block.
    #[arg(long, value_name = "MIB", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    block_mb: u64,
    /// Most blocks of a request; a longer one has larger blocks.
    #[arg(long, value_name = "BLOCKS", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    max_blocks: u64,
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<Exit> {
    let file = Some(args.output.as_path()).filter(|path| *path != Path::new("-"));
    Outputs::new().reads("--requests", args.requests.as_deref()).file("OUTPUT", file).check()?;
    let stop = stop::on_interrupt();
    let events = events(args)?;
    let is_stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let mut written = 0_u64;
    let write_all = |sink: &mut dyn Write| -> std::io::Result<bool> {
        for event in events {
            event.write(sink)?;
            written += 1;
            if is_stopped() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let failed = || format!("cannot write {}", args.output.display());
    let is_whole = match file {
        None => {
            let mut output = Output::new();
            let is_whole = write_all(&mut output)?;
            output.flush()?;
            is_whole
        }
        Some(path) => {
            let mut packed = Packed::create(path).with_context(failed)?;
            let is_whole = write_all(&mut packed).with_context(failed)?;
            if is_whole {
                packed.finish().with_context(failed)?;
            }
            is_whole
        }
    };
    if !is_whole {
        return Ok(Exit::Interrupted);
    }
    say!(
        "{written} events written to {}",
        if file.is_some() { args.output.display().to_string() } else { "standard output".into() }
    );
    Ok(Exit::Done)
}

/// The events that are to be written.
fn events(args: &ImportArgs) -> anyhow::Result<Box<dyn Iterator<Item = DraftEvent>>> {
    let Some(path) = &args.requests else {
        let profile = args.profile.context("nothing to write: give --requests FILE or --profile PROFILE")?;
        return Ok(Box::new(profile.events()));
    };
    let model = Model::load(&args.model).context("--model")?;
    let bytes_per_token = model.kv_bytes_per_token().ceil() as u64;
    let requests = read_requests(path)?;
    detail!("{} requests; {bytes_per_token} bytes a token", requests.len());
    let spec = ImportSpec { bytes_per_token, block_bytes: args.block_mb << 20, max_blocks: args.max_blocks };
    Ok(Box::new(spec.events(requests)))
}
