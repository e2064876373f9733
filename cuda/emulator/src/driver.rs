//! The emulated libraries in a process, and what tests set about the device.
#![expect(unsafe_code, reason = "loads shared libraries and calls what they export")]

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::Libraries;

/// The emulated driver of this process. Its functions are those of `cpp/launch.h`, which says more.
#[derive(Debug)]
pub struct Driver {
    reset: unsafe extern "C" fn(u64) -> c_int,
    set_memory_bytes: unsafe extern "C" fn(u64),
    set_fail_after: unsafe extern "C" fn(i64),
    set_multiprocessors: unsafe extern "C" fn(c_int),
    set_eager: unsafe extern "C" fn(u32),
    counters: unsafe extern "C" fn(*mut Counters),
    message: unsafe extern "C" fn() -> *const c_char,
}

/// What the driver has done since its last reset: `emulator::Counters`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counters {
    /// Copies, fills, kernels and library calls run.
    pub executed: u64,
    /// Operations queued and not yet run, markers included.
    pub pending: u64,
    /// Live allocations, device and pinned.
    pub allocations: u64,
    /// Live bytes on the device.
    pub device_bytes: u64,
    /// Live pinned bytes, registered memory included.
    pub pinned_bytes: u64,
    /// Errors so far; [`Driver::message`] has the last.
    pub errors: u64,
    /// Bytes copied from host to device.
    pub to_device_bytes: u64,
    /// Bytes copied from device to host.
    pub to_host_bytes: u64,
}

impl Driver {
    /// Loads both libraries for good: whoever asks the loader for `libcuda.so` or `libcublas.so` from now on has these.
    ///
    /// # Panics
    /// If they are not what [`libraries`](crate::libraries) builds.
    pub fn load(libraries: &Libraries) -> Driver {
        // SAFETY: built from this crate's sources; they run nothing when loaded, and stay for good. The symbols have these types.
        unsafe {
            let driver = open(&libraries.driver);
            std::mem::forget(open(&libraries.blas));
            let loaded = Driver {
                reset: *driver.get(b"kvtide_emulated_reset").expect("exported"),
                set_memory_bytes: *driver.get(b"kvtide_emulated_set_memory_bytes").expect("exported"),
                set_fail_after: *driver.get(b"kvtide_emulated_set_fail_after").expect("exported"),
                set_multiprocessors: *driver.get(b"kvtide_emulated_set_multiprocessors").expect("exported"),
                set_eager: *driver.get(b"kvtide_emulated_set_eager").expect("exported"),
                counters: *driver.get(b"kvtide_emulated_counters").expect("exported"),
                message: *driver.get(b"kvtide_emulated_message").expect("exported"),
            };
            std::mem::forget(driver);
            loaded
        }
    }

    /// Forgets work, errors, memory and time, and runs in another order from now on. Nothing may be in use: how many allocations
    /// still were.
    pub fn reset(&self, seed: u64) -> u32 {
        // SAFETY: takes any number.
        unsafe { (self.reset)(seed) }.max(0).cast_unsigned()
    }

    /// How much memory the device has.
    pub fn set_memory_bytes(&self, bytes: u64) {
        // SAFETY: takes any number.
        unsafe { (self.set_memory_bytes)(bytes) };
    }

    /// So many operations run from now on, and the next fails for good; negative: none does.
    pub fn set_fail_after(&self, operations: i64) {
        // SAFETY: takes any number.
        unsafe { (self.set_fail_after)(operations) };
    }

    /// How many multiprocessors the device has.
    pub fn set_multiprocessors(&self, count: i32) {
        // SAFETY: takes any number.
        unsafe { (self.set_multiprocessors)(count) };
    }

    /// How often, in percent, a queued operation lets some work run at once.
    pub fn set_eager(&self, percent: u32) {
        // SAFETY: takes any number.
        unsafe { (self.set_eager)(percent) };
    }

    /// What has been done since the last reset.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: the struct is the driver's.
        unsafe { (self.counters)(&raw mut counters) };
        counters
    }

    /// The last error in words.
    pub fn message(&self) -> String {
        // SAFETY: a string that lives until this thread's next call.
        unsafe { CStr::from_ptr((self.message)()) }.to_string_lossy().into_owned()
    }
}

/// # Safety
/// The library is sound to load.
unsafe fn open(path: &Path) -> Library {
    // SAFETY: the caller's.
    unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.expect("what was built loads")
}
