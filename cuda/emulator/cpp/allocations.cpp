// Allocation, registration, pools and what a pointer is.
#include "driver.h"

using namespace driver;

namespace {

// The default pool; only compared.
char default_pool;
std::uint64_t release_threshold_bytes = 0;

const Block* allocate(Device& d, Kind kind, std::size_t bytes) {
  const Block* block = d.memory.allocate(kind, bytes);
  if (block == nullptr && kind == Kind::Device) {
    // Queued frees may make room.
    d.schedule.run_all();
    block = d.memory.allocate(kind, bytes);
  }
  return block;
}

// What a program can hit on purpose is no message on stderr.
Result out_of_memory(Device& d, std::size_t bytes) {
  d.message = "out of memory for " + std::to_string(bytes) + " bytes; " + std::to_string(d.memory.device_bytes()) +
              " of " + std::to_string(d.memory.capacity_bytes) + " are in use";
  return OUT_OF_MEMORY;
}

Block* find_exact(Device& d, Address begin) {
  Block* block = d.memory.find(begin);
  return block != nullptr && block->begin == begin && !block->being_freed ? block : nullptr;
}

Result not_allocated(Device& d, const char* what, Address begin) {
  return d.fail(INVALID_VALUE, std::string(what) + " of " + hex(begin) + ", which is not the begin of an allocation");
}

int allocate_pinned(void** out, std::size_t bytes) {
  return call([&](Device& d) -> int {
    if (bytes == 0) return d.fail(INVALID_VALUE, "a pinned allocation of no bytes");
    const Block* block = allocate(d, Kind::Pinned, bytes);
    if (block == nullptr) return out_of_memory(d, bytes);
    Memory::poison(*block);
    *out = reinterpret_cast<void*>(block->begin);
    return SUCCESS;
  });
}

// Freed by the stream in its turn. Work that still touches the memory then had no order to the free.
Result free_in_order(Device& d, std::uint64_t number, Address begin) {
  const Block* block = d.memory.find(begin);
  if (block == nullptr || block->number != number) return SUCCESS;
  if (d.schedule.touches(block->begin, block->bytes)) {
    return d.lose(ILLEGAL_ADDRESS, "a stream frees memory at " + hex(begin) + " that other work may still touch");
  }
  return d.release(*block);
}

}  // namespace

EXPORT int cuMemAlloc_v2(Address* out, std::size_t bytes) {
  return call([&](Device& d) -> int {
    if (bytes == 0) return d.fail(INVALID_VALUE, "an allocation of no bytes");
    const Block* block = allocate(d, Kind::Device, bytes);
    if (block == nullptr) return d.lost != SUCCESS ? d.lost : out_of_memory(d, bytes);
    Memory::poison(*block);
    *out = block->begin;
    return SUCCESS;
  });
}

// The address is there at once, the memory only when the stream gets to it: whoever writes before that loses it.
EXPORT int cuMemAllocAsync(Address* out, std::size_t bytes, Stream* handle) {
  return call([&](Device& d) -> int {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return d.fail(INVALID_HANDLE, "an allocation on an unknown stream");
    *out = 0;
    if (bytes == 0) return SUCCESS;
    const Block* block = allocate(d, Kind::Device, bytes);
    if (block == nullptr) return d.lost != SUCCESS ? d.lost : out_of_memory(d, bytes);
    *out = block->begin;
    Operation operation;
    operation.what = "an allocation";
    operation.spans = {{block->begin, block->bytes}};
    const Block copy = *block;
    operation.work = [copy] {
      Memory::poison(copy);
      return SUCCESS;
    };
    d.schedule.submit(*stream, std::move(operation), 0, Engine::None);
    return d.lost;
  });
}

EXPORT int cuMemAllocFromPoolAsync(Address* out, std::size_t bytes, void* pool, Stream* stream) {
  return pool == &default_pool ? cuMemAllocAsync(out, bytes, stream) : static_cast<int>(INVALID_VALUE);
}

// Waits for all work first, as the real one does.
EXPORT int cuMemFree_v2(Address begin) {
  return call_release([&](Device& d) -> Result {
    if (begin == 0) return SUCCESS;
    d.schedule.wait_all();
    const Block* block = find_exact(d, begin);
    if (block == nullptr || block->kind != Kind::Device) return not_allocated(d, "a free", begin);
    return d.release(*block);
  });
}

EXPORT int cuMemFreeAsync(Address begin, Stream* handle) {
  return call_release([&](Device& d) -> Result {
    Stream* stream = d.schedule.resolve(handle);
    if (stream == nullptr) return d.fail(INVALID_HANDLE, "a free on an unknown stream");
    if (begin == 0) return SUCCESS;
    Block* block = find_exact(d, begin);
    if (block == nullptr || block->kind != Kind::Device) return not_allocated(d, "a free", begin);
    block->being_freed = true;
    Operation operation;
    operation.what = "a free";
    const std::uint64_t number = block->number;
    operation.work = [&d, number, begin] { return free_in_order(d, number, begin); };
    d.schedule.submit(*stream, std::move(operation), 0, Engine::None);
    return SUCCESS;
  });
}

EXPORT int cuMemHostAlloc(void** out, std::size_t bytes, unsigned) { return allocate_pinned(out, bytes); }
EXPORT int cuMemAllocHost_v2(void** out, std::size_t bytes) { return allocate_pinned(out, bytes); }

EXPORT int cuMemFreeHost(void* pointer) {
  return call_release([&](Device& d) -> Result {
    const auto begin = reinterpret_cast<Address>(pointer);
    const Block* block = find_exact(d, begin);
    if (block == nullptr || block->kind != Kind::Pinned) return not_allocated(d, "a host free", begin);
    if (d.schedule.touches(begin, block->bytes)) {
      return d.fail(ILLEGAL_STATE, "pinned memory at " + hex(begin) + " is freed while queued work touches it");
    }
    return d.release(*block);
  });
}

EXPORT int cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned) {
  return call([&](Device& d) -> int {
    const auto begin = reinterpret_cast<Address>(pointer);
    if (begin == 0 || bytes == 0) return d.fail(INVALID_VALUE, "a registration of nothing");
    if (d.memory.overlaps(begin, bytes)) {
      return d.fail(HOST_MEMORY_ALREADY_REGISTERED, "memory at " + hex(begin) + " is registered twice");
    }
    d.memory.register_host(begin, bytes);
    return SUCCESS;
  });
}

EXPORT int cuMemHostUnregister(void* pointer) {
  return call_release([&](Device& d) -> Result {
    const auto begin = reinterpret_cast<Address>(pointer);
    const Block* block = find_exact(d, begin);
    if (block == nullptr || block->kind != Kind::Registered) {
      return d.fail(HOST_MEMORY_NOT_REGISTERED, "memory at " + hex(begin) + " is unregistered but was not registered");
    }
    if (d.schedule.touches(begin, block->bytes)) {
      return d.fail(ILLEGAL_STATE, "memory at " + hex(begin) + " is unregistered while queued work touches it");
    }
    return d.release(*block);
  });
}

// Host memory has one address on both sides.
EXPORT int cuMemHostGetDevicePointer_v2(Address* out, void* pointer, unsigned) {
  return call([&](Device& d) -> int {
    const auto address = reinterpret_cast<Address>(pointer);
    const Block* block = d.memory.find(address);
    if (block == nullptr || block->kind == Kind::Device) {
      return d.fail(INVALID_VALUE, "a device pointer of " + hex(address) + ", which is not pinned");
    }
    *out = address;
    return SUCCESS;
  });
}

EXPORT int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call([&](Device& d) -> int {
    *total_bytes = d.memory.capacity_bytes;
    *free_bytes = d.memory.capacity_bytes - std::min(d.memory.capacity_bytes, d.memory.device_bytes());
    return SUCCESS;
  });
}

EXPORT int cuMemGetAddressRange_v2(Address* begin, std::size_t* bytes, Address address) {
  return call([&](Device& d) -> int {
    const Block* block = d.memory.find(address);
    if (block == nullptr) return d.fail(NOT_FOUND, "the range of " + hex(address) + ", which is not allocated");
    if (begin != nullptr) *begin = block->begin;
    if (bytes != nullptr) *bytes = block->bytes;
    return SUCCESS;
  });
}

EXPORT int cuPointerGetAttribute(void* out, int attribute, Address address) {
  return call([&](Device& d) -> int {
    const Block* block = d.memory.find(address);
    // Pageable memory is asked about to find out that it is: no message.
    if (block == nullptr || address == block->begin + block->bytes) return INVALID_VALUE;
    switch (attribute) {
      case 2:
        *static_cast<unsigned*>(out) = block->kind == Kind::Device ? MEMORY_DEVICE : MEMORY_HOST;
        return SUCCESS;
      case 3:
        *static_cast<Address*>(out) = address;
        return SUCCESS;
      case 4:
        if (block->kind == Kind::Device) return INVALID_VALUE;
        *static_cast<Address*>(out) = address;
        return SUCCESS;
      case 7:
        *static_cast<std::uint64_t*>(out) = block->number;
        return SUCCESS;
      case 8:
        *static_cast<unsigned*>(out) = 0;
        return SUCCESS;
      case 9:
        *static_cast<int*>(out) = 0;
        return SUCCESS;
      case 11:
        *static_cast<Address*>(out) = block->begin;
        return SUCCESS;
      case 12:
        *static_cast<std::size_t*>(out) = block->bytes;
        return SUCCESS;
      default:
        return d.fail(NOT_SUPPORTED, "pointer attribute " + std::to_string(attribute));
    }
  });
}

EXPORT int cuDeviceGetDefaultMemPool(void** pool, int) {
  *pool = &default_pool;
  return SUCCESS;
}

EXPORT int cuDeviceGetMemPool(void** pool, int which) { return cuDeviceGetDefaultMemPool(pool, which); }
EXPORT int cuDeviceSetMemPool(int, void* pool) { return pool == &default_pool ? SUCCESS : INVALID_VALUE; }
EXPORT int cuMemPoolTrimTo(void*, std::size_t) { return SUCCESS; }

namespace {
constexpr int POOL_RELEASE_THRESHOLD = 4;
constexpr int POOL_FIRST_IN_BYTES = 4;  // lower attributes are ints
}  // namespace

EXPORT int cuMemPoolSetAttribute(void*, int attribute, void* value) {
  return call([&](Device&) -> int {
    if (attribute == POOL_RELEASE_THRESHOLD) release_threshold_bytes = *static_cast<std::uint64_t*>(value);
    return SUCCESS;
  });
}

// The pool keeps nothing: what it has reserved is what is in use.
EXPORT int cuMemPoolGetAttribute(void*, int attribute, void* value) {
  return call([&](Device& d) -> int {
    if (attribute < POOL_FIRST_IN_BYTES) {
      *static_cast<int*>(value) = 1;
    } else {
      *static_cast<std::uint64_t*>(value) =
          attribute == POOL_RELEASE_THRESHOLD ? release_threshold_bytes : d.memory.device_bytes();
    }
    return SUCCESS;
  });
}
