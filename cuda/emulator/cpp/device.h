// CUDA's language on the CPU: included before a kernel's source, it lets a C++ compiler build the kernel as it stands.
//
// What it is for: running kernels against references where there is no GPU. It is strict where a GPU is forgiving.
//   - The threads of a CTA are fibers. A fiber runs until it waits (at a barrier, or for the other lanes of its warp);
//     which one runs next follows from the launch's seed, so one warp may be far ahead of another: a missing barrier
//     shows as a wrong result.
//   - Shared memory is poisoned when a CTA starts.
//   - An asynchronous copy poisons its target when it is issued and is made when the thread waits for it: a missing wait
//     shows, and so does a stage that is refilled while others still read it.
//   - Lanes that meet in different collective operations, or that never meet (even where one has returned), end the
//     launch with `emulator::fault`.
// CTAs run one after the other. Matrix operations follow the fragment layouts of the PTX ISA.
#pragma once

#include <csetjmp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <ucontext.h>

#define KVTIDE_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// What runs a launch is each library's own, also where one process loads several.
#define KVTIDE_HIDDEN __attribute__((visibility("hidden")))
// Static shared memory of all kernels of the library lies together, so that it can be poisoned.
#define __shared__ static __attribute__((section("kvtide_shared"), aligned(16)))

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

extern "C" KVTIDE_HIDDEN char __start_kvtide_shared[] __attribute__((weak));
extern "C" KVTIDE_HIDDEN char __stop_kvtide_shared[] __attribute__((weak));

namespace emulator KVTIDE_HIDDEN {

// Visible: functions that take one are exported.
struct __attribute__((visibility("default"))) Launch {
  unsigned grid[3], block[3], shared_bytes;
  unsigned long long seed;
};

struct Dim3 { unsigned x, y, z; };

constexpr unsigned char kPoison = 0xA5;
constexpr std::size_t kStackBytes = 128 * 1024;
constexpr unsigned kMaxThreads = 1024;

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

struct Fiber {
  jmp_buf state;
  ucontext_t start;
  bool started;
  Dim3 index;
  unsigned warp, lane;
  // Asynchronous copies: those of closed groups, oldest first, then those of the open group.
  std::vector<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

struct Warp {
  // `present`: lanes that the launch gave it; `lanes`: those that have not returned yet.
  unsigned present = 0, lanes = 0, ready = 0, arrived = 0, mask = 0;
  const char* operation = nullptr;
  void* slots[32] = {};
};

// The CTA that runs. One launch at a time: static shared memory is the library's.
struct Machine {
  std::mutex one_launch;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<unsigned> order;
  unsigned live = 0, at_barrier = 0;
  unsigned long long random = 0;
  Fiber* current = nullptr;
  jmp_buf scheduler;
  ucontext_t origin;
  char* stacks = nullptr;
  std::vector<uint4> dynamic_memory;
  unsigned dynamic_bytes = 0;
  void (*body)(void*) = nullptr;
  void* argument = nullptr;
};

inline Machine machine;
// What went wrong in the last launch, or null: the kernel broke a rule of the language. To be read before another starts.
inline const char* fault = nullptr;
inline char fault_text[256];

inline unsigned long long draw() {
  unsigned long long x = machine.random += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

inline void shuffle_warps() {
  for (std::size_t i = machine.order.size(); i > 1; --i) std::swap(machine.order[i - 1], machine.order[draw() % i]);
}

// Leaves the current fiber; it goes on when its ready bit is set and the scheduler picks it.
__attribute__((noinline)) inline void leave() {
  if (_setjmp(machine.current->state) == 0) _longjmp(machine.scheduler, 1);
}

[[noreturn]] __attribute__((noinline)) inline void fail(const char* text, const char* detail) {
  std::snprintf(fault_text, sizeof fault_text, "%s: %s", text, detail);
  fault = fault_text;
  _longjmp(machine.scheduler, 2);
}

inline void block_current() {
  Fiber& fiber = *machine.current;
  machine.warps[fiber.warp].ready &= ~(1u << fiber.lane);
  leave();
}

inline void release_barrier() {
  machine.at_barrier = 0;
  for (Warp& warp : machine.warps) warp.ready = warp.lanes;
  shuffle_warps();
}

// All lanes of `mask` bring a slot; the last one to come performs the operation on all slots and goes on first.
template <class Slot, class Perform>
inline void collective(const char* operation, unsigned mask, Slot& mine, Perform perform) {
  Fiber& fiber = *machine.current;
  Warp& warp = machine.warps[fiber.warp];
  if (warp.arrived == 0) {
    warp.operation = operation;
    warp.mask = mask;
  } else if (std::strcmp(warp.operation, operation) != 0 || warp.mask != mask) {
    fail("lanes of a warp meet in different operations", operation);
  }
  warp.slots[fiber.lane] = &mine;
  warp.arrived |= 1u << fiber.lane;
  if (warp.arrived == (mask & warp.present)) {
    Slot* slots[32] = {};
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (warp.arrived >> lane & 1) slots[lane] = static_cast<Slot*>(warp.slots[lane]);
    }
    warp.ready |= warp.arrived;
    warp.arrived = 0;
    perform(slots);
  } else {
    block_current();
  }
}

inline void enter() {
  machine.body(machine.argument);
  Fiber& fiber = *machine.current;
  Warp& warp = machine.warps[fiber.warp];
  warp.lanes &= ~(1u << fiber.lane);
  warp.ready &= ~(1u << fiber.lane);
  --machine.live;
  // Threads that are gone count as arrived.
  if (machine.live > 0 && machine.at_barrier == machine.live) release_barrier();
  _longjmp(machine.scheduler, 1);
}

}  // namespace emulator

KVTIDE_HIDDEN inline emulator::Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator KVTIDE_HIDDEN {

// The next fiber: the first warp in the current order with a ready lane, any of its lanes.
inline Fiber* pick() {
  for (unsigned index : machine.order) {
    const unsigned ready = machine.warps[index].ready;
    if (ready == 0) continue;
    const unsigned turn = (unsigned)(draw() % 32);
    const unsigned turned = turn == 0 ? ready : (ready >> turn | ready << (32 - turn));
    return &machine.fibers[index * 32 + (__builtin_ctz(turned) + turn) % 32];
  }
  return nullptr;
}

__attribute__((noinline)) inline void schedule() {
  if (_setjmp(machine.scheduler) == 2) return;
  Fiber* next = pick();
  if (next == nullptr) {
    if (machine.live > 0) {
      std::snprintf(fault_text, sizeof fault_text, "%u threads wait for others that never come", machine.live);
      fault = fault_text;
    }
    return;
  }
  machine.current = next;
  threadIdx = next->index;
  if (next->started) _longjmp(next->state, 1);
  next->started = true;
  setcontext(&next->start);
}

inline void run_cta(unsigned threads) {
  machine.live = threads;
  machine.at_barrier = 0;
  machine.warps.assign((threads + 31) / 32, Warp{});
  machine.order.resize(machine.warps.size());
  for (unsigned i = 0; i < machine.order.size(); ++i) machine.order[i] = i;
  shuffle_warps();
  if (machine.fibers.size() < threads) machine.fibers.resize(threads);
  for (unsigned i = 0; i < threads; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.started = false;
    fiber.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    fiber.warp = i / 32;
    fiber.lane = i % 32;
    fiber.groups.clear();
    fiber.open.clear();
    machine.warps[fiber.warp].lanes |= 1u << fiber.lane;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = machine.stacks + i * kStackBytes;
    fiber.start.uc_stack.ss_size = kStackBytes;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
  }
  for (Warp& warp : machine.warps) warp.present = warp.ready = warp.lanes;
  if (__start_kvtide_shared != nullptr) {
    std::memset(__start_kvtide_shared, kPoison, __stop_kvtide_shared - __start_kvtide_shared);
  }
  if (!machine.dynamic_memory.empty()) {
    std::memset(machine.dynamic_memory.data(), kPoison, machine.dynamic_memory.size() * 16);
  }
  schedule();
}

// Runs a whole grid. `arguments` are as for `cuLaunchKernel`: one pointer to each argument's value.
template <class... A>
void run(void (*kernel)(A...), const Launch& launch, void** arguments) {
  std::lock_guard<std::mutex> guard(machine.one_launch);
  using Values = std::tuple<std::decay_t<A>...>;
  struct Work {
    void (*kernel)(A...);
    Values values;
  };
  std::size_t next = 0;
  // Braces: evaluated left to right.
  Work work{kernel, Values{*static_cast<std::decay_t<A>*>(arguments[next++])...}};
  fault = nullptr;
  machine.body = [](void* opaque) {
    Work& work = *static_cast<Work*>(opaque);
    std::apply(work.kernel, work.values);
  };
  machine.argument = &work;
  machine.random = launch.seed;
  machine.dynamic_bytes = launch.shared_bytes;
  machine.dynamic_memory.resize((launch.shared_bytes + 15) / 16);
  if (machine.stacks == nullptr) {
    void* stacks = mmap(nullptr, kMaxThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stacks == MAP_FAILED) {
      fault = "no memory for the stacks of a CTA";
      return;
    }
    machine.stacks = static_cast<char*>(stacks);
  }
  gridDim = {launch.grid[0], launch.grid[1], launch.grid[2]};
  blockDim = {launch.block[0], launch.block[1], launch.block[2]};
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  if (threads == 0 || threads > kMaxThreads) {
    fault = "a CTA has 1 to 1024 threads";
    return;
  }
  for (unsigned z = 0; z < gridDim.z; ++z) {
    for (unsigned y = 0; y < gridDim.y; ++y) {
      for (unsigned x = 0; x < gridDim.x; ++x) {
        blockIdx = {x, y, z};
        run_cta(threads);
        if (fault != nullptr) return;
      }
    }
  }
}

template <class T, class Source>
inline T shuffle(const char* operation, unsigned mask, T value, Source source) {
  struct Slot { T given, taken; unsigned source; } slot{value, value, source(machine.current->lane)};
  collective(operation, mask, slot, [](Slot** slots) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (slots[lane] == nullptr) continue;
      const unsigned from = slots[lane]->source;
      if (from < 32 && slots[from] != nullptr) slots[lane]->taken = slots[from]->given;
    }
  });
  return slot.taken;
}

}  // namespace emulator

inline void __syncthreads() {
  using namespace emulator;
  if (++machine.at_barrier == machine.live) {
    release_barrier();
    // Not the last to arrive but the scheduler's choice goes on first.
    leave();
  } else {
    block_current();
  }
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu) {
  char slot = 0;
  emulator::collective("syncwarp", mask, slot, [](char**) {});
}

template <class T> T __shfl_sync(unsigned mask, T value, int lane) {
  return emulator::shuffle("shfl.idx", mask, value, [=](unsigned) { return (unsigned)lane % 32; });
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return emulator::shuffle("shfl.bfly", mask, value, [=](unsigned lane) { return lane ^ (unsigned)lanes; });
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  return emulator::shuffle("shfl.down", mask, value, [=](unsigned lane) { return lane + delta; });
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  return emulator::shuffle("shfl.up", mask, value, [=](unsigned lane) { return lane - delta; });
}

inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  struct Slot { bool given; unsigned taken; } slot{predicate, 0};
  emulator::collective("ballot", mask, slot, [](Slot** slots) {
    unsigned bits = 0;
    for (unsigned lane = 0; lane < 32; ++lane) if (slots[lane] != nullptr && slots[lane]->given) bits |= 1u << lane;
    for (unsigned lane = 0; lane < 32; ++lane) if (slots[lane] != nullptr) slots[lane]->taken = bits;
  });
  return slot.taken;
}
inline bool __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline bool __all_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Fibers do not run at the same time: plain operations are atomic.
template <class T> T atomicAdd(T* at, T value) { T old = *at; *at += value; return old; }
template <class T> T atomicMax(T* at, T value) { T old = *at; if (value > old) *at = value; return old; }
template <class T> T atomicMin(T* at, T value) { T old = *at; if (value < old) *at = value; return old; }
template <class T> T atomicExch(T* at, T value) { T old = *at; *at = value; return old; }
template <class T> T atomicCAS(T* at, T expected, T value) { T old = *at; if (old == expected) *at = value; return old; }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class T> T __ldg(const T* at) { return *at; }
inline float __uint_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
inline unsigned __float_as_uint(float value) { unsigned bits; std::memcpy(&bits, &value, 4); return bits; }
inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> T max(T a, T b) { return a < b ? b : a; }

inline float fp16_to_f32(unsigned short bits) {
  const unsigned sign = (unsigned)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7F800000u | mantissa << 13);
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * std::ldexp((float)mantissa, -24);
  return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

namespace emulator KVTIDE_HIDDEN {

inline unsigned short f32_to_bf16(float value) {
  const unsigned bits = __float_as_uint(value);
  if (value != value) return 0x7FFF;
  return (unsigned short)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

inline unsigned short f32_to_fp16(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
  if (value != value) return 0x7FFF;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return (unsigned short)(sign | 0x7C00u);
  // Subnormal halves are whole multiples of 2^-24; `nearbyint` rounds to nearest even.
  if (magnitude < 6.103515625e-5f) return (unsigned short)(sign | (unsigned)std::nearbyint(magnitude * 16777216.0f));
  const unsigned rounded = (bits & 0x7FFFFFFFu) + 0x0FFFu + (bits >> 13 & 1);
  return (unsigned short)(sign | ((rounded >> 13) - (112u << 10)));
}

}  // namespace emulator

inline unsigned pack_bf16(float low, float high) {
  return emulator::f32_to_bf16(low) | (unsigned)emulator::f32_to_bf16(high) << 16;
}
inline unsigned pack_fp16(float low, float high) {
  return emulator::f32_to_fp16(low) | (unsigned)emulator::f32_to_fp16(high) << 16;
}
// `ex2.approx.ftz`: 2^-inf is 0.
inline float exp2_fast(float value) { return std::exp2(value); }

inline uint4* dynamic_shared() { return emulator::machine.dynamic_memory.data(); }

inline void cp_async16(void* to, const void* from, bool valid) {
  using namespace emulator;
  const char* base = reinterpret_cast<const char*>(machine.dynamic_memory.data());
  const std::ptrdiff_t offset = static_cast<char*>(to) - base;
  if (offset < 0 || offset + 16 > (std::ptrdiff_t)machine.dynamic_bytes || offset % 16 != 0) {
    fail("an asynchronous copy", "to no 16-byte vector of dynamic shared memory");
  }
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) fail("an asynchronous copy", "from an unaligned address");
  std::memset(to, kPoison, 16);
  machine.current->open.push_back({to, from, valid});
}

inline void cp_async_commit() {
  emulator::Fiber& fiber = *emulator::machine.current;
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

template <int kPending> void cp_async_wait() {
  auto& groups = emulator::machine.current->groups;
  while (groups.size() > (std::size_t)kPending) {
    for (const emulator::Copy& copy : groups.front()) {
      if (copy.valid) std::memcpy(copy.to, copy.from, 16);
      else std::memset(copy.to, 0, 16);
    }
    groups.erase(groups.begin());
  }
}

namespace emulator KVTIDE_HIDDEN {

// Lane `8 i + r` gives the address of row `r` of matrix `i`; register `i` of lane `l` gets elements `2 (l % 4)` and the
// next of row `l / 4` of matrix `i`, or of its column when transposed.
inline void ldmatrix(const char* operation, unsigned (&registers)[4], const void* row, bool transposed) {
  const std::ptrdiff_t offset = static_cast<const char*>(row) - reinterpret_cast<char*>(machine.dynamic_memory.data());
  if (offset < 0 || offset + 16 > (std::ptrdiff_t)machine.dynamic_bytes || offset % 16 != 0) {
    fail(operation, "reads outside dynamic shared memory");
  }
  struct Slot { unsigned (*registers)[4]; const unsigned short* row; bool transposed; } slot{
      &registers, static_cast<const unsigned short*>(row), transposed};
  collective(operation, 0xFFFFFFFFu, slot, [](Slot** slots) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned major = lane / 4, minor = lane % 4 * 2;
      for (unsigned i = 0; i < 4; ++i) {
        unsigned short low, high;
        if (slots[lane]->transposed) {
          low = slots[8 * i + minor]->row[major];
          high = slots[8 * i + minor + 1]->row[major];
        } else {
          low = slots[8 * i + major]->row[minor];
          high = slots[8 * i + major]->row[minor + 1];
        }
        (*slots[lane]->registers)[i] = low | (unsigned)high << 16;
      }
    }
  });
}

template <class Widen>
inline void mma(const char* operation, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Widen widen) {
  struct Slot { float* c; const unsigned* a; unsigned b[2]; } slot{c, a, {b0, b1}};
  collective(operation, 0xFFFFFFFFu, slot, [=](Slot** slots) {
    float left[16][16], right[8][16];
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned group = lane / 4, pair = lane % 4 * 2;
      for (unsigned half = 0; half < 2; ++half) {
        for (unsigned i = 0; i < 4; ++i) {
          left[group + i % 2 * 8][pair + i / 2 * 8 + half] = widen((unsigned short)(slots[lane]->a[i] >> 16 * half));
        }
        for (unsigned i = 0; i < 2; ++i) {
          right[group][pair + i * 8 + half] = widen((unsigned short)(slots[lane]->b[i] >> 16 * half));
        }
      }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      for (unsigned i = 0; i < 4; ++i) {
        const float* row = left[lane / 4 + i / 2 * 8];
        const float* column = right[lane % 4 * 2 + i % 2];
        float sum = slots[lane]->c[i];
        for (unsigned k = 0; k < 16; ++k) sum += row[k] * column[k];
        slots[lane]->c[i] = sum;
      }
    }
  });
}

}  // namespace emulator

inline void ldmatrix4(unsigned (&registers)[4], const void* row) {
  emulator::ldmatrix("ldmatrix", registers, row, false);
}
inline void ldmatrix4_transposed(unsigned (&registers)[4], const void* row) {
  emulator::ldmatrix("ldmatrix.trans", registers, row, true);
}

// Transposes an 8 x 8 matrix of 2-byte elements: lane `l` holds two elements of row `l / 4`.
inline unsigned movmatrix_transposed(unsigned bits) {
  struct Slot { unsigned given, taken; } slot{bits, 0};
  emulator::collective("movmatrix.trans", 0xFFFFFFFFu, slot, [](Slot** slots) {
    for (unsigned lane = 0; lane < 32; ++lane) {
      const unsigned row = lane / 4, column = lane % 4 * 2;
      const auto element = [&](unsigned r, unsigned c) { return slots[4 * r + c / 2]->given >> 16 * (c % 2) & 0xFFFF; };
      slots[lane]->taken = element(column, row) | element(column + 1, row) << 16;
    }
  });
  return slot.taken;
}

inline void mma_bf16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::mma("mma.bf16", c, a, b0, b1, [](unsigned short bits) { return __uint_as_float((unsigned)bits << 16); });
}
inline void mma_fp16(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::mma("mma.f16", c, a, b0, b1, [](unsigned short bits) { return fp16_to_f32(bits); });
}
