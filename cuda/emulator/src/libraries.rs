//! The emulated device as shared libraries: a CUDA driver with these kernels in it, and cuBLAS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{BUILDS, DEVICE_HEADER, FLAGS, compiler, fault_unit, hash, run, units};
use std::sync::atomic::Ordering;

/// Files of the driver: those that are compiled, then their headers.
const DRIVER: [(&str, &str); 9] = [
    ("allocations.cpp", include_str!("../../emulator/allocations.cpp")),
    ("context.cpp", include_str!("../../emulator/context.cpp")),
    ("copies.cpp", include_str!("../../emulator/copies.cpp")),
    ("driver.cpp", include_str!("../../emulator/driver.cpp")),
    ("image.cpp", include_str!("../../emulator/image.cpp")),
    ("memory.cpp", include_str!("../../emulator/memory.cpp")),
    ("modules.cpp", include_str!("../../emulator/modules.cpp")),
    ("schedule.cpp", include_str!("../../emulator/schedule.cpp")),
    ("streams.cpp", include_str!("../../emulator/streams.cpp")),
];
const HEADERS: [(&str, &str); 7] = [
    ("cuda.h", include_str!("../../emulator/cuda.h")),
    ("device.h", DEVICE_HEADER),
    ("driver.h", include_str!("../../emulator/driver.h")),
    ("image.h", include_str!("../../emulator/image.h")),
    ("launch.h", include_str!("../../emulator/launch.h")),
    ("limits.h", include_str!("../../emulator/limits.h")),
    ("memory.h", include_str!("../../emulator/memory.h")),
];
const SCHEDULE: (&str, &str) = ("schedule.h", include_str!("../../emulator/schedule.h"));
const BLAS: (&str, &str) = ("blas.cpp", include_str!("../../emulator/blas.cpp"));

/// Where the emulated libraries are; both in one folder, which can be put into `LD_LIBRARY_PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libraries {
    /// `libcuda.so`.
    pub driver: PathBuf,
    /// `libcublas.so`.
    pub blas: PathBuf,
}

/// Builds the emulated device with every kernel in `folder/<hash>`, or finds it there.
///
/// # Errors
/// [`MISSING_COMPILER`](super::MISSING_COMPILER) at the start of the message if there is no compiler; otherwise what it
/// said.
pub fn libraries(folder: &Path) -> Result<Libraries, String> {
    let mut sources = units();
    sources.push(fault_unit());
    sources.extend(DRIVER.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())));
    let headers = HEADERS.iter().chain([&SCHEDULE]);
    let compiler = compiler();
    let mut words: Vec<&str> = vec![&compiler, "libraries"];
    words.extend(FLAGS);
    words.extend(sources.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]));
    words.extend(headers.clone().chain([&BLAS]).flat_map(|&(name, text)| [name, text]));
    let folder = folder.join(format!("{:016x}", hash(&words)));
    let built = Libraries { driver: folder.join("libcuda.so"), blas: folder.join("libcublas.so") };
    if built.driver.is_file() && built.blas.is_file() {
        return Ok(built);
    }
    let scratch = folder.join(format!("build-{}-{}", std::process::id(), BUILDS.fetch_add(1, Ordering::Relaxed)));
    let said = |error: std::io::Error| format!("{}: {error}", scratch.display());
    fs::create_dir_all(&scratch).map_err(said)?;
    for (name, text) in headers.chain([&BLAS]) {
        fs::write(scratch.join(name), text).map_err(said)?;
    }
    let objects = super::objects(&compiler, &scratch, &sources)?;
    let here = || {
        let mut command = Command::new(&compiler);
        command.current_dir(&scratch).args(FLAGS).arg("-shared");
        command
    };
    run(here().args(&objects).args(["-Wl,-soname,libcuda.so", "-o", "libcuda.so", "-ldl", "-pthread"]))?;
    let beside = ["-L.", "-l:libcuda.so", "-Wl,-rpath,$ORIGIN", "-Wl,-soname,libcublas.so"];
    run(here().args(["-O3", "blas.cpp", "-o", "libcublas.so"]).args(beside))?;
    // cuBLAS last: whoever finds both finds them whole.
    fs::rename(scratch.join("libcuda.so"), &built.driver).map_err(said)?;
    fs::rename(scratch.join("libcublas.so"), &built.blas).map_err(said)?;
    fs::remove_dir_all(&scratch).map_err(said)?;
    Ok(built)
}
