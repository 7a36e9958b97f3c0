/// Opens GGUF files (versions 2 and 3, split or whole): checks everything, then hands out plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/gguf_types.hpp"
#include "tiered/io/source.hpp"

namespace tiered {

/// A parsed GGUF file: metadata and tensor table, and the mapping that holds the weights. Copies are cheap and share one state;
/// names, values and tensor data live as long as any copy. Immutable, so any thread may use it.
///
/// What is true of an open file: keys and tensor names are unique, of bounded length, and may hold any bytes; every value is whole;
/// every tensor has a known type, rank 0 to 4, no size 0, whole blocks, its own aligned range inside its part; nothing lies behind.
/// Metadata is a private copy; tensor data is the mapping itself (see MmapFile on files that are cut while open).
class GgufFile {
 public:
  /// Opens `path`, and all parts where it is one part of a split file ("name-00001-of-00003.gguf", any part).
  /// No byte of weights is read. Accepts std::filesystem::path too.
  /// Errors  not_found (the file, or a part, by name); io (directory, no permission); bad_file (not GGUF, empty, truncated,
  ///         appended, damaged, parts that do not belong together; with byte offsets); unsupported (version, big-endian, tensor type).
  static GgufFile open(std::string const& path);

  /// Parses one whole file in memory. `bytes` must outlive the file and all its copies; weights in it are as aligned as it is.
  /// Errors  as open().
  static GgufFile parse(std::span<std::byte const> bytes);

  /// Where it was opened from, and which parts there are; "memory" after parse().
  std::string const& path() const;
  int n_parts() const;
  std::string const& part_path(int part) const;
  /// The mapping of one part: null after parse().
  MmapFile const* mapping(int part) const;
  std::uint32_t version() const;
  std::uint64_t alignment() const;
  /// Of all parts.
  std::uint64_t total_bytes() const;

  /// In file order; of a split file, those of the first part.
  std::span<GgufValue const> metadata() const;
  GgufValue const* find(std::string_view key) const;
  /// The value as T (see GgufValue::as), nullopt where the key is missing.  Errors  bad_file where it does not convert.
  template <class T>
  std::optional<T> get(std::string_view key) const {
    GgufValue const* const value = find(key);
    return value == nullptr ? std::nullopt : std::optional<T>(detail::convert<T>(*value, path()));
  }
  template <class T>
  T get_or(std::string_view key, std::type_identity_t<T> fallback) const {
    GgufValue const* const value = find(key);
    return value == nullptr ? std::move(fallback) : detail::convert<T>(*value, path());
  }
  /// Errors  not_found naming key and file where it is missing; bad_file where it does not convert.
  template <class T>
  T require(std::string_view key) const {
    GgufValue const* const value = find(key);
    if (value == nullptr) throw Error(Errc::not_found, concat(path(), ": has no metadata key ", detail::printable(key)));
    return detail::convert<T>(*value, path());
  }

  /// In file order, parts one after another.
  std::span<GgufTensor const> tensors() const;
  /// Null where there is none.
  GgufTensor const* find_tensor(std::string_view name) const;
  /// Errors  not_found naming tensor and file.
  GgufTensor const& require_tensor(std::string_view name) const;

  /// Throws Errc::io if a part is shorter now than when it was opened: ask before touching weights of files that others may cut.
  void check_sizes() const;

 private:
  struct State;
  explicit GgufFile(State state);
  static State open_parts(std::string const& path);

  std::shared_ptr<State const> state_;
};

}  // namespace tiered
