/// Defines AnalyticCost: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tiered/plan/cost.hpp"

namespace tiered {

namespace detail {

/// Kernels that a step launches, about: small numbers of rows wait for launches, not for bytes.
constexpr double n_kernels(ShardKind kind) {
  switch (kind) {
    case ShardKind::embedding: return 1;
    case ShardKind::attention: return 12;
    case ShardKind::ffn: return 7;
    case ShardKind::router: return 6;
    case ShardKind::expert: return 0.5;  // all experts of a layer share a few launches
    case ShardKind::output: return 3;
  }
  return 1;
}

/// Of n rows, at the rate of a launch with `at_rows` of them, or of so many for each expert that was measured in it.
inline double products_s(DeviceRates const& device, Shard const& shard, double n, double at_rows) {
  double const bits = shard.macs_per_token > 0 ? 8 * double(shard.bytes) / shard.macs_per_token : 32;
  MatmulRates const& rates = device.rates_for(shard.dtypes, bits, shard.kind == ShardKind::expert);
  // flops_by_rows.seconds(n) is the time of n rows whose products are one flop each.
  double const arithmetic_s = 2 * shard.macs_per_token * rates.flops_by_rows.seconds(at_rows) * (n / at_rows);
  return n_kernels(shard.kind) * device.launch_s + (std::max)(double(shard.bytes) / rates.bytes_per_s, arithmetic_s);
}

inline double attention_s(DeviceRates const& device, double bytes_s, double flops) {
  return 2 * device.launch_s + (std::max)(bytes_s, flops / device.attention_flops_per_s);
}

/// A device's rate of reading keys and values is that of measured_context positions, in which launches and the merging of parts count:
/// what lies beyond is read at half of the best rate for weights, at least. One row of 32 heads on an H200: 12 us for 4096 positions, 14 us
/// more for 16384, where weights are read at 3.4 TB/s.
inline double device_read_s(DeviceRates const& device, double bytes, double measured_bytes) {
  double best = 0;
  for (MatmulRates const& rates : device.matmul) best = (std::max)(best, rates.bytes_per_s);
  double const beyond = (std::max)(0.0, bytes - measured_bytes);
  return (bytes - beyond) / device.attention_bytes_per_s + beyond / (std::max)(device.attention_bytes_per_s, best / 2);
}

}  // namespace detail

double use_probability(Shard const& shard, std::int32_t n) {
  if (shard.use_probability >= 1) return n > 0 ? 1 : 0;
  return -std::expm1(double(n) * std::log1p(-shard.use_probability));
}

PassCost AnalyticCost::cost(Shard const& shard, Rows rows) const {
  if (rows.n <= 0) return {};
  if (shard.kind == ShardKind::embedding) {  // looked up in host memory, n rows of it
    double const row_bytes = double(shard.bytes) / double((std::max)(shard.n_rows, 1));
    return {hardware.host.launch_s + double(rows.n) * row_bytes / hardware.dram_bytes_per_s, HUGE_VAL, 0};
  }
  // Of a prompt's rows only the last one of a sequence meets the head.
  std::int32_t const n = shard.kind == ShardKind::output ? (std::min)(rows.n, (std::max)(rows.n_sequences, 1)) : rows.n;
  double const used = use_probability(shard, n);
  if (used <= 0) return {};
  double const rows_each = double(n) * shard.use_probability / used;  // of those that use it
  PassCost out;
  bool const on_host = (capabilities.host_matmul & shard.dtypes) == shard.dtypes;
  bool const on_gpu = (capabilities.gpu_matmul & shard.dtypes) == shard.dtypes;
  out.host_s = on_host ? used * detail::products_s(hardware.host, shard, rows_each, rows_each) : HUGE_VAL;
  // A device runs all experts of these rows in one launch; a launch that was measured ran those of one row, so n rows of each are as many.
  double const at_rows = (std::max)(rows_each, double(n));
  out.gpu_s = on_gpu ? used * detail::products_s(hardware.gpu, shard, rows_each, at_rows) : HUGE_VAL;
  out.copy_s = used * (hardware.copy_latency_s + hardware.h2d.seconds(double(shard.bytes)));
  return out;
}

PassCost AnalyticCost::cost(LayerState const& state, Rows rows) const {
  if (rows.n <= 0) return {};
  double const n_sequences = (std::max)(rows.n_sequences, 1), context = rows.context / n_sequences, n_each = rows.n / n_sequences;
  // Rows of a prompt see on average half of the prompt less than the last one does.
  double const seen = (std::max)(1.0, context - 0.5 * ((std::min)(n_each, context) - 1));
  double const attended = state.window > 0 ? (std::min)(seen, double(state.window)) : seen;
  double const kept = state.window > 0 ? (std::min)(context, state.window + n_each) : context;
  double const bytes = n_sequences * (double(state.bytes_per_token) * kept + double(state.bytes_per_sequence));
  double const flops = 2 * state.macs_per_position * attended * double(rows.n);
  PassCost out;
  out.host_s =
      capabilities.host_attention ? detail::attention_s(hardware.host, bytes / hardware.host.attention_bytes_per_s, flops) : HUGE_VAL;
  double const device_s = detail::device_read_s(hardware.gpu, bytes, double(state.bytes_per_token) * measured_context);
  out.gpu_s = capabilities.gpu_attention ? detail::attention_s(hardware.gpu, device_s, flops) : HUGE_VAL;
  out.copy_s = hardware.copy_latency_s + hardware.h2d.seconds(bytes);
  return out;
}

}  // namespace tiered
