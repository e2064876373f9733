// What a module's image says of its entries: PTX text or a CUBIN.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace driver {

// The bytes of an image, whose length its own header or terminating zero gives; none if it is neither PTX nor a CUBIN.
std::optional<std::string> read_image(const void* image);

// Sizes in bytes of an entry's parameters, in their order; none if the image has no such entry.
std::optional<std::vector<std::size_t>> find_entry(const std::string& image, const std::string& entry);

}  // namespace driver
