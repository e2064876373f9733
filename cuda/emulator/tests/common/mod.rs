//! The emulator: its shared library, and a launcher over it.
#![expect(unsafe_code, reason = "runs compiled kernels")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use kvtide_emulator::MISSING_COMPILER;
use kvtide_kernels::check::{CheckArg, Launcher};
use kvtide_kernels::launch::Geometry;
use libloading::Library;

/// Scratch of this crate's tests: compiled kernels are kept from one run to the next.
pub fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The library, or none, with a word, where there is no C++ compiler.
pub fn compiled(library: Result<PathBuf, String>) -> Option<PathBuf> {
    match library {
        Ok(path) => Some(path),
        Err(message) if message.starts_with(MISSING_COMPILER) => {
            let _ = writeln!(io::stderr(), "skipped: kernels are not run: {message}");
            None
        }
        Err(message) => panic!("{message}"),
    }
}

/// `emulator::Launch` of `device.h`.
#[repr(C)]
struct Launch {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    seed: u64,
}

/// An argument's value, where the emulator finds it through a pointer.
#[repr(C)]
union Value {
    pointer: *mut c_void,
    u32: u32,
    u64: u64,
    f32: f32,
}

type Entry = unsafe extern "C" fn(*const Launch, *mut *mut c_void);
type Fault = unsafe extern "C" fn() -> *const c_char;

/// One launch at a time: shared memory is the library's, and tests that open the same one run at once.
static LAUNCH: Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());

/// Runs kernels on the CPU; `seed` decides in which order threads run.
pub struct Emulator {
    library: Library,
    launch: Arc<Mutex<()>>,
    pub seed: u64,
}

impl Emulator {
    pub fn open(library: &Path) -> Self {
        let mut known = LAUNCH.lock().unwrap_or_else(PoisonError::into_inner);
        let launch = Arc::clone(known.entry(library.to_owned()).or_default());
        // SAFETY: a library that this test has just compiled, without initialisers of its own.
        let library = unsafe { Library::new(library) }.expect("the library that was compiled loads");
        Self { library, launch, seed: 0 }
    }
}

impl Launcher for Emulator {
    fn launch(&mut self, entry: &str, geometry: &Geometry, args: &mut [CheckArg<'_>]) -> Result<(), String> {
        // SAFETY: the library exports every entry and `emulated_fault` with these types.
        let (run, fault) = unsafe {
            let run = self.library.get::<Entry>(format!("emulated_{entry}").as_bytes());
            (run.map_err(|error| error.to_string())?, self.library.get::<Fault>(b"emulated_fault").expect("exported"))
        };
        let values: Vec<Value> = args
            .iter_mut()
            .map(|arg| match arg {
                CheckArg::In(bytes) => Value { pointer: bytes.as_ptr().cast_mut().cast() },
                CheckArg::Out(bytes) => Value { pointer: bytes.as_mut_ptr().cast() },
                CheckArg::Null => Value { pointer: ptr::null_mut() },
                CheckArg::U32(value) => Value { u32: *value },
                CheckArg::U64(value) => Value { u64: *value },
                CheckArg::F32(value) => Value { f32: *value },
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            values.iter().map(|value| ptr::from_ref(value).cast_mut().cast()).collect();
        let (grid, block) = (geometry.grid, geometry.block);
        let launch = Launch {
            grid: [grid.0, grid.1, grid.2],
            block: [block.0, block.1, block.2],
            shared_bytes: geometry.shared_bytes,
            seed: self.seed,
        };
        let _alone = self.launch.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: values live until the synchronous launch is over; the check vouches for their number and types.
        let fault = unsafe {
            run(&raw const launch, pointers.as_mut_ptr());
            fault()
        };
        if fault.is_null() {
            return Ok(());
        }
        // SAFETY: a text that ends with zero, in the library's static memory.
        Err(unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned())
    }

    fn multiprocessors(&self) -> u32 {
        1 + (self.seed % 7) as u32
    }
}
