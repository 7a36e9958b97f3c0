/// What a bench of kernels measures beside what the device can do, and how it tells.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "measure.hpp"

namespace bench {

struct Limits {
  double copy_bytes_per_s = 0, flop_per_s = 0;
};

struct Choice {
  std::vector<std::string> ops, types;
  std::string json;
  bool wants(char const* op) const { return ops.empty() || std::find(ops.begin(), ops.end(), op) != ops.end(); }
  bool wants(DType type) const { return types.empty() || std::find(types.begin(), types.end(), name(type)) != types.end(); }
};

/// What is measured, and where it is told.
struct Bench {
  Device& device;
  Limits limits;
  Choice choice;
  std::string json;

  /// The least time by bytes or operations.
  double bound_s(double bytes, double flop) const { return std::max(bytes / limits.copy_bytes_per_s, flop / limits.flop_per_s); }
  void tell(std::string const& what, double seconds, double bytes, double flop) {
    double const bytes_s = bytes / limits.copy_bytes_per_s, flop_s = flop / limits.flop_per_s, bound_s = std::max(bytes_s, flop_s);
    fmt::print("{:<56} {:>10.2f} us", what, seconds * 1e6);
    if (bytes > 0) fmt::print(" {:>8.0f} GB/s", bytes / seconds / 1e9);
    if (flop > 0) fmt::print(" {:>7.1f} TFLOP/s", flop / seconds / 1e12);
    if (bound_s > 0) fmt::print("  {:>3.0f} % of {}", 100 * bound_s / seconds, bytes_s > flop_s ? "copy" : "cuBLAS");
    fmt::print("\n");
    std::fflush(stdout);
    json += fmt::format("{{\"what\": \"{}\", \"us\": {:.3f}, \"bytes\": {:.0f}, \"flop\": {:.0f}, \"share\": {:.4f}}}\n", what,
                        seconds * 1e6, bytes, flop, bound_s / seconds);
  }
};

inline constexpr std::size_t cold_bytes = std::size_t{512} << 20;  ///< more than any cache, so that weights come from memory

}  // namespace bench
