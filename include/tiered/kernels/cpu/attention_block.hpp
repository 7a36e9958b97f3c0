/// The part of attention that one thread computes at a time: some queries that read the same keys, one span of positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/attention_baseline.hpp"

namespace tiered::cpu {

/// What the positions of one span, or of all spans up to one, add to a query's result.
struct AttentionPart {
  float max = -std::numeric_limits<float>::infinity(), sum = 0;
};

/// Takes the next part into `to`; acc and part_acc are the weighted values. acc is not read where `to` is nothing yet. One function for
/// whoever merges: the same bits.
[[gnu::noinline]] inline void merge_part(AttentionPart& to, float* acc, AttentionPart part, float const* part_acc, std::int32_t dim) {
  if (to.sum == 0) {
    to = part;
    std::copy(part_acc, part_acc + dim, acc);
    return;
  }
  float const max = std::max(to.max, part.max), keep = std::exp(to.max - max), take = std::exp(part.max - max);
  to.sum = to.sum * keep + part.sum * take;
  to.max = max;
  for (std::int32_t i = 0; i < dim; ++i) acc[i] = acc[i] * keep + part_acc[i] * take;
}

/// Positions that a row attends to in this call; maybe none.
inline Range visible_to(AttentionArgs const& a, std::int32_t row) {
  Range const seen = a.seen_by(row, a.rows[row].position);
  return {seen.begin, std::max(seen.begin, seen.end)};
}
inline Range intersection(Range a, Range b) {
  std::int32_t const begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}
/// The least range that holds both; what is empty counts for nothing.
inline Range hull(Range a, Range b) {
  if (a.size() <= 0 || b.size() <= 0) return a.size() <= 0 ? b : a;
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}
/// The position from which on a row's spans are counted.
inline std::int32_t span_origin(AttentionArgs const& a, Range visible) { return a.seen != nullptr ? visible.begin : 0; }
/// Spans that hold positions of a row's.
inline Range spans_of(AttentionArgs const& a, Range visible) {
  if (visible.size() <= 0) return {};
  std::int32_t const origin = span_origin(a, visible);
  return {(visible.begin - origin) / attention_span, (visible.end - 1 - origin) / attention_span + 1};
}

/// Queries that read the same keys: some rows of one sequence, whose spans are counted from one position, times some heads of one KV head.
struct QueryBlock {
  Range rows, heads;
  std::int32_t kv_head = 0;
  std::int32_t size() const { return rows.size() * heads.size(); }
};

/// The working memory of a query block, some 200 KiB on the stack of the thread that computes it.
template <class Leaf, class F>
class AttentionBlock {
 public:
  static constexpr std::int32_t most_queries = 64, most_dim = 4096;
  static constexpr std::int32_t buffer_floats = 8192;  ///< vectors of all queries of a block

  explicit AttentionBlock(AttentionArgs const& args)
      : a_(args), dim_(padded(args.head_dim)), row_bytes_(kv_row_bytes(F::dtype, args.head_dim)) {}

  static std::int32_t capacity(std::int32_t head_dim) { return std::clamp(buffer_floats / padded(head_dim), 1, most_queries); }

  void load(QueryBlock const& block) {
    block_ = block;
    seen_ = {};
    for (std::int32_t row = block.rows.begin; row < block.rows.end; ++row) {
      Range const own = visible_[row - block.rows.begin] = visible_to(a_, row);
      seen_ = hull(seen_, own);
    }
    origin_ = span_origin(a_, visible_[0]);
    for (std::int32_t i = 0; i < block.size(); ++i) {
      Leaf::scale(a_.q + query_offset(i), a_.scale, a_.head_dim, q_ + i * dim_);
    }
  }

  /// Those of which any of the block's rows sees something.
  Range spans() const {
    if (seen_.size() <= 0) return {};
    return {(seen_.begin - origin_) / attention_span, (seen_.end - 1 - origin_) / attention_span + 1};
  }

  /// Computes part(i) and part_acc(i) of every query i that sees some of a span.
  void attend(std::int32_t span) {
    span_ = positions_of(span);
    Range const positions = intersection(seen_, span_);
    if (positions.size() <= 0) return;
    KvTable const& table = a_.tables[a_.rows[block_.rows.begin].table];
    compute_scores(table.k_pages, positions);
    for (std::int32_t i = 0; i < block_.size(); ++i) {
      Range const own = intersection(visible(row_of(i)), span_);
      if (own.size() <= 0) continue;
      parts_[i].sum = Leaf::exponentials(scores_of(i), {own.begin - span_.begin, own.end - span_.begin}, &parts_[i].max);
    }
    std::fill(acc_, acc_ + block_.size() * dim_, 0.0f);
    sum_values(table.v_pages, positions);
  }

  bool sees(std::int32_t i, std::int32_t span) const { return intersection(visible(row_of(i)), positions_of(span)).size() > 0; }
  AttentionPart part(std::int32_t i) const { return parts_[i]; }
  float const* part_acc(std::int32_t i) const { return acc_ + i * dim_; }
  std::int32_t row_of(std::int32_t i) const { return block_.rows.begin + i / block_.heads.size(); }
  std::int64_t query_of(std::int32_t i) const {
    return std::int64_t(row_of(i)) * a_.n_heads + block_.heads.begin + i % block_.heads.size();
  }

 private:
  static constexpr std::int32_t tile = Leaf::tile_positions, score_stride = attention_span + 16;  // not all rows in the same cache sets
  // Measured on a Zen 4 core, one row, 4096 positions, 32 / 8 heads of 128, f16, with AVX-512 and AVX2: values of 32 positions at a time
  // 8.2 and 7.7 GB/s, of 64 7.6 and 7.6; 32 and nothing read ahead 5.7 and 5.2.
  static constexpr std::int32_t tile_dims = 128, value_positions = 32;
  static_assert(attention_span % tile == 0 && attention_span % value_positions == 0 && tile <= value_positions);

  static std::int32_t padded(std::int32_t head_dim) { return (head_dim + 15) / 16 * 16; }
  Range positions_of(std::int32_t span) const { return {origin_ + span * attention_span, origin_ + (span + 1) * attention_span}; }
  std::int64_t query_offset(std::int32_t i) const { return query_of(i) * a_.head_dim; }
  Range visible(std::int32_t row) const { return visible_[row - block_.rows.begin]; }
  float* scores_of(std::int32_t i) { return scores_ + i * score_stride; }

  /// Where this KV head's vectors of n positions lie.
  void find_rows(std::byte* const* pages, std::int32_t first, std::int32_t n) {
    std::int32_t page = first / a_.page_tokens, slot = first % a_.page_tokens;
    for (std::int32_t i = 0; i < n; ++page, slot = 0) {
      std::byte const* const head = pages[page] + std::size_t(block_.kv_head) * std::size_t(a_.page_tokens) * row_bytes_;
      for (; slot < a_.page_tokens && i < n; ++slot, ++i) rows_[i] = head + std::size_t(slot) * row_bytes_;
    }
  }

  /// Has the vectors of the positions that come next fetched during the next products: those of them in the first one's page.
  void read_ahead(std::byte* const* pages, Range next) {
    ahead_ = {};
    if (next.size() <= 0) return;
    std::int32_t const slot = next.begin % a_.page_tokens;
    std::size_t const first = std::size_t(block_.kv_head) * std::size_t(a_.page_tokens) + std::size_t(slot);
    ahead_.at = pages[next.begin / a_.page_tokens] + first * row_bytes_;
    ahead_.end = ahead_.at + std::size_t(std::min(next.size(), a_.page_tokens - slot)) * row_bytes_;
  }

  /// Scores of every query and position, those too that a query does not see; they are not used.
  void compute_scores(std::byte* const* pages, Range positions) {
    std::int32_t const first = (positions.begin - span_.begin) / tile * tile, end = positions.end - span_.begin;
    for (std::int32_t i = 0; i < block_.size(); ++i) std::fill(scores_of(i) + first, scores_of(i) + (end + tile - 1) / tile * tile, 0.0f);
    for (std::int32_t at = first; at < end; at += tile) {
      Range const here = intersection(positions, {span_.begin + at, span_.begin + at + tile});
      find_rows(pages, here.begin, here.size());
      read_ahead(pages, {here.end, std::min(here.end + tile, positions.end)});
      // Tiles are whole: a position that nobody sees, which may not have been written, is read from where another one lies.
      std::int32_t const skipped = here.begin - span_.begin - at;
      std::copy_backward(rows_, rows_ + here.size(), rows_ + skipped + here.size());
      std::fill(rows_, rows_ + skipped, rows_[skipped]);
      std::fill(rows_ + skipped + here.size(), rows_ + tile, rows_[skipped]);
      for (std::int32_t d = 0; d < a_.head_dim; d += tile_dims) {
        Range const dims{d, std::min(a_.head_dim, d + tile_dims)};
        Leaf::template load_keys<F>(rows_, dims, tile_);
        Leaf::multiply({q_ + d, tile_, scores_ + at, dim_, tile, score_stride, block_.size(), dims.size(), tile}, ahead_);
      }
    }
  }

  void sum_values(std::byte* const* pages, Range positions) {
    for (std::int32_t p = positions.begin, end = 0; p < positions.end; p = end) {
      std::int32_t const in_span = p - span_.begin;
      end = std::min(positions.end, span_.begin + in_span / value_positions * value_positions + value_positions);
      find_rows(pages, p, end - p);
      read_ahead(pages, {end, std::min(end + value_positions, positions.end)});
      for (std::int32_t d = 0; d < a_.head_dim; d += tile_dims) {
        Range const dims{d, std::min(a_.head_dim, d + tile_dims)};
        Leaf::template load_values<F>(rows_, end - p, dims, tile_dims, tile_);
        add_values(block_.rows, {p, end}, p, dims);
      }
    }
  }

  /// Adds the converted values of `positions`, each to the rows that see it: what is unseen must not even be added with weight 0,
  /// for it may be infinite. Positions that all rows see are one product; on both sides of them halves of the rows are taken
  /// for themselves. Each row gets its positions in ascending order.
  void add_values(Range rows, Range positions, std::int32_t tile_begin, Range dims) {
    Range common = positions, any;
    for (std::int32_t row = rows.begin; row < rows.end; ++row) {
      Range const own = intersection(visible(row), positions);
      common = intersection(common, own);
      any = hull(any, own);
    }
    if (any.size() <= 0) return;
    bool const shared = common.size() > 0;
    if (!shared) common = {any.end, any.end};
    std::int32_t const middle = rows.begin + rows.size() / 2;
    if (any.begin < common.begin) {
      add_values({rows.begin, middle}, {any.begin, common.begin}, tile_begin, dims);
      add_values({middle, rows.end}, {any.begin, common.begin}, tile_begin, dims);
    }
    if (!shared) return;
    std::int32_t const query = (rows.begin - block_.rows.begin) * block_.heads.size();
    Leaf::multiply(
        {scores_of(query) + (common.begin - span_.begin), tile_ + (common.begin - tile_begin) * tile_dims, acc_ + query * dim_ + dims.begin,
         score_stride, tile_dims, dim_, rows.size() * block_.heads.size(), common.size(), padded(dims.size())},
        ahead_);
    if (common.end < any.end) {
      add_values({rows.begin, middle}, {common.end, any.end}, tile_begin, dims);
      add_values({middle, rows.end}, {common.end, any.end}, tile_begin, dims);
    }
  }

  AttentionArgs const& a_;
  std::int32_t const dim_;  // head_dim rounded up to whole vectors
  std::size_t const row_bytes_;
  QueryBlock block_;
  Range visible_[most_queries], seen_;  // by each row, and by any
  std::int32_t origin_ = 0;
  Range span_;
  ReadAhead ahead_;
  AttentionPart parts_[most_queries];
  std::byte const* rows_[value_positions];
  alignas(64) float q_[buffer_floats];  // scaled
  alignas(64) float acc_[buffer_floats];
  alignas(64) float scores_[most_queries * score_stride];
  alignas(64) float tile_[value_positions * tile_dims];  // keys [tile_dims, tile] or values [value_positions, tile_dims] in f32
};

}  // namespace tiered::cpu
