// Streams as queues: in what order queued operations run, and when they would have run on a device.
//
// The two are kept apart. An operation's virtual time follows from the order in which the host submitted the work; the
// order in which it really runs is drawn from the seed and obeys nothing but streams, events and the legacy default
// stream. So times are the same for every seed, and a dependency that was forgotten is one that some seed breaks.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "cuda.h"
#include "launch.h"

namespace driver {

using Nanoseconds = std::int64_t;

// Virtual costs.
constexpr Nanoseconds COPY_NS = 2'000;
constexpr std::int64_t HOST_COPY_BYTES_PER_NS = 25;       // 25 GB/s
constexpr std::int64_t DEVICE_COPY_BYTES_PER_NS = 1'000;  // 1 TB/s
constexpr Nanoseconds KERNEL_NS = 3'000;
constexpr Nanoseconds CTA_NS = 50;  // over the multiprocessors

// What copies of one direction share. Kernels and library calls of different streams do not slow each other down.
enum class Engine { None, ToDevice, ToHost, Device };

struct Operation {
  std::string what;
  std::function<Result()> work;  // empty for a marker
  bool counts = false;           // whether it is one of the executed operations
  bool done = false;
  Nanoseconds end_ns = 0;
  std::vector<std::shared_ptr<Operation>> after;  // all that must be done first; emptied when done
  std::vector<emulator::Span> spans;
};

using Ticket = std::shared_ptr<Operation>;

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  bool destroyed = false;  // and to be forgotten as soon as it is empty
  std::deque<Ticket> queue;
  Ticket last;

  bool blocking() const { return (flags & STREAM_NON_BLOCKING) == 0; }
};

struct Event {
  unsigned flags = 0;
  Ticket marker;  // of the last record; null before the first
};

class Schedule {
 public:
  Schedule();

  Stream* create(unsigned flags, int priority);
  // The stream behind a handle; null for none.
  Stream* resolve(Stream* handle);

  // Queues an operation, which may have to wait for `event`.
  Ticket submit(Stream& stream, Operation operation, Nanoseconds cost_ns, Engine engine, const Ticket& event = nullptr);
  // Runs until this one is done, and whatever else the seed brings up; virtual host time moves on to its end.
  void run_until(const Ticket& ticket);
  void run_all();
  // Runs a few.
  void run_some(unsigned count);
  // Marks all queued work as done without doing it.
  void discard();
  // As a context's synchronisation does.
  void wait_all();
  // A stream nobody will use again; what is queued on it still runs.
  void retire(Stream& stream);

  bool touches(Address begin, std::size_t bytes) const;
  std::size_t num_pending() const;
  void reset(std::uint64_t seed);
  std::uint64_t draw(std::uint64_t below);
  Nanoseconds now_ns() const { return now_ns_; }
  void arrive(Nanoseconds end_ns) { now_ns_ = std::max(now_ns_, end_ns); }

  std::function<void(Operation&)> execute;
  unsigned eager_percent = 0;

 private:
  using Needed = std::unordered_set<const Operation*>;
  bool step(const Needed* needed);
  void weigh();
  Nanoseconds occupy(Engine engine, Nanoseconds ready_ns, Nanoseconds cost_ns);

  std::list<Stream> streams_;
  std::map<std::size_t, Stream*> per_thread_;
  Stream* legacy_ = nullptr;
  std::map<const Stream*, unsigned> weights_;
  std::map<Nanoseconds, Nanoseconds> busy_[4];  // [engine]: begin to end, disjoint
  Nanoseconds now_ns_ = 0;                      // the host's time: the latest end it has waited for
  Nanoseconds latest_ns_ = 0;                   // of all ends
  Nanoseconds retired_ns_ = 0;                  // of the ends of retired streams that the legacy stream waits for
  std::uint64_t state_ = 0;
};

}  // namespace driver
