//! Policies of a tier judged on streams of declared intent: every one under both sets of rules, in tiers of several sizes, in one
//! pass over the stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kvtide_envs::intent::{EventReader, IntentError, LogLine, Sample, TierReplay, TierResult, TierSetup};
use rayon::prelude::*;
use serde::Serialize;

/// Events that are read before they are replayed.
const BATCH: usize = 16_384;

/// What came of one policy under one set of rules in tiers of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TierRow {
    /// Name of the stream.
    pub trace: String,
    /// What came of it.
    #[serde(flatten)]
    pub result: TierResult,
    /// Events replayed in a second, on one core, without reading them.
    pub events_per_s: f64,
    /// How it went, for charts.
    #[serde(skip)]
    pub series: Vec<Sample>,
}

/// Why a comparison ended.
#[derive(Debug, thiserror::Error)]
pub enum TierError {
    /// The stream cannot be read on.
    #[error(transparent)]
    Stream(#[from] IntentError),
    /// What was decided cannot be written down.
    #[error("cannot write the decisions: {0}")]
    Log(#[from] std::io::Error),
}

/// Replays a stream under every setup. `log` is told what those that explain decided, batch by batch in the order of the setups.
/// `None` if it was stopped.
///
/// # Errors
/// The stream's, and those of `log`.
pub fn compare(
    trace: &str,
    mut events: EventReader,
    setups: &[TierSetup],
    stop: &AtomicBool,
    log: &mut dyn FnMut(LogLine) -> std::io::Result<()>,
) -> Result<Option<Vec<TierRow>>, TierError> {
    let mut replays: Vec<Timed> = setups.iter().map(|setup| Timed::new(*setup)).collect();
    while !events.next_batch(BATCH)?.events.is_empty() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let batch = events.batch();
        replays.par_iter_mut().for_each(|one| one.timed(|replay| replay.run(batch)));
        replays.iter_mut().flat_map(|one| one.replay.explained()).try_for_each(&mut *log)?;
    }
    let mut rows = Vec::new();
    for mut one in replays {
        let result = one.replay.finish(events.distinct());
        one.replay.explained().into_iter().try_for_each(&mut *log)?;
        let events_per_s = result.total_steps as f64 / one.seconds.max(1e-9);
        let series = one.replay.series().to_vec();
        rows.push(TierRow { trace: trace.to_owned(), result, events_per_s, series });
    }
    Ok(Some(rows))
}

/// A replay, and the time that it took.
struct Timed {
    replay: TierReplay,
    seconds: f64,
}

impl Timed {
    fn new(setup: TierSetup) -> Timed {
        Timed { replay: TierReplay::new(setup), seconds: 0.0 }
    }

    #[expect(clippy::disallowed_methods, reason = "speed is measured in wall-clock time, and only reported")]
    fn timed(&mut self, work: impl FnOnce(&mut TierReplay)) {
        let start = Instant::now();
        work(&mut self.replay);
        self.seconds += start.elapsed().as_secs_f64();
    }
}
