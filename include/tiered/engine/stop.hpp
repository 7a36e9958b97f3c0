/// Ends a text where one of several strings begins, though the text comes in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tiered {

/// Looks for stop strings in a stream of bytes; nothing of a stop string is ever handed out, and nothing else is lost. The first
/// to be complete counts, of several complete at the same byte the longest; so the result does not depend on the pieces.
/// Fed with what a StreamDecoder returns, what it returns is whole characters too. One thread.
class StopStrings {
 public:
  /// Errors  Errc::precondition for an empty string, which would end every text before it begins.
  explicit StopStrings(std::vector<std::string> strings = {});

  /// What may be shown now. A suffix that could become a stop string is kept for later. After a match: nothing any more.
  std::string push(std::string_view piece);
  /// At the end of the text: what was kept, since nothing will complete it. For another text call reset().
  std::string flush();
  /// Index of the string that was found.
  std::optional<std::size_t> matched() const { return matched_; }
  std::vector<std::string> const& strings() const { return strings_; }
  void reset();

 private:
  std::vector<std::string> strings_;
  std::vector<std::vector<std::uint32_t>> borders_;  // [string][n]: longest proper prefix that is a suffix of its first n bytes
  std::vector<std::size_t> lengths_;                 // [string] bytes of it that the text ends with
  std::string kept_;
  std::optional<std::size_t> matched_;
};

}  // namespace tiered
