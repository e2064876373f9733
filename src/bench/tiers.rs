//! Events of blocks with declared intent, read and replayed under each policy of a tier, on one core.

use std::io;

use kvtide_envs::files::Packed;
use kvtide_envs::intent::{
    EventBatch, EventReader, IntentError, Latencies, Mode, PolicyName, ProfileError, ProfileSpec, TierCapacity,
    TierReplay, TierSetup,
};

use super::{Throughput, seconds};

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
    /// It cannot be written down to be read.
    #[error("cannot write the events that are to be read: {0}")]
    Write(#[from] io::Error),
}

/// Events a second: read from a file, and replayed under every policy with both sets of rules.
///
/// # Errors
/// [`TierBenchError::Write`].
pub fn tiers(repeats: usize, each: &mut dyn FnMut(Throughput)) -> Result<(), TierBenchError> {
    let spec: ProfileSpec = PROFILE.parse()?;
    let mut made = EventReader::made(spec.events());
    let batch = made.next_batch(usize::MAX)?.clone();
    let events = batch.events.len() as u64;
    each(reading(spec, events, repeats)?);
    let hbm_bytes = spec.block_count() * spec.block_bytes / 8;
    let capacity = TierCapacity { hbm_bytes, dram_bytes: 2 * hbm_bytes };
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

fn reading(spec: ProfileSpec, events: u64, repeats: usize) -> Result<Throughput, TierBenchError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("events.jsonl");
    let mut file = Packed::create(&path)?;
    spec.events().try_for_each(|event| event.write(&mut file))?;
    file.finish()?;
    let mut times = Vec::new();
    for _ in 0..repeats {
        let mut read = Ok(());
        times.push(seconds(|| read = read_through(&path)));
        read?;
    }
    Ok(Throughput::rate("tier_reading", "JSON Lines, plain".to_owned(), "events/s", events, &times))
}

fn read_through(path: &std::path::Path) -> Result<(), IntentError> {
    let mut reader = EventReader::open(path)?;
    while !reader.next_batch(16_384)?.events.is_empty() {}
    Ok(())
}
