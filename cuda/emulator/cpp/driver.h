// The one emulated device behind one lock, and how every entry point enters it.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "memory.h"
#include "schedule.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace driver {

struct Device {
  Device();

  std::recursive_mutex lock;
  Memory memory;
  Schedule schedule;
  std::map<Event*, std::unique_ptr<Event>> events;
  std::map<Module*, std::shared_ptr<Module>> modules;
  std::set<Function*> functions;

  bool initialised = false;
  unsigned primary_users = 0;
  unsigned context_flags = 0;
  int multiprocessors = 132;
  std::uint64_t seed = 0;
  long long fail_after = -1;  // operations, from `executed_before` on
  std::uint64_t executed_before = 0;
  Result lost = SUCCESS;  // what every call returns once an operation has failed
  std::string message;
  emulator::Counters counters{};

  // Says what went wrong, on stderr too, and returns the code.
  Result fail(Result code, const std::string& message);
  // As `fail`, for good: the context is of no more use.
  Result lose(Result code, const std::string& message);
  // Forgets work, memory, errors and time.
  void reset();
  // Frees a block that no queued operation touches.
  Result release(const Block& block);
  // Runs an operation, if the device still runs any.
  void execute(Operation& operation);

  // The last result of a call that waited.
  Result wait(const Ticket& ticket) {
    schedule.run_until(ticket);
    return lost;
  }
};

Device& device();

// Whether the calling thread has a context, and whether it is inside a host function.
extern thread_local bool context_is_current;
extern thread_local bool in_host_function;

std::string hex(Address address);

// An entry point's body under the lock, if the device takes calls at all.
template <class Body>
int call(Body body) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  if (in_host_function) return d.fail(NOT_PERMITTED, "a call from within a host function");
  if (!d.initialised) return NOT_INITIALIZED;
  if (!context_is_current || d.primary_users == 0) return INVALID_CONTEXT;
  if (d.lost != SUCCESS) return d.lost;
  return body(d);
}

// The same for what gives something back, which also works on a lost device.
template <class Body>
int call_release(Body body) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  if (in_host_function) return d.fail(NOT_PERMITTED, "a call from within a host function");
  if (!d.initialised) return NOT_INITIALIZED;
  const Result result = body(d);
  return d.lost != SUCCESS ? d.lost : result;
}

}  // namespace driver
