//! The emulated device as shared libraries: a CUDA driver with kernels in it, and cuBLAS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;

use super::{BUILDS, FLAGS, LANGUAGE, OF_KERNELS, OF_THE_DEVICE, compiler, fault_unit, hash, objects, run, units};

/// Files of `cpp/` with their texts.
macro_rules! files {
    ($($name:literal)*) => { &[$(($name, include_str!(concat!("../cpp/", $name)))),*] };
}

type Files = &'static [(&'static str, &'static str)];

/// What the driver is compiled from.
const DRIVER: Files = files!["allocations.cpp" "context.cpp" "copies.cpp" "driver.cpp" "image.cpp" "memory.cpp"
    "modules.cpp" "schedule.cpp" "streams.cpp"];
/// What cuBLAS is compiled from.
const BLAS: Files = files!["blas.cpp"];
/// What they include, but for the kernels' language.
const HEADERS: Files = files!["cuda.h" "driver.h" "image.h" "launch.h" "limits.h" "memory.h" "schedule.h"];

/// Where the emulated libraries are; both in one folder, which can be put into `LD_LIBRARY_PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libraries {
    /// `libcuda.so`.
    pub driver: PathBuf,
    /// `libcublas.so`.
    pub blas: PathBuf,
}

impl Libraries {
    /// The folder of both.
    pub fn folder(&self) -> &Path {
        self.driver.parent().unwrap_or(Path::new("."))
    }
}

/// Builds the emulated device with every kernel in `folder/<hash>`, or finds it there.
///
/// # Errors
/// [`MISSING_COMPILER`](super::MISSING_COMPILER) at the start of the message if there is no compiler; otherwise what it
/// said.
pub fn libraries(folder: &Path) -> Result<Libraries, String> {
    let mut kernels = units();
    kernels.push(fault_unit());
    build(folder, &kernels, &OF_KERNELS)
}

/// The same with other kernels: units that are written by hand, export `emulated_<entry>` for each and `emulated_fault`, and may
/// include `launch.h`.
///
/// # Errors
/// As [`libraries`].
pub fn libraries_of(folder: &Path, kernels: &[(String, String)]) -> Result<Libraries, String> {
    build(folder, kernels, &OF_THE_DEVICE)
}

fn build(folder: &Path, kernels: &[(String, String)], flags: &[&str]) -> Result<Libraries, String> {
    let compiler = compiler();
    let headers = || HEADERS.iter().chain([&LANGUAGE]);
    let mut words: Vec<&str> = vec![&compiler, "libraries"];
    words.extend(FLAGS.iter().chain(flags).chain(&OF_THE_DEVICE));
    words.extend(kernels.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]));
    words.extend(DRIVER.iter().chain(BLAS).chain(headers()).flat_map(|&(name, text)| [name, text]));
    let folder = folder.join(format!("{:016x}", hash(&words)));
    let built = Libraries { driver: folder.join("libcuda.so"), blas: folder.join("libcublas.so") };
    if built.driver.is_file() && built.blas.is_file() {
        return Ok(built);
    }
    let scratch = folder.join(format!("build-{}-{}", std::process::id(), BUILDS.fetch_add(1, Ordering::Relaxed)));
    let said = |error: std::io::Error| format!("{}: {error}", scratch.display());
    fs::create_dir_all(&scratch).map_err(said)?;
    for (name, text) in headers() {
        fs::write(scratch.join(name), text).map_err(said)?;
    }
    let link = |objects: &[String], options: &[&str]| {
        run(Command::new(&compiler).current_dir(&scratch).arg("-shared").args(objects).args(options))
    };
    let mut of_driver = objects(&compiler, &scratch, kernels, flags)?;
    of_driver.extend(objects(&compiler, &scratch, DRIVER, &OF_THE_DEVICE)?);
    link(&of_driver, &["-Wl,-soname,libcuda.so", "-o", "libcuda.so", "-ldl", "-pthread"])?;
    // The later of two optimisations counts: products take most of a test's time.
    let of_blas = objects(&compiler, &scratch, BLAS, &[&OF_THE_DEVICE[..], &["-O3"]].concat())?;
    let beside = ["-L.", "-l:libcuda.so", "-Wl,-rpath,$ORIGIN", "-Wl,-soname,libcublas.so", "-o", "libcublas.so"];
    link(&of_blas, &beside)?;
    // cuBLAS last: whoever finds both finds them whole.
    fs::rename(scratch.join("libcuda.so"), &built.driver).map_err(said)?;
    fs::rename(scratch.join("libcublas.so"), &built.blas).map_err(said)?;
    fs::remove_dir_all(&scratch).map_err(said)?;
    Ok(built)
}
