//! Tells the crate which commit it was built from, if it can be known.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/refs/heads");
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output();
    if let Ok(output) = head
        && output.status.success()
    {
        println!("cargo::rustc-env=KVTIDE_COMMIT={}", String::from_utf8_lossy(&output.stdout).trim());
    }
}
