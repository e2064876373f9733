//! Where the programs of this crate find libtorch at run time, without `LD_LIBRARY_PATH`.
//!
//! The loader replaces `$ORIGIN` by the folder of the program. In this order: beside it, where `make dist` puts libtorch; then where
//! `make setup` does, seen from `target/<profile>/kvtide-train` (two levels below the root) and from
//! `target/<profile>/{deps,examples}/…` (three). What `libtorch_cpu.so` itself needs, it finds by the path it was built with, as long
//! as the layout of the wheels is kept (torch/lib beside nvidia/cu13/lib).

const PATHS: [&str; 3] = [
    "$ORIGIN/lib/torch/lib",
    "$ORIGIN/../../third_party/libtorch/torch/lib",
    "$ORIGIN/../../../third_party/libtorch/torch/lib",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", PATHS.join(":"));
}
