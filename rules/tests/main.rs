//! The rules, against the oldest way to state them.

mod admission;
mod ageing;
mod intent;
