//! Builds and loads the emulated libraries, and hands the one device of the process to one test at a time.

use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

const DRIVER_SOURCES: &[&str] = &[
    "emulator/allocations.cpp",
    "emulator/context.cpp",
    "emulator/copies.cpp",
    "emulator/driver.cpp",
    "emulator/image.cpp",
    "emulator/memory.cpp",
    "emulator/modules.cpp",
    "emulator/schedule.cpp",
    "emulator/streams.cpp",
    "tests/emulated_driver/toys.cpp",
];

/// How many seeds a hazard is given to show.
pub const SEEDS: u64 = 20;
/// What fresh memory holds.
pub const POISON: u8 = 0xA5;
pub const TIMED: Option<sys::CUevent_flags> = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);

const TOYS: &str = "
.version 8.0
.target sm_90
.address_size 64

.visible .entry toy_scale(
	.param .u64 .ptr .global .align 4 toy_scale_param_0,
	.param .f32 toy_scale_param_1,
	.param .f32 toy_scale_param_2,
	.param .u64 toy_scale_param_3
)
{
	ret;
}
.visible .entry toy_poke(
	.param .u64 toy_poke_param_0,
	.param .u64 toy_poke_param_1
)
{
	ret;
}
.visible .entry toy_fault(.param .u32 toy_fault_param_0) { ret; }
.visible .entry toy_unknown() { ret; }
";

/// `emulator::Counters`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Counters {
    pub executed: u64,
    pub pending: u64,
    pub allocations: u64,
    pub device_bytes: u64,
    pub pinned_bytes: u64,
    pub errors: u64,
    pub to_device_bytes: u64,
    pub to_host_bytes: u64,
}

/// The setters of `emulator/launch.h`.
pub struct Setters {
    reset: unsafe extern "C" fn(u64) -> c_int,
    set_memory_bytes: unsafe extern "C" fn(u64),
    set_fail_after: unsafe extern "C" fn(i64),
    set_multiprocessors: unsafe extern "C" fn(c_int),
    pub set_eager: unsafe extern "C" fn(u32),
    counters: unsafe extern "C" fn(*mut Counters),
    message: unsafe extern "C" fn() -> *const c_char,
}

/// Whether the file is there and younger than everything it is made of.
fn is_fresh(output: &Path, sources: &[&str]) -> bool {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let headers = fs::read_dir(here.join("emulator")).unwrap().map(|entry| entry.unwrap().path());
    let test = here.join("tests/emulated_driver/harness.rs");
    let newest = sources.iter().map(|source| here.join(source)).chain(headers).chain([test]);
    changed(output) > newest.map(|path| changed(&path)).max().flatten()
}

fn compile(output: &Path, sources: &[&str], options: &[&str]) -> bool {
    if is_fresh(output, sources) {
        return true;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = env::var_os("CXX").unwrap_or_else(|| "g++".into());
    let unfinished = output.with_extension(format!("{}.tmp", process::id()));
    let done = Command::new(&compiler)
        .args(["-std=c++17", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&unfinished)
        .args(sources.iter().map(|source| here.join(source)))
        .args(options)
        .output();
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            let _ = writeln!(io::stderr(), "skipped: the emulated driver needs {}: {error}", compiler.display());
            return false;
        }
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    fs::rename(unfinished, output).unwrap();
    true
}

/// Builds both libraries and makes them the ones that cudarc finds; none without a compiler.
fn load() -> Option<Setters> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("emulated_driver");
    fs::create_dir_all(&folder).unwrap();
    let search = format!("-L{}", folder.display());
    let (driver, cublas) = (folder.join("libcuda.so"), folder.join("libcublas.so"));
    let built = compile(&driver, DRIVER_SOURCES, &["-Wl,-soname,libcuda.so", "-ldl", "-pthread"])
        && compile(
            &cublas,
            &["emulator/blas.cpp"],
            &["-O3", "-ffp-contract=off", "-Wl,-soname,libcublas.so", &search, "-l:libcuda.so", "-Wl,-rpath,$ORIGIN"],
        );
    if !built {
        return None;
    }
    // SAFETY: built just now from this crate's sources; neither runs anything when loaded, and both stay for good.
    unsafe {
        let driver = Library::open(Some(driver), RTLD_NOW | RTLD_GLOBAL).unwrap();
        std::mem::forget(Library::open(Some(cublas), RTLD_NOW | RTLD_GLOBAL).unwrap());
        let setters = Setters {
            reset: *driver.get(b"kvtide_emulated_reset").unwrap(),
            set_memory_bytes: *driver.get(b"kvtide_emulated_set_memory_bytes").unwrap(),
            set_fail_after: *driver.get(b"kvtide_emulated_set_fail_after").unwrap(),
            set_multiprocessors: *driver.get(b"kvtide_emulated_set_multiprocessors").unwrap(),
            set_eager: *driver.get(b"kvtide_emulated_set_eager").unwrap(),
            counters: *driver.get(b"kvtide_emulated_counters").unwrap(),
            message: *driver.get(b"kvtide_emulated_message").unwrap(),
        };
        std::mem::forget(driver);
        Some(setters)
    }
}

/// The one device of this process, for one test at a time.
pub struct Device {
    pub setters: &'static Setters,
    _turn: MutexGuard<'static, ()>,
}

impl Device {
    pub fn take() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        static SETTERS: OnceLock<Option<Setters>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Self { setters: SETTERS.get_or_init(load).as_ref()?, _turn: turn };
        device.set_memory_bytes(1 << 30);
        device.set_fail_after(-1);
        // SAFETY: setters take any number.
        unsafe {
            (device.setters.set_multiprocessors)(132);
            (device.setters.set_eager)(0);
        }
        Some(device)
    }

    /// A fresh context with nothing but the caller's own order of work.
    pub fn context(&self, seed: u64) -> Arc<CudaContext> {
        // SAFETY: no context of an earlier test is alive.
        assert_eq!(unsafe { (self.setters.reset)(seed) }, 0, "memory of an earlier test is still allocated");
        let context = CudaContext::new(0).unwrap();
        // SAFETY: what runs on two streams is ordered, or meant not to be.
        unsafe { context.disable_event_tracking() };
        context
    }

    pub fn set_memory_bytes(&self, bytes: u64) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_memory_bytes)(bytes) };
    }

    pub fn set_fail_after(&self, operations: i64) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_fail_after)(operations) };
    }

    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: the struct is the driver's.
        unsafe { (self.setters.counters)(&raw mut counters) };
        counters
    }

    pub fn message(&self) -> String {
        // SAFETY: a string that lives until the next call.
        unsafe { CStr::from_ptr((self.setters.message)()) }.to_string_lossy().into_owned()
    }
}

macro_rules! device_or_skip {
    () => {
        match crate::harness::Device::take() {
            Some(device) => device,
            None => return,
        }
    };
}

pub fn code<T: std::fmt::Debug>(result: Result<T, DriverError>) -> CUresult {
    result.unwrap_err().0
}

pub fn toys(context: &Arc<CudaContext>) -> Arc<CudaModule> {
    context.load_module(Ptx::from_src(TOYS)).unwrap()
}

pub fn scale(
    stream: &CudaStream,
    function: &CudaFunction,
    values: u64,
    factor: f32,
    offset: f32,
    count: u64,
) -> Result<(), DriverError> {
    let mut launch = stream.launch_builder(function);
    launch.arg(&values).arg(&factor).arg(&offset).arg(&count);
    // SAFETY: an emulated kernel; what it may touch is checked.
    unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }.map(|_| ())
}

pub fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32).collect()
}

pub(crate) use device_or_skip;
