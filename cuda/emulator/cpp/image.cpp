#include "image.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>

namespace driver {
namespace {

constexpr char ELF_MAGIC[] = {0x7f, 'E', 'L', 'F'};
constexpr std::size_t LARGEST_IMAGE_BYTES = std::size_t{1} << 30;

template <class T>
T read(const std::string& bytes, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

bool is_elf(const char* image) { return std::memcmp(image, ELF_MAGIC, sizeof ELF_MAGIC) == 0; }

// A section of a 64-bit ELF file.
struct Section {
  std::string name;
  std::uint64_t offset, bytes;
};

constexpr std::uint32_t NO_BITS = 8;

std::vector<Section> sections(const std::string& elf) {
  const auto table = read<std::uint64_t>(elf, 0x28);
  const auto entry_bytes = read<std::uint16_t>(elf, 0x3a);
  const auto count = read<std::uint16_t>(elf, 0x3c);
  const auto names = read<std::uint16_t>(elf, 0x3e);
  const auto names_at = read<std::uint64_t>(elf, table + std::uint64_t{names} * entry_bytes + 0x18);
  std::vector<Section> found;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t header = table + i * entry_bytes;
    if (read<std::uint32_t>(elf, header + 4) == NO_BITS) continue;
    const std::uint64_t name = names_at + read<std::uint32_t>(elf, header);
    if (name >= elf.size()) continue;
    found.push_back(
        {elf.c_str() + name, read<std::uint64_t>(elf, header + 0x18), read<std::uint64_t>(elf, header + 0x20)});
  }
  return found;
}

// Where the last section or the table of sections ends.
std::size_t elf_bytes(const char* image) {
  const std::string header(image, 0x40);
  const std::size_t table = read<std::uint64_t>(header, 0x28);
  const std::size_t table_bytes = std::size_t{read<std::uint16_t>(header, 0x3a)} * read<std::uint16_t>(header, 0x3c);
  std::size_t end = table + table_bytes;
  if (end > LARGEST_IMAGE_BYTES) return 0;
  for (const Section& section : sections(std::string(image, end)))
    end = std::max<std::size_t>(end, section.offset + section.bytes);
  return end;
}

// Parameters stand in `.nv.info.<entry>` as attributes of kind 0x17: index, ordinal, offset and, from bit 18 of the
// last word, size.
std::optional<std::vector<std::size_t>> find_in_elf(const std::string& elf, const std::string& entry) {
  constexpr unsigned char FORMAT_SIZED = 4;
  constexpr unsigned char PARAMETER_INFO = 0x17;
  bool has_text = false;
  std::map<unsigned, std::size_t> sizes;
  for (const Section& section : sections(elf)) {
    has_text |= section.name == ".text." + entry;
    if (section.name != ".nv.info." + entry) continue;
    for (std::uint64_t at = section.offset; at + 4 <= section.offset + section.bytes;) {
      const auto format = read<unsigned char>(elf, at);
      const auto kind = read<unsigned char>(elf, at + 1);
      const auto bytes = read<std::uint16_t>(elf, at + 2);
      if (kind == PARAMETER_INFO) sizes[read<std::uint16_t>(elf, at + 8)] = read<std::uint32_t>(elf, at + 12) >> 18;
      at += 4 + (format == FORMAT_SIZED ? bytes : 0);
    }
  }
  if (!has_text) return std::nullopt;
  std::vector<std::size_t> ordered;
  for (const auto& [ordinal, bytes] : sizes) ordered.push_back(bytes);
  return ordered;
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%'; }

// `.param .u64 name`, `.param .u64 .ptr .global .align 16 name`, `.param .align 8 .b8 name[24]`.
std::size_t parameter_bytes(const std::string& declaration) {
  std::istringstream words(declaration);
  std::size_t bytes = 0;
  for (std::string word; words >> word;) {
    if (word.size() >= 3 && word[0] == '.' && std::strchr("usbf", word[1]) != nullptr && std::isdigit(word[2]) != 0) {
      bytes = std::stoul(word.substr(2)) / 8;
    }
    const std::size_t bracket = word.find('[');
    if (bracket != std::string::npos) bytes *= std::stoul(word.substr(bracket + 1));
  }
  return bytes;
}

std::optional<std::vector<std::size_t>> find_in_ptx(const std::string& ptx, const std::string& entry) {
  static const std::string KEYWORD = ".entry";
  for (std::size_t at = ptx.find(KEYWORD); at != std::string::npos; at = ptx.find(KEYWORD, at + 1)) {
    std::size_t begin = at + KEYWORD.size();
    while (begin < ptx.size() && std::isspace(static_cast<unsigned char>(ptx[begin])) != 0) ++begin;
    if (ptx.compare(begin, entry.size(), entry) != 0 || is_name(ptx[begin + entry.size()])) continue;
    const std::size_t open = ptx.find_first_of("({", begin);
    std::vector<std::size_t> sizes;
    if (open == std::string::npos || ptx[open] == '{') return sizes;
    std::istringstream list(ptx.substr(open + 1, ptx.find(')', open) - open - 1));
    for (std::string declaration; std::getline(list, declaration, ',');) {
      const std::size_t bytes = parameter_bytes(declaration);
      if (bytes > 0) sizes.push_back(bytes);
    }
    return sizes;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> read_image(const void* image) {
  const char* const bytes = static_cast<const char*>(image);
  if (bytes == nullptr) return std::nullopt;
  if (bytes[0] == ELF_MAGIC[0]) {
    const std::size_t count = is_elf(bytes) ? elf_bytes(bytes) : 0;
    return count == 0 ? std::nullopt : std::optional<std::string>(std::in_place, bytes, count);
  }
  std::string text(bytes);
  return text.find(".version") == std::string::npos ? std::nullopt : std::optional<std::string>(std::move(text));
}

std::optional<std::vector<std::size_t>> find_entry(const std::string& image, const std::string& entry) {
  return is_elf(image.c_str()) ? find_in_elf(image, entry) : find_in_ptx(image, entry);
}

}  // namespace driver
