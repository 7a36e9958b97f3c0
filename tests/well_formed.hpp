/// Whether text is XML, as far as figures need it.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace tiered_test {

inline std::size_t count(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

/// Whether elements are closed in the order in which they were opened, and text holds no bare markup.
inline bool is_well_formed(std::string_view text) {
  std::vector<std::string_view> open;
  while (!text.empty()) {
    if (text.front() != '<') {
      std::string_view const words = text.substr(0, text.find('<'));
      if (words.find('>') != words.npos) return false;
      for (std::size_t at = 0; (at = words.find('&', at)) != words.npos; ++at) {
        if (words.find(';', at) == words.npos) return false;
      }
      text.remove_prefix(words.size());
      continue;
    }
    std::size_t const end = text.find('>');
    if (end == text.npos) return false;
    std::string_view const tag = text.substr(1, end - 1);
    if (count(tag, "\"") % 2 != 0 || tag.find('<') != tag.npos) return false;
    std::string_view const name = tag.substr(0, tag.find_first_of(" \n/", 1));
    if (tag.front() == '/') {
      if (open.empty() || open.back() != tag.substr(1)) return false;
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    text.remove_prefix(end + 1);
  }
  return open.empty();
}

}  // namespace tiered_test
