//! The library that Python loads. Its tests are Python's; that there is a program of tests here makes `cargo test` build it, with the
//! features of everything else that is tested, so that `scripts/python-test.sh` has nothing to compile.

use std::path::PathBuf;
use std::{env, fs};

/// What a program of tests depends on lies beside it, in `TARGET/PROFILE/deps`.
fn library() -> PathBuf {
    env::current_exe().expect("a test has a path").with_file_name("lib_kvtide.so")
}

#[test]
fn python_finds_how_to_begin() {
    let library = fs::read(library()).unwrap();
    let symbol = b"PyInit__kvtide\0";
    assert!(library.windows(symbol.len()).any(|bytes| bytes == symbol));
}
