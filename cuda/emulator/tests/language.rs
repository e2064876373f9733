//! CUDA's language on the CPU: its matrices follow the PTX ISA, and kernels that break its rules are noticed.

use crate::common::{Emulator, compiled, folder};
use kvtide_emulator::{compile_units, unit_of};
use kvtide_kernels::check::{CheckArg, Launcher};
use kvtide_kernels::launch::Geometry;

/// Kernels that break a rule, and one that shows what a warp's fragments hold.
const SOURCE: &str = r#"
extern "C" __global__ void lost_lane(unsigned* out) {
  if (threadIdx.x != 3) __syncwarp();
  out[threadIdx.x] = 1;
}

extern "C" __global__ void two_operations(unsigned* out) {
  if (threadIdx.x % 2 == 0) __syncwarp();
  else __ballot_sync(0xFFFFFFFFu, true);
  out[threadIdx.x] = 1;
}

extern "C" __global__ void outside(unsigned* out) {
  cp_async16(dynamic_shared() + blockDim.x, out, true);
}

// Without a wait, shared memory holds neither the source nor what was there.
extern "C" __global__ void no_wait(unsigned* out) {
  dynamic_shared()[threadIdx.x] = make_uint4(7, 7, 7, 7);
  cp_async16(dynamic_shared() + threadIdx.x, out, true);
  cp_async_commit();
  out[4 * threadIdx.x] = dynamic_shared()[threadIdx.x].x;
}

// C = A B of small whole numbers, loaded with `ldmatrix` from row-major tiles and written element by element.
extern "C" __global__ void product(const unsigned short* a, const unsigned short* b, unsigned* out) {
  unsigned short* tile = reinterpret_cast<unsigned short*>(dynamic_shared());
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) tile[i] = a[i];
  for (unsigned i = lane; i < 128; i += 32) tile[256 + i] = b[i];
  __syncwarp();
  unsigned left[4], right[4];
  ldmatrix4(left, tile + lane % 16 * 16 + lane / 16 * 8);
  // Rows of B run along k: transposed, lanes hold columns. The upper matrices are not used.
  ldmatrix4_transposed(right, tile + 256 + lane % 16 * 8);
  float c[4] = {};
  mma_bf16(c, left, right[0], right[1]);
  for (unsigned i = 0; i < 4; ++i) {
    out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = (unsigned)c[i];
  }
}

extern "C" __global__ void transposed(const unsigned* in, unsigned* out) {
  out[threadIdx.x] = movmatrix_transposed(in[threadIdx.x]);
}
"#;

fn device() -> Option<Emulator> {
    let entries = ["lost_lane", "two_operations", "outside", "no_wait", "product", "transposed"];
    let unit = unit_of("rules.cu", SOURCE, &entries);
    Some(Emulator::open(&compiled(compile_units(folder(), &[unit], "rules.so"))?))
}

fn warp() -> Geometry {
    Geometry { grid: (1, 1, 1), block: (32, 1, 1), shared_bytes: 1024 }
}

/// 512 bytes at a multiple of 16.
#[repr(align(16))]
struct Bytes([u8; 512]);

impl Bytes {
    fn words(&self) -> Vec<u32> {
        self.0.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
    }

    fn of_halves(halves: impl Iterator<Item = u16>) -> Self {
        let mut bytes = Self([0; 512]);
        for (to, half) in bytes.0.chunks_exact_mut(2).zip(halves) {
            to.copy_from_slice(&half.to_le_bytes());
        }
        bytes
    }
}

#[test]
fn broken_rules_are_named_and_the_next_launch_is_sound() {
    let Some(mut device) = device() else { return };
    for (entry, says) in [
        ("lost_lane", "31 threads wait for others that never come"),
        ("two_operations", "lanes of a warp meet in different operations"),
        ("outside", "to no 16-byte vector of dynamic shared memory"),
    ] {
        let mut out = Bytes([0; 512]);
        let shared = Geometry { shared_bytes: 512, ..warp() };
        let said = device.launch(entry, &shared, &mut [CheckArg::Out(&mut out.0)]).expect_err(entry);
        assert!(said.contains(says), "{entry}: {said}");
        let (input, mut out) = (Bytes([0; 512]), Bytes([1; 512]));
        device
            .launch("transposed", &warp(), &mut [CheckArg::In(&input.0), CheckArg::Out(&mut out.0)])
            .expect("a sound kernel");
        assert!(out.0[..128].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_copy_that_nobody_waits_for_shows() {
    let Some(mut device) = device() else { return };
    let mut out = Bytes([9; 512]);
    device.launch("no_wait", &warp(), &mut [CheckArg::Out(&mut out.0)]).expect("no rule of the language");
    assert!(out.words().iter().step_by(4).all(|&word| word == 0xA5A5_A5A5));
}

#[test]
fn a_product_of_matrices_is_one() {
    let Some(mut device) = device() else { return };
    let (a, b) = (|i: usize| (i * 7 % 11) as u32, |i: usize| (i * 5 % 13) as u32);
    // Small whole numbers are exact in bfloat16: the upper half of an `f32`.
    let bf16 = |number: u32| ((number as f32).to_bits() >> 16) as u16;
    let (left, right) = (Bytes::of_halves((0..256).map(a).map(bf16)), Bytes::of_halves((0..128).map(b).map(bf16)));
    let mut out = Bytes([0; 512]);
    let args = &mut [CheckArg::In(&left.0), CheckArg::In(&right.0), CheckArg::Out(&mut out.0)];
    device.launch("product", &warp(), args).expect("a sound kernel");
    for (i, &got) in out.words().iter().enumerate() {
        let want: u32 = (0..16).map(|k| a(i / 8 * 16 + k) * b(k * 8 + i % 8)).sum();
        assert_eq!(got, want, "row {}, column {}", i / 8, i % 8);
    }
}

#[test]
fn a_matrix_is_transposed_across_lanes() {
    let Some(mut device) = device() else { return };
    let input = Bytes::of_halves(0..64);
    let mut out = Bytes([0; 512]);
    device
        .launch("transposed", &warp(), &mut [CheckArg::In(&input.0), CheckArg::Out(&mut out.0)])
        .expect("a sound kernel");
    let want = Bytes::of_halves((0..64).map(|i| i % 8 * 8 + i / 8));
    assert_eq!(out.0[..128], want.0[..128]);
}
