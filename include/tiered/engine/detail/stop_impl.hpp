/// Defines StopStrings: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/engine/stop.hpp"

namespace tiered {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)), lengths_(strings_.size()) {
  for (std::string const& s : strings_) {
    expects(!s.empty(), "a stop string has at least one byte");
    std::vector<std::uint32_t> border(s.size() + 1, 0);  // Knuth, Morris, Pratt
    for (std::size_t n = 2; n <= s.size(); ++n) {
      std::uint32_t length = border[n - 1];
      while (length > 0 && s[length] != s[n - 1]) length = border[length];
      border[n] = length + (s[length] == s[n - 1] ? 1 : 0);
    }
    borders_.push_back(std::move(border));
  }
}

std::string StopStrings::push(std::string_view piece) {
  if (matched_) return {};
  for (char const c : piece) {
    kept_ += c;
    for (std::size_t i = 0; i < strings_.size(); ++i) {
      std::string const& s = strings_[i];
      std::size_t& length = lengths_[i];
      while (length > 0 && s[length] != c) length = borders_[i][length];
      if (s[length] == c) ++length;
      if (length == s.size() && (!matched_ || length > strings_[*matched_].size())) matched_ = i;
    }
    if (!matched_) continue;
    kept_.resize(kept_.size() - strings_[*matched_].size());
    return std::exchange(kept_, {});
  }
  std::size_t const open = lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
  std::string ready = kept_.substr(0, kept_.size() - open);
  kept_.erase(0, ready.size());
  return ready;
}

std::string StopStrings::flush() {
  std::fill(lengths_.begin(), lengths_.end(), 0);
  return std::exchange(kept_, {});
}

void StopStrings::reset() {
  flush();
  matched_.reset();
}

}  // namespace tiered
