//! Generated source, before rustfmt and the compiler.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use kvtide_runtime::{ActionMask, Policy};

use super::{observations, provenance, student};
use crate::export::{encode, rust_source};

#[test]
fn generated_source_is_refused_for_a_foreign_table() {
    assert!(rust_source(b"no table").is_err());
}

/// Whether a tool answers; a test without it says so.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        let _ = writeln!(io::stderr(), "skipped: {tool} is not installed");
    }
    found
}

#[test]
fn generated_source_is_formatted() {
    if !has("rustfmt") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for splits in [0, 300] {
        let path = folder.path().join("policy.rs");
        fs::write(&path, rust_source(&encode(&student(splits, 1), &provenance()).unwrap()).unwrap()).unwrap();
        for style in ["max_width=100", "max_width=120,use_small_heuristics=Max"] {
            let mut rustfmt = Command::new("rustfmt");
            let output = rustfmt.args(["--check", "--edition", "2024", "--config", style]).arg(&path).output().unwrap();
            assert!(output.status.success(), "{style}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

/// A node that was compiled with two tables, one of the largest size, prints what they decide.
#[test]
fn generated_source_compiles_and_decides_alike() {
    if !has("cargo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("runtime").canonicalize().unwrap();
    let manifest = format!(
        "[package]\nname = \"node\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\nkvtide-runtime = {{ path = {runtime:?} }}\n"
    );
    let main = "#![deny(warnings)]
mod largest;
mod policy;

use kvtide_runtime::{ActionMask, NUM_FEATURES, Observation, Policy};

fn main() {
    for line in std::io::stdin().lines() {
        let mut observation = Observation { values: [0.0; NUM_FEATURES] };
        for (value, bits) in observation.values.iter_mut().zip(line.unwrap().split(' ')) {
            *value = f32::from_bits(bits.parse().unwrap());
        }
        for table in [&policy::POLICY, &largest::POLICY] {
            println!(\"{:?}\", table.decide(&observation, ActionMask::ALL).indices());
        }
    }
    assert_eq!(policy::BYTES.len() + largest::BYTES.len(), policy::LEN);
}
";
    let students = [student(255, 5), student(8191, 6)];
    let sources = students.each_ref().map(|student| rust_source(&encode(student, &provenance()).unwrap()).unwrap());
    let total: usize = students.iter().map(|student| encode(student, &provenance()).unwrap().len()).sum();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    fs::write(folder.path().join("src/main.rs"), main).unwrap();
    fs::write(folder.path().join("src/policy.rs"), format!("{}\npub const LEN: usize = {total};\n", sources[0]))
        .unwrap();
    fs::write(folder.path().join("src/largest.rs"), &sources[1]).unwrap();
    let input: String = observations(1000)
        .map(|observation| observation.values.map(|value| value.to_bits().to_string()).join(" ") + "\n")
        .collect();
    fs::write(folder.path().join("input"), input).unwrap();
    let output = Command::new("cargo")
        .args(["run", "--offline", "--quiet"])
        .current_dir(folder.path())
        .env("CARGO_TARGET_DIR", folder.path().join("target"))
        .env_remove("RUSTFLAGS")
        .stdin(fs::File::open(folder.path().join("input")).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected: Vec<String> = observations(1000)
        .flat_map(|observation| students.each_ref().map(|student| student.decide(&observation, ActionMask::ALL)))
        .map(|action| format!("{:?}", action.indices()))
        .collect();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().collect::<Vec<&str>>(), expected);
}
