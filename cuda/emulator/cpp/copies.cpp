// Copies and fills.
#include <cstring>

#include "driver.h"

using namespace driver;

namespace {

// Rows of `width` bytes; a plain copy has one.
struct Rows {
  Address begin;
  std::size_t pitch;

  Address row(std::size_t index) const { return begin + index * pitch; }
};

// What an argument must be. Pageable memory is what the driver knows nothing of.
enum class Side { Any, Known };

struct Copy {
  Rows to, from;
  std::size_t width, height;
};

// Memory known to the driver, in whole, or pageable memory, which has no block.
struct Place {
  const Block* block = nullptr;
  bool valid = false;
};

std::size_t extent(const Rows& rows, const Copy& copy) { return rows.pitch * (copy.height - 1) + copy.width; }

Place locate(Device& d, Address begin, std::size_t bytes, Side side) {
  const Block* block = d.memory.find(begin);
  if (block != nullptr && block->covers(begin, bytes)) return {block, !block->being_freed};
  const bool pageable = !d.memory.owns(begin) && !d.memory.overlaps(begin, bytes) && begin != 0;
  return {nullptr, pageable && side == Side::Any};
}

void copy_rows(const Copy& copy) {
  for (std::size_t row = 0; row < copy.height; ++row) {
    std::memmove(reinterpret_cast<void*>(copy.to.row(row)), reinterpret_cast<const void*>(copy.from.row(row)),
                 copy.width);
  }
}

Nanoseconds cost_of(std::size_t bytes, std::int64_t bytes_per_ns) {
  return COPY_NS + (static_cast<Nanoseconds>(bytes) + bytes_per_ns - 1) / bytes_per_ns;
}

Result invalid(Device& d, const char* what, Address begin, std::size_t bytes) {
  return d.fail(INVALID_VALUE, std::string(what) + " " + std::to_string(bytes) + " bytes at " + hex(begin) +
                                   ", which are not (all) memory of this kind");
}

// Pageable sources are read now; pageable destinations make the call wait; all else happens when the stream gets there.
Result enqueue(Device& d, Copy copy, Side to_side, Side from_side, Stream* handle, bool wait) {
  Stream* stream = d.schedule.resolve(handle);
  if (stream == nullptr) return d.fail(INVALID_HANDLE, "a copy on an unknown stream");
  if (copy.width == 0 || copy.height == 0) return SUCCESS;
  const std::size_t to_bytes = extent(copy.to, copy);
  const std::size_t from_bytes = extent(copy.from, copy);
  const Place to = locate(d, copy.to.begin, to_bytes, to_side);
  const Place from = locate(d, copy.from.begin, from_bytes, from_side);
  if (!to.valid) return invalid(d, "a copy to", copy.to.begin, to_bytes);
  if (!from.valid) return invalid(d, "a copy from", copy.from.begin, from_bytes);

  const bool to_host = to.block == nullptr || to.block->kind != Kind::Device;
  const bool from_host = from.block == nullptr || from.block->kind != Kind::Device;
  const Engine engine = from_host ? Engine::ToDevice : to_host ? Engine::ToHost : Engine::Device;
  const std::size_t bytes = copy.width * copy.height;

  Operation operation;
  operation.what = "a copy of " + std::to_string(bytes) + " bytes";
  operation.counts = true;
  if (to.block != nullptr) operation.spans.push_back({copy.to.begin, to_bytes});
  std::shared_ptr<std::vector<char>> staged;
  if (from.block != nullptr) {
    operation.spans.push_back({copy.from.begin, from_bytes});
  } else {
    staged = std::make_shared<std::vector<char>>(bytes);
    const Rows packed{reinterpret_cast<Address>(staged->data()), copy.width};
    copy_rows({packed, copy.from, copy.width, copy.height});
    copy.from = packed;
  }
  operation.work = [&d, copy, staged, engine, bytes] {
    copy_rows(copy);
    if (engine == Engine::ToDevice) d.counters.to_device_bytes += bytes;
    if (engine == Engine::ToHost) d.counters.to_host_bytes += bytes;
    return SUCCESS;
  };
  const std::int64_t speed = engine == Engine::Device ? DEVICE_COPY_BYTES_PER_NS : HOST_COPY_BYTES_PER_NS;
  const Ticket ticket = d.schedule.submit(*stream, std::move(operation), cost_of(bytes, speed), engine);
  return wait || to.block == nullptr ? d.wait(ticket) : d.lost;
}

int copy(Address to, Side to_side, Address from, Side from_side, std::size_t bytes, Stream* stream, bool wait) {
  return call([&](Device& d) -> int {
    return enqueue(d, {{to, bytes}, {from, bytes}, bytes, 1}, to_side, from_side, stream, wait);
  });
}

Address address(const void* pointer) { return reinterpret_cast<Address>(pointer); }

int copy_2d(const Copy2d* c, Stream* stream, bool wait) {
  return call([&](Device& d) -> int {
    const auto side = [](unsigned type) { return type == MEMORY_DEVICE ? Side::Known : Side::Any; };
    const auto rows = [](unsigned type, const void* host, Address device, std::size_t pitch, std::size_t x,
                         std::size_t y) {
      return Rows{(type == MEMORY_HOST ? address(host) : device) + y * pitch + x, pitch};
    };
    for (const unsigned type : {c->src_type, c->dst_type}) {
      if (type != MEMORY_HOST && type != MEMORY_DEVICE && type != MEMORY_UNIFIED) {
        return d.fail(NOT_SUPPORTED, "copies of arrays are not emulated");
      }
    }
    if (c->height > 1 && (c->src_pitch < c->width_bytes || c->dst_pitch < c->width_bytes)) {
      return d.fail(INVALID_VALUE, "a copy of rows wider than their pitch");
    }
    const Rows to = rows(c->dst_type, c->dst_host, c->dst_device, c->dst_pitch, c->dst_x_bytes, c->dst_y);
    const Rows from = rows(c->src_type, c->src_host, c->src_device, c->src_pitch, c->src_x_bytes, c->src_y);
    return enqueue(d, {to, from, c->width_bytes, c->height}, side(c->dst_type), side(c->src_type), stream, wait);
  });
}

int fill(Address begin, std::uint32_t value, std::size_t value_bytes, std::size_t count, Stream* handle) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return d.fail(INVALID_HANDLE, "a fill on an unknown stream");
    if (count == 0) return SUCCESS;
    const std::size_t bytes = count * value_bytes;
    if (begin % value_bytes != 0 || !locate(d, begin, bytes, Side::Known).valid)
      return invalid(d, "a fill of", begin, bytes);
    Operation operation;
    operation.what = "a fill of " + std::to_string(bytes) + " bytes";
    operation.counts = true;
    operation.spans = {{begin, bytes}};
    operation.work = [begin, value, value_bytes, count] {
      if (value_bytes == 1) {
        std::memset(reinterpret_cast<void*>(begin), static_cast<int>(value), count);
        return SUCCESS;
      }
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(reinterpret_cast<void*>(begin + i * value_bytes), &value, value_bytes);  // little endian
      }
      return SUCCESS;
    };
    d.schedule.submit(*stream, std::move(operation), cost_of(bytes, DEVICE_COPY_BYTES_PER_NS), Engine::Device);
    return d.lost;
  });
}

}  // namespace

EXPORT int cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream* stream) {
  return copy(to, Side::Known, address(from), Side::Any, bytes, stream, false);
}

EXPORT int cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream* stream) {
  return copy(address(to), Side::Any, from, Side::Known, bytes, stream, false);
}

EXPORT int cuMemcpyDtoDAsync_v2(Address to, Address from, std::size_t bytes, Stream* stream) {
  return copy(to, Side::Known, from, Side::Known, bytes, stream, false);
}

EXPORT int cuMemcpyAsync(Address to, Address from, std::size_t bytes, Stream* stream) {
  return copy(to, Side::Any, from, Side::Any, bytes, stream, false);
}

EXPORT int cuMemcpyPeerAsync(Address to, void*, Address from, void*, std::size_t bytes, Stream* stream) {
  return copy(to, Side::Known, from, Side::Known, bytes, stream, false);
}

EXPORT int cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes) {
  return copy(to, Side::Known, address(from), Side::Any, bytes, nullptr, true);
}

EXPORT int cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes) {
  return copy(address(to), Side::Any, from, Side::Known, bytes, nullptr, true);
}

// The host does not wait for what stays on the device, here as on a real one.
EXPORT int cuMemcpyDtoD_v2(Address to, Address from, std::size_t bytes) {
  return copy(to, Side::Known, from, Side::Known, bytes, nullptr, false);
}

EXPORT int cuMemcpy(Address to, Address from, std::size_t bytes) {
  return copy(to, Side::Any, from, Side::Any, bytes, nullptr, true);
}

EXPORT int cuMemcpy2DAsync_v2(const Copy2d* c, Stream* stream) { return copy_2d(c, stream, false); }
EXPORT int cuMemcpy2D_v2(const Copy2d* c) { return copy_2d(c, nullptr, true); }

EXPORT int cuMemsetD8Async(Address begin, unsigned char value, std::size_t count, Stream* stream) {
  return fill(begin, value, 1, count, stream);
}

EXPORT int cuMemsetD16Async(Address begin, unsigned short value, std::size_t count, Stream* stream) {
  return fill(begin, value, 2, count, stream);
}

EXPORT int cuMemsetD32Async(Address begin, unsigned value, std::size_t count, Stream* stream) {
  return fill(begin, value, 4, count, stream);
}

// These do not wait either.
EXPORT int cuMemsetD8_v2(Address begin, unsigned char value, std::size_t count) {
  return fill(begin, value, 1, count, nullptr);
}
EXPORT int cuMemsetD32_v2(Address begin, unsigned value, std::size_t count) {
  return fill(begin, value, 4, count, nullptr);
}
