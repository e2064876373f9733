//! The emulated driver, through cudarc as the CUDA backend uses it: what it computes, and what it does not let pass.
#![expect(unsafe_code, reason = "the driver's calls, and loading the emulated libraries")]

mod gemm;
mod harness;
mod launches;
mod memory;
mod streams;

use cudarc::driver::CudaContext;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::harness::{code, device_or_skip};

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
