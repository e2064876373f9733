//! How long a step takes: from a [`StepPlan`](crate::sched::StepPlan) to microseconds.
//!
//! A [`CostModel`] prices the [`StepLoad`] of a step: `n` tokens of `s` sequences on `d` devices. Each kernel takes the
//! longer of its arithmetic and its memory traffic (Williams, Waterman, Patterson 2009, "Roofline: An Insightful Visual
//! Performance Model"); how much of both a transformer needs is counted as in Pope et al. 2022, "Efficiently Scaling
//! Transformer Inference", section 2 and appendix. With `F` and `B` the peaks times the shares reached, times `d`:
//!
//! | | by two shares of the peaks | by measured [`KernelTimes`](crate::deploy::KernelTimes) |
//! |---|---|---|
//! | layers | `max(2 · n · layer_params / F, layer_params · weight_bytes / B)` | `layer_params · w(n) / d` |
//! | head | the same of `s` and `head_params` | `head_params · w(s) / d` |
//! | attention of decodes | `kv_bytes · context / B` | the same with `decode_bandwidth`, and `layers · decode_sequence` for each |
//! | attention of `k` tokens after `c` | `max(4 · layers · heads · head_dim · pairs / F, kv_bytes · (c + k) / B)`, `pairs = k · c + k · (k + 1) / 2` | the same with `chunk_compute` and `decode_bandwidth`, `pairs = ⌈k⌉ · (c + (k + 1) / 2)` in whole tiles of `chunk_tile` |
//! | attention at all | – | `layers · attention_fixed` for decodes, and again for chunks |
//! | all of this at least | – | `launch` |
//! | all-reduces | `2 · layers · 2 · (d - 1) / d · n · hidden · 2 bytes / link` | the same |
//! | copies | `swap_overhead + blocks · block_bytes / (PCIe · d)` | the same, less `swap_overlap` times the shorter of copying and all the above |
//! | host | `step_overhead + s · sequence_overhead` | the same |
//!
//! Models with experts, windows or latent attention: the same roofline, with what differs at the head of `structured.rs`.
//!
//! `w` is the time of a matrix product for each of its weights, a curve over the tokens multiplied at once. It is what two
//! shares cannot say: efficiency that rises with the batch, and steps where tiles fill. What finds it from a device's timings
//! is [`calibrate`](crate::calibrate).

mod grid;
mod host_cost;
mod kernel_cost;
mod load;
mod roofline;
mod structured;
mod tabled;

pub use load::{Chunk, StepLoad};
pub use roofline::CostModel;
