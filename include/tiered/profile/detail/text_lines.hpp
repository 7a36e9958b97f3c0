/// The lines of a text that programs keep, and what is wrong with one of them.
#pragma once

#include <cstddef>
#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace tiered::detail {

/// `what`: names the text in errors, and must live as long.
class TextLines {
 public:
  TextLines(std::string_view text, std::string_view what) : left_(text), what_(what) {}
  /// Errors  bad_file where no whole line is left.
  std::string_view line() {
    ++number_;
    std::size_t const end = left_.find('\n');
    if (end == std::string_view::npos) fail("ends here");
    std::string_view const line = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return line;
  }
  std::string_view left() const { return left_; }
  /// Errors  bad_file, always, with the number of the line that was read last.
  [[noreturn]] void fail(std::string_view why) const { throw Error(Errc::bad_file, concat(what_, ", line ", number_, ": ", why)); }

 private:
  std::string_view left_, what_;
  int number_ = 0;
};

}  // namespace tiered::detail
