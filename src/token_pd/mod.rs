//! Token-PD judged: what a price for blocks keeps of attention, memory, requests a second and latency, beside FIFO, LRU and H2O, and
//! whether what was claimed of it holds.
//!
//! | file | what it has |
//! |---|---|
//! | `network.rs` | the predictor of returns, and how it learns |
//! | `study.rs` | what is run, in what order |
//! | `rows.rs` | what is reported of it |
//! | `seeds.rs` | what several seeds say together |
//! | `verdict.rs` | the two claims, and what is found of them |
//! | `page.rs` | the page |

mod network;
mod page;
mod rows;
mod seeds;
mod study;
mod verdict;

pub use network::{Fit, HIDDEN, ReturnNetwork};
pub use page::page;
pub use rows::{Line, TokenPdPrice, TokenPdRegret, TokenPdRow, TokenPdTraining};
pub use seeds::{TokenPdFinding, TokenPdMean, over_seeds, points};
pub use study::{Study, USUAL_RATE};
pub use verdict::{CLAIMED_MEMORY, CLAIMED_THROUGHPUT, TokenPdVerdict};
