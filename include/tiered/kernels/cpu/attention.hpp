/// Attention over paged keys and values in one pass, the writing of those pages, and the merging of parts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/attention_block.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// Calls function(F{}) for every format that keys and values may have. A leaf loads and stores these.
template <class Function>
constexpr void for_each_kv_type(Function function) {
  function(F16{});
  function(F32{});
  function(Q8_0{});
}

template <class Leaf, class F>
void kv_write(KvWriteArgs const& a, Team& team) {
  std::int64_t const row = std::int64_t(a.n_kv_heads) * a.head_dim;
  std::size_t const bytes = kv_row_bytes(F::dtype, a.head_dim);
  team.parallel_for(a.n_tokens, std::max<std::int64_t>(team.grain(a.n_tokens), 8192 / std::max<std::int64_t>(row, 1)),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        KvRow const at = a.rows[t];
                        KvTable const& table = a.tables[at.table];
                        std::int32_t const page = at.position / a.page_tokens, slot = at.position % a.page_tokens;
                        for (std::int32_t h = 0; h < a.n_kv_heads; ++h) {
                          std::size_t const to = (std::size_t(h) * std::size_t(a.page_tokens) + std::size_t(slot)) * bytes;
                          std::int64_t const from = t * row + std::int64_t(h) * a.head_dim;
                          Leaf::template store<F>(a.k + from, a.head_dim, table.k_pages[page] + to);
                          Leaf::template store<F>(a.v + from, a.head_dim, table.v_pages[page] + to);
                        }
                      }
                    });
}

template <class Leaf>
void finish_attention(AttentionArgs const& a, std::int64_t query, AttentionPart const& total, float const* acc) {
  float* const out = a.out + query * a.head_dim;
  if (total.sum == 0) {  // nothing was seen
    std::fill(out, out + a.head_dim, 0.0f);
  } else {
    Leaf::scale(acc, 1.0f / total.sum, a.head_dim, out);
  }
  if (a.log_sum_exp != nullptr) a.log_sum_exp[query] = total.max + std::log(total.sum);
}

/// How heads and rows are cut into blocks.
template <class Leaf, class F>
struct AttentionBlocks {
  explicit AttentionBlocks(AttentionArgs const& a) : group(a.n_heads / a.n_kv_heads), most(AttentionBlock<Leaf, F>::capacity(a.head_dim)) {}
  std::int32_t group, most;
  std::int32_t n_chunks = (group + most - 1) / most, chunk = (group + n_chunks - 1) / n_chunks;  // of the heads of one KV head
  std::int32_t rows = std::max(1, most / group);

  QueryBlock at(Range block_rows, std::int32_t kv_head, std::int32_t i) const {
    std::int32_t const first = kv_head * group + i * chunk;
    return {block_rows, {first, std::min(first + chunk, (kv_head + 1) * group)}, kv_head};
  }
  /// The end of the stretch of rows from `row` on that are of one sequence, count spans from one position, and together see all from the
  /// first position that one of them sees to the last: a block computes all of that.
  static std::int32_t stretch_end(AttentionArgs const& a, std::int32_t row, std::int32_t end) {
    std::int32_t next = row + 1;
    Range all = visible_to(a, row);
    for (; next < end && a.rows[next].table == a.rows[row].table; ++next) {
      Range const own = visible_to(a, next);
      if (span_origin(a, own) != span_origin(a, all)) break;
      if (all.size() > 0 && own.size() > 0 && (own.begin >= all.end || own.end <= all.begin)) break;
      all = hull(all, own);
    }
    return next;
  }
};

/// Few rows: spans are computed by themselves, parts go to the workspace, a second loop merges them.
template <class Leaf, class F>
void attention_by_spans(AttentionArgs const& a, Team& team, Range spans) {
  AttentionBlocks<Leaf, F> const blocks(a);
  Range stretches[attention_few_rows];
  std::int32_t n_stretches = 0;
  for (std::int32_t row = 0, next = 0; row < a.n_tokens; row = next) {
    next = blocks.stretch_end(a, row, std::min(a.n_tokens, row + blocks.rows));
    stretches[n_stretches++] = {row, next};
  }
  std::int64_t const part_floats = a.head_dim + 2, per_stretch = std::int64_t(a.n_kv_heads) * blocks.n_chunks * spans.size();
  auto const part_at = [&](std::int64_t query, std::int32_t span) {
    return reinterpret_cast<float*>(a.workspace) + (query * spans.size() + (span - spans.begin)) * part_floats;
  };
  team.parallel_for(n_stretches * per_stretch, 1, [&](std::int64_t begin, std::int64_t end) {
    AttentionBlock<Leaf, F> block(a);
    for (std::int64_t task = begin; task < end; ++task) {
      auto const span = spans.begin + std::int32_t(task % spans.size()), chunk = std::int32_t(task / spans.size() % blocks.n_chunks);
      auto const kv_head = std::int32_t(task / spans.size() / blocks.n_chunks % a.n_kv_heads);
      QueryBlock const queries = blocks.at(stretches[task / per_stretch], kv_head, chunk);
      block.load(queries);
      block.attend(span);
      for (std::int32_t i = 0; i < queries.size(); ++i) {
        if (!block.sees(i, span)) continue;
        float* const to = part_at(block.query_of(i), span);
        to[0] = block.part(i).max;
        to[1] = block.part(i).sum;
        std::copy(block.part_acc(i), block.part_acc(i) + a.head_dim, to + 2);
      }
    }
  });
  team.parallel_for(std::int64_t(a.n_tokens) * a.n_heads, std::max<std::int64_t>(1, 4096 / (std::int64_t(spans.size()) * a.head_dim)),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t query = begin; query < end; ++query) {
                        Range const seen = spans_of(a, visible_to(a, std::int32_t(query / a.n_heads)));
                        AttentionPart total;
                        float acc[AttentionBlock<Leaf, F>::most_dim];
                        for (std::int32_t span = seen.begin; span < seen.end; ++span) {
                          float const* const part = part_at(query, span);
                          merge_part(total, acc, {part[0], part[1]}, part + 2, a.head_dim);
                        }
                        finish_attention<Leaf>(a, query, total, acc);
                      }
                    });
}

/// Many rows: neighbours of one sequence share what they read; a thread merges the spans of its queries as it goes.
template <class Leaf, class F>
void attention_by_rows(AttentionArgs const& a, Team& team) {
  using Block = AttentionBlock<Leaf, F>;
  AttentionBlocks<Leaf, F> const blocks(a);
  std::int32_t block_rows = blocks.rows;
  auto const n_tasks = [&] { return std::int64_t((a.n_tokens + block_rows - 1) / block_rows) * a.n_kv_heads * blocks.n_chunks; };
  while (block_rows > 1 && n_tasks() < 4 * team.size()) block_rows = (block_rows + 1) / 2;  // enough for every thread
  auto const attend_rows = [&](Block& block, float* sums, QueryBlock const& queries) {
    block.load(queries);
    AttentionPart totals[Block::most_queries];
    Range const spans = block.spans();
    for (std::int32_t span = spans.begin; span < spans.end; ++span) {
      block.attend(span);
      for (std::int32_t i = 0; i < queries.size(); ++i) {
        if (block.sees(i, span)) merge_part(totals[i], sums + i * a.head_dim, block.part(i), block.part_acc(i), a.head_dim);
      }
    }
    for (std::int32_t i = 0; i < queries.size(); ++i) finish_attention<Leaf>(a, block.query_of(i), totals[i], sums + i * a.head_dim);
  };
  std::int64_t const n = n_tasks();
  team.parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
    Block block(a);
    float sums[Block::buffer_floats];
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t const task = n - 1 - i;  // the last rows of a sequence take longest: they go first
      auto const chunk = std::int32_t(task % blocks.n_chunks), kv_head = std::int32_t(task / blocks.n_chunks % a.n_kv_heads);
      auto row = std::int32_t(task / blocks.n_chunks / a.n_kv_heads) * block_rows;
      for (std::int32_t const row_end = std::min(a.n_tokens, row + block_rows); row < row_end;) {
        std::int32_t const next = blocks.stretch_end(a, row, row_end);
        attend_rows(block, sums, blocks.at({row, next}, kv_head, chunk));
        row = next;
      }
    }
  });
}

template <class Leaf, class F>
void attention(AttentionArgs const& a, Team& team) {
  if (a.n_tokens <= 0) return;
  if (a.head_dim < 1 || a.head_dim > AttentionBlock<Leaf, F>::most_dim || a.n_kv_heads < 1 || a.n_heads % a.n_kv_heads != 0)
    throw Error(Errc::unsupported, concat("attention of ", a.n_heads, " heads on ", a.n_kv_heads, " KV heads of size ", a.head_dim));
  Range spans;  // of any row
  if (a.n_tokens <= attention_few_rows) {
    for (std::int32_t row = 0; row < a.n_tokens; ++row) spans = hull(spans, spans_of(a, visible_to(a, row)));
  }
  if (spans.size() > 1) {
    attention_by_spans<Leaf, F>(a, team, spans);
  } else {
    attention_by_rows<Leaf, F>(a, team);
  }
}

/// One query of MergeAttentionArgs.
inline void merge_query(MergeAttentionArgs const& a, std::int64_t query, std::int64_t n_queries) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  float* const out = a.out + query * a.head_dim;
  float max = nothing, sum = 0;
  for (std::int32_t p = 0; p < a.n_parts; ++p) {
    float const log = a.part_log_sum_exp[p * n_queries + query];
    max = log > max || std::isnan(log) ? log : max;
  }
  for (std::int32_t p = 0; p < a.n_parts; ++p) {
    float const log = a.part_log_sum_exp[p * n_queries + query];
    if (log != nothing) sum += std::exp(log - max);
  }
  bool first = true;
  for (std::int32_t p = 0; p < a.n_parts; ++p) {
    float const log = a.part_log_sum_exp[p * n_queries + query];
    if (log == nothing) continue;
    float const weight = std::exp(log - max) / sum;
    float const* const part = a.parts + (p * n_queries + query) * a.head_dim;
    for (std::int32_t i = 0; i < a.head_dim; ++i) out[i] = first ? weight * part[i] : out[i] + weight * part[i];
    first = false;
  }
  if (first) std::fill(out, out + a.head_dim, 0.0f);
  if (a.log_sum_exp != nullptr) a.log_sum_exp[query] = first ? nothing : max + std::log(sum);
}

inline void merge_attention(MergeAttentionArgs const& a, Team& team) {
  std::int64_t const n_queries = std::int64_t(a.n_tokens) * a.n_heads,
                     elems = std::max<std::int64_t>(1, a.n_parts * std::int64_t(a.head_dim));
  team.parallel_for(n_queries, std::max<std::int64_t>(1, 8192 / elems), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t query = begin; query < end; ++query) merge_query(a, query, n_queries);
  });
}

}  // namespace tiered::cpu
