/// What measurements share: a clock with a limit, memory of a device by purpose, and how long a call takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/profile/measure.hpp"

namespace tiered::detail {

/// Shares out a time: cells are of one length, and once it is late for a part of the work, only what cannot be left out of it is measured.
class MeasureClock {
 public:
  explicit MeasureClock(double seconds) : seconds_(seconds) {}
  double elapsed_s() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  bool is_late() const { return elapsed_s() > late_s_; }
  /// What follows has until this share of the time.
  void late_after(double share) { late_s_ = share * seconds_; }
  /// Of one figure. There are some 150.
  double cell_s() const { return seconds_ / 300; }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double seconds_, late_s_ = 0.9 * seconds_;
};

/// The best of batches of calls, enough of them that one which was held up does not count: once a cell is spent, and four batches of a
/// quarter of it at least, or eight cells; one cell where it is late. batch(n) makes n calls, waits, and gives their seconds.
inline double best_of_batches(MeasureClock const& clock, FunctionRef<double(std::int64_t n)> batch) {
  constexpr std::int64_t most = 1 << 14;
  double best = HUGE_VAL, spent = 0;
  std::int64_t n = 1;
  int n_full = 0;
  while (spent < clock.cell_s() || (n_full < 4 && spent < 8 * clock.cell_s() && !clock.is_late())) {
    double const took = batch(n);
    best = std::min(best, took / double(n));
    spent += took;
    bool const is_full = best * double(n) >= clock.cell_s() / 4 || n == most;
    n_full += is_full ? 1 : 0;
    if (!is_full) n = std::min(n * 2, most);
  }
  return std::max(best, 1e-9);
}

/// Memory that a side reads and writes, by purpose.
struct MeasureRoom {
  Side side;
  CopyLane copy;
  bool on_device = false;
  std::span<std::byte> x, converted, y, tables, weights;  ///< weights: of a device only; the host reads its own where they are

  static MeasureRoom carve(Side side, CopyLane copy, bool on_device, std::span<std::byte> memory) {
    MeasureRoom room{side, copy, on_device, {}, {}, {}, {}, {}};
    std::size_t const part = memory.size() / (on_device ? 8 : 3) / 512 * 512;
    std::size_t at = 0;
    for (std::span<std::byte>* const span : {&room.x, &room.converted, &room.y}) *span = memory.subspan(part * at++, part);
    room.tables = room.y.last(part / 4), room.y = room.y.first(part - part / 4);
    if (on_device) room.weights = memory.subspan(part * at);
    room.fill_x();
    return room;
  }

  /// Copies from host memory to here and waits for it.
  void put(std::byte* dst, void const* src, std::size_t bytes) {
    if (bytes == 0) return;
    if (!on_device) {
      std::memcpy(dst, src, bytes);
    } else {
      copy.wait(copy.submit({dst, static_cast<std::byte const*>(src), bytes}, Ticket{}));
    }
  }
  float* floats(std::span<std::byte> span) const { return reinterpret_cast<float*>(span.data()); }

 private:
  /// Normal numbers, not all alike: some units take less power, and so run faster, on zeros.
  void fill_x() {
    std::vector<float> block(std::min<std::size_t>(x.size(), std::size_t{1} << 20) / sizeof(float));
    SplitMix64 random(1);
    for (float& value : block) value = random.between(-1, 1);
    std::size_t const bytes = block.size() * sizeof(float);
    for (std::size_t at = 0; bytes != 0 && at < x.size(); at += bytes) put(x.data() + at, block.data(), std::min(bytes, x.size() - at));
  }
};

/// Seconds of one call, the best of several batches that each are waited for. call(i) enqueues number i. Short kernels of a device that
/// captures are launched as graphs, as decode launches them.
inline double seconds_per_call(Side const& side, MeasureClock const& clock, bool as_graph, FunctionRef<void(std::int64_t i)> call) {
  constexpr std::int64_t graph_calls = 32;
  call(0);  // loads the kernel
  side.synchronize();
  GraphRef graph;
  if (as_graph && side.can_capture()) {
    side.begin_capture();
    try {
      for (std::int64_t i = 0; i < graph_calls; ++i) call(i);
      graph = side.end_capture();
    } catch (...) {
      side.abandon_capture();
      throw;
    }
    side.launch_graph(graph);
    side.synchronize();
  }
  std::int64_t next = 1;
  double const seconds = best_of_batches(clock, [&](std::int64_t n) {
    double const begin = clock.elapsed_s();
    for (std::int64_t i = 0; i < n; ++i) {
      if (graph) {
        side.launch_graph(graph);
      } else {
        call(next++);
      }
    }
    side.synchronize();
    return clock.elapsed_s() - begin;
  });
  return seconds / double(graph ? graph_calls : 1);
}

/// Reads a byte of each page: they are mapped then, and come from a disk if they must.
inline void read_pages(std::span<std::byte const> bytes) {
  std::byte const volatile* const first = bytes.data();
  for (std::size_t at = 0; at < bytes.size(); at += 4096) {
    std::byte const value = first[at];
    static_cast<void>(value);
  }
}

/// Stretches of the model's matrices in host memory, each contiguous, the first `limit` bytes of them; read a little beforehand, so that
/// their pages are there, as long as that is quick.
inline std::vector<std::span<std::byte const>> host_ranges(std::span<Weight const> weights, std::size_t limit, MeasureClock const& clock) {
  constexpr double patience_s = 0.3;
  std::vector<std::span<std::byte const>> parts, joined;
  for (Weight const& w : weights) {
    if (w.rows > 1) parts.push_back({w.data, w.bytes()});
  }
  std::sort(parts.begin(), parts.end(), [](auto const& a, auto const& b) { return std::less<>{}(a.data(), b.data()); });
  for (auto const& part : parts) {
    if (!joined.empty() && joined.back().data() + joined.back().size() == part.data()) {
      joined.back() = {joined.back().data(), joined.back().size() + part.size()};
    } else if (joined.empty() || joined.back().data() + joined.back().size() < part.data()) {  // a tied head is there twice
      joined.push_back(part);
    }
  }
  std::stable_sort(joined.begin(), joined.end(), [](auto const& a, auto const& b) { return a.size() > b.size(); });
  double const begin = clock.elapsed_s();
  constexpr std::size_t step = std::size_t{1} << 20;
  std::vector<std::span<std::byte const>> out;
  auto const is_patient = [&] { return clock.elapsed_s() - begin < patience_s; };
  for (auto range : joined) {
    std::size_t n = 0;
    for (; n < std::min(range.size(), limit) && (out.empty() || is_patient()); n = std::min({n + step, range.size(), limit})) {
      read_pages(range.subspan(n, std::min({step, range.size() - n, limit - n})));
    }
    if (n == 0) break;
    out.push_back(range.first(n));
    limit -= n;
  }
  return out;
}

}  // namespace tiered::detail
