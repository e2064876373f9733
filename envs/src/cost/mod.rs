//! How long a step takes: from a [`StepPlan`](crate::sched::StepPlan) to microseconds.
//!
//! A [`CostModel`] prices the [`StepLoad`] of a step: `n` tokens of `s` sequences on `d` devices. Each kernel takes the
//! longer of its arithmetic and its memory traffic (Williams, Waterman, Patterson 2009, "Roofline: An Insightful Visual
//! Performance Model"); how much of both a transformer needs is counted as in Pope et al. 2022, "Efficiently Scaling
//! Transformer Inference", section 2 and appendix. With `F` and `B` the peaks times the shares reached, times `d`:
//!
//! | | by two shares of the peaks | by measured [`KernelTimes`](crate::deploy::KernelTimes) | by shape, of [`KernelTables`](crate::deploy::KernelTables) |
//! |---|---|---|---|
//! | layers | `max(2 · n · layer_params / F, layer_params · weight_bytes / B)` | `layer_params · w(n) / d` | each product and routed expert as measured at `n`, and what is done element by element |
//! | head | the same of `s` and `head_params` | `head_params · w(s) / d` | as measured at `s`, and sampling |
//! | attention of decodes | `kv_bytes · context / B` | the same with `decode_bandwidth`, and `layers · decode_sequence` for each | as measured for so many sequences with `context` together, at least from memory |
//! | attention of `k` tokens after `c` | `max(4 · layers · heads · head_dim · pairs / F, kv_bytes · (c + k) / B)`, `pairs = k · c + k · (k + 1) / 2` | the same with `chunk_compute` and `decode_bandwidth`, `pairs = ⌈k⌉ · (c + (k + 1) / 2)` in whole tiles of `chunk_tile` | that of the prompt with as many pairs; of all chunks at least reading what is before them, and one row of tiles over the longest of it |
//! | attention at all | – | `layers · attention_fixed` for decodes, and again for chunks | once, that of a prompt of a few tokens |
//! | all of this at least | – | `launch` | – |
//! | all-reduces | `2 · layers · 2 · (d - 1) / d · n · hidden · 2 bytes / link` | the same | `2 · layers` as measured at `n · hidden · 2` bytes |
//! | copies | `swap_overhead + blocks · block_bytes / (PCIe · d)` | the same, less `swap_overlap` times the shorter of copying and all the above | the same as on the left |
//!
//! Copies of the host's cache ([`StepPlan::stored`](crate::sched::StepPlan::stored), [`fetched`](crate::sched::StepPlan::fetched)) are
//! not among these: they run beside the step, which lasts as long as the links are busy if that is longer.
//!
//! The host adds `step_overhead + s · sequence_overhead`, or where the hardware has [`HostTimes`](crate::deploy::HostTimes), with `D` the
//! time of all the above:
//!
//! | scheduling | a step |
//! |---|---|
//! | synchronous | `step + s · sequence + max(D, launches)`, and `chunk_overhead` if it has chunks |
//! | asynchronous | `max(D, step + s · sequence + launches) + exposed + s · exposed_sequence`, and `chunk_overhead` if it has chunks |
//!
//! `launches` is `launch` once where all decode within `cudagraph_tokens`, `layers · piece_launches` times where a step of that size has
//! chunks, `layers · layer_launches` times beyond.
//!
//! What tables are read for and what is modelled beside them stands at the head of `deploy/tabled/mod.rs`. They are read once, at the
//! knots of grids that a number's bits say the cell of (`grid.rs`), and made to never fall where what was measured does.
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
