/// Causal attention over paged keys and values in one pass, and the writing of those pages.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// Keys and values as they lie in a page. A new type is a struct here and a line in make_table.hpp.
template <class Leaf>
struct HalfKv {
  using Element = std::uint16_t;
  static void store(float const* src, std::int32_t n, Element* dst) { Leaf::to_half(src, n, dst); }
  static void load(Element const* src, std::int32_t n, float* dst) { Leaf::from_half(src, n, dst); }
};
struct FloatKv {
  using Element = float;
  static void store(float const* src, std::int32_t n, Element* dst) { std::copy(src, src + n, dst); }
  static void load(Element const* src, std::int32_t n, float* dst) { std::copy(src, src + n, dst); }
};

template <class Leaf, class Kv>
void kv_write(KvWriteArgs const& a, Team& team) {
  std::int64_t const row = std::int64_t(a.n_kv_heads) * a.head_dim;
  team.parallel_for(a.n_tokens, std::max<std::int64_t>(team.grain(a.n_tokens), 8192 / std::max<std::int64_t>(row, 1)),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        KvRow const at = a.rows[t];
                        KvTable const& table = a.tables[at.table];
                        std::int32_t const page = at.position / a.page_tokens, slot = at.position % a.page_tokens;
                        for (std::int32_t h = 0; h < a.n_kv_heads; ++h) {
                          std::int64_t const to = (std::int64_t(h) * a.page_tokens + slot) * a.head_dim,
                                             from = t * row + std::int64_t(h) * a.head_dim;
                          Kv::store(a.k + from, a.head_dim, reinterpret_cast<typename Kv::Element*>(table.k_pages[page]) + to);
                          Kv::store(a.v + from, a.head_dim, reinterpret_cast<typename Kv::Element*>(table.v_pages[page]) + to);
                        }
                      }
                    });
}

/// What the positions of one span, or of all spans up to one, add to a query's result.
struct AttentionPart {
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
};

/// Takes the next part into `to`; acc and part_acc are the weighted values. One function for whoever merges: the same bits.
[[gnu::noinline]] inline void merge_part(AttentionPart& to, float* acc, AttentionPart part, float const* part_acc, std::int32_t dim) {
  float const max = std::max(to.max, part.max), keep = std::exp(to.max - max), take = std::exp(part.max - max);
  to.sum = to.sum * keep + part.sum * take;
  to.max = max;
  for (std::int32_t i = 0; i < dim; ++i) acc[i] = acc[i] * keep + part_acc[i] * take;
}

/// Queries that read the same keys: some rows of one sequence times some heads of one KV head.
struct QueryBlock {
  Range rows, heads;
  std::int32_t kv_head = 0;
  std::int32_t size() const { return rows.size() * heads.size(); }
};

/// The working memory of a query block, on the stack of the thread that computes it.
template <class Leaf, class Kv>
class AttentionBlock {
 public:
  static constexpr std::int32_t most_queries = 16, most_dim = 4096;
  static constexpr std::int32_t buffer_floats = 8192;  ///< vectors of all queries of a block

  explicit AttentionBlock(AttentionArgs const& args) : a_(args), dim_((args.head_dim + 7) / 8 * 8) {}

  static std::int32_t capacity(std::int32_t head_dim) { return std::clamp(buffer_floats / ((head_dim + 7) / 8 * 8), 1, most_queries); }

  void load(QueryBlock const& block) {
    block_ = block;
    for (std::int32_t i = 0; i < block.size(); ++i) {
      float const* const q = a_.q + query_offset(i);
      std::copy(q, q + a_.head_dim, q_ + i * dim_);
      std::fill(q_ + i * dim_ + a_.head_dim, q_ + (i + 1) * dim_, 0.0f);
    }
  }

  /// Spans that the block's rows see.
  Range spans() const {
    Range all{std::numeric_limits<std::int32_t>::max(), 0};
    for (std::int32_t row = block_.rows.begin; row < block_.rows.end; ++row) {
      Range const seen = visible(row);
      all = {std::min(all.begin, seen.begin / attention_span), std::max(all.end, (seen.end - 1) / attention_span + 1)};
    }
    return all;
  }

  /// Computes part(i) and part_acc(i) of every query i for one span; false where no row sees any of it.
  bool attend(std::int32_t span) {
    Range seen{std::numeric_limits<std::int32_t>::max(), 0};
    for (std::int32_t row = block_.rows.begin; row < block_.rows.end; ++row) {
      Range const r = visible(row, span);
      if (r.size() > 0) seen = {std::min(seen.begin, r.begin), std::max(seen.end, r.end)};
    }
    if (seen.end <= seen.begin) return false;
    std::fill(scores_, scores_ + block_.size() * attention_span, -std::numeric_limits<float>::infinity());
    std::int32_t const span_begin = span * attention_span;
    KvTable const& table = a_.tables[a_.rows[block_.rows.begin].table];
    for_pieces(table.k_pages, seen, [&](std::int32_t i, Range r, float const* k) {
      Leaf::scores(q_ + i * dim_, k, r.size(), dim_, a_.scale, scores_ + i * attention_span + (r.begin - span_begin));
    });
    for (std::int32_t i = 0; i < block_.size(); ++i) {
      float* const s = scores_ + i * attention_span;
      parts_[i] = {};
      if (visible(row_of(i), span).size() <= 0) continue;
      for (std::int32_t p = 0; p < attention_span; ++p) parts_[i].max = std::max(parts_[i].max, s[p]);
      parts_[i].sum = Leaf::exponentials(s, attention_span, parts_[i].max);
    }
    std::fill(acc_, acc_ + block_.size() * dim_, 0.0f);
    for_pieces(table.v_pages, seen, [&](std::int32_t i, Range r, float const* v) {
      Leaf::add_weighted(scores_ + i * attention_span + (r.begin - span_begin), v, r.size(), dim_, acc_ + i * dim_);
    });
    return true;
  }

  bool sees(std::int32_t i, std::int32_t span) const { return visible(row_of(i), span).size() > 0; }
  AttentionPart part(std::int32_t i) const { return parts_[i]; }
  float const* part_acc(std::int32_t i) const { return acc_ + i * dim_; }
  std::int32_t row_of(std::int32_t i) const { return block_.rows.begin + i / block_.heads.size(); }
  std::int32_t head_of(std::int32_t i) const { return block_.heads.begin + i % block_.heads.size(); }
  std::int64_t query_offset(std::int32_t i) const { return (std::int64_t(row_of(i)) * a_.n_heads + head_of(i)) * a_.head_dim; }

 private:
  static constexpr std::int32_t piece_floats = 4096;

  /// Positions that a row attends to.
  Range visible(std::int32_t row) const {
    std::int32_t const position = a_.rows[row].position;
    return {a_.window > 0 ? std::max(0, position - a_.window + 1) : 0, position + 1};
  }
  Range visible(std::int32_t row, std::int32_t span) const {
    Range const all = visible(row);
    return {std::max(all.begin, span * attention_span), std::min(all.end, (span + 1) * attention_span)};
  }

  /// Calls use(query, positions, vectors of those positions) for all positions of `seen`, a piece at a time, converted to f32 once.
  template <class Use>
  void for_pieces(std::byte* const* pages, Range seen, Use use) {
    std::int32_t const most = std::max(1, piece_floats / dim_);
    for (std::int32_t p = seen.begin, n = 0; p < seen.end; p += n) {
      std::int32_t const page = p / a_.page_tokens, slot = p % a_.page_tokens;
      n = std::min({most, seen.end - p, a_.page_tokens - slot});
      auto const* const src =
          reinterpret_cast<typename Kv::Element const*>(pages[page]) + (std::int64_t(block_.kv_head) * a_.page_tokens + slot) * a_.head_dim;
      if (dim_ == a_.head_dim) {
        Kv::load(src, n * dim_, piece_);
      } else {
        for (std::int32_t i = 0; i < n; ++i) {
          Kv::load(src + i * a_.head_dim, a_.head_dim, piece_ + i * dim_);
          std::fill(piece_ + i * dim_ + a_.head_dim, piece_ + (i + 1) * dim_, 0.0f);
        }
      }
      for (std::int32_t i = 0; i < block_.size(); ++i) {
        Range const all = visible(row_of(i)), r{std::max(all.begin, p), std::min(all.end, p + n)};
        if (r.size() > 0) use(i, r, piece_ + (r.begin - p) * dim_);
      }
    }
  }

  AttentionArgs const& a_;
  std::int32_t const dim_;  // head_dim rounded up to whole vectors, padded with zeros
  QueryBlock block_;
  AttentionPart parts_[most_queries];
  alignas(64) float q_[buffer_floats];
  alignas(64) float acc_[buffer_floats];
  alignas(64) float scores_[most_queries * attention_span];
  alignas(64) float piece_[piece_floats];
};

inline void finish_attention(AttentionArgs const& a, std::int64_t query, AttentionPart const& total, float const* acc) {
  float const inverse = 1.0f / total.sum;
  for (std::int32_t i = 0; i < a.head_dim; ++i) a.out[query * a.head_dim + i] = acc[i] * inverse;
  if (a.log_sum_exp != nullptr) a.log_sum_exp[query] = total.max + std::log(total.sum);
}

/// Few rows: spans are computed by themselves, parts go to the workspace, a second loop merges them.
template <class Leaf, class Kv>
void attention_by_spans(AttentionArgs const& a, Team& team) {
  std::int32_t const group = a.n_heads / a.n_kv_heads, n_spans = a.max_position / attention_span + 1;
  std::int32_t const capacity = AttentionBlock<Leaf, Kv>::capacity(a.head_dim), n_chunks = (group + capacity - 1) / capacity;
  std::int64_t const part_floats = a.head_dim + 2, per_row = std::int64_t(a.n_kv_heads) * n_chunks * n_spans;
  auto* const workspace = reinterpret_cast<float*>(a.workspace);
  auto const part_at = [&](std::int64_t query, std::int32_t span) { return workspace + (query * n_spans + span) * part_floats; };
  team.parallel_for(a.n_tokens * per_row, 1, [&](std::int64_t begin, std::int64_t end) {
    AttentionBlock<Leaf, Kv> block(a);
    for (std::int64_t task = begin; task < end; ++task) {
      auto const span = std::int32_t(task % n_spans), chunk = std::int32_t(task / n_spans % n_chunks);
      auto const kv_head = std::int32_t(task / n_spans / n_chunks % a.n_kv_heads), row = std::int32_t(task / per_row);
      std::int32_t const first = kv_head * group + chunk * capacity;
      block.load({{row, row + 1}, {first, std::min(first + capacity, (kv_head + 1) * group)}, kv_head});
      if (!block.sees(0, span) || !block.attend(span)) continue;
      for (std::int32_t head = first, i = 0; head < std::min(first + capacity, (kv_head + 1) * group); ++head, ++i) {
        float* const to = part_at(std::int64_t(row) * a.n_heads + head, span);
        to[0] = block.part(i).max;
        to[1] = block.part(i).sum;
        std::copy(block.part_acc(i), block.part_acc(i) + a.head_dim, to + 2);
      }
    }
  });
  team.parallel_for(std::int64_t(a.n_tokens) * a.n_heads, std::max<std::int64_t>(1, 4096 / (std::int64_t(n_spans) * a.head_dim)),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t query = begin; query < end; ++query) {
                        std::int32_t const position = a.rows[query / a.n_heads].position;
                        std::int32_t const first = a.window > 0 ? std::max(0, position - a.window + 1) / attention_span : 0;
                        AttentionPart total;
                        float acc[AttentionBlock<Leaf, Kv>::most_dim];
                        std::fill(acc, acc + a.head_dim, 0.0f);
                        for (std::int32_t span = first; span <= position / attention_span; ++span) {
                          float const* const part = part_at(query, span);
                          merge_part(total, acc, {part[0], part[1]}, part + 2, a.head_dim);
                        }
                        finish_attention(a, query, total, acc);
                      }
                    });
}

/// Many rows: neighbours of one sequence share what they read; a thread merges the spans of its queries as it goes.
template <class Leaf, class Kv>
void attention_by_rows(AttentionArgs const& a, Team& team) {
  using Block = AttentionBlock<Leaf, Kv>;
  std::int32_t const group = a.n_heads / a.n_kv_heads, capacity = Block::capacity(a.head_dim);
  std::int32_t const n_chunks = (group + capacity - 1) / capacity, block_rows = std::max(1, capacity / group);
  std::int64_t const n_blocks = (a.n_tokens + block_rows - 1) / block_rows;
  auto const attend_rows = [&](Block& block, float* sums, Range rows, std::int32_t kv_head, std::int32_t chunk) {
    std::int32_t const first = kv_head * group + chunk * capacity;
    QueryBlock const queries{rows, {first, std::min(first + capacity, (kv_head + 1) * group)}, kv_head};
    block.load(queries);
    std::fill(sums, sums + queries.size() * a.head_dim, 0.0f);
    AttentionPart totals[Block::most_queries];
    Range const spans = block.spans();
    for (std::int32_t span = spans.begin; span < spans.end; ++span) {
      if (!block.attend(span)) continue;
      for (std::int32_t i = 0; i < queries.size(); ++i) {
        if (block.sees(i, span)) merge_part(totals[i], sums + i * a.head_dim, block.part(i), block.part_acc(i), a.head_dim);
      }
    }
    for (std::int32_t i = 0; i < queries.size(); ++i) {
      finish_attention(a, block.query_offset(i) / a.head_dim, totals[i], sums + i * a.head_dim);
    }
  };
  team.parallel_for(n_blocks * a.n_kv_heads * n_chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    Block block(a);
    float sums[Block::buffer_floats];
    for (std::int64_t task = begin; task < end; ++task) {
      auto const chunk = std::int32_t(task % n_chunks), kv_head = std::int32_t(task / n_chunks % a.n_kv_heads);
      auto row = std::int32_t(task / n_chunks / a.n_kv_heads) * block_rows;
      std::int32_t const row_end = std::min(a.n_tokens, row + block_rows);
      while (row < row_end) {  // a stretch of rows of one sequence
        std::int32_t next = row + 1;
        while (next < row_end && a.rows[next].table == a.rows[row].table) ++next;
        attend_rows(block, sums, {row, next}, kv_head, chunk);
        row = next;
      }
    }
  });
}

template <class Leaf, class Kv>
void attention(AttentionArgs const& a, Team& team) {
  if (a.n_tokens <= 0) return;
  if (a.head_dim < 1 || a.head_dim > AttentionBlock<Leaf, Kv>::most_dim || a.n_kv_heads < 1 || a.n_heads % a.n_kv_heads != 0)
    throw Error(Errc::unsupported, concat("attention of ", a.n_heads, " heads on ", a.n_kv_heads, " KV heads of size ", a.head_dim));
  if (a.n_tokens <= attention_few_rows) {
    attention_by_spans<Leaf, Kv>(a, team);
  } else {
    attention_by_rows<Leaf, Kv>(a, team);
  }
}

}  // namespace tiered::cpu
