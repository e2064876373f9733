// The device's state and the setters that tests use.
#include "driver.h"

#include <cstdio>
#include <cstring>
#include <sstream>

namespace driver {
namespace {

long long from_environment(const char* name, long long otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr || *text == '\0' ? otherwise : std::strtoll(text, nullptr, 10);
}

}  // namespace

thread_local bool context_is_current = false;
thread_local bool in_host_function = false;

std::string hex(Address address) {
  std::ostringstream text;
  text << "0x" << std::hex << address;
  return text.str();
}

Device::Device() {
  seed = static_cast<std::uint64_t>(from_environment("KVTIDE_EMULATOR_SEED", 0));
  fail_after = from_environment("KVTIDE_EMULATOR_FAIL_AFTER", -1);
  multiprocessors = static_cast<int>(from_environment("KVTIDE_EMULATOR_MULTIPROCESSORS", 132));
  memory.capacity_bytes = static_cast<std::size_t>(from_environment("KVTIDE_EMULATOR_MEMORY_BYTES", 1LL << 30));
  schedule.eager_percent = static_cast<unsigned>(from_environment("KVTIDE_EMULATOR_EAGER_PERCENT", 0));
  schedule.execute = [this](Operation& operation) { execute(operation); };
  schedule.reset(seed);
}

// Never destroyed: threads may still call when the process ends.
Device& device() {
  static Device* const device = new Device;
  return *device;
}

Result Device::fail(Result code, const std::string& text) {
  message = text;
  ++counters.errors;
  std::fprintf(stderr, "kvtide emulated device: %s (error %d)\n", text.c_str(), static_cast<int>(code));
  return code;
}

Result Device::lose(Result code, const std::string& text) {
  if (lost == SUCCESS) lost = fail(code, text);
  return lost;
}

void Device::reset() {
  schedule.reset(seed);
  for (auto& entry : events) entry.first->marker = nullptr;
  memory.release_all();
  lost = SUCCESS;
  counters = {};
  executed_before = 0;
}

Result Device::release(const Block& block) {
  Result result = SUCCESS;
  if (!Memory::guards_intact(block)) {
    result = lose(ILLEGAL_ADDRESS,
                  "writes outside the allocation of " + std::to_string(block.bytes) + " bytes at " + hex(block.begin));
  }
  memory.release(block);
  return result;
}

void Device::execute(Operation& operation) {
  if (lost != SUCCESS || !operation.work) return;
  if (operation.counts && fail_after >= 0 &&
      counters.executed - executed_before >= static_cast<std::uint64_t>(fail_after)) {
    lose(LAUNCH_FAILED, "the device is lost, as asked for, at " + operation.what);
    return;
  }
  for (const emulator::Span& span : operation.spans) {
    const Block* block = memory.find(span.begin);
    if (block == nullptr || !block->covers(span.begin, span.bytes)) {
      lose(ILLEGAL_ADDRESS, operation.what + " runs after memory at " + hex(span.begin) + " was freed");
      return;
    }
  }
  if (operation.counts) ++counters.executed;
  if (const Result result = operation.work(); result != SUCCESS) lose(result, operation.what + " failed");
}

}  // namespace driver

using namespace driver;

EXPORT int kvtide_emulated_enqueue(void* stream, void (*work)(void*), void (*drop)(void*), void* data,
                                   unsigned long long cost_ns, const emulator::Span* spans, unsigned num_spans) {
  const std::shared_ptr<void> owned(data, [drop](void* pointer) {
    if (drop != nullptr) drop(pointer);
  });
  return call([&](Device& d) -> int {
    Stream* target = d.schedule.resolve(static_cast<Stream*>(stream));
    if (target == nullptr) return d.fail(INVALID_HANDLE, "library work for an unknown stream");
    Operation operation;
    operation.what = "library work";
    operation.counts = true;
    for (unsigned i = 0; i < num_spans; ++i) {
      const Block* block = d.memory.find(spans[i].begin);
      if (block == nullptr || block->being_freed || !block->covers(spans[i].begin, spans[i].bytes)) {
        return d.fail(INVALID_VALUE, "library work on " + std::to_string(spans[i].bytes) + " bytes at " +
                                         hex(spans[i].begin) + ", which are not allocated");
      }
      operation.spans.push_back(spans[i]);
    }
    operation.work = [work, owned] {
      work(owned.get());
      return SUCCESS;
    };
    d.schedule.submit(*target, std::move(operation), static_cast<Nanoseconds>(cost_ns), Engine::None);
    return d.lost;
  });
}

EXPORT int kvtide_emulated_reset(unsigned long long seed) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  const int live = static_cast<int>(d.memory.count());
  d.seed = seed;
  d.reset();
  return live;
}

EXPORT void kvtide_emulated_set_memory_bytes(unsigned long long bytes) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  d.memory.capacity_bytes = bytes;
}

EXPORT void kvtide_emulated_set_fail_after(long long operations) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  d.fail_after = operations;
  d.executed_before = d.counters.executed;
}

EXPORT void kvtide_emulated_set_multiprocessors(int count) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  d.multiprocessors = count;
}

EXPORT void kvtide_emulated_set_eager(unsigned percent) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  d.schedule.eager_percent = percent;
}

EXPORT void kvtide_emulated_counters(emulator::Counters* counters) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  *counters = d.counters;
  counters->pending = d.schedule.num_pending();
  counters->allocations = d.memory.count();
  counters->device_bytes = d.memory.device_bytes();
  counters->pinned_bytes = d.memory.pinned_bytes();
}

EXPORT const char* kvtide_emulated_message(void) {
  static thread_local std::string copy;
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  copy = d.message;
  return copy.c_str();
}
