/// What the tests of the CPU kernels share: tables to run, inputs, and comparison with a computed tolerance.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cpu/backend.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/dispatch.hpp"
#include "tiered/sim/split_mix.hpp"

namespace tiered_test {

using namespace tiered;  // a header of tests only

inline constexpr double epsilon = 0x1p-24;  ///< largest relative error of one f32 rounding

/// Whether this machine can run the AMX kernels but for tiles, which are done in software: emulated_tiles.hpp.
bool can_emulate_amx();
KernelTable const& emulated_amx(bool f32_activations);

/// The table of an instruction set, AMX on emulated tiles where there are no others.
inline KernelTable const& table_of(Isa isa, bool f32_activations = false) {
  return isa == Isa::amx && !available(isa) ? emulated_amx(f32_activations) : cpu_kernels(isa, f32_activations);
}

/// A backend of the CPU, called as the engine calls it.
class Cpu {
 public:
  explicit Cpu(Isa isa, bool f32_activations = false, int n_threads = 2)
      : backend_(LaneSet::threads(), {.isa = Isa::baseline, .n_threads = n_threads}), table_(&table_of(isa, f32_activations)) {}
  KernelTable const& table() const { return *table_; }
  template <class Args>
  void run(Kernel<Args> kernel, Args const& args) {
    launch(kernel, args, backend_.queue());
    backend_.synchronize();
  }

 private:
  CpuBackend backend_;
  KernelTable const* table_;
};

/// Every instruction set that is built and that this machine can run, AMX also where its tiles are emulated.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa const isa : all_isas) {
    if (available(isa) || (isa == Isa::amx && can_emulate_amx())) isas.push_back(isa);
  }
  return isas;
}

inline std::vector<DType> all_formats() {
  std::vector<DType> types;
  for_each_format([&](auto format) { types.push_back(decltype(format)::dtype); });
  return types;
}

enum class Values { ordinary, zeros, subnormal, large };
inline char const* name(Values values) {
  switch (values) {
    case Values::ordinary: return "ordinary";
    case Values::zeros: return "zeros";
    case Values::subnormal: return "subnormal";
    case Values::large: return "large";
  }
  return "?";
}

inline std::vector<float> random_floats(std::size_t n, SplitMix64& random, Values values = Values::ordinary) {
  float const magnitude = values == Values::large ? 1e30f : values == Values::subnormal ? 1e-41f : values == Values::zeros ? 0.0f : 2.0f;
  std::vector<float> x(n);
  for (float& v : x) v = random.between(-magnitude, magnitude);
  return x;
}

namespace detail {

inline std::uint16_t random_scale(SplitMix64& random) { return float_to_half(random.between(-0.03f, 0.03f)); }

template <class F>
void set_scales(typename F::Block& block, SplitMix64& random) {
  if constexpr (std::is_same_v<F, F32>) {
    block.value = random.between(-1, 1);
  } else if constexpr (std::is_same_v<F, F16>) {
    block.value = float_to_half(random.between(-1, 1));
  } else if constexpr (std::is_same_v<F, BF16>) {
    block.value = float_to_bfloat16(random.between(-1, 1));
  } else if constexpr (std::is_same_v<F, MXFP4>) {
    block.e = std::uint8_t(118 + random.below(12));
  } else {
    block.d = random_scale(random);
    if constexpr (requires { block.m; }) block.m = random_scale(random);
    if constexpr (requires { block.dmin; }) block.dmin = random_scale(random);
  }
}

/// An upper bound of what a format subtracts from, or adds to, d * q: sums of the two parts are rounded apart.
template <class F>
double largest_min(typename F::Block const& block) {
  if constexpr (requires { block.m; }) return std::abs(double(half_to_float(block.m)));
  if constexpr (requires { block.dmin; }) return 63 * std::abs(double(half_to_float(block.dmin)));
  return 0;
}

}  // namespace detail

/// Blocks whose every bit is random, but for scales, which are of a sensible size.
inline std::vector<std::byte> random_weights(DType type, std::int64_t n_elems, SplitMix64& random) {
  std::vector<std::byte> bytes(row_bytes(type, std::uint64_t(n_elems)));
  for (std::byte& b : bytes) b = std::byte(random.next() >> 56);
  dispatch_format(type, [&](auto format) {
    using F = decltype(format);
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(typename F::Block)) {
      typename F::Block block;
      std::memcpy(&block, bytes.data() + at, sizeof block);
      detail::set_scales<F>(block, random);
      std::memcpy(bytes.data() + at, &block, sizeof block);
    }
  });
  return bytes;
}

/// For one row of weights: |w| plus twice the largest minimum of its block, element by element.
inline std::vector<double> magnitudes(DType type, std::byte const* row, std::int64_t n) {
  std::vector<double> out;
  dispatch_format(type, [&](auto format) {
    using F = decltype(format);
    for (std::int64_t b = 0; b < n / F::block_elems; ++b) {
      typename F::Block block;
      std::memcpy(&block, row + b * F::block_bytes, sizeof block);
      for (int i = 0; i < F::block_elems; ++i) out.push_back(std::abs(double(F::decode(block, i))) + 2 * detail::largest_min<F>(block));
    }
  });
  return out;
}

/// The rule by which a table rounds activations.
inline DType (*activation_rule(KernelTable const& table))(DType) {
  bool const f32 = table.activation[std::uint32_t(DType::q8_0)] == DType::f32;
  bool const panels = table.activation[std::uint32_t(DType::bf16)] == DType::act_bf16;
  return f32 ? [](DType) { return DType::f32; } : panels ? &panel_activation : &quantized_activation;
}

/// The element that misses its tolerance by the largest factor.
struct Worst {
  double factor = 0;
  std::int64_t index = -1;
  double got = 0, expected = 0, tolerance = 0;

  void compare(std::int64_t i, double value, double reference, double allowed) {
    double const error = std::abs(value - reference);
    bool const same = value == reference || (std::isnan(value) && std::isnan(reference));
    double const ratio = same ? 0 : std::isnan(error) ? std::numeric_limits<double>::infinity() : error / std::max(allowed, 1e-300);
    if (index < 0 || ratio > factor) *this = {ratio, i, value, reference, allowed};
  }
  std::string text() const {
    return concat("worst: element ", index, " is ", got, ", expected ", expected, " within ", tolerance, " (", factor, " of it)");
  }
};

inline bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// Outputs begin as this, and elements that must not be written end as it.
inline constexpr float poison = -1.2345e33f;

inline std::vector<float> poisoned(std::size_t n) { return std::vector<float>(n, poison); }

}  // namespace tiered_test
