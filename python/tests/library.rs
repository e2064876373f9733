//! The library that Python loads. Its tests are Python's; that there is a program of tests here makes `cargo test` build it, with the
//! features of everything else that is tested, so that `scripts/python-test.sh` has nothing to compile.

use std::path::PathBuf;
use std::{env, fs};

/// This program lies in `TARGET/PROFILE/deps`.
fn library() -> PathBuf {
    let program = env::current_exe().expect("a test has a path");
    program.ancestors().nth(2).expect("deps lies in a profile").join("lib_kvtide.so")
}

#[test]
fn python_finds_how_to_begin() {
    let library = fs::read(library()).unwrap();
    let symbol = b"PyInit__kvtide\0";
    assert!(library.windows(symbol.len()).any(|bytes| bytes == symbol));
}
