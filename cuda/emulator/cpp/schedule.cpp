#include "schedule.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace driver {
namespace {

void add_unfinished(std::vector<Ticket>& after, const Ticket& ticket) {
  if (ticket && !ticket->done) after.push_back(ticket);
}

Nanoseconds end_of(const Ticket& ticket) { return ticket ? ticket->end_ns : 0; }

}  // namespace

Schedule::Schedule() { legacy_ = create(0, 0); }

Stream* Schedule::create(unsigned flags, int priority) {
  Stream& stream = streams_.emplace_back();
  stream.flags = flags;
  stream.priority = priority;
  return &stream;
}

Stream* Schedule::resolve(Stream* handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 0 || number == STREAM_LEGACY) return legacy_;
  if (number == STREAM_PER_THREAD) {
    Stream*& stream = per_thread_[std::hash<std::thread::id>{}(std::this_thread::get_id())];
    if (stream == nullptr) stream = create(0, 0);
    return stream;
  }
  for (Stream& stream : streams_) {
    if (&stream == handle && !stream.destroyed) return &stream;
  }
  return nullptr;
}

Ticket Schedule::submit(Stream& stream, Operation operation, Nanoseconds cost_ns, Engine engine, const Ticket& event) {
  auto ticket = std::make_shared<Operation>(std::move(operation));
  Nanoseconds ready_ns = now_ns_;
  auto wait_for = [&](const Ticket& other) {
    add_unfinished(ticket->after, other);
    // Also when it is done: that it ran already is the seed's doing.
    ready_ns = std::max(ready_ns, end_of(other));
  };
  wait_for(stream.last);
  wait_for(event);
  if (&stream == legacy_) {
    for (const Stream& other : streams_) {
      if (other.blocking()) wait_for(other.last);
    }
    ready_ns = std::max(ready_ns, retired_ns_);
  } else if (stream.blocking()) {
    wait_for(legacy_->last);
  }
  ticket->end_ns = occupy(engine, ready_ns, cost_ns) + cost_ns;
  latest_ns_ = std::max(latest_ns_, ticket->end_ns);
  stream.last = ticket;
  stream.queue.push_back(ticket);
  if (eager_percent > 0 && draw(100) < eager_percent) run_some(1 + draw(8));
  return ticket;
}

// The first gap that is long enough: an engine takes whichever copy is ready, not the one submitted first.
Nanoseconds Schedule::occupy(Engine engine, Nanoseconds ready_ns, Nanoseconds cost_ns) {
  if (engine == Engine::None || cost_ns == 0) return ready_ns;
  auto& busy = busy_[static_cast<int>(engine)];
  while (!busy.empty() && busy.begin()->second <= now_ns_) busy.erase(busy.begin());
  Nanoseconds begin = ready_ns;
  for (const auto& [from, to] : busy) {
    if (begin + cost_ns <= from) break;
    begin = std::max(begin, to);
  }
  busy[begin] = begin + cost_ns;
  return begin;
}

// Some streams run ahead of others for a while, so that orders far from a fair one come up too.
void Schedule::weigh() {
  weights_.clear();
  for (const Stream& stream : streams_) weights_[&stream] = draw(2) == 0 ? 1 : 16;
}

bool Schedule::step(const Needed* needed) {
  std::vector<Stream*> ready;
  std::uint64_t total = 0;
  for (auto stream = streams_.begin(); stream != streams_.end();) {
    if (stream->queue.empty()) {
      stream = stream->destroyed ? streams_.erase(stream) : std::next(stream);
      continue;
    }
    const Operation& head = *stream->queue.front();
    const bool blocked =
        std::any_of(head.after.begin(), head.after.end(), [](const Ticket& other) { return !other->done; });
    if (!blocked && (needed == nullptr || needed->count(&head) > 0)) {
      ready.push_back(&*stream);
      total += std::max(1U, weights_[&*stream]);
    }
    ++stream;
  }
  if (ready.empty()) return false;
  std::uint64_t pick = draw(total);
  Stream* chosen = ready.back();
  for (Stream* stream : ready) {
    const std::uint64_t weight = std::max(1U, weights_[stream]);
    if (pick < weight) {
      chosen = stream;
      break;
    }
    pick -= weight;
  }
  const Ticket head = chosen->queue.front();
  chosen->queue.pop_front();
  execute(*head);
  head->done = true;
  head->after.clear();
  head->work = nullptr;
  return true;
}

void Schedule::run_until(const Ticket& ticket) {
  if (!ticket) return;
  if (!ticket->done) {
    weigh();
    // Now and then nothing runs but what must.
    const bool sparing = draw(3) == 0;
    Needed needed;
    std::vector<const Operation*> open{ticket.get()};
    while (sparing && !open.empty()) {
      const Operation* operation = open.back();
      open.pop_back();
      if (!needed.insert(operation).second) continue;
      for (const Ticket& other : operation->after) {
        if (!other->done) open.push_back(other.get());
      }
    }
    while (!ticket->done) {
      if (!step(sparing ? &needed : nullptr)) {
        std::fprintf(stderr, "kvtide emulated device: a cycle of dependencies\n");
        std::abort();
      }
    }
  }
  arrive(ticket->end_ns);
}

void Schedule::run_all() {
  weigh();
  while (step(nullptr)) {
  }
}

void Schedule::wait_all() {
  run_all();
  arrive(latest_ns_);
}

void Schedule::retire(Stream& stream) {
  stream.destroyed = true;
  if (stream.blocking()) retired_ns_ = std::max(retired_ns_, end_of(stream.last));
}

void Schedule::run_some(unsigned count) {
  weigh();
  while (count-- > 0 && step(nullptr)) {
  }
}

void Schedule::discard() {
  for (Stream& stream : streams_) {
    for (const Ticket& ticket : stream.queue) {
      ticket->done = true;
      ticket->after.clear();
      ticket->work = nullptr;
    }
    stream.queue.clear();
  }
}

bool Schedule::touches(Address begin, std::size_t bytes) const {
  for (const Stream& stream : streams_) {
    for (const Ticket& ticket : stream.queue) {
      for (const emulator::Span& span : ticket->spans) {
        if (span.begin < begin + bytes && begin < span.begin + span.bytes) return true;
      }
    }
  }
  return false;
}

std::size_t Schedule::num_pending() const {
  std::size_t count = 0;
  for (const Stream& stream : streams_) count += stream.queue.size();
  return count;
}

void Schedule::reset(std::uint64_t seed) {
  discard();
  for (Stream& stream : streams_) stream.last = nullptr;
  for (auto& busy : busy_) busy.clear();
  now_ns_ = latest_ns_ = retired_ns_ = 0;
  state_ = seed;
}

// SplitMix64 (Steele, Lea, Flood 2014).
std::uint64_t Schedule::draw(std::uint64_t below) {
  state_ += 0x9E3779B97F4A7C15;
  std::uint64_t value = state_;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return (value ^ (value >> 31)) % below;
}

}  // namespace driver
