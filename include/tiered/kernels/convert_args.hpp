/// What conversions take that begin one op earlier: rows go into the form of products straight out of a norm or a gate. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"

namespace tiered {

/// As rms_norm to f32, and that as QuantizeArgs::x.
struct ConvertNormedArgs {
  RmsNormArgs norm;   ///< norm.y is not touched
  void* y = nullptr;  ///< as QuantizeArgs::y; not x
};

/// As gated to f32, and that as QuantizeArgs::x.
struct ConvertGatedArgs {
  float const* gate = nullptr;  ///< [n_rows, dim]
  float const* up = nullptr;    ///< likewise
  void* y = nullptr;            ///< as QuantizeArgs::y; neither of these
  std::int32_t n_rows = 0, dim = 0;
  Activation activation = Activation::silu;
};

}  // namespace tiered
