/// The content of files, for hashes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiered/io/detail/file.hpp"
#include "tiered/vision/detail/cancelled.hpp"
#include "tiered/vision/media_hash.hpp"

namespace tiered::detail {

/// All bytes of a file, in pieces.
inline void add_file(MediaHasher& hasher, std::string const& path, std::atomic<bool> const* cancelled) {
  FileHandle const file = FileHandle::open(path);
  hasher.add(std::int64_t(file.size_bytes()));
  std::vector<std::byte> piece(std::size_t(std::min<std::uint64_t>(file.size_bytes(), 1 << 20)));
  for (std::uint64_t at = 0; at < file.size_bytes();) {
    std::span<std::byte> const part = std::span(piece).first(std::size_t(std::min<std::uint64_t>(file.size_bytes() - at, piece.size())));
    check_cancelled(cancelled);
    file.read_at(at, part);
    hasher.add(part);
    at += part.size();
  }
}

}  // namespace tiered::detail
