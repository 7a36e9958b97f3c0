/// The pieces of a transfer, cut into lots that a lane task can hold by value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tiered/memory/copy.hpp"

namespace tiered::detail {

/// A zero-byte piece may hold null pointers, which memcpy does not take.
inline void copy_piece(CopyPiece const& piece) {
  if (piece.bytes != 0) std::memcpy(piece.dst, piece.src, piece.bytes);
}

struct PiecePack {
  static constexpr std::size_t capacity = 8;
  CopyPiece pieces[capacity];
  std::uint32_t n = 0;
  std::span<CopyPiece const> span() const { return {pieces, n}; }
};

/// Calls `use(pack)` for one lot of the pieces after another.
template <class Use>
void for_each_pack(std::span<CopyPiece const> pieces, Use&& use) {
  for (std::size_t first = 0; first < pieces.size(); first += PiecePack::capacity) {
    PiecePack pack;
    for (CopyPiece const& piece : pieces.subspan(first, std::min(PiecePack::capacity, pieces.size() - first))) pack.pieces[pack.n++] = piece;
    use(pack);
  }
}

inline std::size_t total_bytes(std::span<CopyPiece const> pieces) {
  std::size_t bytes = 0;
  for (CopyPiece const& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace tiered::detail
