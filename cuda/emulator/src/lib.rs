//! A CUDA device on the CPU, for tests: the kernels as C++, a driver and a cuBLAS, and a compiler that makes shared libraries of
//! them.
//!
//! [`compile`] builds kernels alone, a library of functions that run one launch each; [`libraries`] builds a `libcuda.so` and a
//! `libcublas.so` around them, which [`Driver`] loads where a program will look for CUDA's own. README.md says what they do that
//! a device does not: to run work late and out of order, to poison and guard memory, to fail.
//!
//! A library of kernels exports `extern "C" void emulated_<entry>(const emulator::Launch*, void** arguments)` for each entry, and
//! `const char* emulated_fault()`, which says what rule the last launch broke, or null. `cpp/device.h` has the
//! contract.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

mod driver;
mod libraries;

pub use driver::{Counters, Driver};
pub use libraries::{Libraries, libraries, libraries_of};

use kvtide_kernels::{ALL, Kernel};

/// CUDA's language on the CPU, which every unit includes: name and text.
const LANGUAGE: (&str, &str) = ("device.h", include_str!("../cpp/device.h"));

/// One translation unit of C++ for each kernel: file name and text.
pub fn units() -> Vec<(String, String)> {
    ALL.iter().map(unit).collect()
}

/// The translation unit of a kernel; its source may differ from the one in [`ALL`].
pub fn unit(kernel: &Kernel) -> (String, String) {
    unit_of(kernel.name, kernel.source, kernel.entries)
}

/// The translation unit of a source that is put together at run time.
pub fn unit_of(name: &str, source: &str, entries: &[&str]) -> (String, String) {
    let mut text = format!("#include \"device.h\"\n#line 1 \"{name}\"\n{source}\n");
    for entry in entries {
        let _ = writeln!(
            text,
            "extern \"C\" void emulated_{entry}(const emulator::Launch* launch, void** arguments) {{\n  \
             emulator::run({entry}, *launch, arguments);\n}}"
        );
    }
    (name.replace(".cu", ".cpp"), text)
}

/// The unit that exports `emulated_fault`.
fn fault_unit() -> (String, String) {
    let text = "#include \"device.h\"\nextern \"C\" const char* emulated_fault() { return emulator::fault; }\n";
    ("fault.cpp".to_owned(), text.to_owned())
}

/// Compiles all kernels and `extra` units into the shared library `folder/<hash>/<output_name>`.
///
/// See [`compile_units`].
pub fn compile(folder: &Path, extra: &[(String, String)], output_name: &str) -> Result<PathBuf, String> {
    let mut all = units();
    all.extend_from_slice(extra);
    compile_units(folder, &all, output_name)
}

/// Compiles units into a shared library with the C++ compiler that `CXX` names, or `g++`, and returns its path.
///
/// `<hash>` in its path is of all texts and the command: what was built before is not built again. Units are compiled
/// into files of their own and linked beside the result, which is renamed when whole, so that two processes may do so at
/// once.
///
/// # Errors
/// [`MISSING_COMPILER`] at the start of the message if there is no compiler; otherwise what it said.
pub fn compile_units(folder: &Path, units: &[(String, String)], output_name: &str) -> Result<PathBuf, String> {
    let compiler = compiler();
    let mut all = units.to_vec();
    all.push(fault_unit());
    let mut words = vec![compiler.as_str(), output_name, LANGUAGE.1];
    words.extend(FLAGS.iter().chain(&OF_KERNELS));
    words.extend(all.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]));
    let folder = folder.join(format!("{:016x}", hash(&words)));
    let library = folder.join(output_name);
    if library.is_file() {
        return Ok(library);
    }
    let scratch = folder.join(format!("build-{}-{}", std::process::id(), BUILDS.fetch_add(1, Ordering::Relaxed)));
    let said = |error: io::Error| format!("{}: {error}", scratch.display());
    fs::create_dir_all(&scratch).map_err(said)?;
    fs::write(scratch.join(LANGUAGE.0), LANGUAGE.1).map_err(said)?;
    let built = build(&compiler, &scratch, &all, output_name)
        .and_then(|()| fs::rename(scratch.join(output_name), &library).map_err(said));
    // The sources stay only where something is wrong with them.
    if built.is_ok() {
        fs::remove_dir_all(&scratch).map_err(said)?;
    }
    built.map(|()| library)
}

/// The C++ compiler: what `CXX` names, or `g++`.
fn compiler() -> String {
    std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "g++".to_owned())
}

/// Builds that this process has begun: threads may build the same at once.
static BUILDS: AtomicU64 = AtomicU64::new(0);

/// How the message starts when there is no C++ compiler.
pub const MISSING_COMPILER: &str = "no C++ compiler";

/// Fibers jump between stacks, which fortified `longjmp` takes for an error; kernels read memory as other types.
const FLAGS: [&str; 6] =
    ["-std=c++17", "-fPIC", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fwrapv", "-ffp-contract=off"];
/// Kernels are CUDA's C++, of which a compiler for the CPU has opinions.
const OF_KERNELS: [&str; 3] = ["-O1", "-w", "-fno-gnu-unique"];
/// What is written for the CPU is held to its rules.
const OF_THE_DEVICE: [&str; 4] = ["-O2", "-Wall", "-Wextra", "-Werror"];

fn build(compiler: &str, folder: &Path, units: &[(String, String)], output_name: &str) -> Result<(), String> {
    let objects = objects(compiler, folder, units, &OF_KERNELS)?;
    run(Command::new(compiler).current_dir(folder).arg("-shared").args(&objects).args(["-o", output_name]))
}

/// Compiles each unit in `folder`; the names of the object files.
fn objects(
    compiler: &str,
    folder: &Path,
    units: &[(impl AsRef<str>, impl AsRef<str>)],
    flags: &[&str],
) -> Result<Vec<String>, String> {
    let mut objects = Vec::new();
    for (name, text) in units {
        let (name, text) = (name.as_ref(), text.as_ref());
        fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        let object = format!("{name}.o");
        run(Command::new(compiler).current_dir(folder).args(FLAGS).args(flags).args(["-c", name, "-o", &object]))?;
        objects.push(object);
    }
    Ok(objects)
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{MISSING_COMPILER}: {name} is not there"),
        _ => format!("{name}: {error}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr)))
}

/// FNV-1a over texts with their ends marked: a name for a build, nothing that anyone must trust.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0xFF]));
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}
