//! What subcommands share: arguments, what they say and show, and how they are stopped.

pub(super) mod args;
pub(super) mod best_train;
pub(super) mod handover;
pub(super) mod output;
pub(super) mod outputs;
pub(super) mod progress;
pub(super) mod stop;
pub(super) mod talk;
