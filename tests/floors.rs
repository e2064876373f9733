//! Floor by floor: no room of the tool uses one that stands above it.

#[path = "../envs/tests/common/rooms.rs"]
mod rooms;

use std::path::Path;

/// The rooms from the ground up. Those of one floor know nothing of each other.
const FLOORS: [&[&str]; 12] = [
    &["bootstrap", "crew", "device", "plot", "say", "scrape", "text"],
    &["world"],
    &["constant"],
    &["agent"],
    &["checkpoint", "distil", "experiment", "record"],
    &["export"],
    &["policy"],
    &["evaluate"],
    &["report", "retention", "train"],
    &["eviction", "import", "play", "token_pd", "variance", "workshop"],
    &["bench", "calibrate", "tune"],
    &["cli"],
];

#[test]
fn no_room_uses_one_above_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert!(rooms::arrows(&folder).len() > 50);
    let faults = rooms::faults(&folder, &FLOORS);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
