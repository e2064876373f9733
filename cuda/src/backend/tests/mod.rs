//! The backend on the emulated device: its calls, its order, its arithmetic.

mod backend;
mod decoder;
mod device;

use std::io::{self, Write};
use std::ops::Deref;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kvtide_emulator::{Driver, MISSING_COMPILER, libraries};
use kvtide_envs::kv::BlockId;
use kvtide_kernels::reference::Element;

/// The emulated device, for one test at a time.
pub(super) struct Emulated {
    driver: &'static Driver,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Emulated {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

/// Device memory unless a test says otherwise, bytes.
const MEMORY_BYTES: u64 = 1 << 30;

impl Emulated {
    /// Waits for the device; `None`, with a word, where it cannot be built.
    pub(super) fn take() -> Option<Emulated> {
        static TURN: Mutex<()> = Mutex::new(());
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = DRIVER.get_or_init(load).as_ref()?;
        driver.set_memory_bytes(MEMORY_BYTES);
        driver.set_fail_after(-1);
        driver.set_eager(0);
        let emulated = Emulated { driver, _turn: turn };
        emulated.reset(0);
        Some(emulated)
    }

    /// Work runs in another order from now on. Nothing may be in use.
    pub(super) fn reset(&self, seed: u64) {
        super::device::forget();
        self.driver.reset(seed);
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
        match $crate::backend::tests::Emulated::take() {
            Some(emulated) => emulated,
            None => return,
        }
    };
}
pub(super) use emulated_or_skip;

fn load() -> Option<Driver> {
    let skip = |why: &str| {
        let _ = writeln!(io::stderr(), "skipped: the emulated device: {why}");
        None
    };
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/emulated");
    let libraries = match libraries(&target) {
        Ok(libraries) => libraries,
        Err(why) if why.starts_with(MISSING_COMPILER) => return skip(&why),
        Err(why) => panic!("{why}"),
    };
    if let Err(why) = super::compile::load_nvrtc() {
        return skip(&why.to_string());
    }
    Some(Driver::load(&libraries))
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
