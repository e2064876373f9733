//! The gym-like environment: `reset(seed, options)` and `step(action)` with Gymnasium's five-part result, over a
//! simulated serving node.
//!
//! [`Node`] is the world: scheduler, cost model, clock, accounts. A [`Controller`] steers it; evaluation knows nothing
//! else. [`ServingEnv`] makes episodes of it, [`VecEnv`] steps many of them in parallel, [`check_env`] tests that they
//! keep their promises.

mod arena;
pub mod batch;
mod check;
mod controller;
mod draw;
mod episode;
mod guarded;
mod node;
mod observe;
mod play;
mod reward;
mod serving;
mod vector;

pub use arena::{Arena, ServedEpisode, ServingArena, Stopped};
pub use batch::{Batch, Episode, Served, VectorEnv};
pub use check::{CheckError, check_env};
pub use controller::{Controller, EngineDefault, PolicyController, Retaining, RunError, mask, run};
pub use draw::WorldDraw;
pub use episode::{Drawn, EpisodeSource, ResetOptions};
pub use guarded::Guarded;
pub(crate) use node::{Coming, Future};
pub use node::{Node, NodeConfig, NodeError, NodeStatus};
pub use observe::{observe, snapshot};
pub use play::{Trajectory, random_play};
pub use reward::{Reward, RewardWeights};
pub use serving::{EnvConfig, EnvError, Info, ServingEnv, Step};
pub use vector::VecEnv;
