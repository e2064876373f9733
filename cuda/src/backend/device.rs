//! A device with its kernels.

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};
use kvtide_envs::calibrate::DeviceAbout;
use kvtide_envs::memory::MemoryError;
use kvtide_kernels::launch::Geometry;

use super::compile::{load_nvrtc, machine_code};
use super::driver::{Context, CudaStream, Event, failed};

/// An open device: what it is, its kernels, and its two streams.
#[derive(Debug)]
pub struct Device {
    name: String,
    /// CUDA version of the driver, as in 13000.
    driver: u32,
    multiprocessors: u32,
    memory_bytes: u64,
    pub(super) compute: CudaStream,
    pub(super) swap: CudaStream,
    code: Arc<Code>,
    // Last, so that it is closed last.
    pub(super) context: Arc<Context>,
}

/// A device's context with every kernel loaded into it. Made once a process and kept: a context takes tenths of a second to
/// make and to close, and what the libraries load into it lazily would be loaded again, in the middle of a measured step.
#[derive(Debug)]
struct Code {
    functions: BTreeMap<&'static str, Function>,
    context: Arc<Context>,
}

/// By the number of the device.
static CODE: Mutex<BTreeMap<u32, Arc<Code>>> = Mutex::new(BTreeMap::new());

impl Code {
    fn of(ordinal: u32) -> Result<Arc<Code>, MemoryError> {
        let mut kept = CODE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = kept.get(&ordinal) {
            code.context.enter()?;
            return Ok(Arc::clone(code));
        }
        let context = open_context(ordinal)?;
        load_nvrtc()?;
        let capability = (
            context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability < (8, 0) {
            let name = context.name()?;
            let (major, minor) = capability;
            return Err(MemoryError::Unavailable(format!(
                "{name} has compute capability {major}.{minor}; the kernels need 8.0 (Ampere) or newer"
            )));
        }
        let code = Arc::new(Code { functions: functions(capability)?, context });
        kept.insert(ordinal, Arc::clone(&code));
        Ok(code)
    }
}

/// Closes what no device uses any more.
#[cfg(test)]
pub(super) fn forget() {
    CODE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

#[derive(Debug)]
struct Function {
    raw: sys::CUfunction,
    /// Largest dynamic shared memory it was allowed so far, bytes.
    shared_bytes: AtomicU32,
}

// SAFETY: a function belongs to a module that stays loaded, and may be launched from any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// An argument of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) enum LaunchArg {
    /// An address, or a 64-bit number.
    Long(u64),
    /// A 32-bit number.
    Int(u32),
    /// A single-precision number.
    Float(f32),
}

/// Most arguments of a kernel.
const MAX_ARGS: usize = 20;
/// Dynamic shared memory that needs no permission, bytes.
const FREE_SHARED_BYTES: u32 = 48 << 10;

/// Devices the driver knows; 0 where there is no driver.
pub fn devices() -> u32 {
    // SAFETY: loading the driver runs its initialisers.
    if !unsafe { sys::is_culib_present() } || result::init().is_err() {
        return 0;
    }
    result::device::get_count().map_or(0, |count| count.max(0).cast_unsigned())
}

/// What device `ordinal` is, without its kernels.
pub(super) fn about(ordinal: u32) -> Result<DeviceAbout, MemoryError> {
    let context = open_context(ordinal)?;
    let multiprocessors = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    Ok(DeviceAbout {
        name: context.name()?,
        driver: driver_text(Context::driver_version()?),
        memory_bytes: Context::memory()?.1,
        multiprocessors: context.attribute(multiprocessors)?,
        model: String::new(),
        commit: String::new(),
    })
}

fn open_context(ordinal: u32) -> Result<Arc<Context>, MemoryError> {
    // SAFETY: loading the driver runs its initialisers.
    if !unsafe { sys::is_culib_present() } {
        let wrong = "no CUDA driver (libcuda.so) on this machine".to_owned();
        return Err(MemoryError::Unavailable(wrong));
    }
    Context::new(ordinal)
}

/// The CUDA version of a driver, as in `CUDA 13.0`.
fn driver_text(version: u32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

impl Device {
    /// Opens device `ordinal` and compiles the kernels for it.
    ///
    /// # Errors
    /// There is no driver, no such device, no NVRTC, or a kernel does not compile.
    pub fn open(ordinal: u32) -> Result<Device, MemoryError> {
        let code = Code::of(ordinal)?;
        let context = Arc::clone(&code.context);
        Ok(Device {
            name: context.name()?,
            driver: Context::driver_version()?,
            multiprocessors: context.attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1),
            memory_bytes: Context::memory()?.1,
            compute: CudaStream::new(&context)?,
            swap: CudaStream::new(&context)?,
            code,
            context,
        })
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// All of its memory, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Makes the device that of the calling thread. Whatever talks to it does this first.
    pub(super) fn enter(&self) -> Result<(), MemoryError> {
        self.context.enter()
    }

    pub(super) fn event(&self) -> Result<Event, MemoryError> {
        Event::new(&self.context)
    }

    /// The CUDA version of the driver, as in `CUDA 13.0`.
    pub(super) fn driver_text(&self) -> String {
        driver_text(self.driver)
    }

    /// The kernel of that name.
    pub(super) fn entry(&self, name: &str) -> Option<&'static str> {
        self.code.functions.get_key_value(name).map(|(entry, _)| *entry)
    }

    /// Sends a kernel to `stream`.
    ///
    /// # Safety
    /// The arguments are those of the kernel, in order; what they point to is as large as the kernel says, and lives until
    /// it has run.
    pub(super) unsafe fn launch(
        &self,
        entry: &'static str,
        geometry: Geometry,
        stream: &CudaStream,
        args: &[LaunchArg],
    ) -> Result<(), MemoryError> {
        let function = self.code.functions.get(entry).expect("every kernel is loaded with the device");
        allow_shared(function, geometry.shared_bytes)?;
        let mut values = [0_u64; MAX_ARGS];
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for ((value, pointer), arg) in values.iter_mut().zip(&mut pointers).zip(args) {
            // Little-endian: a number of four bytes is the first four of eight.
            *value = match *arg {
                LaunchArg::Long(long) => long,
                LaunchArg::Int(int) => u64::from(int),
                LaunchArg::Float(float) => u64::from(float.to_bits()),
            };
            *pointer = std::ptr::from_mut(value).cast();
        }
        let Geometry { grid, block, shared_bytes } = geometry;
        // SAFETY: the function is loaded, and the rest is the caller's.
        unsafe {
            result::launch_kernel(function.raw, grid, block, shared_bytes, stream.raw, &mut pointers[..args.len()])
        }
        .map_err(|error| failed(entry, error))
    }
}

/// Lets a kernel have so much dynamic shared memory.
fn allow_shared(function: &Function, bytes: u32) -> Result<(), MemoryError> {
    if bytes <= FREE_SHARED_BYTES || bytes <= function.shared_bytes.load(Ordering::Relaxed) {
        return Ok(());
    }
    let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function is loaded.
    unsafe { result::function::set_function_attribute(function.raw, attribute, bytes.cast_signed()) }
        .map_err(|error| failed("asking for shared memory", error))?;
    function.shared_bytes.store(bytes, Ordering::Relaxed);
    Ok(())
}

/// Every kernel, loaded into the current context. Modules stay loaded as long as the context.
fn functions(capability: (u32, u32)) -> Result<BTreeMap<&'static str, Function>, MemoryError> {
    let mut functions = BTreeMap::new();
    for kernel in kvtide_kernels::ALL {
        let code = machine_code(kernel, capability)?;
        // SAFETY: the image is NVRTC's, whole.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }
            .map_err(|error| failed("loading a kernel", error))?;
        for entry in kernel.entries {
            let name = CString::new(*entry).expect("names have no zero byte");
            // SAFETY: the module was just loaded.
            let raw = unsafe { result::module::get_function(module, name) }
                .map_err(|error| failed("finding a kernel", error))?;
            functions.insert(*entry, Function { raw, shared_bytes: AtomicU32::new(0) });
        }
    }
    Ok(functions)
}
