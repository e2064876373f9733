//! Recorded traffic, as it is read from a file or from standard input.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_envs::sched::Slo;
use kvtide_envs::trace::{RateProfile, STDIN, ServeGen, SessionArrivals, Trace, TraceError, TraceReader};
use kvtide_envs::workload::Workload;

/// What a trace holds; cloning shares it.
#[derive(Debug, Clone)]
pub(super) enum Recorded {
    Requests(Workload),
    Clients(Arc<ServeGen>),
    Profile(Arc<RateProfile>),
}

/// Reads a trace. Standard input can be read once: whoever asks again, as a demo does that trains and then exports, is given
/// what was read.
pub(super) fn read(path: &Path, sessions: &SessionArrivals) -> Result<Recorded, TraceError> {
    static STANDARD_INPUT: Mutex<Option<Recorded>> = Mutex::new(None);
    if path != Path::new(STDIN) {
        return read_once(path, sessions);
    }
    let mut known = STANDARD_INPUT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = &*known {
        return Ok(known.clone());
    }
    let recorded = read_once(path, sessions)?;
    *known = Some(recorded.clone());
    Ok(recorded)
}

fn read_once(path: &Path, sessions: &SessionArrivals) -> Result<Recorded, TraceError> {
    match Trace::open(path, sessions)? {
        Trace::Requests(mut reader) => {
            let trace = Workload::read(&mut reader)?;
            tell(&reader, &trace);
            Ok(Recorded::Requests(trace))
        }
        Trace::Clients(clients) => {
            detail!("{}: statistics of clients, of which requests are drawn", path.display());
            Ok(Recorded::Clients(Arc::new(clients)))
        }
        Trace::Profile(profile) => {
            detail!("{}: rates and lengths over time, by which requests are drawn", path.display());
            Ok(Recorded::Profile(Arc::new(profile)))
        }
    }
}

/// Says what is not as it stands in the file, once: long work reads a file again and again.
fn tell(reader: &TraceReader, trace: &Workload) {
    static TOLD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if !TOLD.lock().is_ok_and(|mut told| told.insert(reader.path().to_path_buf())) {
        return;
    }
    let (path, skipped) = (reader.path().display(), reader.skipped());
    if let Some(clock) = reader.clock() {
        detail!("{path}: {}, {}; times: {clock}", reader.format(), reader.compression());
    } else {
        detail!("{path}: {}, {}", reader.format(), reader.compression());
    }
    if !skipped.is_none() {
        say!("{path}: rows skipped: {skipped}");
    }
    if reader.late_rows() > 0 {
        say!("{path}: rows that were not in order of arrival, sorted: {}", reader.late_rows());
    }
    let named: BTreeSet<&str> = trace.requests().iter().filter_map(|request| request.slo_class.as_deref()).collect();
    let held: Vec<&str> = named.into_iter().filter(|class| Slo::class(class).is_some()).collect();
    if !held.is_empty() {
        say!("{path}: requests that name an SLO class have its targets in place of --slo's: {}", held.join(", "));
    }
}
