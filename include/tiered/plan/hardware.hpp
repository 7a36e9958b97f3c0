/// What a machine can do, as data: rates, latencies, and which kernels each device has. profile/ measures it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tiered/core/dtype.hpp"

namespace tiered {

/// A rate measured at some size: bytes of a piece, or rows of a product.
struct RatePoint {
  double size = 0, per_s = 0;
  bool operator==(RatePoint const&) const = default;
};

/// Rates by size, ascending. Between two points the time is interpolated, not the rate, and never falls with the size, so a
/// noisy measurement cannot make more work look cheaper.
struct RateCurve {
  std::vector<RatePoint> points;

  /// Seconds for `size` units; 0 for none, infinite where nothing was measured.
  double seconds(double size) const;
  double peak_per_s() const;
  bool operator==(RateCurve const&) const = default;
};

/// Weights by the bits that one takes in memory: products of a class run alike.
enum class WeightClass : std::uint8_t { low_bits, eight_bits, half, single };
inline constexpr std::size_t n_weight_classes = 4;
constexpr char const* name(WeightClass c) {
  switch (c) {
    case WeightClass::low_bits: return "low_bits";
    case WeightClass::eight_bits: return "eight_bits";
    case WeightClass::half: return "half";
    case WeightClass::single: return "single";
  }
  return "?";
}
constexpr WeightClass weight_class(double bits_per_weight) {
  if (bits_per_weight < 7) return WeightClass::low_bits;
  if (bits_per_weight < 12) return WeightClass::eight_bits;
  return bits_per_weight < 24 ? WeightClass::half : WeightClass::single;
}

/// Products of one class: bound by bytes or by arithmetic, whichever takes longer.
struct MatmulRates {
  double bytes_per_s = 0;   ///< weights read, cold
  RateCurve flops_by_rows;  ///< 2 per multiply-add, of all rows together
  bool operator==(MatmulRates const&) const = default;
};

/// Products with weights of one type and shape, as they were measured. Experts: gate, up [rows, cols] and down [cols, rows] of one
/// expert together, several of them in one launch; flops_by_rows then counts the rows of each expert.
struct FormatRates {
  DType dtype{}, up{}, down{};  ///< of experts those of the three; else the same
  bool experts = false;
  std::int32_t rows = 0, cols = 0;
  MatmulRates rates;
  double bits() const;  ///< that a weight takes
  bool is_alike(FormatRates const& other) const {
    return dtype == other.dtype && up == other.up && down == other.down && experts == other.experts && rows == other.rows &&
           cols == other.cols;
  }
  bool operator==(FormatRates const&) const = default;
};

struct DeviceRates {
  std::string name;
  std::array<MatmulRates, n_weight_classes> matmul;  ///< by WeightClass: where nothing of the kind is in `formats`
  std::vector<FormatRates> formats;                  ///< of a model's own types and shapes; empty: not measured
  double attention_bytes_per_s = 0, attention_flops_per_s = 0;
  double launch_s = 0;  ///< one kernel: launch on a GPU, barrier of the team on the host
  bool operator==(DeviceRates const&) const = default;

  /// Rates for weights of any of the types in `dtypes` (bits as in Shard::dtypes) that take so many bits on average: of what was
  /// measured in these types the nearest, or else of their class.
  MatmulRates const& rates_for(std::uint64_t dtypes, double bits, bool experts) const;
};

/// What is left of rates where the host's products read memory while the link copies to the device, as shares of those alone.
struct MutualRates {
  double host_share = 1, h2d_share = 1;
  bool operator==(MutualRates const&) const = default;
};

/// The least that host and link take for what would take them so long alone: both at once while both have work.
constexpr double shared_s(MutualRates mutual, double host_s, double copy_s) {
  double const host_beside_s = host_s / mutual.host_share, copy_beside_s = copy_s / mutual.h2d_share,
               both_s = mutual.host_share + mutual.h2d_share - 1;
  return host_s + copy_s - (host_beside_s < copy_beside_s ? host_beside_s : copy_beside_s) * (both_s > 0 ? both_s : 0);
}

struct HardwareProfile {
  DeviceRates host, gpu;
  std::int32_t n_threads = 0;
  double dram_bytes_per_s = 0;  ///< read by the host and the link together
  RateCurve h2d, d2h;           ///< bytes, by bytes of one piece, from registered memory
  double copy_latency_s = 0;    ///< of one submitted copy
  double hop_latency_s = 0;     ///< until one device sees what the other has done
  double event_latency_s = 0;   ///< until the thread that waits sees that a kernel is done; 0: not measured
  RateCurve both_ways;          ///< copies to and from the device in turn: bytes of both, by bytes of one piece; empty: not measured
  RateCurve dram_by_threads;    ///< read by the host alone, by number of threads; likewise
  MutualRates mutual;
  bool operator==(HardwareProfile const&) const = default;

  /// A made-up client machine, always the same: 8 cores, 40 GB/s DRAM, a 16 GB/s link, a small GPU.
  static HardwareProfile simulated();
};

/// Rate of the host's products that are held by memory alone.
inline double fastest_products_bytes_per_s(DeviceRates const& host) {
  double most = 0;
  for (MatmulRates const& rates : host.matmul) most = rates.bytes_per_s > most ? rates.bytes_per_s : most;
  return most;
}

/// MutualRates::host_share of what reads `bytes_per_s` alone: beside the link memory gives it what it gives the fastest products. So where
/// arithmetic holds it below that it loses nothing; and where it was measured in a cache, more.
constexpr double share_beside_link(MutualRates mutual, double memory_bytes_per_s, double bytes_per_s) {
  double const share = mutual.host_share * (bytes_per_s > 0 && memory_bytes_per_s > 0 ? memory_bytes_per_s / bytes_per_s : 1);
  return share < 1 ? share : 1;
}

/// Of the host's attention.
inline MutualRates attention_beside_link(HardwareProfile const& h) {
  double const memory = fastest_products_bytes_per_s(h.host);
  return {share_beside_link(h.mutual, memory, h.host.attention_bytes_per_s), h.mutual.h2d_share};
}

/// What of a machine the layers depend on whose experts a device asks its host for, beside the costs of one expert: see helped_time().
struct HelpedMachine {
  MutualRates mutual = {};
  double memory_bytes_per_s = 0;  ///< the host's fastest products; 0: not known
  double hot_macs_per_s = 0;      ///< of products whose weights are in the host's caches; 0: not known
};

/// Which weight types each device has products for (bits as in Shard::dtypes), and whether it has attention.
struct Capabilities {
  std::uint64_t host_matmul = ~std::uint64_t{0}, gpu_matmul = ~std::uint64_t{0};
  bool host_attention = true, gpu_attention = true;
  bool operator==(Capabilities const&) const = default;
};

}  // namespace tiered
