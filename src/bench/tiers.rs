//! Events of blocks with declared intent, read and replayed under each policy of a tier, on one core.

use std::hint::black_box;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use kvtide_envs::files::Packed;
use kvtide_envs::intent::{
    EventBatch, EventReader, IntentError, Latencies, Mode, PolicyName, ProfileError, ProfileSpec, TierCapacity,
    TierReplay, TierSetup,
};

use super::{Throughput, seconds};
use crate::eviction::{TierError, compare};

/// Some thousand blocks that are known at one time, an eighth of them in HBM.
const PROFILE: &str = "deadline_pressure:requests=256,blocks=32,turns=40000";

/// Why tiers cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum TierBenchError {
    /// The stream is none.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// It cannot be read back.
    #[error(transparent)]
    Stream(#[from] IntentError),
    /// What is read cannot be replayed.
    #[error(transparent)]
    Replay(#[from] TierError),
    /// It cannot be written down to be read.
    #[error("cannot write the events that are to be read: {0}")]
    Write(#[from] io::Error),
}

/// Events a second: read from a file, from a file to a policy's result, and replayed under every policy with both sets of rules.
///
/// # Errors
/// [`TierBenchError::Write`].
pub fn tiers(repeats: usize, each: &mut dyn FnMut(Throughput)) -> Result<(), TierBenchError> {
    let spec: ProfileSpec = PROFILE.parse()?;
    let mut made = EventReader::made(spec.events());
    let batch = made.next_batch(usize::MAX)?.clone();
    let events = batch.events.len() as u64;
    let hbm_bytes = spec.block_count() * spec.block_bytes / 8;
    let capacity = TierCapacity { hbm_bytes, dram_bytes: 2 * hbm_bytes };
    files(spec, events, capacity, repeats, each)?;
    for mode in Mode::ALL {
        for &policy in PolicyName::ALL {
            let setup = TierSetup { policy, mode, capacity, latencies: Latencies::default(), explains: false };
            let seconds: Vec<f64> = (0..repeats).map(|_| seconds(|| replayed(setup, &batch))).collect();
            let case = format!("{policy}, {mode}, {} blocks", spec.block_count());
            each(Throughput::rate("tier_events", case, "events/s", events, &seconds));
        }
    }
    Ok(())
}

fn replayed(setup: TierSetup, batch: &EventBatch) -> TierReplay {
    let mut replay = TierReplay::new(setup);
    replay.run(batch);
    replay
}

/// Events as a file: reading it through, and from it to the result of a policy, which is what `kvtide evict compare` does.
fn files(
    spec: ProfileSpec,
    events: u64,
    capacity: TierCapacity,
    repeats: usize,
    each: &mut dyn FnMut(Throughput),
) -> Result<(), TierBenchError> {
    let folder = tempfile::tempdir()?;
    for (name, form) in [("events.jsonl", "plain"), ("events.jsonl.gz", "gzip"), ("events.jsonl.zst", "zstd")] {
        let path = folder.path().join(name);
        let mut file = Packed::create(&path)?;
        spec.events().try_for_each(|event| event.write(&mut file))?;
        file.finish()?;
        let times = timed(repeats, || read_through(&path))?;
        each(Throughput::rate("tier_reading", format!("JSON Lines, {form}"), "events/s", events, &times));
        for policy in [PolicyName::Lru, PolicyName::DeadlineAware] {
            let setup =
                TierSetup { policy, mode: Mode::Faithful, capacity, latencies: Latencies::default(), explains: false };
            let times = timed(repeats, || from_file(&path, setup))?;
            each(Throughput::rate("tier_file", format!("{policy}, {form}"), "events/s", events, &times));
        }
    }
    Ok(())
}

/// Seconds of each time.
fn timed(repeats: usize, work: impl Fn() -> Result<(), TierBenchError>) -> Result<Vec<f64>, TierBenchError> {
    let once = |_| {
        let mut done = Ok(());
        let seconds = seconds(|| done = work());
        done.map(|()| seconds)
    };
    (0..repeats).map(once).collect()
}

fn read_through(path: &Path) -> Result<(), TierBenchError> {
    let mut reader = EventReader::open(path)?;
    while !reader.next_batch(16_384)?.events.is_empty() {}
    Ok(())
}

fn from_file(path: &Path, setup: TierSetup) -> Result<(), TierBenchError> {
    let events = EventReader::open(path)?;
    black_box(compare("", events, &[setup], &AtomicBool::new(false), &mut |_| Ok(()))?);
    Ok(())
}
