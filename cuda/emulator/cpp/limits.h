// Sizes of the emulated device: those of an H200.
#pragma once

namespace driver {

constexpr int WARP_SIZE = 32;
constexpr int MAX_THREADS_PER_BLOCK = 1'024;
constexpr int MAX_GRID_X = 2'147'483'647;
constexpr int MAX_GRID_YZ = 65'535;
constexpr int THREADS_PER_MULTIPROCESSOR = 2'048;
constexpr int BLOCKS_PER_MULTIPROCESSOR = 32;
constexpr int REGISTERS_PER_MULTIPROCESSOR = 65'536;
constexpr int DEFAULT_SHARED_BYTES = 49'152;  // a block, without asking
constexpr int MAX_SHARED_BYTES = 232'448;     // a block, when asked for
constexpr int RESERVED_SHARED_BYTES = 1'024;  // a block, by the system
constexpr int SHARED_BYTES_PER_MULTIPROCESSOR = 233'472;

}  // namespace driver
