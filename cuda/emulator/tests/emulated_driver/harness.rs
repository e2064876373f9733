//! Builds and loads the emulated libraries, and hands the one device of the process to one test at a time.

use std::io::{self, Write};
use std::ops::Deref;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::result::DriverError;
use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use kvtide_emulator::{Driver, MISSING_COMPILER, libraries_of};

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

/// Builds both libraries around the toys and makes them the ones that cudarc finds; none without a compiler.
fn load() -> Option<Driver> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulated_driver");
    let toys = ("toys.cpp".to_owned(), include_str!("toys.cpp").to_owned());
    match libraries_of(&folder, &[toys]) {
        Ok(libraries) => Some(Driver::load(&libraries)),
        Err(why) if why.starts_with(MISSING_COMPILER) => {
            let _ = writeln!(io::stderr(), "skipped: the emulated driver: {why}");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

/// The one device of this process, for one test at a time.
pub struct Device {
    driver: &'static Driver,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for Device {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.driver
    }
}

impl Device {
    pub fn take() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let device = Self { driver: DRIVER.get_or_init(load).as_ref()?, _turn: turn };
        device.set_memory_bytes(1 << 30);
        device.set_fail_after(-1);
        device.set_multiprocessors(132);
        device.set_eager(0);
        Some(device)
    }

    /// A fresh context with nothing but the caller's own order of work.
    pub fn context(&self, seed: u64) -> Arc<CudaContext> {
        // No context of an earlier test is alive.
        assert_eq!(self.reset(seed), 0, "memory of an earlier test is still allocated");
        let context = CudaContext::new(0).unwrap();
        // SAFETY: what runs on two streams is ordered, or meant not to be.
        unsafe { context.disable_event_tracking() };
        context
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
