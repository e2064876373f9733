//! Where traffic is taken from, and the one way to take it: a part of it, at a load, with a seed.

use std::sync::Arc;

use super::{Extent, Replay, SyntheticSpec, Window, Workload, WorkloadError};
use crate::time::Micros;
use crate::trace::{RateProfile, ServeGen};

/// Traffic that is drawn from.
#[derive(Debug, Clone, PartialEq)]
pub enum WorkloadSource {
    /// A recorded trace, replayed.
    Replay {
        /// The trace.
        trace: Workload,
        /// How it is replayed; load, window and seed are replaced.
        replay: Replay,
    },
    /// Drawn from statistics of clients, which change over time.
    Clients {
        /// The statistics.
        clients: Arc<ServeGen>,
        /// What is drawn; load, window and seed are replaced.
        replay: Replay,
    },
    /// Drawn from rates and lengths over time.
    Rates {
        /// The profile.
        profile: Arc<RateProfile>,
        /// What is drawn; load, window and seed are replaced.
        replay: Replay,
    },
    /// Drawn from a profile; its seed is replaced.
    Synthetic(SyntheticSpec),
}

/// A part of the traffic at one load, drawn with one seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draw {
    /// The part; all of it if `None`.
    pub window: Option<Window>,
    /// Load factor: 1 is the traffic as recorded, or at the generator's own rate.
    pub load: f64,
    /// Seed of everything that is drawn.
    pub seed: u64,
}

impl WorkloadSource {
    /// The requests of a draw.
    ///
    /// # Errors
    /// The load or the window is out of range, or nothing arrives: those of [`Replay::apply`], [`ServeGen::draw`], [`RateProfile::draw`] and
    /// [`SyntheticSpec::generate`].
    pub fn draw(&self, draw: &Draw) -> Result<Workload, WorkloadError> {
        let Draw { window, load, seed } = *draw;
        match self {
            WorkloadSource::Replay { trace, replay } => Replay { load, window, seed, ..*replay }.apply(trace),
            WorkloadSource::Clients { clients, replay } => clients.draw(&Replay { load, window, seed, ..*replay }),
            WorkloadSource::Rates { profile, replay } => profile.draw(&Replay { load, window, seed, ..*replay }),
            WorkloadSource::Synthetic(spec) => {
                let workload = SyntheticSpec { rate_rps: spec.rate_rps * load, seed, ..*spec }.generate()?;
                window.map_or(Ok(workload.clone()), |window| workload.window(window))
            }
        }
    }

    /// How long the traffic lasts at load 1.
    ///
    /// # Errors
    /// The generator cannot draw.
    pub fn span(&self) -> Result<Micros, WorkloadError> {
        match self {
            WorkloadSource::Replay { trace, .. } => Ok(trace.span()),
            WorkloadSource::Clients { clients, .. } => Ok(clients.span()),
            WorkloadSource::Rates { profile, .. } => Ok(profile.span()),
            WorkloadSource::Synthetic(spec) => match spec.extent {
                Extent::Duration(duration) => Ok(duration),
                Extent::Requests(_) => Ok(spec.generate()?.span()),
            },
        }
    }

    /// Whether it is made up, so that no two seeds give the same twice; not so a trace, nor a day's statistics.
    pub fn is_generated(&self) -> bool {
        matches!(self, WorkloadSource::Synthetic(_))
    }

    /// Whether different seeds give different workloads at this load.
    pub fn depends_on_seed(&self, load: f64) -> bool {
        match self {
            WorkloadSource::Replay { replay, .. } => Replay { load, ..*replay }.depends_on_seed(),
            WorkloadSource::Clients { .. } | WorkloadSource::Rates { .. } => true,
            WorkloadSource::Synthetic(spec) => spec.depends_on_seed(),
        }
    }
}
