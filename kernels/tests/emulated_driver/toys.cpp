// Kernels for the tests of the emulated driver, written by hand.
#include "../../emulator/launch.h"

namespace {

template <class T>
T argument(void** arguments, int index) {
  return *static_cast<T*>(arguments[index]);
}

}  // namespace

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

// bytes[at] = 1
TOY(toy_poke) {
  (void)launch;
  argument<unsigned char*>(arguments, 0)[argument<unsigned long long>(arguments, 1)] = 1;
}
