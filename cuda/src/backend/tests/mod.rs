//! The backend on the emulated device: its calls, its order, its arithmetic.

mod backend;
mod decoder;
mod device;

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kvtide_kernels::emulator;
use kvtide_kernels::reference::Element;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::kv::BlockId;

/// The emulated device, for one test at a time, and what tests set about it (`kernels/emulator/launch.h`).
pub(super) struct Emulated {
    setters: &'static Setters,
    _turn: MutexGuard<'static, ()>,
}

struct Setters {
    reset: unsafe extern "C" fn(u64) -> i32,
    set_memory_bytes: unsafe extern "C" fn(u64),
    set_fail_after: unsafe extern "C" fn(i64),
    set_eager: unsafe extern "C" fn(u32),
}

/// Device memory unless a test says otherwise, bytes.
const MEMORY_BYTES: u64 = 1 << 30;

impl Emulated {
    /// Waits for the device; `None`, with a word, where it cannot be built.
    pub(super) fn take() -> Option<Emulated> {
        static TURN: Mutex<()> = Mutex::new(());
        static SETTERS: OnceLock<Option<Setters>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let setters = SETTERS.get_or_init(load).as_ref()?;
        // SAFETY: setters take any number.
        unsafe {
            (setters.set_memory_bytes)(MEMORY_BYTES);
            (setters.set_fail_after)(-1);
            (setters.set_eager)(0);
        }
        let emulated = Emulated { setters, _turn: turn };
        emulated.reset(0);
        Some(emulated)
    }

    /// Work runs in another order from now on. Nothing may be in use.
    pub(super) fn reset(&self, seed: u64) {
        super::device::forget();
        // SAFETY: takes any number.
        unsafe { (self.setters.reset)(seed) };
    }

    pub(super) fn set_memory_bytes(&self, bytes: u64) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_memory_bytes)(bytes) };
    }

    pub(super) fn set_fail_after(&self, operations: i64) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_fail_after)(operations) };
    }

    /// How often, in percent, queued work runs at once.
    pub(super) fn set_eager(&self, percent: u32) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_eager)(percent) };
    }
}

/// Leaves nothing of one test to the next.
impl Drop for Emulated {
    fn drop(&mut self) {
        self.set_fail_after(-1);
        self.reset(0);
    }
}

/// Returns from a test that cannot run here.
macro_rules! emulated_or_skip {
    () => {
        match $crate::memory::cuda::enabled::tests::Emulated::take() {
            Some(emulated) => emulated,
            None => return,
        }
    };
}
pub(super) use emulated_or_skip;

fn load() -> Option<Setters> {
    let skip = |why: String| {
        let _ = writeln!(io::stderr(), "skipped: the emulated device: {why}");
        None
    };
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emulated");
    let libraries = match emulator::libraries(&target) {
        Ok(libraries) => libraries,
        Err(why) if why.starts_with(emulator::MISSING_COMPILER) => return skip(why),
        Err(why) => panic!("{why}"),
    };
    if let Err(why) = super::compile::load_nvrtc() {
        return skip(why.to_string());
    }
    // SAFETY: built from this project's sources; they run nothing when loaded, and stay for good. The symbols have these types.
    unsafe {
        let open = |path| Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL).expect("what was built loads");
        let driver = open(libraries.driver);
        std::mem::forget(open(libraries.blas));
        let setters = Setters {
            reset: *driver.get(b"kvtide_emulated_reset").expect("exported"),
            set_memory_bytes: *driver.get(b"kvtide_emulated_set_memory_bytes").expect("exported"),
            set_fail_after: *driver.get(b"kvtide_emulated_set_fail_after").expect("exported"),
            set_eager: *driver.get(b"kvtide_emulated_set_eager").expect("exported"),
        };
        std::mem::forget(driver);
        Some(setters)
    }
}

impl super::Device {
    /// Elements at a device address.
    fn read(&self, address: u64, elements: usize) -> Vec<u16> {
        let mut bits = vec![0_u16; elements];
        self.enter().expect("the device is there");
        // SAFETY: the tests read what the backend has allocated, and wait for it.
        unsafe { cudarc::driver::result::memcpy_dtoh_sync(&mut bits, address) }.expect("the range is allocated");
        bits
    }
}

impl super::CudaMemory {
    /// A token's keys or values of all heads, which start `offset` elements into its block.
    fn slot(&self, block: BlockId, slot: u32, offset: u64, element: Element) -> Vec<f64> {
        let shape = self.shape();
        let width = shape.head_dim as usize;
        let start = self.pools.address() + u64::from(block.0) * shape.block_bytes() + offset * 2;
        let rows = self.device.read(start, shape.layer_elements() as usize);
        let heads = rows.chunks_exact(width * shape.block_size as usize);
        let row = heads.flat_map(|head| head[slot as usize * width..][..width].to_vec());
        row.map(|bits| f64::from(element.widen(bits))).collect()
    }
}
