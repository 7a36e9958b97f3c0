/// Defines HardwareProfile: for one source file of a program.
#pragma once

#include <cmath>

#include "tiered/plan/hardware.hpp"

namespace tiered {

double RateCurve::seconds(double size) const {
  if (size <= 0) return 0;
  if (points.empty()) return HUGE_VAL;
  double from_size = 0, from_s = 0;
  for (RatePoint const& point : points) {
    double const s = std::fmax(from_s, point.size / point.per_s);
    if (size <= point.size) return from_s + (s - from_s) * (size - from_size) / (point.size - from_size);
    from_size = point.size;
    from_s = s;
  }
  return std::fmax(from_s, size / points.back().per_s);
}

double RateCurve::peak_per_s() const {
  double peak = 0;
  for (RatePoint const& point : points) peak = std::fmax(peak, point.per_s);
  return peak;
}

double FormatRates::bits() const {
  auto const of = [](DType type) { return 8.0 * block_bytes(type) / block_elems(type); };
  return (of(dtype) + of(up) + of(down)) / 3;
}

MatmulRates const& DeviceRates::rates_for(std::uint64_t dtypes, double bits, bool experts) const {
  FormatRates const* best = nullptr;
  auto const is_in = [dtypes](DType type) { return (dtypes >> std::uint32_t(type) & 1) != 0; };
  auto const distance = [&](FormatRates const& f) { return std::fabs(f.bits() - bits); };
  for (FormatRates const& f : formats) {
    if (f.experts != experts || !is_in(f.dtype) || !is_in(f.up) || !is_in(f.down)) continue;
    if (best == nullptr || distance(f) < distance(*best)) best = &f;
  }
  return best != nullptr ? best->rates : matmul[std::size_t(weight_class(bits))];
}

HardwareProfile HardwareProfile::simulated() {
  auto curve = [](double one, double few, double many) { return RateCurve{{{1, one}, {16, few}, {512, many}}}; };
  HardwareProfile h;
  h.host.name = "simulated host";
  h.host.matmul = {{{34e9, curve(160e9, 240e9, 400e9)},
                    {38e9, curve(90e9, 220e9, 400e9)},
                    {38e9, curve(45e9, 160e9, 300e9)},
                    {38e9, curve(22e9, 120e9, 250e9)}}};
  h.host.attention_bytes_per_s = 30e9;
  h.host.attention_flops_per_s = 100e9;
  h.host.launch_s = 3e-6;
  h.gpu.name = "simulated device";
  h.gpu.matmul = {{{340e9, curve(1.6e12, 6e12, 25e12)},
                   {370e9, curve(0.9e12, 6e12, 25e12)},
                   {380e9, curve(0.5e12, 5e12, 25e12)},
                   {380e9, curve(0.2e12, 2e12, 10e12)}}};
  h.gpu.attention_bytes_per_s = 300e9;
  h.gpu.attention_flops_per_s = 10e12;
  h.gpu.launch_s = 2e-6;
  h.n_threads = 8;
  h.dram_bytes_per_s = 40e9;
  h.h2d = {{{64e3, 5e9}, {256e3, 10e9}, {1e6, 14e9}, {4e6, 15.5e9}, {64e6, 16e9}}};
  h.d2h = h.h2d;
  h.copy_latency_s = 5e-6;
  h.hop_latency_s = 12e-6;
  return h;
}

}  // namespace tiered
