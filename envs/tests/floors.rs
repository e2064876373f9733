//! Floor by floor: no room uses one that stands above it.

use std::fs;
use std::path::Path;

use crate::common::rooms::{arrows, faults};
use tempfile::tempdir;

/// The rooms from the ground up. Those of one floor know nothing of each other.
const FLOORS: [&[&str]; 14] = [
    &["files", "percentile", "seed", "time"],
    &["trace"],
    &["workload"],
    &["intent"],
    &["evict", "tier"],
    &["kv"],
    &["deploy", "reuse"],
    &["sched"],
    &["cost"],
    &["calibrate", "token_price"],
    &["memory"],
    &["metrics"],
    &["env"],
    &["baseline", "golden"],
];

#[test]
fn no_room_uses_one_above_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert!(arrows(&folder).len() > 50);
    let faults = faults(&folder, &FLOORS);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_arrow_upwards_is_seen_however_it_is_written() {
    let folder = tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let faults = |text: &str| {
        write("ground/deep/file.rs", text);
        faults(folder.path(), &[&["ground"], &["beside", "middle"], &["top"]])
    };
    write("lib.rs", "pub use crate::top::Roof;");
    write("top.rs", "use super::middle;\nuse crate::{ground::{self, deep}, middle::Table};");
    write(
        "middle.rs",
        "// use crate::top;\nfn f() -> crate::ground::Floor {}\n#[cfg(test)]\nmod tests { use crate::top; }",
    );
    write("middle/tests/mod.rs", "use crate::top;");
    assert_eq!(faults("use super::top;\nuse crate::ground::deep;"), Vec::<String>::new());
    for text in [
        "use crate::top::Roof;",
        "pub use crate::{ground, top};",
        "use crate::{ground::{self, deep},\n    top::{A, B}};",
        "fn f() { crate::top::f() }",
        "use super::super::super::top;",
    ] {
        let found = faults(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(
            found[0].starts_with("ground uses top, which does not stand below it: ground/deep/file.rs"),
            "{found:?}"
        );
    }
    assert_eq!(faults("use crate::cellar;"), ["cellar stands on no floor: write it down where it belongs"]);
    write("beside.rs", "use crate::middle;");
    assert_eq!(faults(""), ["beside uses middle, which does not stand below it: beside.rs"]);
}
