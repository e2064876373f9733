//! Bytes as a table; see `check::parse`.
#![no_main]

#[path = "../check.rs"]
#[allow(dead_code, reason = "the other target uses the rest")]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::parse(bytes));
