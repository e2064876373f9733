//! Other processes that work for this one: what they are told, and what is heard of them.
//!
//! A [`Setting`] says once what many tasks have in common (a world, its policies, an experiment) and names the files they read, by
//! content. An [`Order`] is one task in it, small, and depends on nothing that was done before, so it may be done anywhere, in any
//! order, and again when whoever did it is gone. [`Ray`] sends orders to workers of a Ray cluster; what a worker does with them is
//! the `workshop`'s.

mod ray;
mod setting;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

pub use ray::Ray;
pub use setting::{Setting, Shipped, Told, digest, shipped_name};

/// Which kvtide this is: two of one build compute the same bytes, of others nobody knows.
pub const BUILD: &str = match option_env!("KVTIDE_COMMIT") {
    Some(commit) => commit,
    None => concat!(env!("CARGO_PKG_VERSION"), " of an unknown commit"),
};

/// Why work cannot be done elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CrewError(pub String);

/// A task in its setting.
#[derive(Debug, Clone)]
pub struct Order {
    /// What it has in common with others.
    pub setting: Arc<Setting>,
    /// The task, as JSON.
    pub task: String,
}

/// Who does tasks for this process.
pub trait Crew: fmt::Debug + Send + Sync {
    /// How many tasks can be done at once.
    fn workers(&self) -> usize;

    /// Has a task done that will be asked for; one that is in hand already is not begun again.
    fn begin(&self, order: &Order);

    /// What came of a task, once; waits for it, and begins it if nobody did. `None` if `stop` was set before.
    ///
    /// # Errors
    /// The task cannot be done, or nobody is there any more to do it.
    fn finish(&self, order: &Order, stop: &AtomicBool) -> Result<Option<Value>, CrewError>;
}
