/// Opens GGUF files (versions 2 and 3, split or whole): checks everything, then hands out plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/gguf_parse.hpp"
#include "tiered/io/detail/gguf_split.hpp"
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
  std::string const& path() const { return state_->path; }
  int n_parts() const { return int(state_->parts.size()); }
  std::string const& part_path(int part) const { return state_->parts.at(std::size_t(part)).name; }
  /// The mapping of one part: null after parse().
  MmapFile const* mapping(int part) const { return state_->files.empty() ? nullptr : &state_->files.at(std::size_t(part)); }
  std::uint32_t version() const { return state_->parts[0].version; }
  std::uint64_t alignment() const { return state_->parts[0].alignment; }
  /// Of all parts.
  std::uint64_t total_bytes() const;

  /// In file order; of a split file, those of the first part.
  std::span<GgufValue const> metadata() const { return state_->parts[0].metadata; }
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
  std::span<GgufTensor const> tensors() const { return state_->tensors; }
  /// Null where there is none.
  GgufTensor const* find_tensor(std::string_view name) const;
  /// Errors  not_found naming tensor and file.
  GgufTensor const& require_tensor(std::string_view name) const;

  /// Throws Errc::io if a part is shorter now than when it was opened: ask before touching weights of files that others may cut.
  void check_sizes() const;

 private:
  struct State {
    std::string path;
    std::vector<MmapFile> files;  // empty after parse()
    std::vector<detail::GgufPart> parts;
    std::vector<GgufTensor> tensors;  // of all parts
    detail::NameIndex names;          // into tensors
  };
  explicit GgufFile(State state);
  static State open_parts(std::string const& path);

  std::shared_ptr<State const> state_;
};

inline GgufFile::State GgufFile::open_parts(std::string const& path) {
  State state;
  state.path = path;
  auto const add = [&](std::string const& part_path) {
    MmapFile file = MmapFile::open(part_path);
    state.parts.push_back(detail::parse_gguf_part(file, part_path));
    state.files.push_back(std::move(file));
  };
  add(path);
  if (auto const split = detail::find_split(state.parts[0])) {
    auto const others = detail::split_paths(state.parts[0], *split);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (i == split->number) continue;
      try {
        add(others[i]);
      } catch (Error const& error) {
        if (error.code() != Errc::not_found) throw;
        throw Error(Errc::not_found, concat(path, ": part ", i + 1, " of ", others.size(), " is missing: ", others[i]));
      }
    }
    // The part that was named was read first: move it to its place.
    std::rotate(state.parts.begin(), state.parts.begin() + 1, state.parts.begin() + std::ptrdiff_t(split->number) + 1);
    std::rotate(state.files.begin(), state.files.begin() + 1, state.files.begin() + std::ptrdiff_t(split->number) + 1);
    detail::check_split(state.parts);
  }
  return state;
}

inline GgufFile GgufFile::open(std::string const& path) {
  State state = open_parts(path);
  for (std::size_t i = 0; i < state.parts.size(); ++i) {
    for (GgufTensor tensor : state.parts[i].tensors) {
      tensor.part = int(i);
      tensor.data = state.files[i].bytes().subspan(std::size_t(tensor.file_offset), std::size_t(tensor.bytes));
      state.tensors.push_back(tensor);
    }
  }
  return GgufFile(std::move(state));
}

inline GgufFile GgufFile::parse(std::span<std::byte const> bytes) {
  State state;
  state.path = "memory";
  state.parts.push_back(detail::parse_gguf_part(MemorySource(bytes), state.path));
  if (detail::find_split(state.parts[0])) {
    throw Error(Errc::unsupported, "memory: is one part of a split file; only open() finds the others");
  }
  for (GgufTensor tensor : state.parts[0].tensors) {
    tensor.data = bytes.subspan(std::size_t(tensor.file_offset), std::size_t(tensor.bytes));
    state.tensors.push_back(tensor);
  }
  return GgufFile(std::move(state));
}

inline GgufFile::GgufFile(State state) {
  state.names = detail::NameIndex(state.tensors, [](GgufTensor const& t) { return t.name; });
  if (auto const name = state.names.duplicate()) {
    throw Error(Errc::bad_file, concat(state.path, ": has tensor ", detail::printable(*name), " twice"));
  }
  state_ = std::make_shared<State const>(std::move(state));
}

inline std::uint64_t GgufFile::total_bytes() const {
  std::uint64_t bytes = 0;
  for (detail::GgufPart const& part : state_->parts) bytes += part.size_bytes;
  return bytes;
}

inline GgufValue const* GgufFile::find(std::string_view key) const {
  auto const index = state_->parts[0].keys.find(key);
  return index ? &state_->parts[0].metadata[*index] : nullptr;
}

inline GgufTensor const* GgufFile::find_tensor(std::string_view name) const {
  auto const index = state_->names.find(name);
  return index ? &state_->tensors[*index] : nullptr;
}

inline GgufTensor const& GgufFile::require_tensor(std::string_view name) const {
  GgufTensor const* const tensor = find_tensor(name);
  if (tensor == nullptr) throw Error(Errc::not_found, concat(path(), ": has no tensor ", detail::printable(name)));
  return *tensor;
}

inline void GgufFile::check_sizes() const {
  for (MmapFile const& file : state_->files) {
    if (std::uint64_t const now = file.current_size_bytes(); now < file.size_bytes()) {
      throw Error(Errc::io, concat(file.path(), ": had ", file.size_bytes(), " bytes when it was opened, has ", now, " now"));
    }
  }
}

}  // namespace tiered
