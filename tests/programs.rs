//! That no test is forgotten: a file that no `mod` names would not be compiled, and nobody would notice.

use std::fs;
use std::path::Path;

/// Every folder of integration tests that has one program.
const TESTS: [&str; 9] = [
    "tests",
    "torch/tests",
    "cuda/emulator/tests",
    "cuda/tests",
    "envs/tests",
    "kernels/tests",
    "rules/tests",
    "runtime/tests",
    "runtime/capi/tests",
];
/// Programs of their own, each in its crate's `Cargo.toml`.
const ALONE: [&str; 3] = ["main", "gpu", "emulated_driver"];

#[test]
fn every_file_is_part_of_its_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in TESTS.map(|folder| root.join(folder)) {
        let main = fs::read_to_string(folder.join("main.rs")).unwrap();
        let manifest = fs::read_to_string(folder.join("../Cargo.toml")).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_module = ["mod.rs", "main.rs"].iter().any(|name| path.join(name).exists())
                || path.extension().is_some_and(|extension| extension == "rs");
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            if ALONE.contains(&name.as_str()) {
                let is_program = name == "main" || manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
                assert!(is_program, "{} is no program of its crate", path.display());
            } else if is_module {
                assert!(main.lines().any(|line| line == format!("mod {name};")), "{} is in no program", path.display());
            }
        }
    }
}
