/// The concept of a weight format, and the list of those the library knows. [device-visible]
#pragma once

#include <concepts>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/bf16.hpp"
#include "tiered/kernels/format/f16.hpp"
#include "tiered/kernels/format/f32.hpp"
#include "tiered/kernels/format/iq4_nl.hpp"
#include "tiered/kernels/format/iq4_xs.hpp"
#include "tiered/kernels/format/mxfp4.hpp"
#include "tiered/kernels/format/q2_k.hpp"
#include "tiered/kernels/format/q3_k.hpp"
#include "tiered/kernels/format/q4_0.hpp"
#include "tiered/kernels/format/q4_1.hpp"
#include "tiered/kernels/format/q4_k.hpp"
#include "tiered/kernels/format/q5_0.hpp"
#include "tiered/kernels/format/q5_1.hpp"
#include "tiered/kernels/format/q5_k.hpp"
#include "tiered/kernels/format/q6_k.hpp"
#include "tiered/kernels/format/q8_0.hpp"

namespace tiered {

/// | expression                     | result | meaning                                                                        |
/// |--------------------------------|--------|--------------------------------------------------------------------------------|
/// | `F::dtype`                     | DType  | the type whose block this is                                                   |
/// | `F::block_elems`, `F::block_bytes` | int | as dtype_info says                                                            |
/// | `F::decode(block, i)`          | float  | element i, 0 <= i < block_elems                                                |
/// | `F::decode_block(block, out)`  | void   | all elements; cheaper than one by one                                          |
/// Both decoders equal the format's reference dequantisation bit for bit, whatever the compiler's flags (arithmetic.hpp
/// says why); in quantised formats the scales must be finite. `Block` is plain data as it lies in a file, little-endian, with
/// the alignment of its largest member: 1, 2, or 4 for f32. Formats are empty types: pass them by value to choose an overload.
template <class F>
concept WeightFormat = requires(typename F::Block const& block, int i, float* out) {
  requires std::same_as<decltype(F::dtype), DType const>;
  requires F::block_elems >
  0 && F::block_bytes == sizeof(typename F::Block);
  { F::decode(block, i) } -> std::same_as<float>;
  { F::decode_block(block, out) } -> std::same_as<void>;
};

/// Also the allow-list that kernel tables are filled from: a new format is a header and a line here.
template <WeightFormat... Formats>
struct FormatList {
  static_assert(((block_elems(Formats::dtype) == Formats::block_elems && block_bytes(Formats::dtype) == Formats::block_bytes) && ...));
};
using WeightFormats = FormatList<F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, MXFP4>;

namespace detail {

template <class... Formats>
constexpr bool contains(FormatList<Formats...>, DType dtype) {
  return ((Formats::dtype == dtype) || ...);
}
template <class Function, class... Formats>
constexpr void for_each(FormatList<Formats...>, Function& function) {
  (function(Formats{}), ...);
}

}  // namespace detail

/// Whether weights of this type can be decoded.
constexpr bool is_weight_format(DType dtype) { return detail::contains(WeightFormats{}, dtype); }

/// Calls function(F{}) for every format, in the order of the list: how tables by type are filled.
template <class Function>
constexpr void for_each_format(Function&& function) {
  detail::for_each(WeightFormats{}, function);
}

}  // namespace tiered
