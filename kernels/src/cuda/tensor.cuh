// Tensor cores and what feeds them. Fragments are those of `mma.m16n8k16` for 2-byte elements (PTX ISA): with
// `row = lane / 4` and `pair = 2 * (lane % 4)`,
//   a[0] holds A[row][pair..], a[1] A[row + 8][pair..], a[2] A[row][pair + 8..], a[3] A[row + 8][pair + 8..];
//   b0 holds B[pair..][row], b1 B[pair + 8..][row];
//   c[0], c[1] hold C[row][pair..], c[2], c[3] C[row + 8][pair..].
//
// A tile in shared memory is rows of 16-byte vectors. Vector `column` of `row` lies at `column ^ (row % 8)`, so that the
// eight rows of an 8 x 8 matrix are read from eight different groups of banks.

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kBlockSize = 16;

#ifndef KVTIDE_EMULATED
__device__ __forceinline__ uint4* dynamic_shared() {
  extern __shared__ uint4 dynamic_memory[];
  return dynamic_memory;
}

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return (unsigned)__cvta_generic_to_shared(pointer);
}

// Copies 16 bytes past the registers and the L1; zeros if not valid, and then `from` is not read.
__device__ __forceinline__ void cp_async16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most `kPending` of this thread's groups are under way.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

// Four 8 x 8 matrices; lane `8 i + r` names row `r` of matrix `i`.
__device__ __forceinline__ void ldmatrix4(unsigned (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
}

__device__ __forceinline__ void ldmatrix4_transposed(unsigned (&registers)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(shared_address(row))
               : "memory");
}

// Transposes an 8 x 8 matrix that the warp holds in one register a lane.
__device__ __forceinline__ unsigned movmatrix_transposed(unsigned bits) {
  unsigned turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(bits));
  return turned;
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_fp16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_fast(float value) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(value));
  return power;
}
#endif

__device__ __forceinline__ void mma(Bf16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mma_bf16(c, a, b0, b1);
}

__device__ __forceinline__ void mma(Fp16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  mma_fp16(c, a, b0, b1);
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float((int)0xFF800000u); }

// Where vector `column` of `row` lies in a tile of rows of `kVectors` vectors.
template <int kVectors>
__device__ __forceinline__ unsigned swizzled(unsigned row, unsigned column) {
  return row * kVectors + (column ^ (row % 8));
}

// Two neighbouring elements.
__device__ __forceinline__ unsigned load_pair(const unsigned short* from) {
  return *reinterpret_cast<const unsigned*>(from);
}

