/// What a call throws, as a value that tests can compare and print.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tiered/core/error.hpp"

namespace tiered_test {

struct Thrown {
  std::optional<tiered::Errc> code;  ///< empty: nothing was thrown
  std::string message;
  /// True where the message holds every part.
  template <class... Parts>
  bool says(Parts const&... parts) const {
    return code.has_value() && (... && (message.find(std::string_view(parts)) != std::string::npos));
  }
};

/// Calls `action`; any exception but tiered::Error passes through and fails the test.
template <class Action>
Thrown error_of(Action&& action) {
  try {
    action();
  } catch (tiered::Error const& error) {
    return {error.code(), error.what()};
  }
  return {};
}

}  // namespace tiered_test
