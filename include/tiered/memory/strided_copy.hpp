/// Many pieces of a transfer as few copies of equal rows, which a DMA engine takes in one call.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "tiered/memory/copy.hpp"

namespace tiered {

/// `n_rows` rows of `row_bytes`, each so many bytes behind the one before it.
struct StridedCopy {
  std::byte* dst = nullptr;
  std::byte const* src = nullptr;
  std::size_t row_bytes = 0, n_rows = 1, dst_stride = 0, src_stride = 0;

  std::size_t bytes() const { return row_bytes * n_rows; }
  bool operator==(StridedCopy const&) const = default;
};

/// The pieces in order of their sources, as few copies: pieces that touch on both sides are one row, and rows of equal lengths at equal
/// distances one copy. So of experts that lie side by side in a file, tensor by tensor, and in VRAM, expert by expert, each tensor is one
/// copy. Copies of more than `most_bytes` are cut, where a row is longer, within it; strides are below `most_stride`.
/// Order    that of `pieces` does not matter; none may overlap another.
inline std::vector<StridedCopy> merge_pieces(std::vector<CopyPiece> pieces, std::size_t most_bytes, std::size_t most_stride) {
  std::erase_if(pieces, [](CopyPiece const& p) { return p.bytes == 0; });
  std::sort(pieces.begin(), pieces.end(), [](CopyPiece const& a, CopyPiece const& b) { return a.src < b.src; });
  std::vector<CopyPiece> rows;
  for (CopyPiece const& p : pieces) {
    if (!rows.empty() && rows.back().src + rows.back().bytes == p.src && rows.back().dst + rows.back().bytes == p.dst) {
      rows.back().bytes += p.bytes;
    } else {
      rows.push_back(p);
    }
  }
  std::vector<StridedCopy> copies;
  for (CopyPiece row : rows) {
    for (; row.bytes > most_bytes; row = {row.dst + most_bytes, row.src + most_bytes, row.bytes - most_bytes})
      copies.push_back({row.dst, row.src, most_bytes, 1, most_bytes, most_bytes});
    if (!copies.empty()) {
      StridedCopy& last = copies.back();
      std::byte* const last_dst = last.dst + (last.n_rows - 1) * last.dst_stride;
      std::byte const* const last_src = last.src + (last.n_rows - 1) * last.src_stride;
      bool const is_behind = row.dst >= last_dst + last.row_bytes && last.row_bytes == row.bytes;
      std::size_t const dst_stride = is_behind ? std::size_t(row.dst - last_dst) : 0, src_stride = std::size_t(row.src - last_src);
      if (is_behind && std::max(dst_stride, src_stride) < most_stride && last.bytes() + row.bytes <= most_bytes &&
          (last.n_rows == 1 || (last.dst_stride == dst_stride && last.src_stride == src_stride))) {
        last.dst_stride = dst_stride;
        last.src_stride = src_stride;
        ++last.n_rows;
        continue;
      }
    }
    copies.push_back({row.dst, row.src, row.bytes, 1, row.bytes, row.bytes});
  }
  return copies;
}

}  // namespace tiered
