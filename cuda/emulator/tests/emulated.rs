//! Every kernel computes what the reference says, on the CPU and in many orders of its threads.

use std::ops::Range;

use crate::common::{Emulator, compiled, folder};
use kvtide_kernels::check;

/// Seeds to run: `KVTIDE_KERNEL_SEEDS=7..8`, or a first few.
fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("KVTIDE_KERNEL_SEEDS") else { return 0..150 };
    let range = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    range.unwrap_or_else(|| panic!("KVTIDE_KERNEL_SEEDS={text} is no range like 7..8"))
}

#[test]
fn every_kernel_computes_what_the_reference_says() {
    let Some(library) = compiled(kvtide_emulator::compile(folder(), &[], "kernels.so")) else { return };
    let mut device = Emulator::open(&library);
    for seed in seeds() {
        device.seed = seed;
        for (name, check) in check::all() {
            if let Err(message) = check(&mut device, seed) {
                panic!(
                    "{name}: {message}\nreplay: KVTIDE_KERNEL_SEEDS={seed}..{} cargo test -p kvtide-emulator --test all emulated::",
                    seed + 1
                );
            }
        }
    }
}
