/// All ops but products: rows and elements, positions, the router, attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/measure.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/format.hpp"

namespace bench {

/// Heads as in 8B models; the row of a feed-forward network is three rows of the model.
inline constexpr std::int32_t n_heads = 32, n_kv_heads = 8, head_dim = 128;

inline void bench_rows(Bench& b, std::int32_t n_tokens) {
  std::int32_t const dim = b.choice.dim, hidden = 3 * dim;
  std::int64_t const n = std::int64_t(n_tokens) * dim, n_hidden = std::int64_t(n_tokens) * hidden;
  std::vector<float> const x = random_floats(std::size_t(n_hidden)), up = random_floats(std::size_t(n_hidden));
  std::vector<float> y(static_cast<std::size_t>(n_hidden));
  KernelTable const& table = b.table();
  std::string const row = fmt::format("rows of {}", dim), hidden_row = fmt::format("rows of {}", hidden);
  if (b.choice.has_op("rms_norm"))
    b.run({"rms_norm", row, n_tokens, 0, 8.0 * double(n), 0}, table.rms_norm,
          RmsNormArgs{x.data(), up.data(), y.data(), n_tokens, dim, 1e-6f});
  if (b.choice.has_op("quantize")) {
    for (DType const type : {DType::act_q8, DType::act_bf16}) {
      if (table.convert[activation_form(type)] == nullptr) continue;
      double const made = double(activation_bytes(type, std::uint64_t(n_tokens), std::uint64_t(dim)));
      std::vector<std::byte> converted(static_cast<std::size_t>(made));
      b.run({"quantize", fmt::format("{}, {}", name(type), row), n_tokens, 0, 4.0 * double(n) + made, 0},
            table.convert[activation_form(type)], QuantizeArgs{x.data(), converted.data(), n_tokens, dim});
    }
  }
  if (b.choice.has_op("gated")) {
    b.run({"gated", "silu, " + hidden_row, n_tokens, 0, 12.0 * double(n_hidden), 0}, table.gated,
          GatedArgs{x.data(), up.data(), y.data(), n_hidden, Activation::silu});
    b.run({"gated", "gelu, " + hidden_row, n_tokens, 0, 12.0 * double(n_hidden), 0}, table.gated,
          GatedArgs{x.data(), up.data(), y.data(), n_hidden, Activation::gelu_tanh});
  }
  std::fill(y.begin(), y.end(), 0.0f);
  if (b.choice.has_op("add")) b.run({"add", row, n_tokens, 0, 12.0 * double(n), 0}, table.add, AddArgs{x.data(), y.data(), n});
  if (b.choice.has_op("gather")) {
    std::vector<std::int32_t> index(static_cast<std::size_t>(n_tokens));
    for (std::int32_t t = 0; t < n_tokens; ++t) index[std::size_t(t)] = n_tokens - 1 - t;
    b.run({"gather", row, n_tokens, 0, 8.0 * double(n), 0}, table.gather, GatherArgs{x.data(), index.data(), y.data(), n_tokens, dim});
  }
}

inline void bench_rope(Bench& b, std::int32_t n_tokens) {
  std::vector<float> x = random_floats(std::size_t(n_tokens) * n_heads * head_dim), frequencies(head_dim / 2);
  std::vector<std::int32_t> positions(static_cast<std::size_t>(3 * n_tokens));
  for (std::int32_t t = 0; t < 3 * n_tokens; ++t) positions[std::size_t(t)] = 1000 + t;
  std::vector<std::uint8_t> row(head_dim / 2);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = std::uint8_t(i % 3);
  for (std::size_t i = 0; i < frequencies.size(); ++i) frequencies[i] = std::pow(1e6f, -2.0f * float(i) / float(head_dim));
  for (RopeKind const kind : {RopeKind::adjacent, RopeKind::halves}) {
    std::string const what = fmt::format("{}, {} x {}", kind == RopeKind::adjacent ? "adjacent" : "halves", n_heads, head_dim);
    b.run({"rope", what, n_tokens, 0, 8.0 * double(x.size()), 0}, b.table().rope,
          RopeArgs{x.data(), positions.data(), frequencies.data(), n_tokens, n_heads, head_dim, head_dim, kind});
  }
  b.run({"rope", fmt::format("3 rows of positions, {} x {}", n_heads, head_dim), n_tokens, 0, 8.0 * double(x.size()), 0}, b.table().rope,
        RopeArgs{x.data(), positions.data(), frequencies.data(), n_tokens, n_heads, head_dim, head_dim, RopeKind::halves, 1, row.data(),
                 n_tokens});
}

inline void bench_route(Bench& b, std::int32_t n_tokens) {
  constexpr std::int32_t n_experts = 128, n_used = 8, dim = 2048;
  std::size_t const n_slots = std::size_t(n_tokens) * n_used;
  if (b.choice.has_op("route")) {
    std::vector<float> const logits = random_floats(std::size_t(n_tokens) * n_experts);
    std::vector<std::int32_t> ids(n_slots);
    std::vector<float> weights(n_slots);
    RouteArgs args;
    args.logits = logits.data(), args.ids = ids.data(), args.weights = weights.data();
    args.n_tokens = n_tokens, args.n_experts = n_experts, args.n_used = n_used;
    b.run({"route", "8 of 128", n_tokens, 0, 4.0 * n_experts * n_tokens + 8.0 * double(n_slots), 0}, b.table().route, args);
  }
  if (b.choice.has_op("combine")) {
    std::vector<float> const y = random_floats(n_slots * dim), weights = random_floats(n_slots);
    std::vector<float> out(std::size_t(n_tokens) * dim);
    b.run({"combine", "8 rows of 2048", n_tokens, 0, 4.0 * dim * (double(n_slots) + n_tokens), 0}, b.table().combine,
          CombineArgs{y.data(), weights.data(), out.data(), n_tokens, n_used, dim});
  }
}

/// Tokens all over a table as large as the memory.
inline void bench_embed(Bench& b, DType type, std::int32_t n_tokens) {
  std::int32_t const dim = b.choice.dim;
  std::size_t const row = std::size_t(row_bytes(type, std::uint64_t(dim)));
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(n_tokens));
  SplitMix64 random(3);
  for (std::int32_t& t : tokens) t = std::int32_t(random.below(b.memory.size() / row));
  std::vector<float> out(std::size_t(n_tokens) * std::size_t(dim));
  b.run({"embed", name(type), n_tokens, 0, double(n_tokens) * (double(row) + 4.0 * dim), 0}, b.table().embed[std::uint32_t(type)],
        EmbedArgs{b.memory.data(), tokens.data(), out.data(), n_tokens, dim});
}

/// One sequence, n_tokens rows that end a context of `context` positions.
class AttentionCall {
 public:
  static constexpr std::int32_t page_tokens = 256;

  AttentionCall(Bench& b, DType kv, std::int32_t n_tokens, std::int32_t context)
      : q(random_floats(std::size_t(n_tokens) * n_heads * head_dim)), out(q.size()) {
    page_bytes = std::size_t(page_tokens) * n_kv_heads * kv_row_bytes(kv, head_dim);
    std::int32_t const n_pages = (context + page_tokens - 1) / page_tokens;
    for (std::int32_t p = 0; p < 2 * n_pages; ++p) {
      std::byte* const page = b.memory.data() + std::size_t(p) % (b.memory.size() / page_bytes) * page_bytes;
      (p < n_pages ? k_pages : v_pages).push_back(page);
    }
    tables = {k_pages.data(), v_pages.data()};
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      rows.push_back({0, context - n_tokens + t});
      n_seen += rows.back().position + 1;
    }
    workspace.resize(attention_workspace_bytes(n_tokens, n_heads, head_dim, context - 1));
  }
  AttentionArgs args() {
    AttentionArgs a;
    a.q = q.data(), a.rows = rows.data(), a.tables = &tables, a.out = out.data(), a.workspace = workspace.data();
    a.n_tokens = std::int32_t(rows.size()), a.n_heads = n_heads, a.n_kv_heads = n_kv_heads, a.head_dim = head_dim,
    a.page_tokens = page_tokens;
    a.max_position = rows.back().position;
    a.scale = 1 / std::sqrt(float(head_dim));
    return a;
  }
  KvWriteArgs write_args() {
    return {q.data(), q.data(), rows.data(), &tables, std::int32_t(rows.size()), n_kv_heads, head_dim, page_tokens};
  }
  /// Scores and weighted values.
  double operations() const { return 4.0 * n_heads * head_dim * n_seen; }
  double kv_bytes(std::int32_t n_positions) const { return 2.0 * double(page_bytes) * n_positions / page_tokens; }

  std::vector<float> q, out;
  std::vector<std::byte*> k_pages, v_pages;
  std::size_t page_bytes = 0;
  KvTable tables;
  std::vector<KvRow> rows;
  std::vector<std::byte> workspace;
  double n_seen = 0;
};

inline void bench_attention(Bench& b) {
  for (DType const kv : {DType::f16, DType::f32, DType::q8_0}) {
    if (!b.choice.has_format(name(kv))) continue;
    auto const kernel = b.table().attention[std::uint32_t(kv)];
    for (std::int32_t const context : {512, 4096, 32768}) {
      AttentionCall call(b, kv, 1, context);
      if (b.choice.has_op("attention"))
        b.run({"attention", fmt::format("{}, context {}", name(kv), context), 1, 0, call.kv_bytes(context), call.operations()}, kernel,
              call.args());
    }
    AttentionCall prefill(b, kv, 512, 512);
    if (b.choice.has_op("attention"))
      b.run({"attention", fmt::format("{}, prefill", name(kv)), 512, 0, 0, prefill.operations(), Limit::arithmetic}, kernel,
            prefill.args());
    if (b.choice.has_op("kv_write"))  // reads f32, writes pages; writes what others read: last
      b.run({"kv_write", name(kv), 512, 0, 512 * (8.0 * n_kv_heads * head_dim) + prefill.kv_bytes(512), 0},
            b.table().kv_write[std::uint32_t(kv)], prefill.write_args());
  }
}

/// Parts of the context that were attended to apart, as by device and host.
inline void bench_merge(Bench& b, std::int32_t n_tokens) {
  std::size_t const n_queries = std::size_t(n_tokens) * n_heads, n = n_queries * head_dim;
  for (std::int32_t const n_parts : {2, 8}) {
    std::vector<float> const parts = random_floats(std::size_t(n_parts) * n), sums = random_floats(std::size_t(n_parts) * n_queries);
    std::vector<float> out(n), sum(n_queries);
    MergeAttentionArgs args;
    args.parts = parts.data(), args.part_log_sum_exp = sums.data(), args.out = out.data(), args.log_sum_exp = sum.data();
    args.n_parts = n_parts, args.n_tokens = n_tokens, args.n_heads = n_heads, args.head_dim = head_dim;
    b.run({"merge_att", fmt::format("{} parts, {} x {}", n_parts, n_heads, head_dim), n_tokens, 0,
           4.0 * (n_parts + 1) * double(n + n_queries), 0},
          b.table().merge_attention, args);
  }
}

inline void bench_ops(Bench& b) {
  for (std::int32_t const n_tokens : b.choice.tokens) {
    bench_rows(b, n_tokens);
    if (b.choice.has_op("rope")) bench_rope(b, n_tokens);
    if (b.choice.has_op("merge_attention")) bench_merge(b, n_tokens);
    bench_route(b, n_tokens);
  }
  for_each_format([&](auto format) {
    constexpr DType type = decltype(format)::dtype;
    if (!b.choice.has_op("embed") || !b.choice.has_format(name(type))) return;
    for (std::int32_t const n_tokens : b.choice.tokens) bench_embed(b, type, n_tokens);
  });
  if (b.choice.has_op("attention") || b.choice.has_op("kv_write")) bench_attention(b);
}

}  // namespace bench
