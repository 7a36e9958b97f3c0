/// What attention by the CUDA kernels is held against: the reference, and how far sums in other orders may be off.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "cuda/kv_pages.hpp"
#include "tiered/kernels/cuda/attention_tuning.hpp"

namespace tiered_test {

inline AttentionArgs args_of(AttentionCase const& c, std::int32_t n, std::int32_t max_position) {
  AttentionArgs args;
  args.n_tokens = n;
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.page_tokens = c.page_tokens;
  args.max_position = max_position;
  args.window = c.window;
  args.scale = 1 / std::sqrt(float(c.head_dim));
  return args;
}

inline std::int32_t largest_position(std::vector<KvRow> const& rows) {
  std::int32_t largest = 0;
  for (KvRow const row : rows) largest = std::max(largest, row.position);
  return largest;
}

inline constexpr Range everything{0, std::numeric_limits<std::int32_t>::max()};

/// All rows by the reference, rows spread over threads.
inline Outputs expected_of(AttentionCase const& c, DType kv, Pages const& pages, std::vector<float> const& q,
                           Range positions = everything) {
  auto const n = std::int32_t(c.rows.size());
  std::ptrdiff_t const row = std::ptrdiff_t(c.n_heads) * c.head_dim;
  Outputs result{poisoned(std::size_t(n) * std::size_t(row)), poisoned(std::size_t(n) * std::size_t(c.n_heads))};
  constexpr std::int32_t n_threads = 8;
  std::vector<std::thread> threads;
  for (std::int32_t i = 0; i < n_threads; ++i) {
    std::int32_t const first = n * i / n_threads, end = n * (i + 1) / n_threads;
    threads.emplace_back([=, &c, &pages, &q, &result] {
      AttentionArgs args = args_of(c, end - first, pages.max_position);
      args.positions = positions;
      args.q = q.data() + first * row;
      args.rows = c.rows.data() + first;
      args.tables = pages.tables.data();
      args.out = result.out.data() + first * row;
      args.log_sum_exp = result.log_sum_exp.data() + std::ptrdiff_t(first) * c.n_heads;
      reference::attention(args, kv);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

/// What outputs and logarithms may be off by, |q|, |k|, |v| <= 2. In f32 as the CPU's test has it, a score being a sum of head_dim products
/// of at most scale * 4 each, four times for tensor cores, which cut off what they add. Where operands are rounded to binary16, by 2^-11 at
/// most and so by 2^-11 / sqrt(3) on average, a score is off by the root of head_dim times scale times (2 * 2 / 3) times that; eight times
/// that is never met. Weights and values are rounded alike, which counts once.
inline double tolerance(AttentionCase const& c, DType kv, std::int32_t n_rows, std::int32_t n_positions) {
  double const f32 = relative_error(c.head_dim, n_positions);
  bool const has_kernel = n_rows <= attention_few_rows ? cuda::is_tiled_head(c.head_dim) : cuda::is_many_head(c.head_dim);
  bool const tiled = kv != DType::f32 && has_kernel && c.page_tokens % cuda::split_tile == 0;
  if (!tiled) return 2 * f32;
  int const n_rounded = (n_rows > attention_few_rows || !cuda::few_exact ? 1 : 0) + (kv == DType::q8_0 ? 1 : 0);
  double const rounding = n_rounded == 0 ? 0 : 8 * (4.0 / 3) * 0x1p-11 / std::sqrt(3.0) * std::sqrt(double(n_rounded));
  return 4 * f32 + 2 * rounding + n_rounded * 0x1p-11;
}

inline std::vector<float> queries_of(AttentionCase const& c, SplitMix64& random) {
  return random_floats(c.rows.size() * std::size_t(c.n_heads) * std::size_t(c.head_dim), random);
}

}  // namespace tiered_test
