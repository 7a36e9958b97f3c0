/// Matrix products, routed experts, and what they read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/measure.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/format.hpp"

namespace bench {

/// Rows of activations as products with weights of `type` read them.
class Activations {
 public:
  Activations(Bench& b, DType type, std::int32_t n_tokens, std::int32_t dim)
      : x_(random_floats(std::size_t(n_tokens) * std::size_t(dim))), type_(b.table().activation[std::uint32_t(type)]) {
    if (type_ == DType::f32) return;
    converted_.resize(std::size_t(activation_bytes(type_, std::uint64_t(n_tokens), std::uint64_t(dim))));
    launch(b.table().convert[activation_form(type_)], QuantizeArgs{x_.data(), converted_.data(), n_tokens, dim}, b.cpu.queue());
    b.cpu.synchronize();
  }
  void const* data() const { return type_ == DType::f32 ? static_cast<void const*>(x_.data()) : converted_.data(); }

 private:
  std::vector<float> x_;
  std::vector<std::byte> converted_;
  DType type_;
};

inline constexpr std::int32_t few_tokens = 16;  ///< fewer wait for memory

/// The units that multiply weights of `type`.
inline Limit arithmetic_of(Bench const& b, DType type) {
  bool const in_tiles = b.tile_flop_per_s > 0 && b.table().activation[std::uint32_t(type)] == DType::act_bf16;
  return in_tiles ? Limit::bf16_tiles : Limit::arithmetic;
}

/// Of products with weights of `type` that are read once for all tokens.
inline Limit limit_of(Bench const& b, DType type, std::int32_t n_tokens) {
  return n_tokens < few_tokens ? Limit::memory : arithmetic_of(b, type);
}

/// As many rows as the memory has, but no more than 10^9 products for each thread: short runs find a moment when nobody disturbs them.
inline void bench_matmul(Bench& b, DType type, std::int32_t n_tokens) {
  std::int32_t const dim = b.choice.dim;
  std::uint64_t const row = row_bytes(type, std::uint64_t(dim));
  double const most_rows = std::min(double(b.memory.size() / row), 1e9 * b.cpu.n_threads() / dim / n_tokens);
  std::int32_t const rows = std::max(64, std::int32_t(most_rows) / 64 * 64);
  Activations const x(b, type, n_tokens, dim);
  std::vector<float> y(std::size_t(n_tokens) * std::size_t(rows));
  MatmulArgs const args{b.memory.data(), x.data(), nullptr, y.data(), n_tokens, rows, dim, rows};
  b.run({"matmul", name(type), n_tokens, 0, double(rows) * double(row), 2.0 * rows * dim * n_tokens, limit_of(b, type, n_tokens)},
        b.table().matmul[std::uint32_t(type)], args);
}

/// q, k and v of grouped-query attention; gate and up of a feed-forward network. Calls take turns with several weights, so that those come
/// from memory, not from the third-level cache.
inline void bench_fused(Bench& b, DType type, std::int32_t n_tokens) {
  std::int32_t const dim = b.choice.dim;
  double const row = double(row_bytes(type, std::uint64_t(dim)));
  Activations const x(b, type, n_tokens, dim);
  std::int32_t const rows[] = {dim, dim / 4, dim / 4}, hidden = 3 * dim;
  std::vector<float> y(std::size_t(n_tokens) * std::size_t(2 * hidden));
  std::size_t const least = std::size_t(2 * hidden * row);
  if (b.memory.size() < least) throw Error(Errc::precondition, concat("these sizes need --mib ", least / 1048576 + 1));
  std::int64_t const n_rows = std::int64_t(dim) + 2 * (dim / 4), all_rows = std::int64_t(double(b.memory.size()) / row);
  auto const product = [&](std::int64_t first_row, std::int32_t n, std::int64_t first_y) {
    return MatmulArgs{
        b.memory.data() + std::size_t(double(first_row) * row), x.data(), nullptr, y.data() + first_y * n_tokens, n_tokens, n, dim, n};
  };
  std::vector<MatmulSetArgs> sets;
  std::vector<GatedMatmulArgs> gated;
  for (std::int64_t first = 0; first + n_rows <= all_rows && sets.size() < 8; first += n_rows) {
    MatmulSetArgs set;
    std::int64_t at = 0;
    for (std::int32_t const r : rows) {
      set.types[set.n_parts] = type;
      set.parts[set.n_parts++] = product(first + at, r, at);
      at += r;
    }
    sets.push_back(set);
  }
  for (std::int64_t first = 0; first + 2 * hidden <= all_rows && gated.size() < 8; first += 2 * hidden)
    gated.push_back({product(first, hidden, 0), product(first + hidden, hidden, hidden), type, type});
  if (n_tokens >= few_tokens) sets.resize(1), gated.resize(1);  // weights from memory are for few tokens
  if (b.choice.has_op("matmul_set"))
    b.run({"matmul_set", name(type), n_tokens, 0, double(n_rows) * row, 2.0 * double(n_rows) * dim * n_tokens, limit_of(b, type, n_tokens)},
          b.table().matmul_set, sets);
  if (b.choice.has_op("gated_matmul"))
    b.run({"gated_mm", name(type), n_tokens, 0, 2 * hidden * row, 4.0 * hidden * dim * n_tokens, limit_of(b, type, n_tokens)},
          b.table().gated_matmul, gated);
}

/// Tokens and the experts that they were routed to, at random.
class Routing {
 public:
  Routing(std::int32_t n_tokens, std::int32_t n_experts, std::int32_t n_used, std::uint64_t seed) {
    SplitMix64 random(seed);
    std::vector<std::vector<std::int32_t>> slots_of(std::size_t(n_experts), std::vector<std::int32_t>{});
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      for (std::int32_t j = 0; j < n_used;) {
        auto& slots_of_one = slots_of[random.below(std::uint64_t(n_experts))];
        if (!slots_of_one.empty() && slots_of_one.back() / n_used == t) continue;
        slots_of_one.push_back(t * n_used + j++);
      }
    }
    for (std::int32_t e = 0; e < n_experts; ++e) {
      auto const& own = slots_of[std::size_t(e)];
      if (own.empty()) continue;
      ExpertGroup group;
      group.first = std::int32_t(slots.size()), group.n = std::int32_t(own.size());
      groups.push_back(group);
      experts.push_back(e);
      slots.insert(slots.end(), own.begin(), own.end());
    }
  }
  std::vector<ExpertGroup> groups;  ///< without weights
  std::vector<std::int32_t> experts, slots;
};

/// 8 of 128 experts of Qwen3-30B-A3B's size. Calls take turns with several routings, so that few tokens do not meet cached weights.
inline void bench_experts(Bench& b, DType type, std::int32_t n_tokens) {
  constexpr std::int32_t n_experts = 128, n_used = 8, dim = 2048, hidden = 768;
  std::size_t const matrix = std::size_t(row_bytes(type, std::uint64_t(dim) * hidden)), places = b.memory.size() / (3 * matrix);
  std::vector<Routing> routings;
  for (std::uint64_t seed = 1; seed <= (n_tokens < 16 ? 8u : 1u); ++seed) routings.emplace_back(n_tokens, n_experts, n_used, seed);
  std::int32_t const n_slots = n_tokens * n_used;
  std::vector<float> const x = random_floats(std::size_t(n_tokens) * dim);
  std::vector<float> y(std::size_t(n_slots) * dim);
  std::vector<std::byte> workspace(experts_workspace_bytes(n_tokens, n_slots, dim, hidden));
  std::vector<ExpertsArgs> calls;
  double bytes = 0;
  for (Routing& r : routings) {
    for (std::size_t g = 0; g < r.groups.size(); ++g) {
      std::byte const* const w = b.memory.data() + std::size_t(r.experts[g]) % places * 3 * matrix;
      r.groups[g].gate = w, r.groups[g].up = w + matrix, r.groups[g].down = w + 2 * matrix;
    }
    bytes += 3.0 * double(matrix) * double(r.groups.size()) / double(routings.size());
    ExpertsArgs args;
    args.x = x.data(), args.y = y.data(), args.groups = r.groups.data(), args.slots = r.slots.data(), args.workspace = workspace.data();
    args.n_groups = std::int32_t(r.groups.size()), args.n_tokens = n_tokens, args.n_used = n_used, args.dim = dim, args.hidden_dim = hidden;
    args.n_slots = n_slots;
    args.gate_type = args.up_type = args.down_type = type;
    calls.push_back(args);
  }
  // 16 tokens are one for each expert: memory is the limit far longer than where all tokens share the weights.
  Limit const limit = n_slots < 16 * n_experts ? Limit::memory : arithmetic_of(b, type);
  b.run({"experts", fmt::format("{} {}/{} {}x{}", name(type), n_used, n_experts, dim, hidden), n_tokens, 0, bytes,
         6.0 * dim * hidden * n_slots, limit},
        b.table().experts, calls);
}

inline void bench_products(Bench& b) {
  for_each_format([&](auto format) {
    constexpr DType type = decltype(format)::dtype;
    if (!b.choice.has_format(name(type))) return;
    for (std::int32_t const n_tokens : b.choice.tokens) {
      if (b.choice.has_op("matmul")) bench_matmul(b, type, n_tokens);
    }
    // For one format, if none is named: they differ from matmul in how the work is handed out.
    if (b.choice.formats.empty() && type != DType::q4_0) return;
    for (std::int32_t const n_tokens : b.choice.tokens) {
      if (b.choice.has_op("matmul_set") || b.choice.has_op("gated_matmul")) bench_fused(b, type, n_tokens);
    }
    for (std::int32_t const n_tokens : b.choice.tokens) {
      if (b.choice.has_op("experts")) bench_experts(b, type, n_tokens);
    }
  });
}

}  // namespace bench
