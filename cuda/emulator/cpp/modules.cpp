// Modules, functions, launches and occupancy.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "driver.h"
#include "image.h"
#include "limits.h"

namespace driver {

using Entry = void (*)(const emulator::Launch*, void**);

struct Function {
  std::string name;
  Entry entry = nullptr;
  std::vector<std::size_t> parameter_bytes;
  int max_dynamic_shared_bytes = DEFAULT_SHARED_BYTES;
  int carveout = -1;
};

struct Module {
  std::string image;
  std::map<std::string, std::unique_ptr<Function>> functions;
};

}  // namespace driver

using namespace driver;

namespace {

constexpr int REGISTERS_PER_THREAD = 32;

// An exported symbol of the kernels, which are in this library or else anywhere in the process.
void* find_symbol(const std::string& symbol) {
  Dl_info self{};
  void* found = nullptr;
  if (dladdr(reinterpret_cast<void*>(&find_symbol), &self) != 0) {
    if (void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD); library != nullptr) {
      found = dlsym(library, symbol.c_str());
      dlclose(library);
    }
  }
  return found != nullptr ? found : dlsym(RTLD_DEFAULT, symbol.c_str());
}

// Which rule the last launch broke, or null; kernels need not be able to say so.
const char* find_fault() {
  static const auto fault = reinterpret_cast<const char* (*)()>(find_symbol("emulated_fault"));
  return fault == nullptr ? nullptr : fault();
}

int load(Device& d, Module** out, const void* image) {
  std::optional<std::string> bytes = read_image(image);
  if (!bytes) return d.fail(INVALID_IMAGE, "a module that is neither PTX nor a CUBIN");
  auto module = std::make_shared<Module>();
  module->image = std::move(*bytes);
  *out = module.get();
  d.modules.emplace(*out, std::move(module));
  return SUCCESS;
}

// The values of a launch, copied when it is queued.
struct Arguments {
  std::vector<std::vector<char>> values;
  std::vector<void*> pointers;
};

std::shared_ptr<Arguments> copy_arguments(const Function& function, void** parameters) {
  auto arguments = std::make_shared<Arguments>();
  for (std::size_t i = 0; i < function.parameter_bytes.size(); ++i) {
    const char* value = static_cast<const char*>(parameters[i]);
    arguments->values.emplace_back(value, value + function.parameter_bytes[i]);
  }
  for (auto& value : arguments->values) arguments->pointers.push_back(value.data());
  return arguments;
}

// Every word of the arguments that lies in the arena is taken for a pointer: what it points at must be allocated.
Result find_spans(Device& d, const Function& function, const Arguments& arguments, std::vector<emulator::Span>& spans) {
  for (const auto& value : arguments.values) {
    for (std::size_t at = 0; at + sizeof(Address) <= value.size(); at += sizeof(Address)) {
      Address word = 0;
      std::memcpy(&word, value.data() + at, sizeof word);
      const Block* block = d.memory.find(word);
      if (block != nullptr && !block->being_freed) {
        spans.push_back({block->begin, block->bytes});
      } else if (block != nullptr || d.memory.owns(word)) {
        return d.fail(ILLEGAL_ADDRESS, function.name + " is launched with " + hex(word) + ", which is not allocated");
      }
    }
  }
  return SUCCESS;
}

bool has_shape(const LaunchConfig& config, const Function& function) {
  const auto& grid = config.grid;
  const auto& block = config.block;
  const std::uint64_t threads = std::uint64_t{block[0]} * block[1] * block[2];
  return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && grid[0] <= unsigned{MAX_GRID_X} &&
         grid[1] <= unsigned{MAX_GRID_YZ} && grid[2] <= unsigned{MAX_GRID_YZ} && threads > 0 &&
         threads <= MAX_THREADS_PER_BLOCK && block[2] <= 64 &&
         config.shared_bytes <= static_cast<unsigned>(function.max_dynamic_shared_bytes);
}

// The kernel that runs, for whoever has to read a core dump.
const char* volatile running = nullptr;
struct sigaction previous_action;

// Says which kernel it was that touched what is not there, and leaves the rest to whoever was asked before.
void on_segmentation_fault(int, siginfo_t*, void*) {
  if (const char* const name = running; name != nullptr) {
    for (const char* text : {"kvtide emulated device: ", name, " touches memory that is not mapped\n"}) {
      if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
    }
  }
  sigaction(SIGSEGV, &previous_action, nullptr);
}

void run_entry(const Function& function, const emulator::Launch& shape, Arguments& arguments) {
  static const int installed = [] {
    struct sigaction action{};
    action.sa_sigaction = on_segmentation_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGSEGV, &action, &previous_action);
  }();
  (void)installed;
  running = function.name.c_str();
  function.entry(&shape, arguments.pointers.data());
  running = nullptr;
}

Result check_launch(Device& d, const std::string& name, const std::vector<emulator::Span>& spans) {
  if (const char* const fault = find_fault(); fault != nullptr) return d.lose(LAUNCH_FAILED, name + ": " + fault);
  for (const emulator::Span& span : spans) {
    const Block* block = d.memory.find(span.begin);
    if (block != nullptr && !Memory::guards_intact(*block)) {
      return d.lose(ILLEGAL_ADDRESS, name + " writes outside the allocation at " + hex(span.begin));
    }
  }
  return SUCCESS;
}

int launch(Device& d, Function* function, const LaunchConfig& config, void** parameters, void** extra) {
  Stream* stream = d.schedule.resolve(config.stream);
  if (stream == nullptr || d.functions.count(function) == 0)
    return d.fail(INVALID_HANDLE, "a launch of or on nothing known");
  if (extra != nullptr) return d.fail(NOT_SUPPORTED, "packed kernel arguments are not emulated");
  if (!has_shape(config, *function))
    return d.fail(INVALID_VALUE, "a launch of " + function->name + " beyond the limits");
  if (parameters == nullptr && !function->parameter_bytes.empty()) {
    return d.fail(INVALID_VALUE, "a launch of " + function->name + " without its arguments");
  }
  const std::shared_ptr<Arguments> arguments = copy_arguments(*function, parameters);
  Operation operation;
  operation.what = function->name;
  operation.counts = true;
  if (const Result result = find_spans(d, *function, *arguments, operation.spans); result != SUCCESS) return result;

  emulator::Launch shape{};
  std::memcpy(shape.grid, config.grid, sizeof shape.grid);
  std::memcpy(shape.block, config.block, sizeof shape.block);
  shape.shared_bytes = config.shared_bytes;
  // A copy of the function: its module may be gone when it runs.
  operation.work = [&d, shape, arguments, kernel = *function, spans = operation.spans]() mutable {
    shape.seed = d.schedule.draw(~std::uint64_t{0});
    run_entry(kernel, shape, *arguments);
    return check_launch(d, kernel.name, spans);
  };
  const std::int64_t ctas = std::int64_t{config.grid[0]} * config.grid[1] * config.grid[2];
  const Nanoseconds cost_ns = KERNEL_NS + (CTA_NS * ctas + d.multiprocessors - 1) / d.multiprocessors;
  d.schedule.submit(*stream, std::move(operation), cost_ns, Engine::None);
  return d.lost;
}

int blocks_per_multiprocessor(int threads, std::size_t dynamic_bytes) {
  if (threads <= 0 || threads > MAX_THREADS_PER_BLOCK || dynamic_bytes > MAX_SHARED_BYTES) return 0;
  const int warps = (threads + WARP_SIZE - 1) / WARP_SIZE;
  const int by_threads = THREADS_PER_MULTIPROCESSOR / (warps * WARP_SIZE);
  const int by_registers = REGISTERS_PER_MULTIPROCESSOR / (warps * WARP_SIZE * REGISTERS_PER_THREAD);
  const int by_shared = SHARED_BYTES_PER_MULTIPROCESSOR / (static_cast<int>(dynamic_bytes) + RESERVED_SHARED_BYTES);
  return std::min({by_threads, by_registers, by_shared, BLOCKS_PER_MULTIPROCESSOR});
}

template <class Body>
int with_function(Function* function, Body body) {
  return call([&](Device& d) -> int {
    if (d.functions.count(function) == 0) return d.fail(INVALID_HANDLE, "an unknown function");
    return body(d);
  });
}

}  // namespace

EXPORT int cuModuleLoadData(Module** module, const void* image) {
  return call([&](Device& d) -> int { return load(d, module, image); });
}

EXPORT int cuModuleLoadDataEx(Module** module, const void* image, unsigned, void*, void*) {
  return cuModuleLoadData(module, image);
}

EXPORT int cuModuleLoad(Module** module, const char* path) {
  return call([&](Device& d) -> int {
    std::ifstream file(path, std::ios::binary);
    if (!file) return d.fail(FILE_NOT_FOUND, std::string("there is no ") + path);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    return load(d, module, bytes.str().c_str());
  });
}

EXPORT int cuModuleUnload(Module* module) {
  return call_release([&](Device& d) -> Result {
    const auto found = d.modules.find(module);
    if (found == d.modules.end()) return d.fail(INVALID_HANDLE, "an unknown module");
    for (const auto& entry : module->functions) d.functions.erase(entry.second.get());
    d.modules.erase(found);
    return SUCCESS;
  });
}

EXPORT int cuModuleGetFunction(Function** out, Module* module, const char* name) {
  return call([&](Device& d) -> int {
    if (d.modules.count(module) == 0) return d.fail(INVALID_HANDLE, "an unknown module");
    std::unique_ptr<Function>& function = module->functions[name];
    if (!function) {
      std::optional<std::vector<std::size_t>> sizes = find_entry(module->image, name);
      if (!sizes) return d.fail(NOT_FOUND, std::string("the module has no entry ") + name);
      const auto entry = reinterpret_cast<Entry>(find_symbol(std::string("emulated_") + name));
      if (entry == nullptr) return d.fail(NOT_FOUND, std::string("there is no emulated_") + name);
      function = std::make_unique<Function>();
      function->name = name;
      function->entry = entry;
      function->parameter_bytes = std::move(*sizes);
      d.functions.insert(function.get());
    }
    *out = function.get();
    return SUCCESS;
  });
}

EXPORT int cuModuleGetGlobal_v2(Address*, std::size_t*, Module*, const char* name) {
  return call([&](Device& d) -> int { return d.fail(NOT_FOUND, std::string("globals are not emulated: ") + name); });
}

EXPORT int cuFuncGetAttribute(int* value, int attribute, Function* function) {
  return with_function(function, [&](Device&) -> int {
    // By number: threads a block, shared, constant, local, registers, PTX, binary, cache mode, dynamic shared,
    // carveout.
    const int values[] = {
        MAX_THREADS_PER_BLOCK, 0, 0, 0, REGISTERS_PER_THREAD, 90, 90, 0, function->max_dynamic_shared_bytes,
        function->carveout};
    if (attribute < 0 || attribute >= static_cast<int>(std::size(values))) return INVALID_VALUE;
    *value = values[attribute];
    return SUCCESS;
  });
}

EXPORT int cuFuncSetAttribute(Function* function, int attribute, int value) {
  return with_function(function, [&](Device& d) -> int {
    constexpr int MAX_DYNAMIC_SHARED = 8;
    constexpr int CARVEOUT = 9;
    if (attribute == MAX_DYNAMIC_SHARED && value >= 0 && value <= MAX_SHARED_BYTES) {
      function->max_dynamic_shared_bytes = value;
    } else if (attribute == CARVEOUT && value >= -1 && value <= 100) {
      function->carveout = value;
    } else {
      return d.fail(INVALID_VALUE, "function attribute " + std::to_string(attribute) + " of " + std::to_string(value));
    }
    return SUCCESS;
  });
}

EXPORT int cuFuncSetCacheConfig(Function* function, int) {
  return with_function(function, [](Device&) -> int { return SUCCESS; });
}

EXPORT int cuLaunchKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream* stream, void** parameters,
                          void** extra) {
  const LaunchConfig config{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, nullptr, 0};
  return call([&](Device& d) -> int { return launch(d, function, config, parameters, extra); });
}

// Attributes of the launch (clusters, dependent launches) are ignored.
EXPORT int cuLaunchKernelEx(const LaunchConfig* config, Function* function, void** parameters, void** extra) {
  return call([&](Device& d) -> int { return launch(d, function, *config, parameters, extra); });
}

EXPORT int cuLaunchCooperativeKernel(Function* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                     Stream* stream, void** parameters) {
  const LaunchConfig config{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, nullptr, 0};
  return call([&](Device& d) -> int {
    const std::int64_t fit = std::int64_t{d.multiprocessors} *
                             blocks_per_multiprocessor(static_cast<int>(block_x * block_y * block_z), shared_bytes);
    if (std::int64_t{grid_x} * grid_y * grid_z > fit) return COOPERATIVE_LAUNCH_TOO_LARGE;
    return launch(d, function, config, parameters, nullptr);
  });
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Function* function, int threads,
                                                                std::size_t dynamic_bytes, unsigned) {
  return with_function(function, [&](Device&) -> int {
    *blocks = blocks_per_multiprocessor(threads, dynamic_bytes);
    return SUCCESS;
  });
}

EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads,
                                                       std::size_t dynamic_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, dynamic_bytes, 0);
}

EXPORT int cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, Function* function, int blocks, int threads) {
  return with_function(function, [&](Device& d) -> int {
    if (blocks <= 0 || blocks > blocks_per_multiprocessor(threads, 0))
      return d.fail(INVALID_VALUE, "blocks do not fit");
    *bytes = static_cast<std::size_t>(
        std::min(SHARED_BYTES_PER_MULTIPROCESSOR / blocks - RESERVED_SHARED_BYTES, function->max_dynamic_shared_bytes));
    return SUCCESS;
  });
}

// The most threads on a multiprocessor; of equal ones the largest block.
EXPORT int cuOccupancyMaxPotentialBlockSizeWithFlags(int* min_grid, int* block, Function* function,
                                                     std::size_t (*dynamic_bytes_of)(int), std::size_t dynamic_bytes,
                                                     int limit, unsigned) {
  return with_function(function, [&](Device& d) -> int {
    const int largest = limit > 0 ? std::min(limit, MAX_THREADS_PER_BLOCK) : MAX_THREADS_PER_BLOCK;
    int best = 0;
    *block = 0;
    for (int threads = largest / WARP_SIZE * WARP_SIZE; threads > 0; threads -= WARP_SIZE) {
      const std::size_t bytes = dynamic_bytes_of != nullptr ? dynamic_bytes_of(threads) : dynamic_bytes;
      const int active = blocks_per_multiprocessor(threads, bytes);
      if (active * threads > best) {
        best = active * threads;
        *block = threads;
        *min_grid = active * d.multiprocessors;
      }
    }
    return best > 0 ? SUCCESS : d.fail(INVALID_VALUE, "no block fits a multiprocessor");
  });
}

EXPORT int cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, Function* function,
                                            std::size_t (*dynamic_bytes_of)(int), std::size_t dynamic_bytes,
                                            int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid, block, function, dynamic_bytes_of, dynamic_bytes, limit,
                                                   0);
}
