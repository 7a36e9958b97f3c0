/// Rows of weights to f32.
#pragma once

#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/format/dispatch.hpp"

namespace tiered {

/// dst[i] = the i-th weight, for all blocks of `n` elements.
template <WeightFormat F>
void decode_row(typename F::Block const* src, std::int64_t n, float* dst) {
  for (std::int64_t i = 0; i < n / F::block_elems; ++i) F::decode_block(src[i], dst + i * F::block_elems);
}

/// The same for a type known at run time; bit for bit the reference dequantisation.
/// Shapes   src: row_bytes(dtype, n) bytes, aligned to 2 (f32: to 4; mxfp4: to 1); dst [n] f32.
/// Errors   Errc::unsupported where there is no such format; Errc::precondition where n is no whole number of blocks.
/// Threads  any.
inline void decode_row(DType dtype, void const* src, std::int64_t n, float* dst) {
  dispatch_format(dtype, [=](auto format) {
    using F = decltype(format);
    if (n < 0 || n % F::block_elems != 0)
      throw Error(Errc::precondition, concat(n, " elements are no whole number of blocks of ", F::block_elems, " of ", name(F::dtype)));
    decode_row<F>(static_cast<typename F::Block const*>(src), n, dst);
  });
}

}  // namespace tiered
