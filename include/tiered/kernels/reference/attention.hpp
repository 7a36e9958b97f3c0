/// Attention over paged KV, slow and obvious: all scores of a head, then softmax, then the weighted sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/format/encode.hpp"
#include "tiered/kernels/reference/norm.hpp"
#include "tiered/kernels/reference/rope.hpp"

namespace tiered::reference {
namespace detail {

/// Where one head's vector of one position lies.
inline std::byte* kv_vector(std::byte* const* pages, std::int64_t position, std::int64_t head, std::int32_t page_tokens,
                            std::size_t bytes) {
  return pages[position / page_tokens] + std::size_t(head * page_tokens + position % page_tokens) * bytes;
}

inline std::size_t padded_dim(DType kv, std::int32_t head_dim) {
  std::size_t const block = block_elems(kv);
  return (std::size_t(head_dim) + block - 1) / block * block;
}

}  // namespace detail

/// KvWriteArgs into pages of any weight format.
inline void kv_write(KvWriteArgs const& a, DType kv = DType::f16) {
  std::size_t const bytes = kv_row_bytes(kv, a.head_dim);
  std::vector<float> vector(detail::padded_dim(kv, a.head_dim));
  auto const write = [&](float const* from, std::byte* to) {
    std::copy(from, from + a.head_dim, vector.begin());
    encode_row(kv, vector.data(), std::int64_t(vector.size()), to);
  };
  for (std::int32_t t = 0; t < a.n_tokens; ++t) {
    KvRow const row = a.rows[t];
    KvTable const table = a.tables[row.table];
    for (std::int32_t h = 0; h < a.n_kv_heads; ++h) {
      std::int64_t const offset = (std::int64_t(t) * a.n_kv_heads + h) * a.head_dim;
      write(a.k + offset, detail::kv_vector(table.k_pages, row.position, h, a.page_tokens, bytes));
      write(a.v + offset, detail::kv_vector(table.v_pages, row.position, h, a.page_tokens, bytes));
    }
  }
}

/// AttentionInputArgs: the ops that it stands for, one after another.
inline void attention_input(AttentionInputArgs const& a, DType kv = DType::f16) {
  auto const norm = [&](float const* weight, float* x, std::int32_t n_heads) {
    if (weight != nullptr) rms_norm(RmsNormArgs{x, weight, x, a.n_tokens * n_heads, a.head_dim, a.eps});
  };
  auto const rotate = [&](float* x, std::int32_t n_heads) {
    rope(RopeArgs{x, a.positions, a.inv_freq, a.n_tokens, n_heads, a.head_dim, a.n_rot, a.kind, a.magnitude, a.position_row,
                  a.position_stride});
  };
  norm(a.q_norm, a.q, a.n_heads);
  norm(a.k_norm, a.k, a.n_kv_heads);
  rotate(a.q, a.n_heads);
  rotate(a.k, a.n_kv_heads);
  kv_write(KvWriteArgs{a.k, a.v, a.rows, a.tables, a.n_tokens, a.n_kv_heads, a.head_dim, a.page_tokens}, kv);
}

/// AttentionArgs, likewise. The workspace is not used.
inline void attention(AttentionArgs const& a, DType kv = DType::f16) {
  std::size_t const bytes = kv_row_bytes(kv, a.head_dim), head_dim = std::size_t(a.head_dim);
  std::vector<float> vector(detail::padded_dim(kv, a.head_dim));
  std::vector<double> scores, sum(head_dim);
  for (std::int64_t i = 0; i < std::int64_t(a.n_tokens) * a.n_heads; ++i) {
    KvRow const row = a.rows[i / a.n_heads];
    KvTable const table = a.tables[row.table];
    std::int64_t const kv_head = i % a.n_heads * a.n_kv_heads / a.n_heads;
    auto const [first, end] = a.seen_by(std::int32_t(i / a.n_heads), row.position);
    std::int32_t const last = end - 1;
    float const* const q = a.q + i * a.head_dim;
    auto const decode = [&](std::byte* const* pages, std::int32_t p) {
      decode_row(kv, detail::kv_vector(pages, p, kv_head, a.page_tokens, bytes), std::int64_t(vector.size()), vector.data());
    };
    if (first > last) {
      std::fill(a.out + i * a.head_dim, a.out + (i + 1) * a.head_dim, 0.0f);
      if (a.log_sum_exp != nullptr) a.log_sum_exp[i] = -std::numeric_limits<float>::infinity();
      continue;
    }

    scores.clear();
    for (std::int32_t p = first; p <= last; ++p) {
      decode(table.k_pages, p);
      double dot = 0;
      for (std::size_t k = 0; k < head_dim; ++k) dot += double(q[k]) * double(vector[k]);
      scores.push_back(dot * double(a.scale));
    }
    double const largest = *std::max_element(scores.begin(), scores.end());
    double denominator = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int32_t p = first; p <= last; ++p) {
      double const weight = std::exp(scores[static_cast<std::size_t>(p - first)] - largest);
      decode(table.v_pages, p);
      for (std::size_t k = 0; k < head_dim; ++k) sum[k] += weight * double(vector[k]);
      denominator += weight;
    }
    for (std::size_t k = 0; k < head_dim; ++k) a.out[i * a.head_dim + std::int64_t(k)] = float(sum[k] / denominator);
    if (a.log_sum_exp != nullptr) a.log_sum_exp[i] = float(largest + std::log(denominator));
  }
}

/// DecodeAttentionArgs: one after the other.
inline void decode_attention(DecodeAttentionArgs const& a, DType kv = DType::f16) {
  attention_input(a.input, kv);
  attention(a.attention, kv);
}

/// MergeAttentionArgs.
inline void merge_attention(MergeAttentionArgs const& a) {
  std::int64_t const n_queries = std::int64_t(a.n_tokens) * a.n_heads;
  for (std::int64_t i = 0; i < n_queries; ++i) {
    auto const log_of = [&](std::int32_t p) { return double(a.part_log_sum_exp[p * n_queries + i]); };
    double largest = -std::numeric_limits<double>::infinity(), denominator = 0;
    for (std::int32_t p = 0; p < a.n_parts; ++p) largest = (std::max)(largest, log_of(p));
    std::vector<double> sum(static_cast<std::size_t>(a.head_dim));
    for (std::int32_t p = 0; p < a.n_parts; ++p) {
      if (std::isinf(log_of(p)) && log_of(p) < 0) continue;
      double const weight = std::exp(log_of(p) - largest);
      denominator += weight;
      for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += weight * double(a.parts[(p * n_queries + i) * a.head_dim + std::int64_t(k)]);
    }
    for (std::size_t k = 0; k < sum.size(); ++k)
      a.out[i * a.head_dim + std::int64_t(k)] = denominator == 0 ? 0.0f : float(sum[k] / denominator);
    if (a.log_sum_exp != nullptr) a.log_sum_exp[i] = float(largest + std::log(denominator));
  }
}

}  // namespace tiered::reference
