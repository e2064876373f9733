//! The tuner: trains an agent on a recorded workload, judges it against fixed watermarks, and exports what it learned.
//!
//! [`world`] resolves what the command line and experiment files say into a simulated node and its traffic; [`agent`]
//! learns on it; [`checkpoint`] keeps what was learned; [`policy`] names what is judged, [`evaluate`] judges, [`report`] shows it; [`distil`] and
//! [`export`] make the table that ships; [`calibrate`] fits the simulator to a real server; [`plot`] draws; [`record`]
//! writes logs; [`mod@bench`] measures how fast all of it is; [`cli`] is the command line over all of them.

pub mod agent;
pub mod bench;
mod bootstrap;
pub mod calibrate;
pub mod checkpoint;
pub mod cli;
pub mod distil;
pub mod evaluate;
pub mod experiment;
pub mod export;
pub mod plot;
pub mod policy;
pub mod record;
pub mod report;
pub mod world;
