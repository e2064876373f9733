#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace driver {
namespace {

constexpr std::size_t PAGE_BYTES = 4096;
constexpr std::size_t LARGEST_ARENA_BYTES = std::size_t{1} << 42;
constexpr std::size_t SMALLEST_ARENA_BYTES = std::size_t{1} << 32;

void* at(Address address) { return reinterpret_cast<void*>(address); }

void* reserve(void* where, std::size_t bytes, int fixed) {
  return mmap(where, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

bool is_guard(Address begin, Address end) {
  const auto* first = static_cast<const unsigned char*>(at(begin));
  return std::all_of(first, first + (end - begin), [](unsigned char byte) { return byte == GUARD; });
}

}  // namespace

// Addresses only: nothing is committed until it is allocated.
Memory::Memory() {
  for (std::size_t bytes = LARGEST_ARENA_BYTES; bytes >= SMALLEST_ARENA_BYTES; bytes /= 2) {
    void* arena = reserve(nullptr, bytes, 0);
    if (arena != MAP_FAILED) {
      arena_ = reinterpret_cast<Address>(arena);
      arena_bytes_ = bytes;
      return;
    }
  }
}

// Next to the last allocation rather than where there is room, so that stale pointers stay invalid for long.
Address Memory::place(std::size_t page_bytes) {
  for (int round = 0; round < 2; ++round) {
    while (cursor_ + page_bytes <= arena_bytes_) {
      const Address begin = arena_ + cursor_;
      auto next = blocks_.lower_bound(begin);
      if (next != blocks_.begin()) {
        const Block& before = std::prev(next)->second;
        if (before.pages != 0 && before.pages + before.page_bytes > begin) {
          cursor_ = before.pages + before.page_bytes - arena_;
          continue;
        }
      }
      if (next == blocks_.end() || next->second.pages == 0 || begin + page_bytes <= next->second.pages) {
        cursor_ += page_bytes + PAGE_BYTES;  // and an unmapped page
        return begin;
      }
      cursor_ = next->second.pages + next->second.page_bytes - arena_;
    }
    cursor_ = 0;
  }
  return 0;
}

const Block* Memory::allocate(Kind kind, std::size_t bytes) {
  if (bytes > arena_bytes_ / 4) return nullptr;
  if (kind == Kind::Device && (bytes > capacity_bytes || device_bytes_ > capacity_bytes - bytes)) return nullptr;
  const std::size_t page_bytes = (bytes + 2 * ALIGNMENT_BYTES + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  const Address pages = place(page_bytes);
  if (pages == 0 || mprotect(at(pages), page_bytes, PROT_READ | PROT_WRITE) != 0) return nullptr;
  const Block block{pages + ALIGNMENT_BYTES, bytes, kind, next_number_++, false, pages, page_bytes};
  std::memset(at(pages), GUARD, ALIGNMENT_BYTES);
  std::memset(at(block.begin + bytes), GUARD, pages + page_bytes - (block.begin + bytes));
  (kind == Kind::Device ? device_bytes_ : pinned_bytes_) += bytes;
  return &blocks_.emplace(block.begin, block).first->second;
}

const Block* Memory::register_host(Address begin, std::size_t bytes) {
  pinned_bytes_ += bytes;
  const Block block{begin, bytes, Kind::Registered, next_number_++};
  return &blocks_.emplace(begin, block).first->second;
}

void Memory::release(const Block& block) {
  (block.kind == Kind::Device ? device_bytes_ : pinned_bytes_) -= block.bytes;
  if (block.pages != 0) reserve(at(block.pages), block.page_bytes, MAP_FIXED);
  blocks_.erase(block.begin);
}

void Memory::release_all() {
  while (!blocks_.empty()) release(blocks_.begin()->second);
}

Block* Memory::find(Address address) {
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Block& block = std::prev(after)->second;
  return block.covers(address, 0) ? &block : nullptr;
}

bool Memory::overlaps(Address begin, std::size_t bytes) const {
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const auto& entry) {
    const Block& block = entry.second;
    return begin < block.begin + block.bytes && block.begin < begin + bytes;
  });
}

void Memory::poison(const Block& block) { std::memset(at(block.begin), POISON, block.bytes); }

bool Memory::guards_intact(const Block& block) {
  if (block.pages == 0) return true;
  return is_guard(block.pages, block.begin) && is_guard(block.begin + block.bytes, block.pages + block.page_bytes);
}

}  // namespace driver
