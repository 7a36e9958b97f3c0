/// Copies between host and device by size and direction, and what they do to the host's work and it to them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/profile/detail/measure_products.hpp"
#include "tiered/profile/detail/measure_room.hpp"

namespace tiered::detail {

inline constexpr std::size_t copied_piece_bytes = std::size_t{16} << 20;  // where a single figure is asked for

/// Copies through the engine's own lane, out of the model's weights and into memory that may be overwritten.
class MeasuredLink {
 public:
  MeasuredLink(MeasureInput const& in, MeasureClock const& clock)
      : copy_(in.copy),
        clock_(clock),
        sources_(host_ranges(in.weights, std::size_t{256} << 20, clock)),
        device_(in.device_memory),
        landing_(in.landing) {
    for (auto const& range : sources_) total_ += range.size();
  }
  bool is_possible() const { return total_ > 0 && !device_.empty() && !landing_.empty(); }
  std::size_t largest() const { return std::min(total_, device_.size()); }
  std::vector<std::span<std::byte const>> const& sources() const { return sources_; }

  /// So that what is still being registered is waited for here.
  void visit_sources() {
    for (std::size_t done = 0; done < total_; done += std::min(copied_piece_bytes, largest()))
      last_ = to_device(std::min(copied_piece_bytes, largest()));
    copy_.wait(last_);
  }

  Ticket to_device(std::size_t bytes) {
    pieces_.clear();
    if (at_device_ + bytes > device_.size()) at_device_ = 0;
    for (std::size_t done = 0; done < bytes;) {
      std::span<std::byte const> const range = sources_[range_];
      std::size_t const n = std::min(bytes - done, range.size() - at_);
      pieces_.push_back({device_.data() + at_device_ + done, range.data() + at_, n});
      done += n, at_ += n;
      if (at_ == range.size()) at_ = 0, range_ = (range_ + 1) % sources_.size();
    }
    at_device_ += (bytes + 255) / 256 * 256;
    return copy_.submit(pieces_, {});
  }
  Ticket to_host(std::size_t bytes) {
    pieces_.clear();
    for (std::size_t done = 0; done < bytes;) {
      std::size_t const n = std::min(bytes - done, landing_.size());
      pieces_.push_back({landing_.data(), device_.data() + done, n});
      done += n;
    }
    return copy_.submit(pieces_, {});
  }
  void wait(Ticket ticket) { copy_.wait(ticket); }

  /// Seconds of one of many copies, one behind the other: submit() gives a ticket.
  double seconds_each(FunctionRef<Ticket()> submit) {
    return best_of_batches(clock_, [&](std::int64_t n) {
      double const begin = clock_.elapsed_s();
      for (std::int64_t i = 0; i < n; ++i) last_ = submit();
      copy_.wait(last_);
      return clock_.elapsed_s() - begin;
    });
  }

 private:
  CopyLane copy_;
  MeasureClock const& clock_;
  std::vector<std::span<std::byte const>> sources_;
  std::span<std::byte> device_, landing_;
  std::vector<CopyPiece> pieces_;
  std::size_t total_ = 0, range_ = 0, at_ = 0, at_device_ = 0;
  Ticket last_;
};

/// Copies by size and direction, and the latency of one, which is not in the curves.
inline void measure_copies(MeasuredLink& link, HardwareProfile& h) {
  constexpr std::array<std::size_t, 6> sizes{std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{1} << 20,
                                             std::size_t{4} << 20,  std::size_t{16} << 20,  std::size_t{64} << 20};
  link.visit_sources();
  std::size_t const tiny = std::min<std::size_t>(link.largest(), 256);
  h.copy_latency_s = link.seconds_each([&] { return link.to_device(tiny); });
  h.h2d.points.clear(), h.d2h.points.clear(), h.both_ways.points.clear();
  auto const rate = [&](std::size_t bytes, double s) { return double(bytes) / std::max(s - h.copy_latency_s, s / 2); };
  for (std::size_t const size : sizes) {
    std::size_t const bytes = std::min(size, link.largest());
    h.h2d.points.push_back({double(bytes), rate(bytes, link.seconds_each([&] { return link.to_device(bytes); }))});
    h.d2h.points.push_back({double(bytes), rate(bytes, link.seconds_each([&] { return link.to_host(bytes); }))});
    double const both_s = link.seconds_each([&] {
      link.to_device(bytes);
      return link.to_host(bytes);
    });
    h.both_ways.points.push_back({double(bytes), 2 * double(bytes) / both_s});
    if (bytes < size) break;
  }
}

/// The host's products of one row and copies to the device at the same time, against each alone.
inline MutualRates measure_mutual(MeasuredLink& link, MeasuredProduct& product, Side const& host, MeasureClock const& clock) {
  MutualRates mutual;
  if (!product.prepare(1, HUGE_VAL)) return mutual;
  std::size_t const bytes = std::min(copied_piece_bytes, link.largest());
  std::int64_t next = 0;
  double const copy_s = link.seconds_each([&] { return link.to_device(bytes); });
  double const call_s = seconds_per_call(host, clock, false, [&](std::int64_t) { product.call(next++); });
  auto const count = [](double s, double each) { return std::clamp<std::int64_t>(std::int64_t(s / each) + 1, 2, 4096); };
  std::int64_t const n_calls = count(3 * clock.cell_s(), call_s), n_copies = count(2 * double(n_calls) * call_s, copy_s);
  double const begin = clock.elapsed_s();
  Ticket last;
  for (std::int64_t i = 0; i < n_copies; ++i) last = link.to_device(bytes);
  for (std::int64_t i = 0; i < n_calls; ++i) product.call(next++);
  host.synchronize();
  double const host_s = clock.elapsed_s() - begin;
  link.wait(last);
  double const all_s = std::max(clock.elapsed_s() - begin, host_s);
  // What was copied after the host had done went at the rate of copies alone.
  double const beside = double(n_copies) * copy_s - (all_s - host_s);
  mutual.host_share = std::clamp(double(n_calls) * call_s / host_s, 0.05, 1.0);
  mutual.h2d_share = std::clamp(beside / host_s, 0.05, 1.0);
  return mutual;
}

}  // namespace tiered::detail
