//! Copies, fills, and what memory is not to be used for.

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::DevicePtrMut;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUresult};

use crate::harness::{POISON, SEEDS, code, device_or_skip, numbers};

#[test]
fn copies_in_every_direction_keep_their_bytes() {
    let device = device_or_skip!();
    for seed in 0..SEEDS {
        let context = device.context(seed);
        // SAFETY: nothing is allocated yet. Without events cudarc neither waits for a pinned slice nor orders its use.
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
