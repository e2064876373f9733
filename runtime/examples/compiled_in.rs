//! A table that is part of the program: the compiler refuses one that is not for this build.
//!
//! `cargo run -p kvtide-runtime --example compiled_in`. `kvtide export --rust policy.rs` writes the same, with its bytes.

use kvtide_runtime::{ActionMask, Feature, Guard, GuardConfig, Observation, Table};

static BYTES: &[u8] = include_bytes!("../../checkpoints/chat-24g/policy.kvt");

static TABLE: Table<'static> = match Table::parse(BYTES) {
    Ok(table) => table,
    Err(_) => panic!("not a table for this build of kvtide-runtime"),
};

fn main() {
    let mut guard = Guard::new(Ok(TABLE), GuardConfig::default());
    for oldest_wait in [0.0, 0.2, 0.5, 2.0] {
        let mut observation = Observation::ZERO;
        observation.set(Feature::OldestWait, oldest_wait);
        let controls = guard.decide(&observation, 0, ActionMask::ALL);
        println!("oldest wait {oldest_wait} x TTFT: watermark {}, {}", controls.watermark, controls.admission.name());
    }
}
