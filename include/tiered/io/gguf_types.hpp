/// What a GGUF file consists of, as plain data: typed metadata values and tensors.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/shape.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place, which needs a little-endian machine");

/// Types of metadata values; the numbers are those of the format (ggml-org/ggml, docs/gguf.md).
enum class GgufType : std::uint32_t { u8 = 0, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

constexpr char const* name(GgufType type) {
  switch (type) {
    case GgufType::u8: return "u8";
    case GgufType::i8: return "i8";
    case GgufType::u16: return "u16";
    case GgufType::i16: return "i16";
    case GgufType::u32: return "u32";
    case GgufType::i32: return "i32";
    case GgufType::f32: return "f32";
    case GgufType::boolean: return "bool";
    case GgufType::string: return "string";
    case GgufType::array: return "array";
    case GgufType::u64: return "u64";
    case GgufType::i64: return "i64";
    case GgufType::f64: return "f64";
  }
  return "?";
}

/// Bytes of one value in a file; 0 for strings and arrays, whose sizes differ, and for numbers that are no type.
constexpr std::size_t fixed_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean: return 1;
    case GgufType::u16:
    case GgufType::i16: return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32: return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64: return 8;
    case GgufType::string:
    case GgufType::array: return 0;
  }
  return 0;
}

namespace detail {

template <class T>
T load(std::byte const* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

/// Bytes that a checked value takes where it stands in a file: length and count prefixes included.
inline std::size_t stored_bytes(GgufType type, std::byte const* at) {
  if (type == GgufType::string) return 8 + std::size_t(load<std::uint64_t>(at));
  if (type != GgufType::array) return fixed_bytes(type);
  auto const element = GgufType(load<std::uint32_t>(at));
  auto const count = load<std::uint64_t>(at + 4);
  if (std::size_t const each = fixed_bytes(element)) return 12 + std::size_t(count) * each;
  std::size_t bytes = 12;
  for (std::uint64_t i = 0; i < count; ++i) bytes += stored_bytes(element, at + bytes);
  return bytes;
}

template <class T>
struct VectorElement {
  using Type = void;
};
template <class U>
struct VectorElement<std::vector<U>> {
  using Type = U;
};

}  // namespace detail

/// One metadata value, or one element of an array value. It refers to bytes of its file's header (already checked) and is decoded
/// when asked: a vocabulary of 150,000 strings costs nothing until it is read. Valid as long as any copy of its GgufFile lives.
class GgufValue {
 public:
  GgufValue(std::string_view key, GgufType type, std::byte const* stored) : key_(key), stored_(stored), type_(type) {}

  /// May hold any bytes: what is printed goes through detail::printable().
  std::string_view key() const { return key_; }
  GgufType type() const { return type_; }
  bool is_array() const { return type_ == GgufType::array; }
  /// Of an array; Errc::bad_file for anything else.
  GgufType element_type() const { return require_array(), GgufType(detail::load<std::uint32_t>(stored_)); }
  std::size_t size() const { return require_array(), std::size_t(detail::load<std::uint64_t>(stored_ + 4)); }

  /// Element `i` of an array. Constant time for numbers; strings and arrays are walked, so read those with as<std::vector<...>>().
  GgufValue operator[](std::size_t i) const {
    expects(i < size(), "GgufValue: element index past the end of the array");
    GgufType const element = element_type();
    std::byte const* at = stored_ + 12;
    if (std::size_t const each = fixed_bytes(element)) return {key_, element, at + i * each};
    for (; i > 0; --i) at += detail::stored_bytes(element, at);
    return {key_, element, at};
  }

  /// The value as T: any integer type (from an integer of any width that fits), float or double (from f32, f64 or an integer),
  /// bool, std::string_view, std::string, GgufValue itself, or std::vector of these (nested as deep as the array is).
  /// Errors  Errc::bad_file naming key, type and value where it does not convert; nothing is rounded but f64 to float.
  template <class T>
  T as() const;

  /// "u32 32", "string \"llama\"", "array of 49152 string": for messages and listings.
  std::string describe() const;

 private:
  void require_array() const {
    if (!is_array()) refuse("an array");
  }
  [[noreturn]] void refuse(std::string_view wanted) const {
    throw Error(Errc::bad_file, concat("metadata key ", detail::printable(key_), " is ", describe(), ", expected ", wanted));
  }
  std::string_view text() const { return {reinterpret_cast<char const*>(stored_ + 8), std::size_t(detail::load<std::uint64_t>(stored_))}; }
  template <class Visit>
  bool visit_integer(Visit visit) const;
  template <class Element>
  std::vector<Element> elements() const;

  std::string_view key_;
  std::byte const* stored_;
  GgufType type_;
};

/// Calls visit(value) with the stored integer in its own type; false where the value is no integer.
template <class Visit>
bool GgufValue::visit_integer(Visit visit) const {
  switch (type_) {
    case GgufType::u8: visit(detail::load<std::uint8_t>(stored_)); return true;
    case GgufType::i8: visit(detail::load<std::int8_t>(stored_)); return true;
    case GgufType::u16: visit(detail::load<std::uint16_t>(stored_)); return true;
    case GgufType::i16: visit(detail::load<std::int16_t>(stored_)); return true;
    case GgufType::u32: visit(detail::load<std::uint32_t>(stored_)); return true;
    case GgufType::i32: visit(detail::load<std::int32_t>(stored_)); return true;
    case GgufType::u64: visit(detail::load<std::uint64_t>(stored_)); return true;
    case GgufType::i64: visit(detail::load<std::int64_t>(stored_)); return true;
    default: return false;
  }
}

template <class T>
T GgufValue::as() const {
  if constexpr (std::same_as<T, GgufValue>) {
    return *this;
  } else if constexpr (std::same_as<T, bool>) {
    if (type_ != GgufType::boolean) refuse("bool");
    return stored_[0] != std::byte{0};
  } else if constexpr (std::integral<T>) {
    T result{};
    bool fits = false;
    visit_integer([&](auto value) {
      fits = value < 0 ? std::is_signed_v<T> && std::int64_t(value) >= std::int64_t((std::numeric_limits<T>::min)())
                       : std::uint64_t(value) <= std::uint64_t((std::numeric_limits<T>::max)());
      result = T(value);
    });
    if (!fits) refuse(concat("an integer of at most ", sizeof(T) * 8, std::is_signed_v<T> ? " bits, signed" : " bits, not negative"));
    return result;
  } else if constexpr (std::floating_point<T>) {
    if (type_ == GgufType::f32) return T(detail::load<float>(stored_));
    T result{};
    bool const is_number = type_ == GgufType::f64 || visit_integer([&](auto value) { result = T(value); });
    if (!is_number) refuse("a number");
    if (type_ != GgufType::f64) return result;
    double const value = detail::load<double>(stored_);
    if (value > double((std::numeric_limits<T>::max)()) && value <= (std::numeric_limits<double>::max)()) {
      refuse("a number in the range of f32");
    }
    if (value < double(std::numeric_limits<T>::lowest()) && value >= std::numeric_limits<double>::lowest()) {
      refuse("a number in the range of f32");
    }
    return T(value);
  } else if constexpr (std::same_as<T, std::string_view> || std::same_as<T, std::string>) {
    if (type_ != GgufType::string) refuse("string");
    return T(text());
  } else {
    using Element = typename detail::VectorElement<T>::Type;
    static_assert(!std::is_void_v<Element>, "GgufValue::as<T>: T is a number, bool, string, string_view, GgufValue or a vector of these");
    return elements<Element>();
  }
}

template <class Element>
std::vector<Element> GgufValue::elements() const {
  std::size_t const count = size();
  GgufType const element = element_type();
  std::vector<Element> result;
  result.reserve(count);
  std::byte const* at = stored_ + 12;
  for (std::size_t i = 0; i < count; ++i) {
    result.push_back(GgufValue(key_, element, at).as<Element>());
    at += detail::stored_bytes(element, at);
  }
  return result;
}

inline std::string GgufValue::describe() const {
  if (type_ == GgufType::array) return concat("array of ", size(), ' ', name(element_type()));
  if (type_ == GgufType::string) return concat("string ", detail::printable(text()));
  std::string out = concat(name(type_), ' ');
  if (type_ == GgufType::boolean) {
    out += as<bool>() ? "true" : "false";
  } else if (!visit_integer([&](auto value) { out += concat(value); })) {
    out += concat(as<double>());
  }
  return out;
}

namespace detail {

/// value.as<T>(), its error with the name of the file in front.
template <class T>
T convert(GgufValue const& value, std::string_view file) {
  try {
    return value.as<T>();
  } catch (Error const& error) {
    throw Error(error.code(), concat(file, ": ", error.what()), error.where());
  }
}

}  // namespace detail

/// One tensor of a file, checked against the file's size; `data` lies in the file mapping and lives as long as any copy of the file.
struct GgufTensor {
  std::string_view name;  ///< any bytes; at most 1024
  DType dtype{};
  std::uint32_t raw_type = 0;     ///< the number in the file; equals dtype
  Shape shape;                    ///< outermost first, so reversed against the file; no size is 0
  std::uint64_t bytes = 0;        ///< == data.size()
  std::uint64_t file_offset = 0;  ///< of the first byte, from the start of its part
  std::span<std::byte const> data;
  int part = 0;  ///< which part of a split file, from 0
};

}  // namespace tiered
