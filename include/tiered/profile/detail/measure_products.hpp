/// Products of one format at several numbers of rows, on the host or on a device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tiered/kernels/backend.hpp"
#include "tiered/profile/detail/measure_room.hpp"

namespace tiered::detail {

/// One product, over and over, each time with other weights.
class MeasuredProduct {
 public:
  virtual ~MeasuredProduct() = default;
  /// For `n` rows, in at most about so many flops; false where there is no room or no kernel.
  virtual bool prepare(std::int32_t n, double most_flops) = 0;
  virtual void call(std::int64_t i) = 0;
  double flops() const { return flops_; }
  double bytes() const { return bytes_; }
  /// Its kernels are those that decode launches as a graph.
  bool is_short() const { return short_; }
  std::int32_t n_launches() const { return n_launches_; }

 protected:
  double flops_ = 0, bytes_ = 0;
  bool short_ = false;
  std::int32_t n_launches_ = 1;
};

/// Where matrices of one set lie side by side on the side that reads them.
using WeightSet = std::vector<std::byte const*>;

/// Read in turn, so much is no cache's: the last level of some servers holds 300 MB and more.
inline constexpr std::size_t uncached_bytes = std::size_t{1} << 30;

/// What products of this model read on the host at most: memory's rate, where the model is more than caches hold. A measured product may
/// have been quicker, whose matrices were in part in a cache.
inline double most_host_bytes_per_s(HardwareProfile const& h, ShardTable const& table) {
  std::size_t bytes = 0;
  for (Shard const& s : table.shards) bytes += s.bytes;
  double const read = h.dram_by_threads.peak_per_s();
  return read > 0 && bytes > uncached_bytes ? read : HUGE_VAL;
}

/// Sets of matrices for a side to read, one after another: on the host the model's own, uncached_bytes of them as far as they are there at
/// once; on a device copies, as many as fit, with at most `bytes_each` of each matrix.
inline std::vector<WeightSet> place_weights(MeasureRoom& room, std::vector<std::vector<Weight const*>> const& sets, std::size_t bytes_each,
                                            MeasureClock const& clock) {
  constexpr std::size_t most_sets = 4096;
  constexpr double patience_s = 0.15;
  double const begin = clock.elapsed_s();
  std::vector<WeightSet> placed;
  std::size_t at = 0;
  auto const place_on_device = [&](std::vector<Weight const*> const& set) {
    WeightSet where;
    for (Weight const* w : set) {
      std::size_t const bytes = std::min(w->bytes(), bytes_each);
      if (at + bytes > room.weights.size()) return false;
      room.put(room.weights.data() + at, w->data, bytes);
      where.push_back(room.weights.data() + at);
      at += (bytes + weight_alignment - 1) / weight_alignment * weight_alignment;
    }
    placed.push_back(std::move(where));
    return true;
  };
  auto const place_on_host = [&](std::vector<Weight const*> const& set) {
    placed.emplace_back();
    for (Weight const* w : set) {
      read_pages({w->data, w->bytes()});
      placed.back().push_back(w->data);
      at += w->bytes();
    }
    return at < uncached_bytes && clock.elapsed_s() - begin < patience_s;
  };
  for (std::size_t i = 0; !sets.empty() && i < (room.on_device ? most_sets : sets.size()); ++i) {
    auto const& set = sets[i % sets.size()];
    if (!(room.on_device ? place_on_device(set) : place_on_host(set))) break;
  }
  return placed;
}

class DenseProduct final : public MeasuredProduct {
 public:
  DenseProduct(MeasureRoom& room, FormatRates const& format, std::vector<std::vector<Weight const*>> const& sets, MeasureClock const& clock)
      : room_(room), format_(format), row_bytes_(row_bytes(format.dtype, std::uint64_t(format.cols))) {
    rows_ = format.rows;
    if (room.on_device && room.weights.size() / row_bytes_ < std::size_t(rows_)) {
      rows_ = std::int32_t(room.weights.size() / row_bytes_);
      if (rows_ > 64) rows_ = rows_ / 64 * 64;
    }
    if (rows_ > 0) weights_ = place_weights(room, sets, std::size_t(rows_) * row_bytes_, clock);
  }

  bool prepare(std::int32_t n, double most_flops) override {
    KernelTable const& kernels = room_.side.kernels();
    if (weights_.empty() || !kernels.supports(format_.dtype)) return false;
    std::size_t const x_bytes = std::size_t(n) * std::size_t(format_.cols) * sizeof(float);
    if (x_bytes > room_.x.size()) return false;
    double rows = std::min(double(rows_), double(room_.y.size() / sizeof(float) / std::size_t(n)));
    rows = std::min(rows, std::max(256.0, most_flops / (2.0 * n * format_.cols)));
    if (rows < rows_ && rows >= 64) rows = std::floor(rows / 64) * 64;
    if (rows < 1) return false;
    std::int32_t const n_rows = std::int32_t(rows);
    short_ = kernels.fused_matmul != nullptr && kernels.fuses(format_.dtype, n, format_.cols);
    DType const takes = kernels.activation[std::uint32_t(format_.dtype)];
    void const* x = room_.x.data();
    if (!short_ && takes != DType::f32) {
      if (activation_bytes(takes, std::uint64_t(n), std::uint64_t(format_.cols)) > room_.converted.size()) return false;
      launch(kernels.convert[activation_form(takes)], QuantizeArgs{room_.floats(room_.x), room_.converted.data(), n, format_.cols},
             room_.side.queue());
      x = room_.converted.data();
    }
    plain_ = {nullptr, x, nullptr, room_.floats(room_.y), n, n_rows, format_.cols, n_rows};
    fused_ = {};
    fused_.x = room_.floats(room_.x);
    fused_.parts[0] = {nullptr, nullptr, room_.floats(room_.y), n_rows, n_rows, format_.dtype};
    fused_.n_parts = 1, fused_.n_tokens = n, fused_.dim = format_.cols;
    flops_ = 2.0 * n * n_rows * format_.cols;
    bytes_ = double(n_rows) * double(row_bytes_);
    return true;
  }
  void call(std::int64_t i) override {
    std::byte const* const w = weights_[std::size_t(i) % weights_.size()].front();
    if (short_) {
      fused_.parts[0].w = w;
      return launch(room_.side.kernels().fused_matmul, fused_, room_.side.queue());
    }
    plain_.w = w;
    launch(room_.side.kernels().matmul[std::uint32_t(format_.dtype)], plain_, room_.side.queue());
  }

 private:
  MeasureRoom& room_;
  FormatRates format_;
  std::size_t row_bytes_;
  std::int32_t rows_ = 0;
  std::vector<WeightSet> weights_;
  MatmulArgs plain_;
  FusedMatmulArgs fused_;
};

/// As many experts at once as a token uses, each with n rows of its own.
class ExpertProduct final : public MeasuredProduct {
 public:
  ExpertProduct(MeasureRoom& room, FormatRates const& format, std::vector<std::vector<Weight const*>> const& sets,
                MeasureClock const& clock, std::int32_t n_used)
      : room_(room), format_(format), most_at_once_(std::max(n_used, 1)), weights_(place_weights(room, sets, ~std::size_t{0}, clock)) {
    auto const bytes = [](DType type, std::int32_t cols) { return double(row_bytes(type, std::uint64_t(cols))); };
    set_bytes_ =
        format.rows * (bytes(format.dtype, format.cols) + bytes(format.up, format.cols)) + format.cols * bytes(format.down, format.rows);
    n_launches_ = 2;
  }

  bool prepare(std::int32_t n, double most_flops) override {
    KernelTable const& kernels = room_.side.kernels();
    if (weights_.empty() || kernels.experts == nullptr) return false;
    for (DType const type : {format_.dtype, format_.up, format_.down}) {
      if (!kernels.supports(type)) return false;
    }
    double const flops_each = 6.0 * n * format_.rows * format_.cols;
    std::size_t at_once = std::min(std::size_t(most_at_once_), weights_.size());
    while (at_once > 1 && flops_each * double(at_once) > most_flops) at_once /= 2;
    while (!fits(n, at_once)) {
      if (at_once <= 1) return false;
      at_once /= 2;
    }
    std::int32_t const g = std::int32_t(at_once);
    n_calls_ = std::min(weights_.size() / at_once, room_.tables.size() / 2 / (at_once * sizeof(ExpertGroup)));
    std::vector<ExpertGroup> groups;
    std::vector<std::int32_t> slots;
    for (std::size_t i = 0; i < n_calls_ * at_once; ++i) {
      WeightSet const& w = weights_[i];
      groups.push_back({w[0], w[1], w[2], std::int32_t(i % at_once) * n, n});
    }
    for (std::int32_t e = 0; e < g; ++e) {
      for (std::int32_t t = 0; t < n; ++t) slots.push_back(t * g + e);
    }
    std::byte* const at = room_.tables.data();
    std::byte* const behind = at + room_.tables.size() / 2;
    room_.put(at, groups.data(), groups.size() * sizeof(ExpertGroup));
    room_.put(behind, slots.data(), slots.size() * sizeof(std::int32_t));
    groups_ = reinterpret_cast<ExpertGroup const*>(at);
    args_ = {};
    args_.x = room_.floats(room_.x), args_.y = room_.floats(room_.y), args_.workspace = room_.converted.data();
    args_.slots = reinterpret_cast<std::int32_t const*>(behind);
    args_.n_groups = g, args_.n_tokens = n, args_.n_used = g, args_.n_slots = g * n;
    args_.dim = format_.cols, args_.hidden_dim = format_.rows;
    args_.gate_type = format_.dtype, args_.up_type = format_.up, args_.down_type = format_.down;
    flops_ = flops_each * g;
    bytes_ = set_bytes_ * g;
    short_ = kernels.fused_rows > 0 && n <= kernels.fused_rows;
    return true;
  }
  void call(std::int64_t i) override {
    args_.groups = groups_ + std::size_t(i) % n_calls_ * std::size_t(args_.n_groups);
    launch(room_.side.kernels().experts, args_, room_.side.queue());
  }

 private:
  bool fits(std::int32_t n, std::size_t at_once) const {
    std::size_t const n_slots = std::size_t(n) * at_once, row = std::size_t(format_.cols) * sizeof(float);
    return std::size_t(n) * row <= room_.x.size() && n_slots * row <= room_.y.size() &&
           experts_workspace_bytes(n, std::int32_t(n_slots), format_.cols, format_.rows) <= room_.converted.size() &&
           n_slots * sizeof(std::int32_t) <= room_.tables.size() / 2 && at_once * sizeof(ExpertGroup) <= room_.tables.size() / 2;
  }

  MeasureRoom& room_;
  FormatRates format_;
  std::int32_t most_at_once_;
  double set_bytes_ = 0;
  std::vector<WeightSet> weights_;
  std::size_t n_calls_ = 1;
  ExpertGroup const* groups_ = nullptr;
  ExpertsArgs args_;
};

/// The matrices of a format: each alone, or gate, up and down of each expert.
inline std::vector<std::vector<Weight const*>> sets_of(FormatRates const& format, ShardTable const& table,
                                                       std::span<Weight const> weights) {
  std::vector<std::vector<Weight const*>> sets;
  for (Shard const& s : table.shards) {
    if (s.kind == ShardKind::embedding || (s.kind == ShardKind::expert) != format.experts) continue;
    if (!format.experts) {
      for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
        Weight const& w = weights[std::size_t(i)];
        if (w.rows == format.rows && w.cols == format.cols && w.dtype == format.dtype) sets.push_back({&w});
      }
    } else if (s.weights.size() == 3) {
      Weight const* const w = &weights[std::size_t(s.weights.begin)];
      if (w[0].dtype == format.dtype && w[1].dtype == format.up && w[2].dtype == format.down && w[0].rows == format.rows &&
          w[0].cols == format.cols)
        sets.push_back({w, w + 1, w + 2});
    }
  }
  return sets;
}

inline std::unique_ptr<MeasuredProduct> make_product(MeasureRoom& room, FormatRates const& format, MeasureInput const& in,
                                                     MeasureClock const& clock) {
  auto const sets = sets_of(format, in.table, in.weights);
  if (format.experts) return std::make_unique<ExpertProduct>(room, format, sets, clock, in.n_experts_used);
  return std::make_unique<DenseProduct>(room, format, sets, clock);
}

/// Its rates at 1 to 2048 rows, as far as there is room: more rows are left to the last figure; those in between, where there is no time.
/// Nothing where it has no kernel.
inline MatmulRates measure_product(MeasuredProduct& product, Side const& side, double launch_s, MeasureClock const& clock) {
  MatmulRates rates;
  double const cell_s = clock.cell_s();
  for (std::int32_t const n : {1, 4, 16, 64, 512, 2048}) {
    auto const& points = rates.flops_by_rows.points;
    double const last = points.empty() ? 0 : points.back().per_s;
    if (n > 1 && points.empty()) break;
    bool const needed = n == 1 || n == 64 || n == 512;
    if (!needed && clock.is_late()) continue;
    if (!product.prepare(n, last > 0 ? 4 * cell_s * last : HUGE_VAL)) break;
    if (last > 0 && product.flops() / last > 30 * cell_s) break;
    double const measured = seconds_per_call(side, clock, product.is_short(), [&](std::int64_t i) { product.call(i); });
    double const seconds = std::max(measured - product.n_launches() * launch_s, measured / 2);
    rates.flops_by_rows.points.push_back({double(n), product.flops() / seconds});
    rates.bytes_per_s = std::max(rates.bytes_per_s, n == 1 ? product.bytes() / seconds : 0);
  }
  return rates;
}

}  // namespace tiered::detail
