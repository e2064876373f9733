//! Products of matrices against sums in f64.

use std::ffi::c_void;

use cudarc::cublas::sys::{cublasOperation_t as Transpose, cudaDataType as Type};
use cudarc::cublas::{CudaBlas, result, sys as blas};
use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut};

use crate::harness::{TIMED, device_or_skip, numbers};

/// A pseudo-random number in [-1, 1).
fn draw(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Elements in one of the three types, as bytes and as the numbers these stand for.
fn elements(kind: Type, count: usize, state: &mut u64) -> (Vec<u8>, Vec<f64>) {
    let mut bytes = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..count {
        let value = draw(state);
        if kind == Type::CUDA_R_32F {
            bytes.extend(value.to_le_bytes());
            numbers.push(f64::from(value));
            continue;
        }
        // Cut to seven bits of fraction, of which a half has ten, so that both short types hold the same number.
        let cut = f32::from_bits(value.to_bits() & 0xFFFF_0000);
        let cut = if cut.abs() < 0.01 { 0.0 } else { cut };
        let bits = if kind == Type::CUDA_R_16BF { cut.to_bits() >> 16 } else { half_bits(cut) };
        bytes.extend((bits as u16).to_le_bytes());
        numbers.push(f64::from(cut));
    }
    (bytes, numbers)
}

/// The half of a number that is zero or normal as one, and has at most ten bits of fraction.
fn half_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let sign = bits >> 16 & 0x8000;
    if value == 0.0 { sign } else { sign | ((bits & 0x7FFF_FFFF) - (112 << 23)) >> 13 }
}

fn number(kind: Type, bytes: &[u8], index: usize) -> f64 {
    if kind == Type::CUDA_R_32F {
        return f64::from(f32::from_le_bytes(bytes[4 * index..4 * index + 4].try_into().unwrap()));
    }
    let bits = u32::from(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]));
    if kind == Type::CUDA_R_16BF {
        return f64::from(f32::from_bits(bits << 16));
    }
    let (exponent, fraction) = (bits >> 10 & 31, f64::from(bits & 1023) / 1024.0);
    let magnitude =
        if exponent == 0 { fraction * 2f64.powi(-14) } else { (1.0 + fraction) * 2f64.powi(exponent as i32 - 15) };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
    lda: usize,
    ldb: usize,
    ldc: usize,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    kind: Type,
    shape: Shape,
    swap_a: bool,
    swap_b: bool,
    alpha: f32,
    beta: f32,
}

struct Batch {
    count: usize,
    stride_a: usize,
    stride_b: usize,
    stride_c: usize,
}

const ONE: Batch = Batch { count: 1, stride_a: 0, stride_b: 0, stride_c: 0 };

/// `memory` is A, B and C, as large as the case says.
fn enqueue(handle: &CudaBlas, case: &Case, batch: &Batch, memory: [u64; 3]) {
    let Case { kind, shape, swap_a, swap_b, alpha, beta } = case;
    let transpose = |swap: bool| if swap { Transpose::CUBLAS_OP_T } else { Transpose::CUBLAS_OP_N };
    let (op_a, op_b) = (transpose(*swap_a), transpose(*swap_b));
    let [m, n, k] = [shape.m, shape.n, shape.k].map(|size| size as i32);
    let [lda, ldb, ldc] = [shape.lda, shape.ldb, shape.ldc].map(|size| size as i32);
    let [stride_a, stride_b, stride_c] = [batch.stride_a, batch.stride_b, batch.stride_c].map(|size| size as i64);
    let (a, b, c) = (memory[0] as *const c_void, memory[1] as *const c_void, memory[2] as *mut c_void);
    let (alpha, beta) = ((&raw const *alpha).cast(), (&raw const *beta).cast());
    let (compute, algorithm) =
        (blas::cublasComputeType_t::CUBLAS_COMPUTE_32F, blas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT);
    let (handle, kind) = (*handle.handle(), *kind);
    // SAFETY: shapes, strides and types are those of the memory.
    unsafe {
        if batch.count == 1 {
            result::gemm_ex(
                handle, op_a, op_b, m, n, k, alpha, a, kind, lda, b, kind, ldb, beta, c, kind, ldc, compute, algorithm,
            )
        } else {
            result::gemm_strided_batched_ex(
                handle,
                op_a,
                op_b,
                m,
                n,
                k,
                alpha,
                a,
                kind,
                lda,
                stride_a,
                b,
                kind,
                ldb,
                stride_b,
                beta,
                c,
                kind,
                ldc,
                stride_c,
                batch.count as i32,
                compute,
                algorithm,
            )
        }
    }
    .unwrap();
}

/// C as it must be, padding included.
fn expected(case: &Case, a: &[f64], b: &[f64], c: &[f64]) -> Vec<f64> {
    let Shape { m, n, k, lda, ldb, ldc } = case.shape;
    let mut result = c.to_vec();
    for column in 0..n {
        for row in 0..m {
            let left = |i: usize| if case.swap_a { a[row * lda + i] } else { a[i * lda + row] };
            let right = |i: usize| if case.swap_b { b[i * ldb + column] } else { b[column * ldb + i] };
            let sum: f64 = (0..k).map(|i| left(i) * right(i)).sum();
            result[column * ldc + row] = f64::from(case.alpha) * sum + f64::from(case.beta) * c[column * ldc + row];
        }
    }
    result
}

fn check(stream: &std::sync::Arc<CudaStream>, handle: &CudaBlas, case: &Case, state: &mut u64) {
    let Shape { m, n, k, lda, ldb, ldc } = case.shape;
    let (a_bytes, a) = elements(case.kind, lda * if case.swap_a { m } else { k }.max(1), state);
    let (b_bytes, b) = elements(case.kind, ldb * if case.swap_b { k } else { n }.max(1), state);
    let (c_bytes, c) = elements(case.kind, ldc * n, state);
    let (a_there, b_there) = (stream.clone_htod(&a_bytes).unwrap(), stream.clone_htod(&b_bytes).unwrap());
    let mut c_there = stream.clone_htod(&c_bytes).unwrap();
    let memory = [a_there.device_ptr(stream).0, b_there.device_ptr(stream).0, c_there.device_ptr_mut(stream).0];
    enqueue(handle, case, &ONE, memory);
    let back = stream.clone_dtoh(&c_there).unwrap();
    let tolerance = if case.kind == Type::CUDA_R_32F { 1e-5 } else { 8e-3 };
    for (i, expected) in expected(case, &a, &b, &c).into_iter().enumerate() {
        let found = number(case.kind, &back, i);
        let bound = if i % ldc < m { tolerance * (1.0 + expected.abs()) } else { 0.0 };
        assert!((found - expected).abs() <= bound, "{case:?}: {found} for {expected} at {i}");
    }
}

#[test]
fn gemm_agrees_with_sums_in_f64() {
    let device = device_or_skip!();
    let context = device.context(1);
    let stream = context.new_stream().unwrap();
    let handle = CudaBlas::new(stream.clone()).unwrap();
    let mut state = 1;
    let kinds = [Type::CUDA_R_32F, Type::CUDA_R_16F, Type::CUDA_R_16BF];
    for (m, n, k) in [(1, 1, 1), (17, 5, 33), (64, 3, 7), (5, 31, 0)] {
        for swaps in 0..4 {
            let (swap_a, swap_b) = (swaps & 1 == 1, swaps & 2 == 2);
            let lda = if swap_a { k } else { m } + 3;
            let ldb = if swap_b { n } else { k } + 1;
            let shape = Shape { m, n, k, lda, ldb, ldc: m + 2 };
            for (alpha, beta) in [(1.0, 0.0), (0.5, -2.0)] {
                for kind in kinds {
                    check(&stream, &handle, &Case { kind, shape, swap_a, swap_b, alpha, beta }, &mut state);
                }
            }
        }
    }
}

#[test]
fn what_beta_zero_overwrites_is_not_read() {
    let device = device_or_skip!();
    let context = device.context(1);
    let stream = context.new_stream().unwrap();
    let handle = CudaBlas::new(stream.clone()).unwrap();
    let a = stream.clone_htod(&[2.0f32]).unwrap();
    let mut c = stream.clone_htod(&[f32::NAN]).unwrap();
    let shape = Shape { m: 1, n: 1, k: 1, lda: 1, ldb: 1, ldc: 1 };
    let case = Case { kind: Type::CUDA_R_32F, shape, swap_a: false, swap_b: false, alpha: 1.0, beta: 0.0 };
    let memory = [a.device_ptr(&stream).0, a.device_ptr(&stream).0, c.device_ptr_mut(&stream).0];
    enqueue(&handle, &case, &ONE, memory);
    assert_eq!(stream.clone_dtoh(&c).unwrap(), [4.0]);
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
        (0..3 * EACH).map(|i| if (i % EACH).is_multiple_of(SIDE + 1) { (i / EACH + 1) as f32 } else { 0.0 }).collect();
    let values = numbers(EACH);
    let (a, b) = (stream.clone_htod(&scaled).unwrap(), stream.clone_htod(&values).unwrap());
    let mut c = stream.alloc_zeros::<f32>(3 * EACH).unwrap();
    let shape = Shape { m: SIDE, n: SIDE, k: SIDE, lda: SIDE, ldb: SIDE, ldc: SIDE };
    let start = stream.record_event(TIMED).unwrap();
    // B is the same for all.
    let batch = Batch { count: 3, stride_a: EACH, stride_b: 0, stride_c: EACH };
    let case = Case { kind: Type::CUDA_R_32F, shape, swap_a: false, swap_b: false, alpha: 1.0, beta: 0.0 };
    let memory = [a.device_ptr(&stream).0, b.device_ptr(&stream).0, c.device_ptr_mut(&stream).0];
    enqueue(&handle, &case, &batch, memory);
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
