// Device, pinned and registered memory: where it lies, whether it still lives, whether its edges are intact.
#pragma once

#include <map>

#include "cuda.h"

namespace driver {

constexpr unsigned char POISON = 0xA5;        // what fresh memory holds
constexpr unsigned char GUARD = 0xFD;         // what lies before and behind an allocation
constexpr std::size_t ALIGNMENT_BYTES = 256;  // also the least width of a guard zone

enum class Kind { Device, Pinned, Registered };

struct Block {
  Address begin;
  std::size_t bytes;
  Kind kind;
  std::uint64_t number;      // of this allocation, never used again
  bool being_freed = false;  // a cuMemFreeAsync of it is queued
  Address pages = 0;         // what was mapped for it, guards included
  std::size_t page_bytes = 0;

  bool covers(Address address, std::size_t count) const {
    return address >= begin && count <= bytes && address - begin <= bytes - count;
  }
};

class Memory {
 public:
  Memory();

  // Room in the arena; null if the device is full or the host gives no pages. The bytes are not yet poisoned.
  const Block* allocate(Kind kind, std::size_t bytes);
  const Block* register_host(Address begin, std::size_t bytes);
  // Forgets a block. Its pages are never handed out again before the arena is used up, and touching them is a fault.
  void release(const Block& block);
  void release_all();

  // The block that has this address in it or at its end, or null.
  Block* find(Address address);
  // Whether the address is the arena's, live or not.
  bool owns(Address address) const { return address >= arena_ && address < arena_ + arena_bytes_; }
  bool overlaps(Address begin, std::size_t bytes) const;
  static void poison(const Block& block);
  static bool guards_intact(const Block& block);

  std::size_t capacity_bytes = 0;
  std::size_t device_bytes() const { return device_bytes_; }
  std::size_t pinned_bytes() const { return pinned_bytes_; }
  std::size_t count() const { return blocks_.size(); }
  const std::map<Address, Block>& blocks() const { return blocks_; }

 private:
  Address place(std::size_t page_bytes);

  Address arena_ = 0;
  std::size_t arena_bytes_ = 0;
  std::size_t cursor_ = 0;
  std::size_t device_bytes_ = 0;
  std::size_t pinned_bytes_ = 0;
  std::uint64_t next_number_ = 1;
  std::map<Address, Block> blocks_;
};

}  // namespace driver
