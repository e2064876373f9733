//! The tuner: trains an agent on a recorded workload, judges it against fixed watermarks, and exports what it learned.
//!
//! ```
//! use kvtide::experiment::Experiment;
//!
//! // Everything a training run depends on stands in one file.
//! let experiment = Experiment::load("experiments/chat-24g.toml".as_ref())?;
//! assert_eq!(experiment.name, "chat-24g");
//! # Ok::<(), kvtide::experiment::ExperimentError>(())
//! ```
//!
//! [`world`] resolves what the command line and experiment files say into a simulated node and its traffic; [`agent`]
//! learns on it, led by [`train`]; [`play`] plays candidates of other searchers; [`checkpoint`] keeps what was learned; [`policy`] names what is judged, [`evaluate`] judges it, [`report`] shows it;
//! [`import`] makes policies that were trained elsewhere checkpoints like ours; [`distil`] and [`export`] make the table that ships, [`retention`] the tree it keeps cached blocks by; [`tune`] goes the whole way from traffic to a verdict; [`calibrate`] fits the
//! simulator to real servers and devices; [`eviction`] judges policies of eviction on what requests ask for; [`token_pd`] judges a price for blocks within conversations; [`plot`] draws; [`crew`] has work done by other processes, each of which is a [`workshop`]; [`record`] writes logs; [`scrape`] asks servers what they serve;
//! [`mod@bench`] measures how fast all of it is; [`variance`] where the variance of returns comes from; [`text`] lays out text for people; [`cli`] is the command line over all of them.

#[macro_use]
mod say;

pub mod agent;
pub mod bench;
mod bootstrap;
pub mod calibrate;
pub mod checkpoint;
pub mod cli;
mod constant;
pub mod crew;
mod device;
pub mod distil;
pub mod evaluate;
pub mod eviction;
pub mod experiment;
pub mod export;
pub mod import;
pub mod play;
pub mod plot;
pub mod policy;
pub mod record;
pub mod report;
pub mod retention;
pub mod scrape;
pub mod text;
pub mod token_pd;
pub mod train;
pub mod tune;
pub mod variance;
pub mod workshop;
pub mod world;
