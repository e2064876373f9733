//! How long a step takes: from a [`StepPlan`](crate::sched::StepPlan) to microseconds.
//!
//! A [`CostModel`] prices the [`StepLoad`] of a step: `n` tokens of `s` sequences on `d` devices. Each kernel takes the
//! longer of its arithmetic and its memory traffic (Williams, Waterman, Patterson 2009, "Roofline: An Insightful Visual
//! Performance Model"); how much of both a transformer needs is counted as in Pope et al. 2022, "Efficiently Scaling
//! Transformer Inference", section 2 and appendix. With `F` and `B` the peaks times the shares reached, times `d`:
//!
//! | | by two shares of the peaks | by measured [`Kernels`] |
//! |---|---|---|
//! | layers | `max(2 · n · layer_params / F, layer_params · weight_bytes / B)` | `layer_params · w(n) / d` |
//! | head | the same of `s` and `head_params` | `head_params · w(s) / d` |
//! | attention of decodes | `kv_bytes · context / B` | the same with `decode_bandwidth`, and `layers · decode_sequence` for each |
//! | attention of `k` tokens after `c` | `max(4 · layers · heads · head_dim · pairs / F, kv_bytes · (c + k) / B)`, `pairs = k · c + k · (k + 1) / 2` | the same with `chunk_compute` and `decode_bandwidth`, `pairs = ⌈k⌉ · (c + (k + 1) / 2)` in whole tiles of `chunk_tile` |
//! | attention at all | – | `layers · attention_fixed` for decodes, and again for chunks |
//! | all of this at least | – | `launch` |
//! | all-reduces | `2 · layers · 2 · (d - 1) / d · n · hidden · weight_bytes / link` | the same |
//! | copies | `swap_overhead + blocks · block_bytes / (PCIe · d)` | the same, less `swap_overlap` times the shorter of copying and all the above |
//! | host | `step_overhead + s · sequence_overhead` | the same |
//!
//! `w` is the time of a matrix product for each of its weights, a curve over the tokens multiplied at once. It is what two
//! shares cannot say: efficiency that rises with the batch, and steps where tiles fill. [`Schedule`] says what has to be
//! timed to know it, [`Timed`] is a device that can be, [`measure`] times it, [`fit()`] finds the constants from the points
//! that are not held out, and tells the errors on those that are; [`render`] writes them down.

mod deployment;
mod errors;
mod fit;
mod fit_steps;
mod hardware;
mod kernel_cost;
mod kernels;
mod least_squares;
mod load;
mod model;
mod points;
mod profile;
mod roofline;
mod schedule;

pub use deployment::{Deployment, DeploymentError, DeploymentName};
pub use errors::{Errors, Kind, KindErrors, Miss, render};
pub use fit::{FitError, Fitted, fit};
pub use hardware::Hardware;
pub use kernels::Kernels;
pub use load::{Chunk, StepLoad};
pub use model::Model;
pub use points::{
    DeviceAbout, Direction, MeasureError, Measured, Overlap, OverlapPoint, Point, Role, StepShape, Timed, Timing,
    TransferPoint, measure,
};
pub use profile::{DeviceTimings, Profile, ProfileError, Provenance, ServedRun};
pub use roofline::CostModel;
pub use schedule::Schedule;
