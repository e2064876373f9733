// Streams, events and host functions.
#include "driver.h"

using namespace driver;

namespace {

Result unknown_stream(Device& d) { return d.fail(INVALID_HANDLE, "an unknown stream"); }
Result unknown_event(Device& d) { return d.fail(INVALID_HANDLE, "an unknown event"); }

// Who only asks lets the device get on with it, or asking again and again would wait for ever.
Result poll(Device& d, const Ticket& ticket) {
  if (ticket && !ticket->done) {
    d.schedule.run_some(1);
    return d.lost != SUCCESS ? d.lost : NOT_READY;
  }
  if (ticket) d.schedule.arrive(ticket->end_ns);
  return d.lost;
}

int elapsed(float* milliseconds, Event* start, Event* end) {
  return call([&](Device& d) -> int {
    if (d.events.count(start) == 0 || d.events.count(end) == 0) return unknown_event(d);
    for (const Event* event : {start, end}) {
      if ((event->flags & EVENT_DISABLE_TIMING) != 0) return d.fail(INVALID_HANDLE, "an event without timing");
      if (!event->marker) return d.fail(INVALID_HANDLE, "an event that was never recorded");
      if (!event->marker->done) return NOT_READY;
    }
    *milliseconds = static_cast<float>(static_cast<double>(end->marker->end_ns - start->marker->end_ns) / 1e6);
    return SUCCESS;
  });
}

}  // namespace

EXPORT int cuStreamCreateWithPriority(Stream** stream, unsigned flags, int priority) {
  return call([&](Device& d) -> int {
    *stream = d.schedule.create(flags, priority);
    return SUCCESS;
  });
}

EXPORT int cuStreamCreate(Stream** stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

// What is queued still runs.
EXPORT int cuStreamDestroy_v2(Stream* handle) {
  return call_release([&](Device& d) {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr || stream != handle) return unknown_stream(d);
    d.schedule.retire(*stream);
    return SUCCESS;
  });
}

EXPORT int cuStreamSynchronize(Stream* handle) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    const Ticket last = stream->last;
    return d.wait(last);
  });
}

EXPORT int cuStreamQuery(Stream* handle) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    const Ticket last = stream->last;
    return poll(d, last);
  });
}

EXPORT int cuStreamWaitEvent(Stream* handle, Event* event, unsigned) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    if (d.events.count(event) == 0) return unknown_event(d);
    if (!event->marker) return SUCCESS;
    Operation marker;
    marker.what = "a wait";
    d.schedule.submit(*stream, std::move(marker), 0, Engine::None, event->marker);
    return d.lost;
  });
}

EXPORT int cuStreamGetPriority(Stream* handle, int* priority) {
  return call([&](Device& d) -> int {
    const Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    *priority = stream->priority;
    return SUCCESS;
  });
}

EXPORT int cuStreamGetFlags(Stream* handle, unsigned* flags) {
  return call([&](Device& d) -> int {
    const Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    *flags = stream->flags;
    return SUCCESS;
  });
}

EXPORT int cuStreamIsCapturing(Stream*, int* status) {
  *status = 0;
  return SUCCESS;
}

EXPORT int cuStreamBeginCapture_v2(Stream*, int) {
  return call([](Device& d) -> int { return d.fail(NOT_SUPPORTED, "graphs are not emulated"); });
}

EXPORT int cuLaunchHostFunc(Stream* handle, void (*function)(void*), void* data) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    Operation operation;
    operation.what = "a host function";
    operation.counts = true;
    operation.work = [function, data] {
      in_host_function = true;
      function(data);
      in_host_function = false;
      return SUCCESS;
    };
    d.schedule.submit(*stream, std::move(operation), 0, Engine::None);
    return d.lost;
  });
}

EXPORT int cuEventCreate(Event** out, unsigned flags) {
  return call([&](Device& d) -> int {
    auto event = std::make_unique<Event>();
    event->flags = flags;
    *out = event.get();
    d.events.emplace(*out, std::move(event));
    return SUCCESS;
  });
}

EXPORT int cuEventDestroy_v2(Event* event) {
  return call_release([&](Device& d) { return d.events.erase(event) == 1 ? SUCCESS : unknown_event(d); });
}

EXPORT int cuEventRecord(Event* event, Stream* handle) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return unknown_stream(d);
    if (d.events.count(event) == 0) return unknown_event(d);
    Operation marker;
    marker.what = "a record";
    event->marker = d.schedule.submit(*stream, std::move(marker), 0, Engine::None);
    return d.lost;
  });
}

EXPORT int cuEventRecordWithFlags(Event* event, Stream* handle, unsigned) { return cuEventRecord(event, handle); }

EXPORT int cuEventSynchronize(Event* event) {
  return call([&](Device& d) -> int {
    if (d.events.count(event) == 0) return unknown_event(d);
    const Ticket marker = event->marker;
    return d.wait(marker);
  });
}

EXPORT int cuEventQuery(Event* event) {
  return call([&](Device& d) -> int {
    if (d.events.count(event) == 0) return unknown_event(d);
    const Ticket marker = event->marker;
    return poll(d, marker);
  });
}

EXPORT int cuEventElapsedTime(float* milliseconds, Event* start, Event* end) {
  return elapsed(milliseconds, start, end);
}

EXPORT int cuEventElapsedTime_v2(float* milliseconds, Event* start, Event* end) {
  return elapsed(milliseconds, start, end);
}
