// cuInit, devices and their attributes, contexts, error names.
#include <cstring>

#include "driver.h"
#include "limits.h"

using namespace driver;

namespace {

struct ErrorName {
  int code;
  const char* name;
  const char* text;
};

constexpr ErrorName ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {HOST_MEMORY_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};

const ErrorName* find_error(int code) {
  for (const ErrorName& error : ERRORS) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

// Attributes by their number in CUdevice_attribute; those of an H200 where the emulated device has no say.
const std::map<int, int> ATTRIBUTES = {
    {1, MAX_THREADS_PER_BLOCK},
    {2, 1024},  // block dimensions
    {3, 1024},
    {4, 64},
    {5, MAX_GRID_X},
    {6, MAX_GRID_YZ},
    {7, MAX_GRID_YZ},
    {8, DEFAULT_SHARED_BYTES},
    {9, 65'536},  // constant memory
    {10, WARP_SIZE},
    {11, 2'147'483'647},  // pitch
    {12, REGISTERS_PER_MULTIPROCESSOR},
    {13, 1'980'000},  // clock, kHz
    {15, 1},          // copies and kernels overlap
    {17, 0},          // no run time limit
    {18, 0},          // not integrated
    {19, 1},          // maps host memory
    {20, 0},          // default compute mode
    {31, 1},          // concurrent kernels
    {32, 1},          // ECC
    {33, 0},          // PCI bus, device
    {34, 0},
    {35, 0},
    {36, 3'201'000},   // memory clock, kHz
    {37, 6'144},       // bus width, bits
    {38, 62'914'560},  // L2
    {39, THREADS_PER_MULTIPROCESSOR},
    {40, 3},  // copy engines
    {41, 1},  // unified addressing
    {50, 0},
    {75, 9},  // compute capability
    {76, 0},
    {78, 1},  // stream priorities
    {79, 1},
    {80, 1},
    {81, SHARED_BYTES_PER_MULTIPROCESSOR},
    {82, REGISTERS_PER_MULTIPROCESSOR},
    {83, 0},  // no managed memory here
    {84, 0},
    {87, 2},
    {88, 0},  // pageable memory cannot be reached
    {89, 0},
    {90, 1},
    {91, 1},  // registered memory keeps its address
    {95, 1},  // cooperative launch
    {97, MAX_SHARED_BYTES},
    {99, 1},  // host registration
    {106, BLOCKS_PER_MULTIPROCESSOR},
    {111, RESERVED_SHARED_BYTES},
    {115, 1},  // memory pools
};

constexpr int DEVICE = 0;
// Contexts are only compared.
char primary_context;

}  // namespace

EXPORT int cuInit(unsigned) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  d.initialised = true;
  return SUCCESS;
}

EXPORT int cuDriverGetVersion(int* version) {
  *version = 13'000;
  return SUCCESS;
}

EXPORT int cuGetErrorName(int code, const char** name) {
  const ErrorName* error = find_error(code);
  *name = error == nullptr ? nullptr : error->name;
  return error == nullptr ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuGetErrorString(int code, const char** text) {
  const ErrorName* error = find_error(code);
  *text = error == nullptr ? nullptr : error->text;
  return error == nullptr ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuDeviceGetCount(int* count) {
  *count = 1;
  return device().initialised ? SUCCESS : NOT_INITIALIZED;
}

EXPORT int cuDeviceGet(int* out, int ordinal) {
  if (!device().initialised) return NOT_INITIALIZED;
  *out = DEVICE;
  return ordinal == DEVICE ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuDeviceGetName(char* name, int bytes, int which) {
  if (which != DEVICE || bytes <= 0) return INVALID_DEVICE;
  std::strncpy(name, "kvtide emulated device", static_cast<std::size_t>(bytes) - 1);
  name[bytes - 1] = '\0';
  return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int which) {
  if (which != DEVICE) return INVALID_DEVICE;
  std::memcpy(uuid, "kvtide-emulated", 16);
  return SUCCESS;
}

EXPORT int cuDeviceGetPCIBusId(char* id, int bytes, int which) {
  if (which != DEVICE || bytes <= 0) return INVALID_DEVICE;
  std::strncpy(id, "0000:00:00.0", static_cast<std::size_t>(bytes) - 1);
  id[bytes - 1] = '\0';
  return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int which) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  *bytes = d.memory.capacity_bytes;
  return which == DEVICE ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int which) {
  if (which != DEVICE) return INVALID_DEVICE;
  constexpr int MULTIPROCESSOR_COUNT = 16;
  if (attribute == MULTIPROCESSOR_COUNT) {
    Device& d = device();
    const std::lock_guard<std::recursive_mutex> hold(d.lock);
    *value = d.multiprocessors;
    return SUCCESS;
  }
  const auto known = ATTRIBUTES.find(attribute);
  *value = known == ATTRIBUTES.end() ? 0 : known->second;
  return attribute > 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(void** context, int which) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  if (!d.initialised) return NOT_INITIALIZED;
  if (which != DEVICE) return INVALID_DEVICE;
  if (d.primary_users++ == 0) d.reset();
  *context = &primary_context;
  return SUCCESS;
}

// With its last user the context goes, and with it memory and errors.
EXPORT int cuDevicePrimaryCtxRelease_v2(int which) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  if (which != DEVICE) return INVALID_DEVICE;
  if (d.primary_users == 0) return d.fail(INVALID_CONTEXT, "the primary context is released more often than retained");
  if (d.primary_users > 1) {
    --d.primary_users;
    return SUCCESS;
  }
  d.schedule.run_all();
  for (const auto& entry : d.memory.blocks()) {
    if (d.lost == SUCCESS && !Memory::guards_intact(entry.second)) {
      d.fail(ILLEGAL_ADDRESS, "writes outside the allocation at " + hex(entry.first) + ", which was never freed");
    }
  }
  d.primary_users = 0;
  d.reset();
  return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxGetState(int which, unsigned* flags, int* active) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  *flags = d.context_flags;
  *active = d.primary_users > 0 ? 1 : 0;
  return which == DEVICE ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cuCtxGetCurrent(void** context) {
  *context = context_is_current ? &primary_context : nullptr;
  return device().initialised ? SUCCESS : NOT_INITIALIZED;
}

EXPORT int cuCtxSetCurrent(void* context) {
  Device& d = device();
  const std::lock_guard<std::recursive_mutex> hold(d.lock);
  if (context != nullptr && (context != &primary_context || d.primary_users == 0)) return INVALID_CONTEXT;
  context_is_current = context != nullptr;
  return SUCCESS;
}

EXPORT int cuCtxGetDevice(int* which) {
  *which = DEVICE;
  return context_is_current ? SUCCESS : INVALID_CONTEXT;
}

EXPORT int cuCtxSynchronize(void) {
  return call([](Device& d) -> int {
    d.schedule.wait_all();
    return d.lost;
  });
}

EXPORT int cuCtxSetFlags(unsigned flags) {
  return call([&](Device& d) -> int {
    d.context_flags = flags;
    return SUCCESS;
  });
}

EXPORT int cuCtxGetLimit(std::size_t* value, int) {
  return call([&](Device&) -> int {
    *value = 0;
    return SUCCESS;
  });
}

EXPORT int cuCtxSetLimit(int, std::size_t) {
  return call([](Device&) -> int { return SUCCESS; });
}

EXPORT int cuCtxGetCacheConfig(int* config) {
  return call([&](Device&) -> int {
    *config = 0;
    return SUCCESS;
  });
}

EXPORT int cuCtxSetCacheConfig(int) {
  return call([](Device&) -> int { return SUCCESS; });
}

// Lower is more urgent, as on a real device; priorities change nothing here.
EXPORT int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call([&](Device&) -> int {
    *least = 0;
    *greatest = -5;
    return SUCCESS;
  });
}

EXPORT int cuProfilerStart(void) { return SUCCESS; }
EXPORT int cuProfilerStop(void) { return SUCCESS; }
