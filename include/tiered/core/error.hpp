/// The one exception type of the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace tiered {

/// A place in the source: std::source_location for compilers that lack it (clang 14).
struct SourceLocation {
  char const* file = "";
  char const* function = "";
  std::uint32_t line = 0;
  static constexpr SourceLocation current(char const* file = __builtin_FILE(), char const* function = __builtin_FUNCTION(),
                                          std::uint32_t line = __builtin_LINE()) {
    return {file, function, line};
  }
};

/// What kind of thing went wrong. The message holds the values.
enum class Errc : std::uint8_t {
  bad_file,       ///< the bytes of a file contradict its format, or are cut off
  not_found,      ///< a file, a part of a split file, or a name in it does not exist
  unsupported,    ///< well-formed, but nothing here can run it: architecture, tensor type, template, instruction set
  out_of_memory,  ///< a memory tier has no room; its state is unchanged
  over_budget,    ///< what was asked for cannot be done inside the given budget
  io,             ///< the operating system failed to open, map or read
  device,         ///< a device or its driver failed; the engine that used it is dead
  cancelled,      ///< a CancelToken was set; the engine is usable
  precondition,   ///< the caller broke a documented rule
};

constexpr char const* name(Errc code) {
  switch (code) {
    case Errc::bad_file: return "bad_file";
    case Errc::not_found: return "not_found";
    case Errc::unsupported: return "unsupported";
    case Errc::out_of_memory: return "out_of_memory";
    case Errc::over_budget: return "over_budget";
    case Errc::io: return "io";
    case Errc::device: return "device";
    case Errc::cancelled: return "cancelled";
    case Errc::precondition: return "precondition";
  }
  return "?";
}

/// Thrown by every part of the library. Destructors and deallocation never throw.
class Error : public std::runtime_error {
 public:
  Error(Errc code, std::string const& message, SourceLocation where = SourceLocation::current())
      : std::runtime_error(message), code_(code), where_(where) {}
  Errc code() const noexcept { return code_; }
  SourceLocation where() const noexcept { return where_; }

 private:
  Errc code_;
  SourceLocation where_;
};

/// Throws Error{precondition} where a caller broke a documented rule.
inline void expects(bool condition, char const* rule, SourceLocation where = SourceLocation::current()) {
  if (!condition) throw Error(Errc::precondition, rule, where);
}

}  // namespace tiered
