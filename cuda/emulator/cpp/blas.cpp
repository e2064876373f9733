// cublasGemmEx on the CPU: bf16, fp16 and f32 in any layout, sums in f32.
//
// Both operands are packed into panels of f32, so that the innermost loop runs over neighbours whatever the transposes
// are. Every element is summed in order of k on every machine: no fused multiply-add, no threads.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "launch.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

enum Status : int { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum Type : int { F32 = 0, F16 = 2, BF16 = 14 };
enum Transpose : int { NO = 0 };

// Compute types with sums in f32.
constexpr int COMPUTE_F32[] = {68, 69, 74, 75, 77};
constexpr int VERSION = 130'000;

// 3 us and 100 TFLOP/s.
constexpr std::uint64_t GEMM_NS = 3'000;
constexpr std::uint64_t FLOP_PER_NS = 100'000;

struct Handle {
  void* stream = nullptr;
  int math_mode = 0;
  int pointer_mode = 0;
};

float from_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

std::uint32_t to_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t{half & 0x8000U} << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1F;
  const std::uint32_t fraction = half & 0x3FF;
  if (exponent == 0) return from_bits(sign | to_bits(static_cast<float>(fraction) * 0x1p-24F));
  if (exponent == 31) return from_bits(sign | 0x7F800000 | fraction << 13);
  return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

// Rounds to nearest, ties to even, as the two below do.
std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = to_bits(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;   // not a number
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // 65520 and up
  if (magnitude < 0x38800000) {
    // Subnormal: adding a half makes the processor round at the right bit.
    const float rounded = from_bits(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (to_bits(rounded) - to_bits(0.5F)));
  }
  const std::uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

float brain_to_float(std::uint16_t brain) { return from_bits(std::uint32_t{brain} << 16); }

std::uint16_t float_to_brain(float value) {
  const std::uint32_t bits = to_bits(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

std::size_t bytes_of(int type) { return type == F32 ? 4 : 2; }
bool is_known(int type) { return type == F32 || type == F16 || type == BF16; }

float load(const void* data, int type, std::size_t index) {
  switch (type) {
    case F16:
      return half_to_float(static_cast<const std::uint16_t*>(data)[index]);
    case BF16:
      return brain_to_float(static_cast<const std::uint16_t*>(data)[index]);
    default:
      return static_cast<const float*>(data)[index];
  }
}

void store(void* data, int type, std::size_t index, float value) {
  switch (type) {
    case F16:
      static_cast<std::uint16_t*>(data)[index] = float_to_half(value);
      break;
    case BF16:
      static_cast<std::uint16_t*>(data)[index] = float_to_brain(value);
      break;
    default:
      static_cast<float*>(data)[index] = value;
      break;
  }
}

// A matrix in column-major order, `rows` by `columns` once transposed.
struct Matrix {
  const void* data;
  int type;
  std::size_t leading;
  bool transposed;
};

struct Gemm {
  std::size_t m, n, k;
  float alpha, beta;
  Matrix a, b;
  void* c;
  int c_type;
  std::size_t c_leading;
  std::size_t stride_a, stride_b, stride_c, batch;
};

constexpr std::size_t TILE_ROWS = 16;
constexpr std::size_t TILE_COLUMNS = 4;

const void* advance(const void* data, int type, std::size_t elements) {
  return static_cast<const char*>(data) + elements * bytes_of(type);
}

// [panel, k, width]: `width` neighbours along the outer side stand together for each k; what is missing is zero.
std::vector<float> pack(const Matrix& matrix, std::size_t outer, std::size_t k, std::size_t width, bool outer_is_row) {
  const std::size_t panels = (outer + width - 1) / width;
  std::vector<float> packed(panels * k * width, 0.0F);
  const bool outer_is_contiguous = outer_is_row != matrix.transposed;
  for (std::size_t o = 0; o < outer; ++o) {
    float* const to = packed.data() + (o / width * k) * width + o % width;
    const std::size_t first = outer_is_contiguous ? o : o * matrix.leading;
    const std::size_t step = outer_is_contiguous ? matrix.leading : 1;
    for (std::size_t i = 0; i < k; ++i) to[i * width] = load(matrix.data, matrix.type, first + i * step);
  }
  return packed;
}

// Eight neighbours at once, in registers: half a column of a tile.
typedef float Lanes __attribute__((vector_size(32), aligned(4), may_alias));
constexpr std::size_t LANES = sizeof(Lanes) / sizeof(float);
static_assert(TILE_ROWS == 2 * LANES);

#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
void multiply_tile(const float* a, const float* b, std::size_t k, float* sums) {
  Lanes upper[TILE_COLUMNS] = {};
  Lanes lower[TILE_COLUMNS] = {};
  for (std::size_t i = 0; i < k; ++i, a += TILE_ROWS, b += TILE_COLUMNS) {
    const Lanes above = *reinterpret_cast<const Lanes*>(a);
    const Lanes below = *reinterpret_cast<const Lanes*>(a + LANES);
#pragma GCC unroll 4
    for (std::size_t column = 0; column < TILE_COLUMNS; ++column) {
      upper[column] += above * b[column];
      lower[column] += below * b[column];
    }
  }
  for (std::size_t column = 0; column < TILE_COLUMNS; ++column) {
    std::memcpy(sums + column * TILE_ROWS, &upper[column], sizeof(Lanes));
    std::memcpy(sums + column * TILE_ROWS + LANES, &lower[column], sizeof(Lanes));
  }
}

void multiply(const Gemm& g) {
  const std::vector<float> a = pack(g.a, g.m, g.k, TILE_ROWS, true);
  const std::vector<float> b = pack(g.b, g.n, g.k, TILE_COLUMNS, false);
  float sums[TILE_COLUMNS * TILE_ROWS];
  for (std::size_t column = 0; column < g.n; column += TILE_COLUMNS) {
    for (std::size_t row = 0; row < g.m; row += TILE_ROWS) {
      multiply_tile(a.data() + row * g.k, b.data() + column * g.k, g.k, sums);
      for (std::size_t j = column; j < std::min(g.n, column + TILE_COLUMNS); ++j) {
        for (std::size_t i = row; i < std::min(g.m, row + TILE_ROWS); ++i) {
          const std::size_t at = j * g.c_leading + i;
          float value = g.alpha * sums[(j - column) * TILE_ROWS + i - row];
          // C may hold anything where beta is zero.
          if (g.beta != 0.0F) value += g.beta * load(g.c, g.c_type, at);
          store(g.c, g.c_type, at, value);
        }
      }
    }
  }
}

void run(void* data) {
  const Gemm& all = *static_cast<const Gemm*>(data);
  Gemm one = all;
  for (std::size_t i = 0; i < all.batch; ++i) {
    one.a.data = advance(all.a.data, all.a.type, i * all.stride_a);
    one.b.data = advance(all.b.data, all.b.type, i * all.stride_b);
    one.c = const_cast<void*>(advance(all.c, all.c_type, i * all.stride_c));
    multiply(one);
  }
}

void drop(void* data) { delete static_cast<Gemm*>(data); }

emulator::Span span(const void* data, int type, std::size_t leading, std::size_t rows, std::size_t columns,
                    std::size_t stride, std::size_t batch) {
  const std::size_t elements = (batch - 1) * stride + (columns - 1) * leading + rows;
  return {reinterpret_cast<unsigned long long>(data), elements * bytes_of(type)};
}

Status enqueue(const Handle* handle, const Gemm& g) {
  if (handle == nullptr) return NOT_INITIALIZED;
  if (handle->pointer_mode != 0 || !is_known(g.a.type) || !is_known(g.b.type) || !is_known(g.c_type))
    return NOT_SUPPORTED;
  if (g.m == 0 || g.n == 0 || g.batch == 0) return SUCCESS;
  const std::size_t a_rows = g.a.transposed ? g.k : g.m;
  const std::size_t b_rows = g.b.transposed ? g.n : g.k;
  if (g.a.leading < std::max<std::size_t>(1, a_rows) || g.b.leading < std::max<std::size_t>(1, b_rows) ||
      g.c_leading < g.m) {
    return INVALID_VALUE;
  }
  std::vector<emulator::Span> spans{span(g.c, g.c_type, g.c_leading, g.m, g.n, g.stride_c, g.batch)};
  if (g.k > 0) {
    spans.push_back(span(g.a.data, g.a.type, g.a.leading, a_rows, g.m + g.k - a_rows, g.stride_a, g.batch));
    spans.push_back(span(g.b.data, g.b.type, g.b.leading, b_rows, g.n + g.k - b_rows, g.stride_b, g.batch));
  }
  const std::uint64_t flop = std::uint64_t{2} * g.m * g.n * g.k * g.batch;
  const std::uint64_t cost_ns = GEMM_NS + (flop + FLOP_PER_NS - 1) / FLOP_PER_NS;
  const int result = kvtide_emulated_enqueue(handle->stream, run, drop, new Gemm(g), cost_ns, spans.data(),
                                             static_cast<unsigned>(spans.size()));
  return result == 0 ? SUCCESS : EXECUTION_FAILED;
}

}  // namespace

EXPORT int cublasCreate_v2(Handle** handle) {
  *handle = new Handle;
  return SUCCESS;
}

EXPORT int cublasDestroy_v2(Handle* handle) {
  delete handle;
  return SUCCESS;
}

EXPORT int cublasSetStream_v2(Handle* handle, void* stream) {
  handle->stream = stream;
  return SUCCESS;
}

EXPORT int cublasGetStream_v2(Handle* handle, void** stream) {
  *stream = handle->stream;
  return SUCCESS;
}

EXPORT int cublasSetWorkspace_v2(Handle*, void* workspace, std::size_t) {
  constexpr std::uintptr_t ALIGNMENT_BYTES = 256;
  return reinterpret_cast<std::uintptr_t>(workspace) % ALIGNMENT_BYTES == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cublasSetMathMode(Handle* handle, int mode) {
  handle->math_mode = mode;
  return SUCCESS;
}

EXPORT int cublasGetMathMode(Handle* handle, int* mode) {
  *mode = handle->math_mode;
  return SUCCESS;
}

EXPORT int cublasSetPointerMode_v2(Handle* handle, int mode) {
  handle->pointer_mode = mode;
  return SUCCESS;
}

EXPORT int cublasGetPointerMode_v2(Handle* handle, int* mode) {
  *mode = handle->pointer_mode;
  return SUCCESS;
}

EXPORT int cublasGetVersion_v2(Handle*, int* version) {
  *version = VERSION;
  return SUCCESS;
}

EXPORT const char* cublasGetStatusString(int status) {
  return status == SUCCESS ? "success" : "failure of the emulated cuBLAS";
}

EXPORT int cublasGemmStridedBatchedEx(Handle* handle, int transpose_a, int transpose_b, int m, int n, int k,
                                      const void* alpha, const void* a, int a_type, int lda, long long stride_a,
                                      const void* b, int b_type, int ldb, long long stride_b, const void* beta, void* c,
                                      int c_type, int ldc, long long stride_c, int batch, int compute, int) {
  if (std::find(std::begin(COMPUTE_F32), std::end(COMPUTE_F32), compute) == std::end(COMPUTE_F32)) return NOT_SUPPORTED;
  if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < 1 || ldb < 1 || ldc < 1 || alpha == nullptr || beta == nullptr ||
      stride_a < 0 || stride_b < 0 || stride_c < 0) {
    return INVALID_VALUE;
  }
  const auto size = [](long long value) { return static_cast<std::size_t>(value); };
  const Gemm gemm{size(m),
                  size(n),
                  size(k),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  {a, a_type, size(lda), transpose_a != NO},
                  {b, b_type, size(ldb), transpose_b != NO},
                  c,
                  c_type,
                  size(ldc),
                  size(stride_a),
                  size(stride_b),
                  size(stride_c),
                  size(batch)};
  return enqueue(handle, gemm);
}

EXPORT int cublasGemmEx(Handle* handle, int transpose_a, int transpose_b, int m, int n, int k, const void* alpha,
                        const void* a, int a_type, int lda, const void* b, int b_type, int ldb, const void* beta,
                        void* c, int c_type, int ldc, int compute, int algorithm) {
  return cublasGemmStridedBatchedEx(handle, transpose_a, transpose_b, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb,
                                    0, beta, c, c_type, ldc, 0, 1, compute, algorithm);
}

EXPORT int cublasSgemm_v2(Handle* handle, int transpose_a, int transpose_b, int m, int n, int k, const float* alpha,
                          const float* a, int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
  return cublasGemmEx(handle, transpose_a, transpose_b, m, n, k, alpha, a, F32, lda, b, F32, ldb, beta, c, F32, ldc, 68,
                      0);
}
