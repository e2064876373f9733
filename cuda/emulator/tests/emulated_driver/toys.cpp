// Kernels for the tests of the emulated driver, written by hand.
#include "launch.h"

namespace {

template <class T>
T argument(void** arguments, int index) {
  return *static_cast<T*>(arguments[index]);
}

const char* fault = nullptr;

}  // namespace

extern "C" const char* emulated_fault() { return fault; }

#define TOY(name) extern "C" void emulated_##name(const emulator::Launch* launch, void** arguments)

// values[i] = values[i] * factor + offset, one thread each.
TOY(toy_scale) {
  auto* values = argument<float*>(arguments, 0);
  const auto factor = argument<float>(arguments, 1);
  const auto offset = argument<float>(arguments, 2);
  const auto count = argument<unsigned long long>(arguments, 3);
  const unsigned long long threads = 1ULL * launch->grid[0] * launch->block[0];
  for (unsigned long long i = 0; i < count && i < threads; ++i) values[i] = values[i] * factor + offset;
}

// Breaks a rule, if told so.
TOY(toy_fault) {
  (void)launch;
  fault = argument<unsigned>(arguments, 0) == 0 ? nullptr : "a barrier that half of the block never reaches";
}

// bytes[at] = 1
TOY(toy_poke) {
  (void)launch;
  argument<unsigned char*>(arguments, 0)[argument<unsigned long long>(arguments, 1)] = 1;
}
