/// Defines measure_hardware and its like: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/profile/detail/fill_classes.hpp"
#include "tiered/profile/detail/measure_attention.hpp"
#include "tiered/profile/detail/measure_link.hpp"
#include "tiered/profile/read_rate.hpp"

namespace tiered {

namespace detail {

inline constexpr std::size_t host_room_bytes = std::size_t{96} << 20, host_pages_bytes = std::size_t{48} << 20;

/// One small op, over and over.
class SmallOp {
 public:
  explicit SmallOp(MeasureRoom& room) : room_(room) {
    std::size_t const bytes = std::min({room.x.size(), room.y.size(), std::size_t{16} << 10});
    args_ = {room.floats(room.x), room.floats(room.y), std::int64_t(bytes / sizeof(float))};
  }
  void operator()() const { launch(room_.side.kernels().add, args_, room_.side.queue()); }
  std::size_t bytes() const { return std::size_t(args_.n) * sizeof(float); }

 private:
  MeasureRoom& room_;
  AddArgs args_;
};

inline double small_op_s(MeasureRoom& room, MeasureClock const& clock) {
  if (room.side.kernels().add == nullptr) return 0;
  SmallOp const op(room);
  return seconds_per_call(room.side, clock, true, [&](std::int64_t) { op(); });
}

/// A kernel, and the thread that waits for it.
inline double event_s(MeasureRoom& room, MeasureClock const& clock) {
  if (room.side.kernels().add == nullptr) return 0;
  SmallOp const op(room);
  double best = HUGE_VAL;
  for (double const begin = clock.elapsed_s(); clock.elapsed_s() - begin < clock.cell_s();) {
    double const from = clock.elapsed_s();
    op();
    room.side.synchronize();
    best = std::min(best, clock.elapsed_s() - from);
  }
  return best;
}

/// From the device to the host and back: an op there, a copy, an op here, a copy. Of one way, ops and bytes not counted.
inline double hop_s(MeasureRoom& host, MeasureRoom& device, std::span<std::byte> landing, HardwareProfile const& h,
                    MeasureClock const& clock) {
  if (host.side.kernels().add == nullptr || device.side.kernels().add == nullptr) return h.hop_latency_s;
  SmallOp const here(host), there(device);
  std::size_t const bytes = std::min({here.bytes(), there.bytes(), landing.size()});
  CopyLane copy = device.copy;
  double best = HUGE_VAL;
  for (double const begin = clock.elapsed_s(); clock.elapsed_s() - begin < 2 * clock.cell_s();) {
    double const from = clock.elapsed_s();
    constexpr int n_rounds = 8;
    for (int i = 0; i < n_rounds; ++i) {
      there();
      host.side.wait_for(copy.submit({landing.data(), device.y.data(), bytes}, device.side.record()));
      here();
      device.side.wait_for(copy.submit({device.y.data(), landing.data(), bytes}, host.side.record()));
    }
    device.side.synchronize();
    best = std::min(best, (clock.elapsed_s() - from) / n_rounds);
  }
  double const ops = h.host.launch_s + h.gpu.launch_s + h.h2d.seconds(double(bytes)) + h.d2h.seconds(double(bytes));
  return std::max(best - ops, 0.1 * best) / 2;
}

inline void put_format(DeviceRates& rates, FormatRates const& format) {
  if (format.rates.bytes_per_s <= 0) return;
  auto const at = std::find_if(rates.formats.begin(), rates.formats.end(), [&](FormatRates const& f) { return f.is_alike(format); });
  if (at == rates.formats.end()) {
    rates.formats.push_back(format);
  } else {
    at->rates = format.rates;
  }
}

inline void measure_formats_on(MeasureRoom& room, MeasureInput const& in, std::span<FormatRates const> formats, DeviceRates& rates,
                               MeasureClock const& clock, double most_bytes_per_s = HUGE_VAL) {
  for (FormatRates format : formats) {
    auto const product = make_product(room, format, in, clock);
    format.rates = measure_product(*product, room.side, rates.launch_s, clock);
    format.rates.bytes_per_s = std::min(format.rates.bytes_per_s, most_bytes_per_s);
    put_format(rates, format);
  }
  fill_classes(rates);
}

inline RateCurve read_by_threads(MeasureInput const& in, std::vector<std::span<std::byte const>> const& ranges, MeasureClock const& clock) {
  RateCurve curve;
  double const seconds = 3 * clock.cell_s();
  for (int n = 1; n < in.team->size(); n *= 2) {
    Team some(n);
    curve.points.push_back({double(n), read_rate(some, ranges, seconds)});
  }
  curve.points.push_back({double(in.team->size()), read_rate(*in.team, ranges, 2 * seconds)});
  return curve;
}

struct MeasuredMachine {
  PageableTier tier;
  Buffer host_memory, host_pages;
  MeasureRoom host, device;

  MeasuredMachine(MeasureInput const& in)
      : host_memory(tier, host_room_bytes, 512),
        host_pages(tier, host_pages_bytes, 512),
        host(MeasureRoom::carve(in.host, in.copy, false, host_memory.span())) {
    if (in.has_device()) device = MeasureRoom::carve(in.device, in.copy, true, in.device_memory);
  }
  MeasuredMachine(MeasuredMachine const&) = delete;
  MeasuredMachine& operator=(MeasuredMachine const&) = delete;
  /// A product that was prepared and then left out, or an error, may leave work behind that reads and writes this memory.
  ~MeasuredMachine() {
    finish(host.side);
    if (!device.x.empty()) finish(device.side);
  }

 private:
  static void finish(Side const& side) {
    try {
      side.synchronize();
    } catch (...) {  // whoever measures has it already, or gets it from the next that is waited for
    }
  }
};

}  // namespace detail

std::vector<FormatRates> formats_of(ShardTable const& table) {
  using Kind = std::tuple<DType, DType, DType, bool>;
  std::map<Kind, std::map<std::pair<std::int32_t, std::int32_t>, double>> bytes;  // of each shape
  for (Shard const& s : table.shards) {
    if (s.kind == ShardKind::embedding) continue;
    Weight const* const w = table.weights.data() + s.weights.begin;
    if (s.kind == ShardKind::expert) {
      if (s.weights.size() == 3) bytes[{w[0].dtype, w[1].dtype, w[2].dtype, true}][{w[0].rows, w[0].cols}] += double(s.bytes);
      continue;
    }
    for (std::int32_t i = 0; i < s.weights.size(); ++i) {
      if (w[i].rows > 1) bytes[{w[i].dtype, w[i].dtype, w[i].dtype, false}][{w[i].rows, w[i].cols}] += double(w[i].bytes());
    }
  }
  std::vector<std::pair<double, FormatRates>> found;
  for (auto const& [kind, shapes] : bytes) {
    auto const largest = std::max_element(shapes.begin(), shapes.end(), [](auto const& a, auto const& b) { return a.second < b.second; });
    double sum = 0;
    for (auto const& [shape, n] : shapes) sum += n;
    auto const& [dtype, up, down, experts] = kind;
    found.push_back({sum, {dtype, up, down, experts, largest->first.first, largest->first.second, {}}});
  }
  std::stable_sort(found.begin(), found.end(), [](auto const& a, auto const& b) { return a.first > b.first; });
  std::vector<FormatRates> formats;
  for (auto& [sum, format] : found) formats.push_back(std::move(format));
  return formats;
}

HardwareProfile measure_hardware(MeasureInput const& in, double seconds) {
  detail::MeasureClock clock(seconds);
  clock.late_after(0.55);
  HardwareProfile h = HardwareProfile::simulated();
  h.host.name = concat("host (", in.host.kernels().name, ")");
  detail::MeasuredLink link(in, clock);
  std::vector<FormatRates> const formats = formats_of(in.table);
  bool const has_device = in.has_device() && link.is_possible();
  if (has_device) detail::measure_copies(link, h);  // before the rooms: overwrites the device's memory
  detail::MeasuredMachine machine(in);
  h.host.launch_s = detail::small_op_s(machine.host, clock);
  if (has_device) {
    h.gpu.name = concat("device (", in.device.kernels().name, ")");
    h.gpu.launch_s = detail::small_op_s(machine.device, clock);
    h.event_latency_s = detail::event_s(machine.device, clock);
    h.hop_latency_s = detail::hop_s(machine.host, machine.device, in.landing, h, clock);
    detail::measure_attention(machine.device, in.attention, machine.device.weights, clock, h.gpu);
    detail::measure_formats_on(machine.device, in, formats, h.gpu, clock);
  }
  clock.late_after(0.9);
  if (in.team != nullptr) {
    h.n_threads = in.team->size();
    if (!link.sources().empty()) h.dram_by_threads = detail::read_by_threads(in, link.sources(), clock);
    if (double const alone = h.dram_by_threads.peak_per_s(); alone > 0) h.dram_bytes_per_s = alone;
  }
  detail::measure_attention(machine.host, in.attention, machine.host_pages.span(), clock, h.host);
  detail::measure_formats_on(machine.host, in, formats, h.host, clock, detail::most_host_bytes_per_s(h, in.table));
  if (has_device && !formats.empty()) {
    auto const product = detail::make_product(machine.host, formats.front(), in, clock);
    h.mutual = detail::measure_mutual(link, *product, in.host, clock);
    double const host_bytes_per_s = h.host.formats.empty() ? 0 : h.host.formats.front().rates.bytes_per_s;
    double const together = h.mutual.host_share * host_bytes_per_s + h.mutual.h2d_share * h.h2d.peak_per_s();
    h.dram_bytes_per_s = std::max(h.dram_by_threads.peak_per_s(), together);
  }
  return h;
}

void measure_formats(MeasureInput const& in, std::span<FormatRates const> formats, HardwareProfile& profile, double seconds) {
  if (formats.empty()) return;
  detail::MeasureClock clock(seconds);
  clock.late_after(0.45);
  detail::MeasuredMachine machine(in);
  if (in.has_device()) detail::measure_formats_on(machine.device, in, formats, profile.gpu, clock);
  clock.late_after(0.9);
  detail::measure_formats_on(machine.host, in, formats, profile.host, clock, detail::most_host_bytes_per_s(profile, in.table));
}

bool holds_true(MeasureInput const& in, HardwareProfile const& profile) {
  detail::MeasureClock const clock(3);
  auto const is_near = [](double now, double then) { return now > 0.75 * then && now < 1.34 * then; };
  // Other programs come and go, and make a look slow; measuring anew beside them would take seconds and put their doing into the file.
  // So a look that is near ends it, and only a machine that is never found as the profile says has changed.
  constexpr int n_tries = 12;
  detail::MeasuredLink link(in, clock);
  bool const has_device = in.has_device() && link.is_possible();
  bool copies = !has_device || profile.h2d.points.empty(),
       reads = in.team == nullptr || profile.dram_by_threads.points.empty() || link.sources().empty();
  if (!copies) link.visit_sources();
  for (int i = 0; i < n_tries && !(copies && reads); ++i) {
    if (!copies) {
      std::size_t const bytes = std::min(detail::copied_piece_bytes, link.largest());
      double const s = link.seconds_each([&] { return link.to_device(bytes); });
      copies = is_near(s, profile.copy_latency_s + profile.h2d.seconds(double(bytes)));
    }
    if (!reads) reads = is_near(read_rate(*in.team, link.sources(), 2 * clock.cell_s()), profile.dram_by_threads.points.back().per_s);
  }
  return copies && reads;
}

}  // namespace tiered
