/// The ops that image encoders add: norms with a mean, activation alone, position tables, attention of given ranges.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/measure.hpp"

namespace bench {

/// As the encoder of a 2B to 8B model has it: rows of 1152 or 1280, about four times that inside the feed-forward network.
inline void bench_encoder_rows(Bench& b, std::int32_t n_tokens) {
  constexpr std::int32_t dim = 1152, hidden = 4304, n_table = 2304;
  std::size_t const n = std::size_t(n_tokens) * dim, n_hidden = std::size_t(n_tokens) * hidden;
  KernelTable const& table = b.table();
  std::vector<float> const x = random_floats(n), weights = random_floats(dim), rows = random_floats(std::size_t(n_table) * dim);
  std::vector<float> y(n), h = random_floats(n_hidden);
  if (b.choice.has_op("layer_norm"))
    b.run({"layer_norm", fmt::format("rows of {}", dim), n_tokens, 0, 8.0 * double(n), 0}, table.layer_norm,
          LayerNormArgs{x.data(), weights.data(), weights.data(), y.data(), n_tokens, dim, 1e-6f});
  if (b.choice.has_op("activate")) {
    for (auto const& [activation, what] :
         {std::pair{Activation::quick_gelu, "quick_gelu"}, {Activation::gelu_tanh, "gelu_tanh"}, {Activation::gelu_erf, "gelu_erf"}})
      b.run({"activate", fmt::format("{}, {}", what, hidden), n_tokens, 0, 8.0 * double(n_hidden), 0}, table.activate,
            ActivateArgs{h.data(), std::int64_t(n_hidden), activation});
  }
  if (b.choice.has_op("add_taps")) {
    std::vector<std::int32_t> index;
    std::vector<float> const share = random_floats(std::size_t(n_tokens) * AddTapsArgs::n_taps);
    for (std::int32_t i = 0; i < n_tokens * AddTapsArgs::n_taps; ++i) index.push_back(i / 8 % n_table);
    b.run({"add_taps", fmt::format("rows of {}", dim), n_tokens, 0, 24.0 * double(n), 0}, table.add_taps,
          AddTapsArgs{rows.data(), index.data(), share.data(), y.data(), n_tokens, dim});
  }
}

/// All patches of an image, in windows of `window` that see each other.
inline void bench_image_attention(Bench& b, std::int32_t n_patches, std::int32_t window, std::int32_t head_dim) {
  constexpr std::int32_t n_heads = 16;
  DType const kv = DType::f16;
  std::int32_t const page_tokens = (n_patches + attention_span - 1) / attention_span * attention_span;
  std::size_t const page_bytes = std::size_t(n_heads) * std::size_t(page_tokens) * kv_row_bytes(kv, head_dim);
  if (2 * page_bytes > b.memory.size()) return;
  std::vector<float> const q = random_floats(std::size_t(n_patches) * std::size_t(n_heads * head_dim));
  std::vector<float> out(q.size());
  std::byte* pages[] = {b.memory.data(), b.memory.data() + page_bytes};
  KvTable const table{&pages[0], &pages[1]};
  std::vector<KvRow> const rows(static_cast<std::size_t>(n_patches));
  std::vector<Range> seen;
  double pairs = 0;
  for (std::int32_t t = 0; t < n_patches; ++t) {
    seen.push_back({t / window * window, std::min(t / window * window + window, n_patches)});
    pairs += seen.back().size();
  }
  AttentionArgs a;
  a.q = q.data(), a.rows = rows.data(), a.tables = &table, a.out = out.data(), a.seen = seen.data();
  a.n_tokens = n_patches, a.n_heads = a.n_kv_heads = n_heads, a.head_dim = head_dim, a.page_tokens = page_tokens;
  a.max_position = n_patches - 1;
  a.scale = 1 / std::sqrt(float(head_dim));
  b.run({"attention", fmt::format("{} x {}, windows of {}", n_heads, head_dim, window), n_patches, 0, 0, 4.0 * n_heads * head_dim * pairs,
         Limit::arithmetic},
        b.table().attention[std::uint32_t(kv)], a);
}

inline void bench_encoder(Bench& b) {
  for (std::int32_t const n_tokens : b.choice.tokens) bench_encoder_rows(b, n_tokens);
  if (!b.choice.has_op("image_attention")) return;
  for (std::int32_t const head_dim : {64, 72, 80}) {
    bench_image_attention(b, 2640, 2640, head_dim);
    bench_image_attention(b, 2640, 64, head_dim);
  }
  bench_image_attention(b, 2640, 36, 80);
}

}  // namespace bench
