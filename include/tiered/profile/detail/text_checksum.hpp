/// A number for a text: to notice damage, to name files.
#pragma once

#include <cstdint>
#include <string_view>

namespace tiered::detail {

inline std::uint64_t text_checksum(std::string_view text) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (char const c : text) hash = (hash ^ std::uint8_t(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace tiered::detail
