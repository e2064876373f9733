// What the emulated driver shares with the emulated kernels and with the emulated cuBLAS.
#pragma once

namespace emulator {

// One launch as a kernel entry sees it. `extern "C" void emulated_<entry>(const Launch*, void** arguments)` runs the
// whole grid before it returns; `arguments` points at the values, as cuLaunchKernel gets them. If there is an `extern
// "C" const char* emulated_fault()`, it says which rule the last launch broke, or null, and that ends the device.
struct Launch {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  unsigned long long seed;  // for the order of blocks and threads
};

// Bytes that an operation reads or writes.
struct Span {
  unsigned long long begin;
  unsigned long long bytes;
};

// What has happened since the last reset.
struct Counters {
  unsigned long long executed;         // copies, fills, kernels and library calls run
  unsigned long long pending;          // queued and not yet run, markers included
  unsigned long long allocations;      // live, device and pinned
  unsigned long long device_bytes;     // live
  unsigned long long pinned_bytes;     // live, registered memory included
  unsigned long long errors;           // messages so far, see kvtide_emulated_message
  unsigned long long to_device_bytes;  // copied, host to device
  unsigned long long to_host_bytes;    // copied, device to host
};

}  // namespace emulator

extern "C" {
// Queues work of the given cost on a stream. `drop(data)` is called once, after the work or instead of it.
// Returns a CUresult.
int kvtide_emulated_enqueue(void* stream, void (*work)(void*), void (*drop)(void*), void* data,
                            unsigned long long cost_ns, const emulator::Span* spans, unsigned num_spans);

// Forgets queued work, errors, memory and time, and starts anew with this seed; streams and events stay valid.
// Returns how many allocations were still live.
int kvtide_emulated_reset(unsigned long long seed);
void kvtide_emulated_set_memory_bytes(unsigned long long bytes);
// From now on: this many operations run, the next one fails for good; negative means never.
void kvtide_emulated_set_fail_after(long long operations);
void kvtide_emulated_set_multiprocessors(int count);
// How often, in percent, a queued operation lets some queued work run at once rather than when somebody waits.
void kvtide_emulated_set_eager(unsigned percent);
void kvtide_emulated_counters(emulator::Counters* counters);
// The last error in words; valid until the calling thread asks again.
const char* kvtide_emulated_message(void);
}
