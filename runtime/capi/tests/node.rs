//! `examples/node.c`, compiled against the header and the static library as a node would be, and run.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kvtide_runtime::format::{
    FeatureRange, RetentionSpec, TableSpec, encode, encode_with_retention, encoded_len, encoded_len_with_retention,
};
use kvtide_runtime::{
    ACTION_SET_HASH, ActionProfile, FEATURES, Feature, RELEASE_FEATURES, RELEASE_SCHEMA_HASH, ReleaseFeature,
    Retention, SCHEMA_HASH, TreeNode,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Little free: watermark 0.25, fewest blocks, recompute. Much free: 0.01, newest, recompute.
fn table(threshold: f32, profile: ActionProfile) -> Vec<u8> {
    encoded(threshold, profile, false)
}

/// The same with a second tree: heads are kept, tails go first.
fn retaining(threshold: f32, profile: ActionProfile) -> Vec<u8> {
    encoded(threshold, profile, true)
}

fn encoded(threshold: f32, profile: ActionProfile, retains: bool) -> Vec<u8> {
    let ranges = FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let spec = TableSpec {
        profile,
        heads: kvtide_runtime::action::NUM_HEADS as u8,
        schema_hash: SCHEMA_HASH,
        action_set_hash: ACTION_SET_HASH,
        ranges: &ranges,
        nodes: &[
            TreeNode::Split { feature: Feature::FreeFraction as u8, left: 1, threshold },
            TreeNode::Leaf { choices: [8, 1, 1, 0, 8, 0] },
            TreeNode::Leaf { choices: [1, 0, 1, 0, 8, 0] },
        ],
        metadata: &[],
        extensions: &[],
    };
    if !retains {
        let mut bytes = vec![0; encoded_len(&spec)];
        encode(&spec, &mut bytes).expect("the table keeps the rules");
        return bytes;
    }
    let ranges = RELEASE_FEATURES.map(|spec| FeatureRange { min: spec.min, max: spec.max });
    let leaf = |class: Retention| TreeNode::Leaf { choices: [class as u8, 0, 0, 0, 0, 0] };
    let retention = RetentionSpec {
        schema_hash: RELEASE_SCHEMA_HASH,
        ranges: &ranges,
        nodes: &[
            TreeNode::Split { feature: ReleaseFeature::Part.index() as u8, left: 1, threshold: 0.5 },
            leaf(Retention::Keep),
            leaf(Retention::EvictFirst),
        ],
    };
    let mut bytes = vec![0; encoded_len_with_retention(&spec, &retention)];
    encode_with_retention(&spec, &retention, &mut bytes).expect("the table keeps the rules");
    bytes
}

/// Where cargo puts what it builds: this program lies in `TARGET/PROFILE/deps`.
fn profile_folder() -> PathBuf {
    let program = env::current_exe().expect("a test has a path");
    program.ancestors().nth(2).expect("deps lies in a profile").to_owned()
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Builds the library, which a test's build does not: nothing in Rust can link it.
fn static_library() -> PathBuf {
    let folder = profile_folder();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(root()).args(["build", "--locked", "--lib", "--package", "kvtide-capi", "--target-dir"]);
    cargo.arg(folder.parent().expect("a profile lies in a target folder"));
    // `debug` is the profile `dev`; every other has the name of its folder.
    match folder.file_name().and_then(OsStr::to_str) {
        None | Some("debug") => {}
        Some(profile) => {
            cargo.args(["--profile", profile]);
        }
    }
    succeed(&mut cargo);
    folder.join("libkvtide.a")
}

#[test]
fn a_node_in_c_decides_and_reloads() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let program = folder.path().join("node");
    succeed(
        Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
            .args([root().join("include"), root().join("examples/node.c"), static_library()])
            .args(["-lpthread", "-ldl", "-lm", "-o"])
            .arg(&program),
    );

    let (path, next_path) = (folder.path().join("policy.kvt"), folder.path().join("next.kvt"));
    let run = |bytes: &[u8], next: &[u8]| {
        fs::write(&path, bytes).expect("the table can be written");
        fs::write(&next_path, next).expect("the table can be written");
        Command::new(&program).arg(&path).arg("100").arg(&next_path).output().expect("the program starts")
    };

    // Four requests of 200 tokens and more, ten times over: 0.44 of the pool is free at first, less later.
    let lines = |changed: &str, [head, tail]: [&str; 2], accepted: u32, invalid: u32| {
        format!(
            "kvtide {}, ABI 3\n\
             step 1: free 0.440, leave 0.01 of the pool free, victim 0 (request 3), preemption 1, fallback 0\n\
             step 57: free 0.300, leave 0.18 of the pool free, victim 1 (request 1), preemption 1, fallback 0\n\
             {changed}\n\
             head of 5 blocks given back: retention {head}\n\
             tail of 14 blocks given back: retention {tail}\n\
             decisions 100, table 100, no_table 0, unknown_schema 0, stale 0, non_finite 0, out_of_range 0, failed 0\n\
             loads: accepted {accepted}, unreadable 0, invalid {invalid}, unknown_schema 0, unfit_profile 0\n",
            env!("CARGO_PKG_VERSION")
        )
    };
    let good = table(0.3, ActionProfile::Core);
    let mut damaged = good.clone();
    damaged[300] ^= 4;
    let bolder = "step 98: free 0.200, leave 0.01 of the pool free, victim 0 (request 3), preemption 1, fallback 0";
    let kept = "step 98: kept the table: truncated: file ends after 40 bytes, needs at least 320";
    let of_tree = ["2, fallback 0", "0, fallback 0"];
    let no_tree = ["1, fallback 1"; 2];
    for (next, expected) in [
        (&retaining(0.1, ActionProfile::Core)[..], lines(bolder, of_tree, 2, 0)),
        (&table(0.1, ActionProfile::Core)[..], lines(bolder, no_tree, 2, 0)),
        (&good[..40], lines(kept, no_tree, 1, 1)),
    ] {
        let output = run(&good, next);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }

    // Refused at load, by name.
    let foreign = include_bytes!("../../tests/golden/v1_small.kvt");
    let refused: [(&[u8], &str); 4] = [
        (&table(0.3, ActionProfile::Full), "node: action_profile: "),
        (&damaged, "node: crc: "),
        (foreign, "node: schema: "),
        (b"", "node: truncated: "),
    ];
    for (bytes, reason) in refused {
        let output = run(bytes, &good);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.starts_with(reason), "{stderr}");
    }
}

/// What `nothing_has_padding` asserts in Rust, as the C compiler sees it.
#[test]
fn structs_are_as_large_in_c() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = folder.path().join("sizes.c");
    let sizes = [
        ("options", 72),
        ("snapshot", 264),
        ("running_request", 24),
        ("waiting_request", 32),
        ("observation", 152),
        ("mask", 24),
        ("controls", 40),
        ("counters", 120),
        ("release", 104),
        ("retained", 16),
        ("retained_counters", 112),
        ("visitor", 40),
        ("slo", 24),
        ("pricing", 24),
        ("candidate", 32),
        ("next", 16),
    ];
    let asserts = sizes.map(|(name, size)| format!("_Static_assert(sizeof(kvtide_{name}) == {size}, \"{name}\");\n"));
    fs::write(&path, "#include \"kvtide.h\"\n".to_owned() + &asserts.concat()).expect("a source can be written");
    succeed(Command::new("cc").args(["-std=c11", "-fsyntax-only", "-I"]).arg(root().join("include")).arg(&path));
}

#[test]
fn the_header_is_c_and_cpp() {
    let header = root().join("include/kvtide.h");
    for standard in ["-std=c99", "-std=c11"] {
        let mut cc = Command::new("cc");
        succeed(
            cc.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c"]).arg(&header),
        );
    }
    if Command::new("g++").arg("--version").output().is_ok() {
        let mut cpp = Command::new("g++");
        succeed(cpp.args(["-std=c++11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]).arg(&header));
    } else {
        eprintln!("skipped: there is no g++, the header was not compiled as C++");
    }
}
