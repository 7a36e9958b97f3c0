/// Attention over paged KV, slow and obvious: all scores of a head, then softmax, then the weighted sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/format/encode.hpp"

namespace tiered::reference {
namespace detail {

/// Where one head's vector of one position lies.
inline std::byte* kv_vector(std::byte* const* pages, std::int64_t position, std::int64_t head, std::int32_t page_tokens,
                            std::uint64_t bytes) {
  return pages[position / page_tokens] + std::uint64_t(head * page_tokens + position % page_tokens) * bytes;
}

}  // namespace detail

/// KvWriteArgs into pages of any weight format whose blocks divide head_dim; f16 is what tables have today.
inline void kv_write(KvWriteArgs const& a, DType kv = DType::f16) {
  std::uint64_t const bytes = row_bytes(kv, std::uint64_t(a.head_dim));
  for (std::int32_t t = 0; t < a.n_tokens; ++t) {
    KvRow const row = a.rows[t];
    KvTable const table = a.tables[row.table];
    for (std::int32_t h = 0; h < a.n_kv_heads; ++h) {
      std::int64_t const offset = (std::int64_t(t) * a.n_kv_heads + h) * a.head_dim;
      encode_row(kv, a.k + offset, a.head_dim, detail::kv_vector(table.k_pages, row.position, h, a.page_tokens, bytes));
      encode_row(kv, a.v + offset, a.head_dim, detail::kv_vector(table.v_pages, row.position, h, a.page_tokens, bytes));
    }
  }
}

/// AttentionArgs, likewise. The workspace is not used.
inline void attention(AttentionArgs const& a, DType kv = DType::f16) {
  std::uint64_t const bytes = row_bytes(kv, std::uint64_t(a.head_dim));
  std::size_t const head_dim = static_cast<std::size_t>(a.head_dim);
  std::vector<float> vector(head_dim);
  std::vector<double> scores, sum(head_dim);
  for (std::int64_t i = 0; i < std::int64_t(a.n_tokens) * a.n_heads; ++i) {
    KvRow const row = a.rows[i / a.n_heads];
    KvTable const table = a.tables[row.table];
    std::int64_t const kv_head = i % a.n_heads * a.n_kv_heads / a.n_heads;
    std::int64_t const first = a.window > 0 ? (std::max)(0, row.position - a.window + 1) : 0;
    float const* const q = a.q + i * a.head_dim;

    scores.clear();
    for (std::int64_t p = first; p <= row.position; ++p) {
      decode_row(kv, detail::kv_vector(table.k_pages, p, kv_head, a.page_tokens, bytes), a.head_dim, vector.data());
      double dot = 0;
      for (std::size_t k = 0; k < head_dim; ++k) dot += double(q[k]) * double(vector[k]);
      scores.push_back(dot * double(a.scale));
    }
    double const largest = *std::max_element(scores.begin(), scores.end());
    double denominator = 0;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (std::int64_t p = first; p <= row.position; ++p) {
      double const weight = std::exp(scores[static_cast<std::size_t>(p - first)] - largest);
      decode_row(kv, detail::kv_vector(table.v_pages, p, kv_head, a.page_tokens, bytes), a.head_dim, vector.data());
      for (std::size_t k = 0; k < head_dim; ++k) sum[k] += weight * double(vector[k]);
      denominator += weight;
    }
    for (std::size_t k = 0; k < head_dim; ++k) a.out[i * a.head_dim + std::int64_t(k)] = float(sum[k] / denominator);
    if (a.log_sum_exp != nullptr) a.log_sum_exp[i] = float(largest + std::log(denominator));
  }
}

}  // namespace tiered::reference
