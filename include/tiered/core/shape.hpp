/// Sizes of a tensor, outermost first, with overflow-checked products. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"

namespace tiered {

/// Row-major: the last size is the one whose elements are neighbours in memory. A GGUF file lists sizes the other way round.
struct Shape {
  static constexpr int max_rank = 4;
  std::int64_t sizes[max_rank] = {1, 1, 1, 1};
  int rank = 0;

  constexpr Shape() = default;
  constexpr explicit Shape(std::int64_t a) : sizes{a, 1, 1, 1}, rank(1) {}
  constexpr Shape(std::int64_t a, std::int64_t b) : sizes{a, b, 1, 1}, rank(2) {}
  constexpr Shape(std::int64_t a, std::int64_t b, std::int64_t c) : sizes{a, b, c, 1}, rank(3) {}
  constexpr Shape(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) : sizes{a, b, c, d}, rank(4) {}

  TIERED_HD constexpr std::int64_t operator[](int i) const { return sizes[i]; }
  TIERED_HD constexpr std::int64_t cols() const { return rank == 0 ? 1 : sizes[rank - 1]; }
  /// Product of all sizes but the last.
  TIERED_HD constexpr std::int64_t rows() const {
    std::int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= sizes[i];
    return n;
  }
  bool operator==(Shape const&) const = default;
};

/// False where a size is negative or the product does not fit 63 bits; then `out` is unchanged.
TIERED_HD constexpr bool checked_elements(Shape const& shape, std::uint64_t& out) {
  std::uint64_t n = 1;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape.sizes[i] < 0) return false;
    std::uint64_t const size = std::uint64_t(shape.sizes[i]);
    if (size != 0 && n > (std::uint64_t{1} << 63) / size) return false;
    n *= size;
  }
  if (n >= (std::uint64_t{1} << 63)) return false;
  out = n;
  return true;
}

/// False where the type is unknown, a row is no whole number of blocks, or the product does not fit 63 bits.
TIERED_HD constexpr bool checked_bytes(Shape const& shape, DType type, std::uint64_t& out) {
  std::uint64_t elems = 0;
  DTypeInfo const info = dtype_info(type);
  if (info.block_elems == 0 || shape.cols() % std::int64_t(info.block_elems) != 0 || !checked_elements(shape, elems)) return false;
  std::uint64_t const blocks = elems / info.block_elems;
  if (blocks > (std::uint64_t{1} << 62) / info.block_bytes) return false;
  out = blocks * info.block_bytes;
  return true;
}

}  // namespace tiered
