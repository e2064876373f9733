//! The driver's objects with owners, and its errors with types.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use kvtide_envs::memory::MemoryError;
use kvtide_envs::tier::Tier;

/// What the driver said, as ours. `call` is what was being done.
pub(super) fn failed(call: &'static str, error: DriverError) -> MemoryError {
    use sys::cudaError_enum as E;
    let text = format!("{error:?}");
    match error.0 {
        // After these a context answers nothing but the same error.
        E::CUDA_ERROR_ILLEGAL_ADDRESS
        | E::CUDA_ERROR_LAUNCH_FAILED
        | E::CUDA_ERROR_LAUNCH_TIMEOUT
        | E::CUDA_ERROR_ECC_UNCORRECTABLE
        | E::CUDA_ERROR_HARDWARE_STACK_ERROR
        | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | E::CUDA_ERROR_MISALIGNED_ADDRESS
        | E::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | E::CUDA_ERROR_INVALID_PC
        | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | E::CUDA_ERROR_DEVICE_UNAVAILABLE
        | E::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | E::CUDA_ERROR_ASSERT => MemoryError::DeviceLost { call, error: text },
        _ => MemoryError::Driver { call, error: text },
    }
}

/// A device's primary context. Everything made in it keeps it.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be made current to any thread, and the driver's calls are thread-safe.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn new(ordinal: u32) -> Result<Arc<Context>, MemoryError> {
        result::init().map_err(|error| failed("starting the CUDA driver", error))?;
        let device = result::device::get(ordinal.cast_signed())
            .map_err(|error| MemoryError::Unavailable(format!("no CUDA device {ordinal}: {error:?}")))?;
        // SAFETY: the device was just handed out by the driver.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(|error| failed("opening the device", error))?;
        let context = Arc::new(Context { device, context });
        context.enter()?;
        Ok(context)
    }

    /// Makes the context that of the calling thread.
    pub(super) fn enter(&self) -> Result<(), MemoryError> {
        // SAFETY: the context lives as long as `self`.
        unsafe { result::ctx::set_current(self.context) }.map_err(|error| failed("entering the device", error))
    }

    pub(super) fn name(&self) -> Result<String, MemoryError> {
        result::device::get_name(self.device).map_err(|error| failed("asking for the device's name", error))
    }

    pub(super) fn attribute(&self, attribute: sys::CUdevice_attribute) -> Result<u32, MemoryError> {
        // SAFETY: the device was handed out by the driver.
        let value = unsafe { result::device::get_attribute(self.device, attribute) };
        value.map(|value| value.max(0).cast_unsigned()).map_err(|error| failed("asking for an attribute", error))
    }

    /// Free and total memory of the device, bytes.
    pub(super) fn memory() -> Result<(u64, u64), MemoryError> {
        let (free, total) = result::mem_get_info().map_err(|error| failed("asking for free memory", error))?;
        Ok((free as u64, total as u64))
    }

    /// The driver's CUDA version, as in 13000.
    pub(super) fn driver_version() -> Result<u32, MemoryError> {
        let mut version = 0;
        // SAFETY: the pointer is to a local integer.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(|error| failed("asking for the driver's version", error))?;
        Ok(version.max(0).cast_unsigned())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`. What goes wrong here nobody can mend.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream of its own, which waits for no other unless told to.
#[derive(Debug)]
pub(super) struct CudaStream {
    pub(super) raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a stream may be used from any thread in whose context it was made.
unsafe impl Send for CudaStream {}
// SAFETY: the driver's calls are thread-safe.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    pub(super) fn new(context: &Arc<Context>) -> Result<CudaStream, MemoryError> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|error| failed("making a stream", error))?;
        Ok(CudaStream { raw, context: Arc::clone(context) })
    }

    /// What is sent from now on runs after everything before `event` was recorded.
    pub(super) fn wait(&self, event: &Event) -> Result<(), MemoryError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both are alive.
        unsafe { result::stream::wait_event(self.raw, event.raw, flags) }
            .map_err(|error| failed("waiting for an event", error))
    }

    /// Waits on the host until everything sent is done.
    pub(super) fn synchronise(&self) -> Result<(), MemoryError> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.raw) }.map_err(|error| failed("waiting for the device", error))
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// A moment on a stream.
#[derive(Debug)]
pub(super) struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: as a stream.
unsafe impl Send for Event {}
// SAFETY: as a stream.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &Arc<Context>) -> Result<Event, MemoryError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(|error| failed("making an event", error))?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    pub(super) fn record(&self, stream: &CudaStream) -> Result<(), MemoryError> {
        // SAFETY: both are alive and of one context.
        unsafe { result::event::record(self.raw, stream.raw) }.map_err(|error| failed("recording an event", error))
    }

    /// Waits on the host until the moment has come.
    pub(super) fn synchronise(&self) -> Result<(), MemoryError> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.raw) }.map_err(|error| failed("waiting for the device", error))
    }

    /// Whether the moment has come.
    pub(super) fn is_past(&self) -> Result<bool, MemoryError> {
        // SAFETY: the event is alive.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::cudaError_enum::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(failed("asking for an event", error)),
        }
    }

    /// Seconds from `self` to `later`, both past.
    pub(super) fn seconds_to(&self, later: &Event) -> Result<f64, MemoryError> {
        // SAFETY: both are alive and were recorded.
        let millis = unsafe { result::event::elapsed(self.raw, later.raw) };
        millis.map(|millis| f64::from(millis) * 1e-3).map_err(|error| failed("reading the device's clock", error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// Device memory.
#[derive(Debug)]
pub(super) struct DeviceBuffer {
    address: u64,
    bytes: u64,
    context: Arc<Context>,
}

impl DeviceBuffer {
    /// `bytes` of plain device memory, at least one; `what` is named if they do not fit.
    pub(super) fn new(context: &Arc<Context>, bytes: u64, what: &str) -> Result<DeviceBuffer, MemoryError> {
        let bytes = bytes.max(16);
        // SAFETY: nothing reads it before it is written.
        let address = unsafe { result::malloc_sync(bytes as usize) }.map_err(|error| match error.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => MemoryError::OutOfMemory {
                tier: Tier::Gpu,
                what: what.to_owned(),
                needed: bytes,
                free: Context::memory().ok().map(|memory| memory.0),
            },
            _ => failed("allocating device memory", error),
        })?;
        Ok(DeviceBuffer { address, bytes, context: Arc::clone(context) })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets every byte, on `stream`.
    pub(super) fn fill(&self, byte: u8, stream: &CudaStream) -> Result<(), MemoryError> {
        // SAFETY: the range is the allocation.
        unsafe { result::memset_d8_async(self.address, byte, self.bytes as usize, stream.raw) }
            .map_err(|error| failed("filling device memory", error))
    }

    /// Copies `values` to the start, before it returns.
    pub(super) fn write<T: Copy>(&self, values: &[T], stream: &CudaStream) -> Result<(), MemoryError> {
        assert!(size_of_val(values) as u64 <= self.bytes, "the buffer is too short");
        // SAFETY: the range was just checked; the driver is done with `values` once the stream is.
        unsafe { result::memcpy_htod_async(self.address, values, stream.raw) }
            .map_err(|error| failed("copying to the device", error))?;
        stream.synchronise()
    }

    /// Copies from the start into `values`, once everything sent to `stream` is done.
    pub(super) fn read<T: Copy>(&self, values: &mut [T], stream: &CudaStream) -> Result<(), MemoryError> {
        assert!(size_of_val(values) as u64 <= self.bytes, "the buffer is too short");
        // SAFETY: the range was just checked; the driver is done with `values` once the stream is.
        unsafe { result::memcpy_dtoh_async(values, self.address, stream.raw) }
            .map_err(|error| failed("copying from the device", error))?;
        stream.synchronise()
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: allocated by `new`, freed once; the driver waits for what uses it.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Host memory that the device reads and writes itself: page-locked, and mapped into its address space.
#[derive(Debug)]
pub(super) struct Pinned {
    host: *mut c_void,
    address: u64,
    bytes: u64,
    context: Arc<Context>,
}

// SAFETY: plain memory; whoever touches it has `&mut`, or knows that the device does not.
unsafe impl Send for Pinned {}

impl Pinned {
    /// `bytes` of page-locked memory.
    pub(super) fn new(context: &Arc<Context>, bytes: u64, what: &str) -> Result<Pinned, MemoryError> {
        let bytes = bytes.max(16);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: nothing reads it before it is written.
        let host = unsafe { result::malloc_host(bytes as usize, flags) }.map_err(|error| match error.0 {
            sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY => {
                MemoryError::OutOfMemory { tier: Tier::Host, what: what.to_owned(), needed: bytes, free: None }
            }
            _ => failed("allocating page-locked memory", error),
        })?;
        let mut address = 0;
        // SAFETY: `host` was just allocated as mapped.
        let mapped = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut address, host, 0) }.result();
        let pinned = Pinned { host, address, bytes, context: Arc::clone(context) };
        mapped.map_err(|error| failed("mapping page-locked memory", error))?;
        Ok(pinned)
    }

    /// Where the device sees it.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes `values` from byte `offset` on. The device must not be using that part.
    pub(super) fn put<T: Copy>(&mut self, offset: u64, values: &[T]) {
        assert!(offset + size_of_val(values) as u64 <= self.bytes, "the buffer is too short");
        // SAFETY: the range was just checked, and `values` is another allocation.
        unsafe {
            let to = self.host.cast::<u8>().add(offset as usize);
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), to, size_of_val(values));
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: allocated by `new`, freed once.
        let _ = unsafe { result::free_host(self.host) };
    }
}

/// Copies `bytes` between any two addresses the device knows, device or pinned, on `stream`.
///
/// # Safety
/// Both ranges are within allocations that live until the copy is done.
pub(super) unsafe fn copy(to: u64, from: u64, bytes: u64, stream: &CudaStream) -> Result<(), MemoryError> {
    // SAFETY: the caller's.
    unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, stream.raw) }
        .result()
        .map_err(|error| failed("copying blocks", error))
}
