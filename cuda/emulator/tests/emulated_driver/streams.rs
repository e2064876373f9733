//! In what order work runs, and when it would have run.

use std::ffi::c_void;
use std::ptr;
use std::thread;

use cudarc::driver::result;
use cudarc::driver::sys;
use cudarc::driver::{DevicePtr, DevicePtrMut};

use crate::harness::{Device, SEEDS, TIMED, device_or_skip, scale, toys};

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
fn eager_work_runs_without_anybody_waiting() {
    let device = device_or_skip!();
    let context = device.context(0);
    device.set_eager(100);
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
fn threads_share_the_device() {
    let device = device_or_skip!();
    let context = device.context(7);
    let module = toys(&context);
    thread::scope(|scope| {
        for number in 0..4u8 {
            let (context, module) = (&context, &module);
            scope.spawn(move || {
                let stream = context.new_stream().unwrap();
                let function = module.load_function("toy_scale").unwrap();
                for round in 0..20u8 {
                    let mut values = stream.clone_htod(&[f32::from(number); 64]).unwrap();
                    let address = values.device_ptr_mut(&stream).0;
                    scale(&stream, &function, address, 2.0, f32::from(round), 64).unwrap();
                    let expected = [f32::from(number * 2 + round); 64];
                    assert_eq!(stream.clone_dtoh(&values).unwrap(), expected);
                }
            });
        }
    });
    context.synchronize().unwrap();
    assert_eq!(device.counters().executed, 4 * 20 * 3);
    assert_eq!(device.counters().allocations, 0);
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
