//! The pool and its keys against slow, obvious versions of themselves. The stories are in `envs/tests/prefix_pool.rs`.

mod content;
mod model;
mod random;
mod recount;
