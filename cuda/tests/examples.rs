//! The examples do what they say on the emulated device.

#[path = "../examples/02-attention.rs"]
mod attention;
#[path = "../examples/01-copy.rs"]
mod copy;
#[path = "../examples/03-a-step.rs"]
mod step;

use std::io::{self, Write};
use std::path::Path;

use kvtide_emulator::{Driver, MISSING_COMPILER, libraries};
use kvtide_envs::memory::MemoryError;

#[test]
fn every_example_runs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emulated");
    match libraries(&folder) {
        Ok(libraries) => drop(Driver::load(&libraries)),
        Err(why) if why.starts_with(MISSING_COMPILER) => {
            let _ = writeln!(io::stderr(), "skipped: the examples: {why}");
            return;
        }
        Err(why) => panic!("{why}"),
    }
    for (name, run) in
        [("01-copy", copy::main as fn() -> _), ("02-attention", attention::main), ("03-a-step", step::main)]
    {
        match run().map_err(|error| error.downcast::<MemoryError>().map(|error| *error)) {
            Ok(()) => {}
            // The driver is there, and NVRTC is not.
            Err(Ok(MemoryError::Unavailable(why))) => {
                let _ = writeln!(io::stderr(), "skipped: {name}: {why}");
            }
            Err(other) => panic!("{name}: {other:?}"),
        }
    }
}
