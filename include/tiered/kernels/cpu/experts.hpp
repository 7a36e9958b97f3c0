/// The feed-forward networks of routed experts, all tokens and experts of a layer in one op.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/embed.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/cpu/tile_shares.hpp"
#include "tiered/memory/detail/lane_wait.hpp"

namespace tiered::cpu {

/// Whether products of an instruction set read act_bf16.
template <class Kernels>
inline constexpr bool has_panels = requires(QuantizeArgs const& args, Team& team) {
  Kernels::make_panels(args, team);
};

/// What a piece of a window has beside ExpertsArgs.
struct WindowPiece {
  std::byte* x_q8 = nullptr;  ///< x in 8-bit blocks, if any product reads those
  bool y_by_place = false;    ///< y() [n_slots, dim] instead of ExpertsArgs::y
};

/// The loops of one call, in the order in which they run. `Kernels`: see make_table.hpp.
template <class Kernels>
class Experts {
 public:
  /// `piece`: null for a call by itself.
  Experts(ExpertsArgs const& args, ProductTable const& products, Team& team, WindowPiece const* piece = nullptr)
      : a_(args), team_(team), gate_(products.of(args.gate_type)), up_(products.of(args.up_type)), down_(products.of(args.down_type)) {
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
    auto const x_as = [&](DType form) { return gate_.activation == form || up_.activation == form; };
    if (down_.activation != DType::f32) hidden_converted_ = take(bytes_in(down_.activation, args.n_slots, args.hidden_dim));
    if (piece != nullptr) {
      x_q8_ = piece->x_q8;
      if (piece->y_by_place) y_ = reinterpret_cast<float*>(at);  // over what `down` does not read
    } else if (x_as(DType::act_q8)) {
      x_q8_ = take(bytes_in(DType::act_q8, args.n_tokens, args.dim));
      quantizes_ = true;
    }
    hidden_up_ = reinterpret_cast<float*>(take(hidden * sizeof(float)));
    if (x_as(DType::act_bf16)) x_panels_ = take(bytes_in(DType::act_bf16, args.n_slots, args.dim));
  }

  void run() {
    place_groups();
    if (n_places_ == 0) return;
    if (quantizes_) quantize<typename Kernels::Leaf>({a_.x, x_q8_, a_.n_tokens, a_.dim}, team_);
    if (x_panels_ != nullptr) pack_groups(a_.x, tokens_, a_.dim, x_panels_);
    if (is_one_loop()) return run_as_one_loop();
    for_tiles(a_.hidden_dim, a_.dim, a_.gate_type, gate_.row_step >= up_.row_step ? gate_ : up_, [this](Place at, Range rows) {
      void const* const then = rows.end < a_.hidden_dim ? row_of(a_.groups[at.group].gate, a_.gate_type, a_.dim, rows.end) : nullptr;
      gate_and_up(at, rows, then);
    });
    if (down_.activation == DType::act_q8) quantize<typename Kernels::Leaf>({hidden_, hidden_converted_, a_.n_slots, a_.hidden_dim}, team_);
    if (down_.activation == DType::act_bf16) pack_groups(hidden_, nullptr, a_.hidden_dim, hidden_converted_);
    for_tiles(a_.dim, a_.hidden_dim, a_.down_type, down_, [this](Place at, Range rows) { down(at, rows, nullptr); });
  }
  float const* y() const { return y_; }

 private:
  /// A group that has slots, and where their rows of the hidden layer begin.
  struct Place {
    std::int32_t group, first;
  };

  static constexpr std::int32_t most_places_at_once = 32;
  struct alignas(64) Half {
    std::atomic<std::int32_t> n_done{0};  ///< tiles of gate and up
    std::atomic<bool> is_ready{false};    ///< the hidden rows are as `down` reads them
  };

  /// Few tokens, whose hidden rows are converted by one member in a microsecond. y_ lies over what gate and up still need.
  bool is_short() const { return a_.n_slots <= 4 * n_places_; }
  bool is_one_loop() const {
    return team_.size() > 1 && is_short() && n_places_ <= most_places_at_once && x_panels_ == nullptr && y_ == nullptr &&
           (down_.activation == DType::act_q8 || down_.activation == DType::f32);
  }

  /// Both halves of all groups: between loops all members wait for the slowest, which of a few experts' work is a large part. Tiles of
  /// `down` are handed out behind all of gate and up; one waits only for the hidden rows of its own group, whose tiles somebody has taken
  /// long before, and waits for nothing. A member takes its next tile before it begins one, so that weights come from memory without a gap;
  /// it holds two of gate and up then, which wait for nothing, or waits with one that comes later than all that it waits for.
  void run_as_one_loop() {
    Tiling const first = tiling_for(a_.hidden_dim, a_.dim, a_.gate_type, gate_.row_step >= up_.row_step ? gate_ : up_),
                 second = tiling_for(a_.dim, a_.hidden_dim, a_.down_type, down_);
    std::int64_t const n_first = first.row_tiles() * n_places_, n = n_first + second.row_tiles() * n_places_;
    std::array<Half, most_places_at_once> halves;
    TileShares shares(std::int32_t(first.row_tiles()), std::int32_t(second.row_tiles()), n_places_, team_.size());
    team_.parallel_for(team_.size(), 1, [&](std::int64_t share, std::int64_t) {
      auto const take = [&] { return shares.take(std::int32_t(share)); };
      auto const begin_of = [&](std::int64_t i) -> void const* {
        if (i >= n) return nullptr;
        bool const is_first = i < n_first;
        std::int64_t const tile = is_first ? i : i - n_first, per_place = is_first ? first.row_tiles() : second.row_tiles();
        ExpertGroup const& group = a_.groups[places_[tile / per_place].group];
        return is_first ? row_of(group.gate, a_.gate_type, a_.dim, first.rows(tile % per_place).begin)
                        : row_of(group.down, a_.down_type, a_.hidden_dim, second.rows(tile % per_place).begin);
      };
      std::int64_t then = 0;
      for (std::int64_t i = take(); i < n; i = then) {
        then = take();
        if (i < n_first) {
          std::int64_t const place = i / first.row_tiles();
          gate_and_up(places_[place], first.rows(i % first.row_tiles()), begin_of(then));
          Half& half = halves[std::size_t(place)];
          if (half.n_done.fetch_add(1, std::memory_order_acq_rel) + 1 < first.row_tiles()) continue;
          convert_hidden(places_[place]);
          half.is_ready.store(true, std::memory_order_release);
        } else {
          std::int64_t const place = (i - n_first) / second.row_tiles();
          tiered::detail::wait_until([&] { return halves[std::size_t(place)].is_ready.load(std::memory_order_acquire); });
          down(places_[place], second.rows((i - n_first) % second.row_tiles()), begin_of(then));
        }
      }
    });
  }

  void convert_hidden(Place at) const {
    if (down_.activation != DType::act_q8) return;
    constexpr int elems = ActQ8x32::block_elems;
    Kernels::Leaf::quantize(hidden_ + std::int64_t(at.first) * a_.hidden_dim, std::int64_t(a_.groups[at.group].n) * (a_.hidden_dim / elems),
                            reinterpret_cast<ActQ8x32*>(hidden_converted_ + bytes_in(DType::act_q8, at.first, a_.hidden_dim)));
  }

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

  // ---- activations as the products read them. Rows in panels cannot be picked from elsewhere: each group has panels of its own.

  static std::size_t bytes_in(DType form, std::int32_t n_rows, std::int32_t dim) {
    return std::size_t(activation_bytes(form, std::uint64_t(n_rows), std::uint64_t(dim)));
  }

  /// Row i of the call's slots is x[index[i]], or x[i].
  void pack_groups(float const* x, std::int32_t const* index, std::int32_t dim, std::byte* y) const {
    if constexpr (has_panels<Kernels>) pack_parts(x, index, dim, y);
  }
  void pack_parts(float const* x, std::int32_t const* index, std::int32_t dim, std::byte* y) const {
    constexpr std::int32_t part_elems = 512;
    std::int64_t const parts = (dim + part_elems - 1) / part_elems;
    std::int64_t const elems = std::int64_t(std::min(dim, part_elems)) * a_.n_slots / n_places_;
    team_.parallel_for(n_places_ * parts, row_grain(team_, n_places_ * parts, elems), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Place const at = places_[i / parts];
        std::int32_t const k = std::int32_t(i % parts) * part_elems, n = a_.groups[at.group].n;
        Range const part{k, std::min(dim, k + part_elems)};
        std::byte* const panels = y + bytes_in(DType::act_bf16, at.first, dim);
        if (index != nullptr) {
          Kernels::pack({x, index + at.first, n, dim}, part, panels);
        } else {
          Kernels::pack({x + std::int64_t(at.first) * dim, nullptr, n, dim}, part, panels);
        }
      }
    });
  }

  /// Of few tokens all groups together take as long as some tiles of the usual size: smaller ones, or members wait for the last.
  Tiling tiling_for(std::int32_t n_rows, std::int32_t dim, DType type, ProductKernel const& kernel) const {
    MatmulArgs group;
    group.n_tokens = std::max(1, a_.n_slots / n_places_);
    group.rows = n_rows;
    group.dim = dim;
    Tiling tiling = tiling_of(group, type, kernel, is_short() ? team_.size() : std::max(1, team_.size() / n_places_));
    tiling.tile_tokens = tiling.n_tokens;  // all tokens of a group at once
    return tiling;
  }

  /// Calls body(place, rows) for ranges of rows that cover n_rows outputs of every group.
  template <class Body>
  void for_tiles(std::int32_t n_rows, std::int32_t dim, DType type, ProductKernel const& kernel, Body const& body) {
    Tiling const tiling = tiling_for(n_rows, dim, type, kernel);
    std::int64_t const per_group = tiling.row_tiles();
    team_.parallel_for(n_places_ * per_group, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) body(places_[i / per_group], tiling.rows(i % per_group));
    });
  }

  static Product product(void const* w, float* y, std::int32_t n_tokens, std::int32_t n_rows, std::int32_t dim) {
    Product p;
    p.w = w;
    p.y = y;
    p.n_tokens = n_tokens;
    p.rows = n_rows;
    p.dim = dim;
    p.y_stride = n_rows;
    return p;
  }

  /// x of a group: rows of all tokens, or, in panels, its own.
  void set_x(Product& p, ProductKernel const& kernel, Place at) const {
    bool const own = kernel.activation == DType::act_bf16;
    p.x_rows = own ? nullptr : tokens_ + at.first;
    p.x = a_.x;
    if (own) p.x = x_panels_ + bytes_in(DType::act_bf16, at.first, a_.dim);
    if (kernel.activation == DType::act_q8) p.x = x_q8_;
  }

  /// then: what the calling thread reads next, if that is known.
  void gate_and_up(Place at, Range rows, void const* then) const {
    ExpertGroup const& group = a_.groups[at.group];
    std::int64_t const first = std::int64_t(at.first) * a_.hidden_dim;
    float *const gate = hidden_ + first, *const up = hidden_up_ + first;
    Product p = product(group.gate, gate, group.n, a_.hidden_dim, a_.dim);
    set_x(p, gate_, at);
    p.then = row_of(group.up, a_.up_type, a_.dim, rows.begin);
    gate_.tile(p, rows, {0, group.n});
    p.w = group.up;
    p.then = then;
    p.y = up;
    set_x(p, up_, at);
    up_.tile(p, rows, {0, group.n});
    for (std::int64_t t = 0; t < group.n; ++t) {
      std::int64_t const row = t * a_.hidden_dim + rows.begin;
      Kernels::Leaf::gated(gate + row, up + row, a_.activation, rows.size(), gate + row);
    }
  }

  void down(Place at, Range rows, void const* then) const {
    ExpertGroup const& group = a_.groups[at.group];
    Product p = product(group.down, a_.y, group.n, a_.dim, a_.hidden_dim);
    p.x = hidden_ + std::int64_t(at.first) * a_.hidden_dim;
    if (down_.activation != DType::f32) p.x = hidden_converted_ + bytes_in(down_.activation, at.first, a_.hidden_dim);
    if (y_ != nullptr) {
      p.y = y_ + std::int64_t(at.first) * a_.dim;
    } else {
      p.y_rows = a_.slots + group.first;
    }
    p.then = then;
    down_.tile(p, rows, {0, group.n});
  }

  ExpertsArgs const& a_;
  Team& team_;
  ProductKernel gate_, up_, down_;
  Place* places_ = nullptr;         // [n_places_]
  std::int32_t* tokens_ = nullptr;  // [n_slots], of each row of the hidden layer
  std::int32_t n_places_ = 0;
  float *hidden_ = nullptr, *hidden_up_ = nullptr, *y_ = nullptr;
  bool quantizes_ = false;
  std::byte *hidden_converted_ = nullptr, *x_q8_ = nullptr, *x_panels_ = nullptr;  // null: no product reads it
};

template <ProductTable const* products, class Kernels>
void experts(ExpertsArgs const& args, Team& team) {
  if (args.n_slots > 0) Experts<Kernels>(args, *products, team).run();
}

}  // namespace tiered::cpu
