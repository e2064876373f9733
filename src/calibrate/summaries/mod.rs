//! Judges clocks on measured summaries: of each run of a server with one token budget, what its clients saw.
//!
//! | file | what |
//! |---|---|
//! | `rows.rs` | the two files, and what is wrong with them |
//! | `select.rs` | some of their runs |
//! | `setup.rs` | what they are simulated on, by card and model |
//! | `serve.rs` | a run, simulated as a client would have seen it |
//! | `fit.rs` | the constants with which a card's runs come out right |
//! | `judge.rs` | errors by load and budget, and the best budget |
//! | `report.rs`, `text.rs`, `picture.rs`, `account.rs` | what there is to tell |
//!
//! TPOT is `(E2E - TTFT) / (tokens - 1)` of each request, as vLLM's own bench and those after it have it, a percentile lies between
//! the two nearest requests (`numpy`'s default), and E2E ends with the answer's stream.

mod account;
mod fit;
mod judge;
mod picture;
mod report;
mod rows;
mod select;
mod serve;
mod setup;
mod text;

pub use account::SummaryAccount;
pub use fit::{CardFit, FitLoads, WatchFit, fit_card, serve_card};
pub use judge::{AdaptiveGain, BestBudget, CellReport, ChoiceReport, ErrorSpread, Naming, PartReport};
pub use report::{CardAccount, ClockReport, ModelReport, judge_card};
pub use rows::{Latencies, MeanP95, MeasuredSummaries, SummaryPolicy, SummaryRun};
pub use select::{Selection, SelectionError};
pub use setup::{CardRuns, ModelRuns};
