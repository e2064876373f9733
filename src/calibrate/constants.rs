//! What of a clock is fitted: a few constants, each with a physical meaning, its bounds, and to which part of it it belongs.

use std::sync::Arc;

use kvtide_envs::deploy::{ClientTimes, Hardware, KernelTables};
use serde::Serialize;

/// How much of a clock is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FitScope {
    /// Nothing: the profile is judged as it stands.
    None,
    /// What the host adds to a step, and what clients see beside the engine; kernels stay as the profile has them.
    Host,
    /// The kernels as well.
    All,
}

/// The part of a clock that a constant belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What the accelerator computes, where it is known by shares of its peaks.
    Roofs,
    /// What the accelerator computes, where it was measured by shape.
    Scales,
    /// What the engine's loop takes on the host, which an engine that plans ahead hides where it is told apart.
    Loop,
    /// What an engine that plans ahead does not hide.
    Exposed,
    /// What the host adds to it in any engine.
    Host,
    /// What a client sees beside the engine: only in what was measured by clients.
    Client,
    /// One run alone: no part of a profile.
    Run,
}

/// What is fitted. Times are seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FittedConstants {
    /// See [`Hardware::compute_efficiency`].
    pub compute_efficiency: f64,
    /// See [`Hardware::bandwidth_efficiency`].
    pub bandwidth_efficiency: f64,
    /// See [`KernelScales::products`](kvtide_envs::deploy::KernelScales::products); 0 where kernels were not measured by shape.
    pub products: f64,
    /// The same of attention of chunks.
    pub prefill: f64,
    /// The same of attention of decodes.
    pub decode: f64,
    /// See [`Hardware::step_overhead`], or where the host's share is told apart [`HostTimes::step`].
    ///
    /// [`HostTimes::step`]: kvtide_envs::deploy::HostTimes::step
    pub step_overhead: f64,
    /// See [`Hardware::sequence_overhead`], or [`HostTimes::sequence`](kvtide_envs::deploy::HostTimes::sequence).
    pub sequence_overhead: f64,
    /// See [`HostTimes::exposed`](kvtide_envs::deploy::HostTimes::exposed); 0 where the host's share is not told apart, like the two
    /// that follow.
    pub exposed: f64,
    /// See [`HostTimes::exposed_sequence`](kvtide_envs::deploy::HostTimes::exposed_sequence).
    pub exposed_sequence: f64,
    /// See [`HostTimes::chunk_overhead`](kvtide_envs::deploy::HostTimes::chunk_overhead).
    pub chunk_overhead: f64,
    /// See [`KernelTimes::launch`](kvtide_envs::deploy::KernelTimes::launch); 0 where no device was timed.
    pub launch: f64,
    /// What [`ClientTimes`] are multiplied by; 0 in what an engine measured itself.
    pub client: f64,
    /// What the first step takes beyond that. Of the run, not of the hardware: whatever is initialised late.
    pub cold_start: f64,
}

impl FittedConstants {
    /// Those of `hardware` as an engine would measure itself, without a cold start.
    pub fn of(hardware: &Hardware) -> FittedConstants {
        let scale = |of: fn(&KernelTables) -> f64| hardware.tables.as_deref().map_or(0.0, of);
        let host = hardware.host.as_ref();
        FittedConstants {
            compute_efficiency: hardware.compute_efficiency,
            bandwidth_efficiency: hardware.bandwidth_efficiency,
            products: scale(|tables| tables.scales.products),
            prefill: scale(|tables| tables.scales.prefill),
            decode: scale(|tables| tables.scales.decode),
            step_overhead: host.map_or(hardware.step_overhead, |host| host.step),
            sequence_overhead: host.map_or(hardware.sequence_overhead, |host| host.sequence),
            exposed: host.map_or(0.0, |host| host.exposed),
            exposed_sequence: host.map_or(0.0, |host| host.exposed_sequence),
            chunk_overhead: host.map_or(0.0, |host| host.chunk_overhead),
            launch: hardware.kernels.as_ref().map_or(0.0, |kernels| kernels.launch),
            client: 0.0,
            cold_start: 0.0,
        }
    }

    /// The same as clients of it would measure it.
    #[must_use]
    pub fn seen_by_clients(self) -> FittedConstants {
        FittedConstants { client: 1.0, ..self }
    }

    /// `hardware` with these.
    pub fn apply(&self, hardware: &Hardware) -> Hardware {
        let mut hardware = Hardware {
            compute_efficiency: self.compute_efficiency,
            bandwidth_efficiency: self.bandwidth_efficiency,
            ..hardware.clone()
        };
        if let Some(tables) = &mut hardware.tables {
            let scales = &mut Arc::make_mut(tables).scales;
            (scales.products, scales.prefill, scales.decode) = (self.products, self.prefill, self.decode);
        }
        if let Some(kernels) = &mut hardware.kernels {
            kernels.launch = self.launch;
        }
        let client = self.client_times(&hardware);
        let Some(host) = &mut hardware.host else {
            (hardware.step_overhead, hardware.sequence_overhead) = (self.step_overhead, self.sequence_overhead);
            return hardware;
        };
        (host.step, host.sequence) = (self.step_overhead, self.sequence_overhead);
        (host.exposed, host.exposed_sequence) = (self.exposed, self.exposed_sequence);
        host.chunk_overhead = self.chunk_overhead;
        if self.client > 0.0 {
            host.client = client;
        }
        hardware
    }

    /// Whether the host's share is told apart.
    fn tells_host(&self) -> bool {
        self.exposed > 0.0 || self.chunk_overhead > 0.0
    }

    /// What clients of `hardware`, before a fit, see beside the engine.
    pub fn client_times(&self, hardware: &Hardware) -> ClientTimes {
        let ClientTimes { request_s, prompt_token_s, output_token_s } =
            hardware.host.as_ref().map_or_else(ClientTimes::default, |host| host.client);
        ClientTimes {
            request_s: request_s * self.client,
            prompt_token_s: prompt_token_s * self.client,
            output_token_s: output_token_s * self.client,
        }
    }
}

/// A constant that is fitted.
pub struct Parameter {
    /// Its name, as in [`Hardware`].
    pub name: &'static str,
    /// Its unit, empty for a share.
    pub unit: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What it is a constant of.
    pub part: Part,
    /// Where it is searched for.
    pub(super) bounds: (f64, f64),
    /// The factor, as a logarithm, by which it must be off the profile's value to feel all of its prior; `None` without one. What
    /// was measured kernel by kernel is believed more than what was not measured at all.
    pub(super) prior: Option<f64>,
    pub(super) of: fn(&mut FittedConstants) -> &mut f64,
}

/// All that may be fitted, the cold start of a run last.
pub const PARAMETERS: [Parameter; 13] = [
    Parameter {
        name: "compute_efficiency",
        unit: "",
        meaning: "share of peak FLOP/s reached in prefill",
        part: Part::Roofs,
        bounds: (0.2, 1.2),
        prior: None,
        of: |constants| &mut constants.compute_efficiency,
    },
    Parameter {
        name: "bandwidth_efficiency",
        unit: "",
        meaning: "share of peak bytes/s reached in reading weights and KV blocks",
        part: Part::Roofs,
        bounds: (0.3, 1.0),
        prior: None,
        of: |constants| &mut constants.bandwidth_efficiency,
    },
    Parameter {
        name: "products",
        unit: "",
        meaning: "what measured times of matrix products are multiplied by",
        part: Part::Scales,
        bounds: (0.3, 3.0),
        prior: Some(0.1),
        of: |constants| &mut constants.products,
    },
    Parameter {
        name: "prefill",
        unit: "",
        meaning: "what measured times of attention of chunks are multiplied by",
        part: Part::Scales,
        bounds: (0.3, 3.0),
        prior: Some(0.1),
        of: |constants| &mut constants.prefill,
    },
    Parameter {
        name: "decode",
        unit: "",
        meaning: "what measured times of attention of decodes are multiplied by",
        part: Part::Scales,
        bounds: (0.5, 2.0),
        prior: Some(0.1),
        of: |constants| &mut constants.decode,
    },
    Parameter {
        name: "step_overhead",
        unit: "s",
        meaning: "fixed time of a step",
        part: Part::Loop,
        bounds: (1e-5, 0.02),
        prior: Some(0.5),
        of: |constants| &mut constants.step_overhead,
    },
    Parameter {
        name: "sequence_overhead",
        unit: "s",
        meaning: "time a step takes for each sequence in it",
        part: Part::Loop,
        bounds: (1e-7, 5e-4),
        prior: Some(0.5),
        of: |constants| &mut constants.sequence_overhead,
    },
    Parameter {
        name: "exposed",
        unit: "s",
        meaning: "time of a step that asynchronous scheduling does not hide",
        part: Part::Exposed,
        bounds: (1e-6, 0.02),
        prior: Some(0.5),
        of: |constants| &mut constants.exposed,
    },
    Parameter {
        name: "exposed_sequence",
        unit: "s",
        meaning: "the same for each sequence of the step",
        part: Part::Exposed,
        bounds: (1e-7, 5e-4),
        prior: Some(0.5),
        of: |constants| &mut constants.exposed_sequence,
    },
    Parameter {
        name: "chunk_overhead",
        unit: "s",
        meaning: "further time of a step that computes prompts",
        part: Part::Host,
        bounds: (1e-5, 0.05),
        prior: Some(0.5),
        of: |constants| &mut constants.chunk_overhead,
    },
    Parameter {
        name: "launch",
        unit: "s",
        meaning: "time launching a step's kernels takes: none is shorter",
        part: Part::Host,
        bounds: (1e-5, 0.1),
        prior: Some(0.5),
        of: |constants| &mut constants.launch,
    },
    Parameter {
        name: "client",
        unit: "",
        meaning: "what a client's time beside the engine is multiplied by",
        part: Part::Client,
        bounds: (0.05, 20.0),
        prior: Some(0.5),
        of: |constants| &mut constants.client,
    },
    Parameter {
        name: "cold_start",
        unit: "s",
        meaning: "further time of the run's first step; no part of the profile",
        part: Part::Run,
        bounds: (1e-3, 10.0),
        prior: None,
        of: |constants| &mut constants.cold_start,
    },
];

/// Position of the cold start, behind all that runs share.
pub(super) const COLD_START: usize = PARAMETERS.len() - 1;

impl Parameter {
    /// Its value.
    pub fn get(&self, constants: &FittedConstants) -> f64 {
        *(self.of)(&mut constants.clone())
    }

    /// Whether the search would have gone on but for its bounds: it is within a hundredth of one. What is zero was not searched for.
    pub fn is_at_bound(&self, constants: &FittedConstants) -> bool {
        let (low, high) = self.bounds;
        let value = self.get(constants);
        value > 0.0 && (value < low * 1.01 || value > high * 0.99)
    }

    /// Whether it is fitted in `scope` to an engine that plans ahead or not, starting at `constants`: one that is zero has no logarithm
    /// and stays, and so does what an engine of the kind hides or does not have.
    pub(super) fn is_free(&self, scope: FitScope, is_async: bool, constants: &FittedConstants) -> bool {
        let is_seen = match self.part {
            Part::Loop => !(is_async && constants.tells_host()),
            Part::Exposed => is_async,
            _ => true,
        };
        let is_in_scope = match scope {
            FitScope::None => false,
            FitScope::Host => !matches!(self.part, Part::Roofs | Part::Scales),
            // Measured kernels stand for shares of the peaks.
            FitScope::All => self.part != Part::Roofs || constants.products == 0.0,
        };
        is_in_scope && is_seen && self.get(constants) > 0.0
    }

    /// How far a logarithm of it is outside of its bounds.
    pub(super) fn outside(&self, log: f64) -> f64 {
        let (low, high) = self.bounds;
        (log - high.ln()).max(0.0) + (low.ln() - log).max(0.0)
    }
}

/// Weight of a prior.
const PRIOR_WEIGHT: f64 = 0.001;

/// How unlikely `constants` are to whoever knows only the profile's, `before`.
pub(super) fn prior(constants: &FittedConstants, before: &FittedConstants) -> f64 {
    let surprise = |parameter: &Parameter| {
        let ratio = parameter.get(constants) / parameter.get(before);
        let factor = parameter.prior.filter(|_| ratio.is_finite())?;
        Some((ratio.ln() / factor).powi(2))
    };
    PRIOR_WEIGHT * PARAMETERS.iter().filter_map(surprise).sum::<f64>()
}
