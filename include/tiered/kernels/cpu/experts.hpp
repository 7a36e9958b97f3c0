/// The feed-forward networks of routed experts, all tokens and experts of a layer in one op.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// The loops of one call, in the order in which they run. `Kernels`: see make_table.hpp.
template <class Kernels>
class Experts {
 public:
  Experts(ExpertsArgs const& args, ProductTable const& products, Team& team)
      : a_(args),
        team_(team),
        gate_(products.of(args.gate_type)),
        up_(products.of(args.up_type)),
        down_(products.of(args.down_type)),
        gate_q8_(gate_.activation == DType::act_q8),
        up_q8_(up_.activation == DType::act_q8),
        down_q8_(down_.activation == DType::act_q8) {
    std::byte* at = args.workspace + (64 - reinterpret_cast<std::uintptr_t>(args.workspace) % 64) % 64;
    auto const take = [&](std::size_t bytes) {
      std::byte* const region = at;
      at += (bytes + 63) / 64 * 64;
      return region;
    };
    std::size_t const hidden = std::size_t(args.n_slots) * std::size_t(args.hidden_dim);
    places_ = reinterpret_cast<Place*>(take(std::size_t(args.n_slots) * sizeof(Place)));
    tokens_ = reinterpret_cast<std::int32_t*>(take(std::size_t(args.n_slots) * sizeof(std::int32_t)));
    hidden_ = reinterpret_cast<float*>(take(hidden * sizeof(float)));
    hidden_up_ = reinterpret_cast<float*>(take(hidden * sizeof(float)));
    if (down_q8_) hidden_q8_ = take(std::size_t(args.n_slots) * row_bytes(DType::act_q8, std::uint64_t(args.hidden_dim)));
    if (gate_q8_ || up_q8_) x_q8_ = take(std::size_t(args.n_tokens) * row_bytes(DType::act_q8, std::uint64_t(args.dim)));
  }

  void run() {
    place_groups();
    if (x_q8_ != nullptr) Kernels::quantize({a_.x, x_q8_, a_.n_tokens, a_.dim}, team_);
    for_tiles(a_.hidden_dim, row_bytes(a_.gate_type, std::uint64_t(a_.dim)), std::max(gate_.row_step, up_.row_step),
              [this](Place at, Range rows) { gate_and_up(at, rows); });
    if (down_q8_) Kernels::quantize({hidden_, hidden_q8_, a_.n_slots, a_.hidden_dim}, team_);
    for_tiles(a_.dim, row_bytes(a_.down_type, std::uint64_t(a_.hidden_dim)), down_.row_step, [this](Place at, Range rows) { down(at, rows); });
  }

 private:
  /// A group that has slots, and where their rows of the hidden layer begin.
  struct Place {
    std::int32_t group, first;
  };

  /// Rows of the hidden layer follow the groups of this call, wherever their slots are.
  void place_groups() {
    std::int32_t first = 0;
    for (std::int32_t g = 0; g < a_.n_groups; ++g) {
      ExpertGroup const& group = a_.groups[g];
      if (group.n <= 0) continue;
      places_[n_places_++] = {g, first};
      for (std::int32_t i = 0; i < group.n; ++i) tokens_[first + i] = a_.slots[group.first + i] / a_.n_used;
      first += group.n;
    }
  }

  /// Calls body(place, rows) for ranges of rows that cover n_rows outputs of every group.
  template <class Body>
  void for_tiles(std::int32_t n_rows, std::uint64_t weight_row_bytes, std::int32_t row_step, Body const& body) {
    std::int32_t const mean_tokens = std::max(1, a_.n_slots / n_places_);
    Tiling tiling = make_tiling(n_rows, mean_tokens, std::size_t(weight_row_bytes), std::max(1, team_.size() / n_places_), row_step);
    tiling.tile_tokens = tiling.n_tokens;  // all tokens of a group at once
    std::int64_t const per_group = tiling.row_tiles();
    team_.parallel_for(n_places_ * per_group, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(places_[i / per_group], tiling.rows(i % per_group));
    });
  }

  static Product product(void const* w, void const* x, float* y, std::int32_t n_rows, std::int32_t dim) {
    Product p;
    p.w = w;
    p.x = x;
    p.y = y;
    p.rows = n_rows;
    p.dim = dim;
    p.y_stride = n_rows;
    return p;
  }

  void const* input(bool q8) const { return q8 ? static_cast<void const*>(x_q8_) : a_.x; }

  void gate_and_up(Place at, Range rows) const {
    ExpertGroup const& group = a_.groups[at.group];
    std::int64_t const first = std::int64_t(at.first) * a_.hidden_dim;
    float *const gate = hidden_ + first, *const up = hidden_up_ + first;
    Product p = product(group.gate, input(gate_q8_), gate, a_.hidden_dim, a_.dim);
    p.x_rows = tokens_ + at.first;
    gate_.tile(p, rows, {0, group.n});
    p.w = group.up;
    p.x = input(up_q8_);
    p.y = up;
    up_.tile(p, rows, {0, group.n});
    for (std::int64_t t = 0; t < group.n; ++t) {
      std::int64_t const row = t * a_.hidden_dim + rows.begin;
      Kernels::Leaf::gated(gate + row, up + row, a_.activation, rows.size(), gate + row);
    }
  }

  void down(Place at, Range rows) const {
    ExpertGroup const& group = a_.groups[at.group];
    std::size_t const x_bytes = std::size_t(row_bytes(down_q8_ ? DType::act_q8 : DType::f32, std::uint64_t(a_.hidden_dim)));
    std::byte const* const x = down_q8_ ? hidden_q8_ : reinterpret_cast<std::byte const*>(hidden_);
    Product p = product(group.down, x + std::size_t(at.first) * x_bytes, a_.y, a_.dim, a_.hidden_dim);
    p.y_rows = a_.slots + group.first;
    down_.tile(p, rows, {0, group.n});
  }

  ExpertsArgs const& a_;
  Team& team_;
  ProductKernel gate_, up_, down_;
  bool gate_q8_, up_q8_, down_q8_;  // whether the product reads 8-bit activations
  Place* places_ = nullptr;         // [n_places_]
  std::int32_t* tokens_ = nullptr;  // [n_slots], of each row of the hidden layer
  std::int32_t n_places_ = 0;
  float *hidden_ = nullptr, *hidden_up_ = nullptr;
  std::byte *hidden_q8_ = nullptr, *x_q8_ = nullptr;
};

template <ProductTable const* products, class Kernels>
void experts(ExpertsArgs const& args, Team& team) {
  if (args.n_slots > 0) Experts<Kernels>(args, *products, team).run();
}

}  // namespace tiered::cpu
