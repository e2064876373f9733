//! The committed header is what cbindgen makes of the sources.
//!
//! After a change of the interface: `KVTIDE_WRITE_HEADER=1 cargo test -p kvtide-capi --test all header`, and think of
//! `KVTIDE_ABI_VERSION`.

use std::path::Path;
use std::{env, fs};

use kvtide_runtime::{Choices, Head};

#[test]
fn the_committed_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is read");
    // The library does not mention its enums in a signature, but for the status: numbers from C may be anything.
    config.export.include.sort();
    // The other files follow from this one. Naming them as well would declare every function twice.
    let builder = cbindgen::Builder::new().with_config(config).with_src(root.join("src/lib.rs"));
    let mut made = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut made);
    let made = String::from_utf8(made).expect("a header is text");

    let path = root.join("include/kvtide.h");
    if env::var_os("KVTIDE_WRITE_HEADER").is_some() {
        fs::write(&path, &made).expect("the header can be written");
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        made == committed,
        "include/kvtide.h is not what cbindgen makes; the first lines of this file say what to do"
    );
}

#[test]
fn the_header_has_every_head_and_every_choice_of_the_action_set() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/kvtide.h");
    let header = fs::read_to_string(path).expect("the header is committed");
    let has = |text: &str| assert!(header.contains(text), "include/kvtide.h lacks {text:?}");
    let sizes: Vec<String> = Head::ALL.iter().map(|head| format!("{} ({}", head.name(), head.size())).collect();
    let words = header.to_lowercase();
    for (head, size) in Head::ALL.into_iter().zip(sizes) {
        assert!(words.contains(&size), "kvtide_mask does not say {size:?}");
        match head.choices() {
            Choices::Levels(_) => {
                has(&format!("double {};", head.name()));
                has(&format!("double fallback_{};", head.name()));
            }
            Choices::Named(names) => {
                has(&format!("uint32_t {};", head.name()));
                has(&format!("uint32_t fallback_{};", head.name()));
                for (number, name) in names.iter().enumerate() {
                    let constant = format!("KVTIDE_{}_{name}", head.name()).to_uppercase().replace('-', "_");
                    has(&format!("{constant} = {number},"));
                }
            }
        }
    }
}
