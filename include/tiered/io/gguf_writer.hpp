/// Writes GGUF files, whole or split: for tests, exports and tools.
#pragma once

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/shape.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/file.hpp"
#include "tiered/io/detail/gguf_split.hpp"
#include "tiered/io/gguf_types.hpp"

namespace tiered {
namespace detail {

template <class T>
constexpr GgufType gguf_type_of() {
  if constexpr (std::same_as<T, bool>) {
    return GgufType::boolean;
  } else if constexpr (std::integral<T>) {
    constexpr GgufType types[2][4] = {{GgufType::u8, GgufType::u16, GgufType::u32, GgufType::u64},
                                      {GgufType::i8, GgufType::i16, GgufType::i32, GgufType::i64}};
    return types[std::is_signed_v<T>][sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3];
  } else if constexpr (std::floating_point<T>) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    return sizeof(T) == 4 ? GgufType::f32 : GgufType::f64;
  } else if constexpr (std::convertible_to<T const&, std::string_view>) {
    return GgufType::string;
  } else {
    static_assert(!std::is_void_v<typename VectorElement<T>::Type>, "a GGUF value is a number, bool, string or a vector of these");
    return GgufType::array;
  }
}

inline void append_bytes(std::vector<std::byte>& out, void const* from, std::size_t bytes) {
  auto const* const begin = static_cast<std::byte const*>(from);
  out.insert(out.end(), begin, begin + bytes);
}
template <class T>
void append_number(std::vector<std::byte>& out, T value) {
  append_bytes(out, &value, sizeof value);
}
inline void append_string(std::vector<std::byte>& out, std::string_view text) {
  append_number(out, std::uint64_t(text.size()));
  append_bytes(out, text.data(), text.size());
}
template <class T>
void append_value(std::vector<std::byte>& out, T const& value) {
  constexpr GgufType type = gguf_type_of<T>();
  if constexpr (type == GgufType::string) {
    append_string(out, value);
  } else if constexpr (type == GgufType::array) {
    using Element = typename T::value_type;
    append_number(out, std::uint32_t(gguf_type_of<Element>()));
    append_number(out, std::uint64_t(value.size()));
    for (Element const& element : value) append_value(out, element);
  } else {
    append_number(out, value);
  }
}

/// A file being written; removed again if it is not closed.
class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)), file_(std::fopen(path_.c_str(), "wb")) {
    if (file_ == nullptr) fail("cannot be created");
  }
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;
  ~OutputFile() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    struct ::stat status {};
    if (::lstat(path_.c_str(), &status) == 0 && S_ISREG(status.st_mode)) std::remove(path_.c_str());  // never a device or a link
  }
  void operator()(std::span<std::byte const> bytes) {
    if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) fail("cannot be written");
  }
  void close() {
    if (std::fflush(file_) != 0) fail("cannot be written");
    std::fclose(std::exchange(file_, nullptr));
  }

 private:
  [[noreturn]] void fail(char const* what) const { throw Error(Errc::io, concat(path_, ": ", what, ": ", errno_text(errno))); }
  std::string path_;
  std::FILE* file_;
};

}  // namespace detail

/// Collects metadata and tensors, then writes them in the order in which they came. What it writes, GgufFile opens.
class GgufWriter {
 public:
  struct Options {
    std::uint32_t version = 3;     ///< 2 or 3
    std::uint64_t alignment = 32;  ///< a multiple of 8; written as general.alignment where it is not 32
  };
  GgufWriter() : GgufWriter(Options{}) {}
  explicit GgufWriter(Options options) : options_(options) {
    expects(options.version == 2 || options.version == 3, "GgufWriter: version 2 or 3");
    expects(options.alignment != 0 && options.alignment % 8 == 0 && options.alignment <= detail::gguf_max_alignment,
            "GgufWriter: alignment is a multiple of 8");
    if (options.alignment != detail::gguf_default_alignment) set("general.alignment", std::uint32_t(options.alignment));
  }

  /// Sets or replaces a key. The stored type is that of the argument: any integer type, bool, float, double, a string, or a
  /// std::vector of these, nested as deep as you like.
  template <class T>
  void set(std::string_view key, T const& value) {
    expects(!key.empty() && key.size() <= detail::gguf_max_key_bytes, "GgufWriter: a key has 1 to 65535 bytes");
    Value& slot = value_of(key);
    slot.type = detail::gguf_type_of<T>();
    slot.stored.clear();
    detail::append_value(slot.stored, value);
  }

  /// `shape` outermost first, `bytes` in the layout of `dtype`; borrowed: they must live until the last write.
  /// Errors  Errc::precondition naming the tensor where name, type, shape and bytes do not fit together.
  void add_tensor(std::string_view name, DType dtype, Shape const& shape, std::span<std::byte const> bytes) {
    std::uint64_t expected = 0;
    bool const known = std::uint32_t(dtype) < n_file_dtypes && checked_bytes(shape, dtype, expected) && expected > 0;
    bool const is_new = std::none_of(tensors_.begin(), tensors_.end(), [&](Tensor const& t) { return t.name == name; });
    if (!known || !is_new || expected != bytes.size() || name.empty() || name.size() > detail::gguf_max_tensor_name_bytes) {
      throw Error(Errc::precondition, concat("GgufWriter: tensor ", detail::printable(name),
                                             is_new ? " needs " : " is there twice or needs ", expected, " bytes, got ", bytes.size()));
    }
    tensors_.push_back({std::string(name), dtype, shape, bytes});
  }
  /// The same for values of a plain type: floats as f32, and so on.
  template <class T>
  requires std::is_arithmetic_v<T>
  void add_tensor(std::string_view name, DType dtype, Shape const& shape, std::vector<T> const& values) {
    add_tensor(name, dtype, shape, std::as_bytes(std::span(values)));
  }

  std::vector<std::byte> to_bytes() const {
    std::vector<std::byte> out;
    emit([&](std::span<std::byte const> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); });
    return out;
  }
  /// Replaces the file at `path`, which must not be one that tensors are mapped from.
  /// Errors  Errc::io with the system's reason; then no file is left there.
  void write(std::string const& path) const {
    detail::OutputFile file(path);
    emit(file);
    file.close();
  }

  /// Writes `n_parts` files "PREFIX-0000k-of-0000n.gguf" with about the same number of tensors each; all metadata is in the first.
  /// Returns their paths.
  std::vector<std::string> write_split(std::string_view prefix, std::size_t n_parts) const {
    expects(n_parts > 0 && n_parts <= 65535, "GgufWriter: 1 to 65535 parts");
    std::vector<std::string> paths;
    for (std::size_t part = 0; part < n_parts; ++part) {
      GgufWriter const piece = make_part(part, n_parts);
      paths.push_back(detail::split_path(prefix, {part, n_parts}));
      piece.write(paths.back());
    }
    return paths;
  }

 private:
  struct Value {
    std::string key;
    GgufType type{};
    std::vector<std::byte> stored;
  };
  struct Tensor {
    std::string name;
    DType dtype{};
    Shape shape;
    std::span<std::byte const> bytes;
  };

  Value& value_of(std::string_view key) {
    auto const at = std::find_if(values_.begin(), values_.end(), [&](Value const& v) { return v.key == key; });
    return at != values_.end() ? *at : values_.emplace_back(Value{std::string(key), {}, {}});
  }
  GgufWriter make_part(std::size_t part, std::size_t n_parts) const {
    GgufWriter piece(options_);
    if (part == 0) piece.values_ = values_;
    piece.set("split.no", std::uint16_t(part));
    piece.set("split.count", std::uint16_t(n_parts));
    piece.set("split.tensors.count", std::int32_t(tensors_.size()));
    auto const begin = tensors_.begin();
    piece.tensors_.assign(begin + std::ptrdiff_t(tensors_.size() * part / n_parts),
                          begin + std::ptrdiff_t(tensors_.size() * (part + 1) / n_parts));
    return piece;
  }

  std::vector<std::byte> header() const {
    std::vector<std::byte> out;
    detail::append_bytes(out, "GGUF", 4);
    detail::append_number(out, options_.version);
    detail::append_number(out, std::uint64_t(tensors_.size()));
    detail::append_number(out, std::uint64_t(values_.size()));
    for (Value const& value : values_) {
      detail::append_string(out, value.key);
      detail::append_number(out, std::uint32_t(value.type));
      detail::append_bytes(out, value.stored.data(), value.stored.size());
    }
    std::uint64_t offset = 0;
    for (Tensor const& tensor : tensors_) {
      detail::append_string(out, tensor.name);
      detail::append_number(out, std::uint32_t(tensor.shape.rank));
      for (int i = tensor.shape.rank; i-- > 0;) detail::append_number(out, std::uint64_t(tensor.shape[i]));  // innermost first
      detail::append_number(out, std::uint32_t(tensor.dtype));
      detail::append_number(out, offset);
      offset = detail::align_up(offset + tensor.bytes.size(), options_.alignment);
    }
    out.resize(std::size_t(detail::align_up(out.size(), options_.alignment)));
    return out;
  }
  template <class Sink>
  void emit(Sink&& sink) const {
    sink(std::span<std::byte const>(header()));
    std::vector<std::byte> const zeros(std::size_t(options_.alignment));
    for (Tensor const& tensor : tensors_) {
      sink(tensor.bytes);
      sink(std::span(zeros).first(std::size_t(detail::align_up(tensor.bytes.size(), options_.alignment) - tensor.bytes.size())));
    }
  }

  Options options_;
  std::vector<Value> values_;
  std::vector<Tensor> tensors_;
};

}  // namespace tiered
