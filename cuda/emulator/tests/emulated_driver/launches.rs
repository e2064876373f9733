//! Modules, functions and launches.

use std::ffi::{CStr, c_int};
use std::io::{self, Write};
use std::path::Path;

use cudarc::driver::sys::{self, CUresult};
use cudarc::driver::{DevicePtr, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::{Ptx, result as nvrtc, sys as nvrtc_sys};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::harness::{SEEDS, code, device_or_skip, numbers, scale, toys};

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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../third_party/libtorch/nvidia/cu13/lib");
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
fn a_kernel_that_breaks_a_rule_ends_the_device() {
    let device = device_or_skip!();
    let launch = |fault: u32| {
        let context = device.context(0);
        let stream = context.new_stream().unwrap();
        let function = toys(&context).load_function("toy_fault").unwrap();
        // SAFETY: touches no memory.
        unsafe { stream.launch_builder(&function).arg(&fault).launch(LaunchConfig::for_num_elems(1)) }.unwrap();
        stream.synchronize()
    };
    assert_eq!(code(launch(1)), CUresult::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(device.message(), "toy_fault: a barrier that half of the block never reaches");
    launch(0).unwrap();
}
