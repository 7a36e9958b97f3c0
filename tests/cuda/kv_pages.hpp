/// Keys and values of several sequences in pages, here and in VRAM, and the cases of attention over them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "numerics/attention_outputs.hpp"
#include "tiered/kernels/reference/attention.hpp"

namespace tiered_test {

struct AttentionCase {
  std::int32_t n_heads, n_kv_heads, head_dim, page_tokens, window;
  std::vector<KvRow> rows;  ///< sequences are numbered from 0
};

inline std::vector<KvRow> run_of(std::int32_t table, std::int32_t first, std::int32_t n) {
  std::vector<KvRow> rows;
  for (std::int32_t i = 0; i < n; ++i) rows.push_back({table, first + i});
  return rows;
}

inline std::vector<KvRow> joined(std::vector<std::vector<KvRow>> const& parts) {
  std::vector<KvRow> rows;
  for (auto const& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

/// As for the CPU: spans are 256 positions; pages that divide and that hold a span; head sizes of all kinds. Few of these fit tensor cores.
inline std::vector<AttentionCase> odd_cases() {
  return {
      {1, 1, 8, 16, 0, run_of(0, 0, 1)},
      {3, 1, 64, 32, 0, run_of(0, 5, 3)},
      {9, 3, 64, 64, 0, run_of(0, 0, 40)},
      {4, 2, 20, 16, 0, run_of(0, 250, 12)},  // a head size that fills no vector
      {4, 1, 256, 256, 0, run_of(0, 255, 1)},
      {4, 1, 256, 512, 0, run_of(0, 256, 2)},
      {2, 2, 32, 1, 0, run_of(0, 17, 3)},
      {40, 1, 64, 32, 0, run_of(0, 300, 2)},
      {40, 1, 64, 32, 0, run_of(0, 290, 20)},
      {6, 3, 64, 32, 7, run_of(0, 0, 30)},
      {6, 3, 64, 32, 300, run_of(0, 700, 4)},
      {6, 3, 64, 32, 256, run_of(0, 500, 25)},
      {4, 2, 64, 16, 1, run_of(0, 600, 3)},
      {4, 2, 64, 16, 0, joined({run_of(0, 20, 2), run_of(1, 400, 1), run_of(2, 0, 3)})},
      {4, 2, 64, 16, 40, joined({run_of(0, 20, 9), run_of(1, 400, 7), run_of(2, 0, 13)})},
      {3, 3, 33, 32, 50, run_of(0, 0, 130)},
      {12, 1, 17, 16, 0, run_of(0, 30, 18)},
      {24, 2, 48, 64, 3, run_of(0, 254, 20)},
      {7, 1, 160, 256, 0, run_of(0, 60, 20)},
      {2, 1, 576, 64, 0, run_of(0, 70, 2)},  // the largest head
      {2, 1, 513, 64, 0, run_of(0, 70, 20)},
      {22, 2, 64, 32, 0, joined({run_of(0, 511, 1), run_of(1, 512, 1), run_of(2, 0, 1), run_of(2, 1, 1)})},
  };
}

/// What tensor cores take: contexts around tiles, pages and splits; groups of 1 to 40 heads; up to 16 rows and more.
inline std::vector<AttentionCase> tiled_cases() {
  return {
      {8, 2, 128, 256, 0, run_of(0, 0, 1)},
      {8, 2, 128, 64, 0, run_of(0, 30, 1)},
      {4, 4, 64, 256, 0, run_of(0, 256, 1)},
      {7, 1, 80, 256, 0, run_of(0, 999, 3)},
      {8, 1, 96, 128, 0, run_of(0, 999, 1)},
      {4, 2, 72, 64, 0, run_of(0, 300, 5)},  // many rows only
      {4, 2, 72, 64, 0, run_of(0, 300, 140)},
      {2, 2, 72, 256, 40, run_of(0, 30, 70)},
      {16, 2, 128, 256, 0, run_of(0, 3999, 1)},
      {8, 1, 256, 256, 0, run_of(0, 999, 1)},
      {20, 1, 64, 64, 0, run_of(0, 300, 2)},  // more heads on one KV head than a tile has rows
      {40, 1, 64, 64, 0, run_of(0, 290, 20)},
      {8, 2, 128, 256, 0, run_of(0, 500, 16)},
      {8, 2, 128, 256, 0, run_of(0, 500, 17)},
      {4, 4, 64, 256, 0, run_of(0, 0, 200)},
      {8, 1, 80, 256, 0, run_of(0, 440, 100)},
      {5, 5, 96, 64, 0, run_of(0, 100, 65)},
      {4, 1, 128, 256, 0, run_of(0, 0, 129)},
      {2, 1, 128, 256, 0, run_of(0, 3900, 40)},
      {3, 1, 256, 256, 0, run_of(0, 180, 65)},
      {2, 2, 256, 64, 0, run_of(0, 0, 66)},
      {4, 2, 64, 64, 1, run_of(0, 600, 3)},
      {6, 3, 128, 256, 7, run_of(0, 0, 30)},
      {6, 3, 64, 256, 300, run_of(0, 700, 4)},
      {4, 2, 96, 256, 64, run_of(0, 500, 150)},
      {2, 1, 256, 256, 100, run_of(0, 500, 40)},
      {4, 2, 64, 256, 0, joined({run_of(0, 20, 2), run_of(1, 400, 1), run_of(2, 0, 3)})},
      {4, 2, 128, 256, 40, joined({run_of(0, 20, 9), run_of(1, 400, 7), run_of(2, 0, 13)})},
      {4, 1, 128, 256, 0, joined({run_of(0, 250, 100), run_of(1, 3, 40), run_of(0, 350, 20), run_of(2, 0, 60)})},
      {2,
       1,
       80,
       64,
       0,
       {{0, 900},
        {1, 3},
        {0, 70},
        {2, 64},
        {2, 63},
        {1, 4},
        {0, 5},
        {0, 901},
        {1, 500},
        {2, 1},
        {0, 6},
        {1, 5},
        {2, 65},
        {0, 128},
        {1, 127},
        {2, 129},
        {0, 0},
        {1, 0},
        {2, 0}}},  // in no order
  };
}

inline std::vector<AttentionCase> all_attention_cases() {
  std::vector<AttentionCase> cases = odd_cases();
  for (AttentionCase const& c : tiled_cases()) cases.push_back(c);
  return cases;
}

/// Pages with garbage that is not a number wherever nothing was written.
class Pages {
 public:
  Pages(AttentionCase const& c, DType kv, SplitMix64& random) : case_(c), kv_(kv) {
    std::int32_t n_tables = 0;
    for (KvRow const row : c.rows) {
      n_tables = std::max(n_tables, row.table + 1);
      max_position = std::max(max_position, row.position);
    }
    n_pages_ = std::size_t(max_position / c.page_tokens + 1);
    page_bytes_ = std::size_t(c.n_kv_heads) * std::size_t(c.page_tokens) * kv_row_bytes(kv, c.head_dim);
    bytes.resize(std::size_t(n_tables) * 2 * n_pages_ * page_bytes_, std::byte{0xff});
    pointers_ = pointers_into(bytes.data());
    tables = tables_over(pointers_.data(), std::size_t(n_tables));
    for (std::size_t t = 0; t < std::size_t(n_tables); ++t) {
      std::int32_t last = 0;
      for (KvRow const row : c.rows) last = row.table == std::int32_t(t) ? std::max(last, row.position) : last;
      for (std::int32_t p = 0; p <= last; ++p) written.push_back({std::int32_t(t), p});
    }
    std::size_t const n = written.size() * std::size_t(c.n_kv_heads) * std::size_t(c.head_dim);
    k = random_floats(n, random);
    v = random_floats(n, random);
  }
  KvWriteArgs write_args() const {
    return {k.data(),         v.data(),       written.data(),   tables.data(), std::int32_t(written.size()),
            case_.n_kv_heads, case_.head_dim, case_.page_tokens};
  }
  void write() { reference::kv_write(write_args(), kv_); }

  std::vector<std::byte*> pointers_into(std::byte* base) const {
    std::vector<std::byte*> pointers(bytes.size() / page_bytes_);
    for (std::size_t i = 0; i < pointers.size(); ++i) pointers[i] = base + i * page_bytes_;
    return pointers;
  }
  std::vector<KvTable> tables_over(std::byte* const* pointers, std::size_t n_tables) const {
    std::vector<KvTable> result;
    for (std::size_t t = 0; t < n_tables; ++t) result.push_back({pointers + 2 * t * n_pages_, pointers + (2 * t + 1) * n_pages_});
    return result;
  }

  std::vector<std::byte> bytes;
  std::vector<KvTable> tables;
  std::vector<KvRow> written;
  std::vector<float> k, v;
  std::int32_t max_position = 0;

 private:
  AttentionCase const& case_;
  DType kv_;
  std::size_t page_bytes_ = 0, n_pages_ = 0;
  std::vector<std::byte*> pointers_;
};

/// The same pages in VRAM.
class DevicePages {
 public:
  explicit DevicePages(Pages const& pages)
      : bytes(pages.bytes),
        pointers_(pages.pointers_into(bytes.data())),
        tables(pages.tables_over(pointers_.data(), pages.tables.size())) {}
  DeviceArray<std::byte> bytes;

 private:
  DeviceArray<std::byte*> pointers_;

 public:
  DeviceArray<KvTable> tables;
};

inline std::string describe(DType kv, AttentionCase const& c) {
  return concat(name(kv), ": ", c.n_heads, " on ", c.n_kv_heads, " heads of ", c.head_dim, ", pages of ", c.page_tokens, ", window ",
                c.window, ", ", c.rows.size(), " rows, the last at ", c.rows.back().position);
}

}  // namespace tiered_test
