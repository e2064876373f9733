// The part of the driver API's types and numbers that the emulated driver needs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace driver {

enum Result : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  FILE_NOT_FOUND = 301,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  HOST_MEMORY_ALREADY_REGISTERED = 712,
  HOST_MEMORY_NOT_REGISTERED = 713,
  LAUNCH_FAILED = 719,
  COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  NOT_PERMITTED = 800,
  NOT_SUPPORTED = 801,
};

using Address = std::uint64_t;

struct Stream;
struct Event;
struct Module;
struct Function;

// Streams that are numbers rather than objects.
constexpr std::uintptr_t STREAM_LEGACY = 1;
constexpr std::uintptr_t STREAM_PER_THREAD = 2;

constexpr unsigned STREAM_NON_BLOCKING = 1;
constexpr unsigned EVENT_DISABLE_TIMING = 2;

enum MemoryType : unsigned { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_UNIFIED = 4 };

struct Copy2d {
  std::size_t src_x_bytes, src_y;
  unsigned src_type;
  const void* src_host;
  Address src_device;
  void* src_array;
  std::size_t src_pitch;
  std::size_t dst_x_bytes, dst_y;
  unsigned dst_type;
  void* dst_host;
  Address dst_device;
  void* dst_array;
  std::size_t dst_pitch;
  std::size_t width_bytes, height;
};

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  Stream* stream;
  void* attributes;
  unsigned num_attributes;
};

}  // namespace driver
