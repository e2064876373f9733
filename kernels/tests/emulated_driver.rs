//! The emulated driver, through cudarc as the CUDA backend uses it: what it computes, and what it does not let pass.
#![expect(unsafe_code, reason = "the driver's calls, and loading the emulated libraries")]

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::cublas::{CudaBlas, sys as blas};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaStream, DevicePtr, DevicePtrMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::{Ptx, result as nvrtc, sys as nvrtc_sys};
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
    "tests/emulated_toys.cpp",
];

/// How many seeds a hazard is given to show.
const SEEDS: u64 = 20;
/// What fresh memory holds.
const POISON: u8 = 0xA5;
const TIMED: Option<sys::CUevent_flags> = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);

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
.visible .entry toy_unknown() { ret; }
";

/// `emulator::Counters`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Counters {
    executed: u64,
    pending: u64,
    allocations: u64,
    device_bytes: u64,
    pinned_bytes: u64,
    errors: u64,
    to_device_bytes: u64,
    to_host_bytes: u64,
}

/// The setters of `emulator/launch.h`.
struct Setters {
    reset: unsafe extern "C" fn(u64) -> c_int,
    set_memory_bytes: unsafe extern "C" fn(u64),
    set_fail_after: unsafe extern "C" fn(i64),
    set_multiprocessors: unsafe extern "C" fn(c_int),
    set_eager: unsafe extern "C" fn(u32),
    counters: unsafe extern "C" fn(*mut Counters),
    message: unsafe extern "C" fn() -> *const c_char,
}

/// Whether the file is there and younger than everything it is made of.
fn is_fresh(output: &Path, sources: &[&str]) -> bool {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let headers = fs::read_dir(here.join("emulator")).unwrap().map(|entry| entry.unwrap().path());
    let test = here.join("tests/emulated_driver.rs");
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
struct Device {
    setters: &'static Setters,
    _turn: MutexGuard<'static, ()>,
}

impl Device {
    fn take() -> Option<Self> {
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
    fn context(&self, seed: u64) -> Arc<CudaContext> {
        // SAFETY: no context of an earlier test is alive.
        assert_eq!(unsafe { (self.setters.reset)(seed) }, 0, "memory of an earlier test is still allocated");
        let context = CudaContext::new(0).unwrap();
        // SAFETY: what runs on two streams is ordered, or meant not to be.
        unsafe { context.disable_event_tracking() };
        context
    }

    fn set_memory_bytes(&self, bytes: u64) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_memory_bytes)(bytes) };
    }

    fn set_fail_after(&self, operations: i64) {
        // SAFETY: takes any number.
        unsafe { (self.setters.set_fail_after)(operations) };
    }

    fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: the struct is the driver's.
        unsafe { (self.setters.counters)(&raw mut counters) };
        counters
    }

    fn message(&self) -> String {
        // SAFETY: a string that lives until the next call.
        unsafe { CStr::from_ptr((self.setters.message)()) }.to_string_lossy().into_owned()
    }
}

macro_rules! device_or_skip {
    () => {
        match Device::take() {
            Some(device) => device,
            None => return,
        }
    };
}

fn code<T: std::fmt::Debug>(result: Result<T, DriverError>) -> CUresult {
    result.unwrap_err().0
}

fn toys(context: &Arc<CudaContext>) -> Arc<CudaModule> {
    context.load_module(Ptx::from_src(TOYS)).unwrap()
}

fn scale(
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

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32).collect()
}

#[test]
fn the_device_is_as_described() {
    let device = device_or_skip!();
    let context = device.context(0);
    assert_eq!(context.name().unwrap(), "kvtide emulated device");
    assert_eq!(context.compute_capability().unwrap(), (9, 0));
    assert_eq!(context.mem_get_info().unwrap(), (1 << 30, 1 << 30));
    assert_eq!(context.total_mem().unwrap(), 1 << 30);
    assert_eq!(CudaContext::device_count().unwrap(), 1);
    assert!(context.has_async_alloc());
    let attribute = |which| context.attribute(which).unwrap();
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK), 49_152);
    assert_eq!(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 232_448);
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().unwrap();
    assert_eq!(version, 13_000);
    assert_eq!(CudaContext::new(1).unwrap_err().0, CUresult::CUDA_ERROR_INVALID_DEVICE);
    let error = DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(error.error_name().unwrap(), c"CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(error.error_string().unwrap(), c"out of memory");
    let (least, greatest) = result::stream::get_priority_range().unwrap();
    assert!(greatest < least);
    context.new_stream_with_priority(greatest).unwrap().synchronize().unwrap();
    context.set_blocking_synchronize().unwrap();
    context.synchronize().unwrap();
}

#[test]
fn copies_in_every_direction_keep_their_bytes() {
    let device = device_or_skip!();
    for seed in 0..SEEDS {
        let context = device.context(seed);
        // SAFETY: nothing is allocated yet. Without its events cudarc neither waits for a pinned slice nor orders its use.
        unsafe { context.enable_event_tracking() };
        let stream = context.new_stream().unwrap();
        let values = numbers(1000);
        let there = stream.clone_htod(&values).unwrap();
        let mut copy = stream.alloc_zeros::<f32>(1000).unwrap();
        stream.memcpy_dtod(&there.slice(10..20), &mut copy.slice_mut(500..510)).unwrap();
        let back = stream.clone_dtoh(&copy).unwrap();
        assert_eq!(back[500..510], values[10..20]);
        assert!(back[..500].iter().chain(&back[510..]).all(|&value| value == 0.0));

        // SAFETY: all of it is written before it is read.
        let mut pinned = unsafe { context.alloc_pinned::<f32>(1000) }.unwrap();
        pinned.as_mut_slice().unwrap().copy_from_slice(&values);
        stream.memcpy_htod(&pinned, &mut copy).unwrap();
        // SAFETY: as above.
        let mut second = unsafe { context.alloc_pinned_with_flags::<f32>(1000, 0) }.unwrap();
        stream.memcpy_dtoh(&copy, &mut second).unwrap();
        assert_eq!(second.as_slice().unwrap(), values);
        assert_eq!(stream.clone_dtoh(&stream.clone_dtod(&copy).unwrap()).unwrap(), values);
        let counters = device.counters();
        assert_eq!((counters.to_device_bytes, counters.to_host_bytes), (8000, 12_000));
    }
    assert_eq!(device.counters().allocations, 0);
}

#[test]
fn raw_calls_copy_and_fill_too() {
    let device = device_or_skip!();
    let context = device.context(3);
    let stream = context.new_stream().unwrap();
    let raw = stream.cu_stream();
    // SAFETY: every address is of memory allocated here and long enough, and freed at the end.
    unsafe {
        let there = result::malloc_sync(64).unwrap();
        let mut back = [0u8; 64];
        result::memcpy_dtoh_sync(&mut back, there).unwrap();
        assert_eq!(back, [POISON; 64], "fresh memory is poisoned");
        sys::cuMemsetD32Async(there, 0x0403_0201, 4, raw).result().unwrap();
        result::memset_d8_async(there + 16, 7, 48, raw).unwrap();
        // Rows of 4 bytes, 16 apart, packed on the host.
        let rows = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: ptr::null(),
            srcDevice: there,
            srcArray: ptr::null_mut(),
            srcPitch: 16,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: back.as_mut_ptr().cast(),
            dstDevice: 0,
            dstArray: ptr::null_mut(),
            dstPitch: 4,
            WidthInBytes: 4,
            Height: 4,
        };
        sys::cuMemcpy2DAsync_v2(&raw const rows, raw).result().unwrap();
        assert_eq!(back[..16], [1, 2, 3, 4, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);

        let mut host = vec![9u8; 64];
        let pointer = host.as_mut_ptr().cast::<c_void>();
        sys::cuMemHostRegister_v2(pointer, 64, 0).result().unwrap();
        assert_eq!(
            code(sys::cuMemHostRegister_v2(pointer, 8, 0).result()),
            CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        );
        let mut mapped = 0;
        sys::cuMemHostGetDevicePointer_v2(&raw mut mapped, pointer, 0).result().unwrap();
        assert_eq!(mapped, pointer as u64);
        let mut kind = 0u32;
        let memory_type = sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
        sys::cuPointerGetAttribute((&raw mut kind).cast(), memory_type, mapped).result().unwrap();
        assert_eq!(kind, sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32);
        sys::cuPointerGetAttribute((&raw mut kind).cast(), memory_type, there).result().unwrap();
        assert_eq!(kind, sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32);
        sys::cuMemcpyAsync(there, mapped, 64, raw).result().unwrap();
        assert_eq!(code(sys::cuMemHostUnregister(pointer).result()), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        stream.synchronize().unwrap();
        sys::cuMemHostUnregister(pointer).result().unwrap();
        result::memcpy_dtoh_sync(&mut back, there).unwrap();
        assert_eq!(back, [9; 64]);

        assert_eq!(code(result::memcpy_htod_async(there + 32, &back, raw)), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert!(device.message().contains("a copy to 64 bytes"), "{}", device.message());
        assert_eq!(code(result::memset_d8_async(there, 0, 65, raw)), CUresult::CUDA_ERROR_INVALID_VALUE);
        result::free_sync(there).unwrap();
        assert_eq!(code(result::memcpy_dtoh_async(&mut back, there, raw)), CUresult::CUDA_ERROR_INVALID_VALUE);
        assert_eq!(code(result::free_sync(there)), CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

/// One stream writes, another reads; the bytes read. `ordered` by an event, or not.
fn write_then_read(device: &Device, seed: u64, ordered: bool) -> Vec<u8> {
    let context = device.context(seed);
    let (writer, reader) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let mut memory = writer.alloc_zeros::<u8>(256).unwrap();
    writer.synchronize().unwrap();
    writer.memcpy_htod(&[1u8; 256], &mut memory).unwrap();
    if ordered {
        let written = writer.record_event(None).unwrap();
        reader.wait(&written).unwrap();
        // What is recorded after the call is no matter of it.
        written.record(&reader).unwrap();
    }
    reader.clone_dtoh(&memory).unwrap()
}

#[test]
fn a_forgotten_event_shows() {
    let device = device_or_skip!();
    let wrong = (0..SEEDS).filter(|&seed| write_then_read(&device, seed, false) != [1; 256]).count() as u64;
    assert!(0 < wrong && wrong < SEEDS, "{wrong} of {SEEDS} seeds");
    for seed in 0..SEEDS {
        assert_eq!(write_then_read(&device, seed, true), [1; 256], "seed {seed}");
    }
}

#[test]
fn the_same_seed_runs_in_the_same_order() {
    let device = device_or_skip!();
    let run = || (0..SEEDS).map(|seed| write_then_read(&device, seed, false)).collect::<Vec<_>>();
    assert_eq!(run(), run());
}

#[test]
fn pinned_memory_is_read_late_and_pageable_memory_at_once() {
    let device = device_or_skip!();
    let context = device.context(0);
    let stream = context.new_stream().unwrap();
    let mut pageable = vec![1u8; 16];
    // SAFETY: written before it is read.
    let mut pinned = unsafe { context.alloc_pinned::<u8>(16) }.unwrap();
    assert_eq!(pinned.as_slice().unwrap(), [POISON; 16]);
    pinned.as_mut_slice().unwrap().fill(1);
    let address = pinned.as_mut_ptr().unwrap();
    let (mut first, mut second) = (stream.alloc_zeros::<u8>(16).unwrap(), stream.alloc_zeros::<u8>(16).unwrap());
    stream.memcpy_htod(&pageable, &mut first).unwrap();
    stream.memcpy_htod(&pinned, &mut second).unwrap();
    pageable.fill(2);
    // SAFETY: in bounds; that the copy is still queued is the point.
    unsafe { ptr::write_bytes(address, 2, 16) };
    assert_eq!(stream.clone_dtoh(&first).unwrap(), [1; 16]);
    assert_eq!(stream.clone_dtoh(&second).unwrap(), [2; 16]);
}

#[test]
fn eager_work_runs_without_anybody_waiting() {
    let device = device_or_skip!();
    let context = device.context(0);
    // SAFETY: takes any number.
    unsafe { (device.setters.set_eager)(100) };
    let stream = context.new_stream().unwrap();
    let memory = stream.alloc_zeros::<u8>(16).unwrap();
    assert!(device.counters().executed > 0);
    drop(memory);
}

#[test]
fn asking_again_and_again_comes_to_an_end() {
    extern "C" fn count(calls: *mut c_void) {
        // SAFETY: the test's own number, alive until the stream is synchronised.
        unsafe { *calls.cast::<u32>() += 1 };
    }
    let device = device_or_skip!();
    let context = device.context(5);
    let stream = context.new_stream().unwrap();
    let mut calls = 0u32;
    for _ in 0..3 {
        // SAFETY: see `count`.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), count, (&raw mut calls).cast()) }.unwrap();
    }
    let event = stream.record_event(None).unwrap();
    assert!(!event.try_is_complete().unwrap());
    let mut asked = 1;
    while !event.try_is_complete().unwrap() {
        asked += 1;
        assert!(asked < 100);
    }
    assert_eq!(calls, 3);
    // SAFETY: a live stream.
    assert!(unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result().is_ok());
}

#[test]
fn blocking_streams_keep_step_with_the_default_stream() {
    let device = device_or_skip!();
    let mut raced = 0;
    for seed in 0..SEEDS {
        let _context = device.context(seed);
        for (flags, ordered) in
            [(sys::CUstream_flags::CU_STREAM_DEFAULT, true), (sys::CUstream_flags::CU_STREAM_NON_BLOCKING, false)]
        {
            let mut stream = ptr::null_mut();
            let mut back = [0u8; 16];
            // SAFETY: handles and memory live until the end of the block.
            unsafe {
                sys::cuStreamCreate(&raw mut stream, flags as u32).result().unwrap();
                let there = result::malloc_sync(16).unwrap();
                result::memset_d8_async(there, 1, 16, stream).unwrap();
                result::memset_d8_async(there, 2, 16, ptr::null_mut()).unwrap();
                result::memcpy_dtoh_async(&mut back, there, stream).unwrap();
                result::free_sync(there).unwrap();
                result::stream::destroy(stream).unwrap();
            }
            assert!(!ordered || back == [2; 16], "seed {seed}");
            raced += u32::from(back != [2; 16]);
        }
    }
    assert!(raced > 0);
}

#[test]
fn memory_runs_out_and_comes_back() {
    let device = device_or_skip!();
    device.set_memory_bytes(1 << 20);
    let context = device.context(0);
    let stream = context.new_stream().unwrap();
    let most = stream.alloc_zeros::<u8>(1_000_000).unwrap();
    assert_eq!(context.mem_get_info().unwrap(), (48_576, 1 << 20));
    assert_eq!(code(stream.alloc_zeros::<u8>(48_577)), CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(device.message().contains("1000000 of 1048576"), "{}", device.message());
    drop(most);
    // The free is queued; an allocation that needs the room waits for it.
    let other = stream.alloc_zeros::<u8>(1 << 20).unwrap();
    assert_eq!(other.len(), 1 << 20);
    // SAFETY: never read. Pinned memory is the host's.
    drop(unsafe { context.alloc_pinned::<u8>(2 << 20) }.unwrap());
}

#[test]
fn a_lost_device_stays_lost_until_the_next_context() {
    let device = device_or_skip!();
    let context = device.context(0);
    let stream = context.new_stream().unwrap();
    let mut memory = stream.alloc_zeros::<u8>(16).unwrap();
    stream.synchronize().unwrap();
    device.set_fail_after(2);
    for _ in 0..3 {
        stream.memset_zeros(&mut memory).unwrap();
    }
    assert_eq!(code(stream.synchronize()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(device.counters().executed, 3, "the first fill and two more");
    assert_eq!(code(stream.memset_zeros(&mut memory)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(code(context.mem_get_info()), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(code(context.new_event(None)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    drop((memory, stream, context));

    device.set_fail_after(-1);
    let stream = device.context(0).new_stream().unwrap();
    assert_eq!(stream.clone_dtoh(&stream.alloc_zeros::<u8>(16).unwrap()).unwrap(), [0; 16]);
}

/// Milliseconds of: a copy of 25 MB; a kernel; the same copies on two streams; a copy beside a kernel.
fn elapsed_ms(device: &Device, seed: u64) -> [f32; 4] {
    const BYTES: usize = 25_000_000;
    let context = device.context(seed);
    let (first, second) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let scale_function = toys(&context).load_function("toy_scale").unwrap();
    // SAFETY: what is read does not matter.
    let pinned = unsafe { context.alloc_pinned::<u8>(BYTES) }.unwrap();
    let mut memory = [first.alloc_zeros::<u8>(BYTES).unwrap(), second.alloc_zeros::<u8>(BYTES).unwrap()];
    let values = memory[0].device_ptr(&first).0;
    context.synchronize().unwrap();

    let mut times = [0.0; 4];
    let marks: Vec<_> = (0..5).map(|_| context.new_event(TIMED).unwrap()).collect();
    marks[0].record(&first).unwrap();
    first.memcpy_htod(&pinned, &mut memory[0]).unwrap();
    marks[1].record(&first).unwrap();
    scale(&first, &scale_function, values, 1.0, 0.0, 132 * 1024).unwrap();
    marks[2].record(&first).unwrap();
    times[0] = marks[0].elapsed_ms(&marks[1]).unwrap();
    times[1] = marks[1].elapsed_ms(&marks[2]).unwrap();
    context.synchronize().unwrap();

    for (case, same_engine) in [(2, true), (3, false)] {
        let pinned_stream_event = first.record_event(TIMED).unwrap();
        if same_engine {
            first.memcpy_htod(&pinned, &mut memory[0]).unwrap();
        } else {
            scale(&first, &scale_function, values, 1.0, 0.0, 132 * 1024).unwrap();
        }
        // SAFETY: both live until the context is synchronised. (A pinned slice would order the two copies.)
        unsafe {
            let source = std::slice::from_raw_parts(pinned.as_ptr().unwrap_or(ptr::null()), BYTES);
            let target = memory[1].device_ptr_mut(&second).0;
            result::memcpy_htod_async(target, source, second.cu_stream()).unwrap();
        }
        let end = second.record_event(TIMED).unwrap();
        first.join(&second).unwrap();
        times[case] = pinned_stream_event.elapsed_ms(&end).unwrap();
        context.synchronize().unwrap();
    }
    times
}

#[test]
fn virtual_time_is_the_same_for_every_seed() {
    let device = device_or_skip!();
    let times = elapsed_ms(&device, 0);
    // A copy takes 2 us and 25 bytes a nanosecond; a kernel of one block a multiprocessor 3.05 us.
    assert_eq!(times[..2], [1.002, 0.00305]);
    // Two copies to the device share its engine; a kernel leaves it alone.
    assert_eq!(times[2..], [2.004, 1.002]);
    for seed in 1..5 {
        assert_eq!(elapsed_ms(&device, seed), times, "seed {seed}");
    }
}

#[test]
fn kernels_run_with_the_arguments_of_their_launch() {
    let device = device_or_skip!();
    for seed in 0..SEEDS {
        let context = device.context(seed);
        let stream = context.new_stream().unwrap();
        let function = toys(&context).load_function("toy_scale").unwrap();
        let mut values = stream.clone_htod(&numbers(100)).unwrap();
        for (factor, offset) in [(2.0f32, 1.0f32), (3.0, 0.0)] {
            let count = 100u64;
            let mut launch = stream.launch_builder(&function);
            launch.arg(&mut values).arg(&factor).arg(&offset).arg(&count);
            // SAFETY: as many threads as values.
            unsafe { launch.launch(LaunchConfig::for_num_elems(100)) }.unwrap();
        }
        let expected: Vec<f32> = numbers(100).iter().map(|value| (value * 2.0 + 1.0) * 3.0).collect();
        assert_eq!(stream.clone_dtoh(&values).unwrap(), expected);
    }
}

#[test]
fn modules_and_launches_are_checked() {
    let device = device_or_skip!();
    let context = device.context(0);
    let stream = context.new_stream().unwrap();
    assert_eq!(code(context.load_module(Ptx::from_src("toy_scale"))), CUresult::CUDA_ERROR_INVALID_IMAGE);
    let module = toys(&context);
    assert_eq!(code(module.load_function("toy_scal")), CUresult::CUDA_ERROR_NOT_FOUND);
    assert_eq!(code(module.load_function("toy_unknown")), CUresult::CUDA_ERROR_NOT_FOUND);
    assert!(device.message().contains("emulated_toy_unknown"), "{}", device.message());

    let function = module.load_function("toy_scale").unwrap();
    assert_eq!(function.max_threads_per_block().unwrap(), 1024);
    assert_eq!(function.occupancy_max_active_blocks_per_multiprocessor(256, 0, None).unwrap(), 8);
    assert_eq!(function.occupancy_max_active_blocks_per_multiprocessor(256, 100_000, None).unwrap(), 2);
    let dynamic = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    assert_eq!(function.get_attribute(dynamic).unwrap(), 49_152);
    let memory = stream.alloc_zeros::<f32>(8).unwrap();
    let shared = |bytes| {
        let mut launch = stream.launch_builder(&function);
        launch.arg(&memory).arg(&1.0f32).arg(&0.0f32).arg(&8u64);
        // SAFETY: as many threads as values.
        unsafe { launch.launch(LaunchConfig { grid_dim: (1, 1, 1), block_dim: (8, 1, 1), shared_mem_bytes: bytes }) }
            .map(|_| ())
    };
    assert_eq!(code(shared(65_536)), CUresult::CUDA_ERROR_INVALID_VALUE);
    function.set_attribute(dynamic, 65_536).unwrap();
    shared(65_536).unwrap();
    assert!(function.set_attribute(dynamic, 232_449).is_err());
    let (grid, block) = function.occupancy_max_potential_block_size(none, 0, 0, None).unwrap();
    assert_eq!((grid, block), (264, 1024));

    let stale = memory.device_ptr(&stream).0;
    drop(memory);
    assert_eq!(code(scale(&stream, &function, stale, 1.0, 0.0, 8)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    stream.synchronize().unwrap();
}

/// A CUBIN of the source for this device, or none without NVRTC.
fn compile_cubin(source: &CStr) -> Option<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../third_party/libtorch/nvidia/cu13/lib");
    for name in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
        // SAFETY: NVIDIA's own libraries, verified by hash when they were fetched, and stay loaded for good.
        match unsafe { Library::open(Some(folder.join(name)), RTLD_NOW | RTLD_GLOBAL) } {
            Ok(library) => std::mem::forget(library),
            Err(error) => {
                let _ = writeln!(io::stderr(), "skipped: no CUBIN is loaded: {error} (run make setup)");
                return None;
            }
        }
    }
    let program = nvrtc::create_program(source, None).unwrap();
    // SAFETY: a program just made, and room for as many bytes as it says.
    unsafe {
        nvrtc::compile_program(program, &["--gpu-architecture=sm_90"]).unwrap();
        let mut bytes = 0;
        nvrtc_sys::nvrtcGetCUBINSize(program, &raw mut bytes).result().unwrap();
        let mut image = vec![0u8; bytes];
        nvrtc_sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result().unwrap();
        nvrtc::destroy_program(program).unwrap();
        Some(image)
    }
}

#[test]
fn a_cubin_tells_its_parameters_too() {
    let device = device_or_skip!();
    let source =
        c"extern \"C\" __global__ void toy_scale(float* values, float factor, float offset, unsigned long long count) {
        if (threadIdx.x < count) values[threadIdx.x] = values[threadIdx.x] * factor + offset;
    }";
    let Some(image) = compile_cubin(source) else { return };
    let context = device.context(0);
    let stream = context.new_stream().unwrap();
    let module = context.load_module(Ptx::from_binary(image)).unwrap();
    let function = module.load_function("toy_scale").unwrap();
    assert!(module.load_function("toy_poke").is_err());
    let values = stream.clone_htod(&[1.0f32, 2.0, 3.0]).unwrap();
    scale(&stream, &function, values.device_ptr(&stream).0, 10.0, 1.0, 3).unwrap();
    assert_eq!(stream.clone_dtoh(&values).unwrap(), [11.0, 21.0, 31.0]);
}

extern "C" fn none(_block_size: c_int) -> usize {
    0
}

#[test]
fn writes_beside_an_allocation_are_found() {
    let device = device_or_skip!();
    let poke = |at: i64| {
        let context = device.context(0);
        let stream = context.new_stream().unwrap();
        let function = toys(&context).load_function("toy_poke").unwrap();
        let memory = stream.alloc_zeros::<u8>(100).unwrap();
        let mut launch = stream.launch_builder(&function);
        launch.arg(&memory).arg(&at);
        // SAFETY: at worst it writes into a guard zone.
        unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.unwrap();
        let result = stream.synchronize();
        drop(memory);
        result
    };
    poke(0).unwrap();
    poke(99).unwrap();
    assert_eq!(code(poke(100)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(code(poke(-1)), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert!(device.message().contains("toy_poke writes outside"), "{}", device.message());
}

#[test]
fn memory_in_use_is_not_to_be_freed() {
    let device = device_or_skip!();
    let context = device.context(0);
    let stream = context.new_stream().unwrap();
    let mut memory = stream.alloc_zeros::<u8>(16).unwrap();
    // SAFETY: freed below, and written only by the copy.
    unsafe {
        let pinned = result::malloc_host(16, 0).unwrap();
        let bytes = std::slice::from_raw_parts_mut(pinned.cast::<u8>(), 16);
        let (address, _order) = memory.device_ptr_mut(&stream);
        result::memcpy_dtoh_async(bytes, address, stream.cu_stream()).unwrap();
        assert_eq!(code(result::free_host(pinned)), CUresult::CUDA_ERROR_ILLEGAL_STATE);
        stream.synchronize().unwrap();
        result::free_host(pinned).unwrap();
    }
    drop((memory, stream, context));

    // A free on a stream that does not wait for the other's work is found by some seed, whichever comes first.
    let raced = |ordered| {
        let shows = |seed: &u64| {
            let context = device.context(*seed);
            let (user, owner) = (context.new_stream().unwrap(), context.new_stream().unwrap());
            let mut memory = owner.alloc_zeros::<u8>(16).unwrap();
            owner.synchronize().unwrap();
            user.memset_zeros(&mut memory).unwrap();
            if ordered {
                owner.join(&user).unwrap();
            }
            drop(memory);
            context.synchronize().is_err()
        };
        (0..SEEDS).filter(shows).count()
    };
    assert!(raced(false) > 0);
    assert_eq!(raced(true), 0);
}

/// A pseudo-random number in [-1, 1).
fn draw(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Elements in one of the three types, as bytes and as the numbers these stand for.
fn elements(kind: blas::cudaDataType, count: usize, state: &mut u64) -> (Vec<u8>, Vec<f64>) {
    let mut bytes = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..count {
        let value = draw(state);
        match kind {
            blas::cudaDataType::CUDA_R_32F => {
                bytes.extend(value.to_le_bytes());
                numbers.push(f64::from(value));
            }
            // Cut to seven bits of fraction, of which a half has ten, so that both types hold the same number.
            _ => {
                let cut = f32::from_bits(value.to_bits() & 0xFFFF_0000);
                let cut = if cut.abs() < 0.01 { 0.0 } else { cut };
                let bits = if kind == blas::cudaDataType::CUDA_R_16BF { cut.to_bits() >> 16 } else { half_bits(cut) };
                bytes.extend((bits as u16).to_le_bytes());
                numbers.push(f64::from(cut));
            }
        }
    }
    (bytes, numbers)
}

/// The half of a number that is zero or normal as one, and has at most ten bits of fraction.
fn half_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    if value == 0.0 { sign } else { sign | ((bits & 0x7FFF_FFFF) - (112 << 23)) >> 13 }
}

fn number(kind: blas::cudaDataType, bytes: &[u8], index: usize) -> f64 {
    if kind == blas::cudaDataType::CUDA_R_32F {
        return f64::from(f32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap()));
    }
    let bits = u32::from(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]));
    if kind == blas::cudaDataType::CUDA_R_16BF {
        return f64::from(f32::from_bits(bits << 16));
    }
    let (exponent, fraction) = (bits >> 10 & 31, f64::from(bits & 1023) / 1024.0);
    let magnitude =
        if exponent == 0 { fraction * 2f64.powi(-14) } else { (1.0 + fraction) * 2f64.powi(exponent as i32 - 15) };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

const TRANSPOSES: [(blas::cublasOperation_t, bool); 2] =
    [(blas::cublasOperation_t::CUBLAS_OP_N, false), (blas::cublasOperation_t::CUBLAS_OP_T, true)];

#[test]
fn gemm_agrees_with_sums_in_f64() {
    let device = device_or_skip!();
    let context = device.context(1);
    let stream = context.new_stream().unwrap();
    let handle = CudaBlas::new(stream.clone()).unwrap();
    let mut state = 1;
    let kinds = [blas::cudaDataType::CUDA_R_32F, blas::cudaDataType::CUDA_R_16F, blas::cudaDataType::CUDA_R_16BF];
    for kind in kinds {
        for (m, n, k) in [(1, 1, 1), (17, 5, 33), (64, 3, 7), (5, 31, 0)] {
            for (op_a, swap_a) in TRANSPOSES {
                for (op_b, swap_b) in TRANSPOSES {
                    for (alpha, beta) in [(1.0f32, 0.0f32), (0.5, -2.0)] {
                        let (a_rows, a_columns) = if swap_a { (k, m) } else { (m, k) };
                        let (b_rows, b_columns) = if swap_b { (n, k) } else { (k, n) };
                        let (lda, ldb, ldc) = (a_rows + 3, b_rows + 1, m + 2);
                        let (a_bytes, a) = elements(kind, lda * a_columns.max(1), &mut state);
                        let (b_bytes, b) = elements(kind, ldb * b_columns.max(1), &mut state);
                        let (c_bytes, c) = elements(kind, ldc * n, &mut state);
                        let a_there = stream.clone_htod(&a_bytes).unwrap();
                        let b_there = stream.clone_htod(&b_bytes).unwrap();
                        let mut c_there = stream.clone_htod(&c_bytes).unwrap();
                        // SAFETY: shapes, strides and types are those of the memory.
                        unsafe {
                            cudarc::cublas::result::gemm_ex(
                                *handle.handle(),
                                op_a,
                                op_b,
                                m as i32,
                                n as i32,
                                k as i32,
                                (&raw const alpha).cast(),
                                a_there.device_ptr(&stream).0 as *const c_void,
                                kind,
                                lda as i32,
                                b_there.device_ptr(&stream).0 as *const c_void,
                                kind,
                                ldb as i32,
                                (&raw const beta).cast(),
                                c_there.device_ptr_mut(&stream).0 as *mut c_void,
                                kind,
                                ldc as i32,
                                blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                                blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                            )
                        }
                        .unwrap();
                        let back = stream.clone_dtoh(&c_there).unwrap();
                        let tolerance = if kind == blas::cudaDataType::CUDA_R_32F { 1e-5 } else { 8e-3 };
                        for column in 0..n {
                            for row in 0..ldc {
                                let was = c[column * ldc + row];
                                let sum: f64 = (0..k)
                                    .map(|i| {
                                        let left = if swap_a {
                                            a[row.min(m - 1) * lda + i]
                                        } else {
                                            a[i * lda + row.min(m - 1)]
                                        };
                                        let right = if swap_b { b[i * ldb + column] } else { b[column * ldb + i] };
                                        left * right
                                    })
                                    .sum();
                                let expected =
                                    if row < m { f64::from(alpha) * sum + f64::from(beta) * was } else { was };
                                let found = number(kind, &back, column * ldc + row);
                                let bound = if row < m { tolerance * (1.0 + expected.abs()) } else { 0.0 };
                                assert!(
                                    (found - expected).abs() <= bound,
                                    "{kind:?} {m}x{n}x{k} {op_a:?} {op_b:?}: {found} for {expected} at {row}, {column}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_of_gemms_is_that_many_gemms() {
    const SIDE: usize = 4;
    const EACH: usize = SIDE * SIDE;
    let device = device_or_skip!();
    let context = device.context(1);
    let stream = context.new_stream().unwrap();
    let handle = CudaBlas::new(stream.clone()).unwrap();
    // One times the identity, two times, three times.
    let scaled: Vec<f32> =
        (0..3 * EACH).map(|i| if i % EACH % (SIDE + 1) == 0 { (i / EACH + 1) as f32 } else { 0.0 }).collect();
    let values = numbers(EACH);
    let (a, b) = (stream.clone_htod(&scaled).unwrap(), stream.clone_htod(&values).unwrap());
    let mut c = stream.alloc_zeros::<f32>(3 * EACH).unwrap();
    let (one, zero) = (1.0f32, 0.0f32);
    let (float, side) = (blas::cudaDataType::CUDA_R_32F, SIDE as i32);
    let start = stream.record_event(TIMED).unwrap();
    // SAFETY: three matrices each, but for B, which all share.
    unsafe {
        cudarc::cublas::result::gemm_strided_batched_ex(
            *handle.handle(),
            blas::cublasOperation_t::CUBLAS_OP_N,
            blas::cublasOperation_t::CUBLAS_OP_N,
            side,
            side,
            side,
            (&raw const one).cast(),
            a.device_ptr(&stream).0 as *const c_void,
            float,
            side,
            EACH as i64,
            b.device_ptr(&stream).0 as *const c_void,
            float,
            side,
            0,
            (&raw const zero).cast(),
            c.device_ptr_mut(&stream).0 as *mut c_void,
            float,
            side,
            EACH as i64,
            3,
            blas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    }
    .unwrap();
    let end = stream.record_event(TIMED).unwrap();
    let back = stream.clone_dtoh(&c).unwrap();
    for (i, found) in back.iter().enumerate() {
        assert_eq!(*found, (i / EACH + 1) as f32 * values[i % EACH]);
    }
    // 3 us, and 384 operations at 100,000 a nanosecond, rounded up.
    assert_eq!(start.elapsed_ms(&end).unwrap(), 0.003_001);
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { blas::cublasGetVersion_v2(*handle.handle(), &raw mut version) };
    assert_eq!(version, 130_000);
}
