/// Attention whose rows are given what they see, as image encoders have it: cases, and their keys and values, for the tests of every
/// backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "numerics/attention_outputs.hpp"
#include "tiered/kernels/reference/attention.hpp"

namespace tiered_test {

/// Rows and what they see. Their own positions are where no page is: nobody may ask for them.
struct SeenRows {
  std::vector<KvRow> rows;
  std::vector<Range> seen;

  SeenRows& add(std::int32_t table, std::int32_t n, Range range) {
    for (std::int32_t i = 0; i < n; ++i) {
      rows.push_back({table, 1'000'000 + 7 * std::int32_t(rows.size())});
      seen.push_back(range);
    }
    return *this;
  }
  /// Each row sees all of its window; the first one begins at `first`.
  SeenRows& windows(std::int32_t table, std::int32_t first, std::vector<std::int32_t> const& sizes) {
    for (std::int32_t const size : sizes) {
      add(table, size, {first, first + size});
      first += size;
    }
    return *this;
  }
};

struct SeenCase {
  std::string what;
  std::int32_t n_heads, n_kv_heads, head_dim, page_tokens;
  SeenRows rows;

  std::int32_t n() const { return std::int32_t(rows.rows.size()); }
  std::int32_t max_position() const {
    std::int32_t largest = 0;
    for (Range const range : rows.seen) largest = range.size() > 0 ? std::max(largest, range.end - 1) : largest;
    return largest;
  }
  std::size_t row_elems() const { return std::size_t(n_heads) * std::size_t(head_dim); }
  /// Without pointers.
  AttentionArgs args() const {
    AttentionArgs a;
    a.n_tokens = n(), a.n_heads = n_heads, a.n_kv_heads = n_kv_heads, a.head_dim = head_dim, a.page_tokens = page_tokens;
    a.max_position = max_position();
    a.scale = 1 / std::sqrt(float(head_dim));
    return a;
  }
  std::vector<float> queries(SplitMix64& random) const { return random_floats(rows.rows.size() * row_elems(), random); }
  /// Rows [first, first + count).
  SeenCase part(std::int32_t first, std::int32_t count) const {
    SeenCase some = *this;
    some.rows.rows.assign(rows.rows.begin() + first, rows.rows.begin() + first + count);
    some.rows.seen.assign(rows.seen.begin() + first, rows.seen.begin() + first + count);
    return some;
  }
};

/// Spans are 256 positions, tiles 64, blocks 64 or 128 rows, and up to 16 rows are split along what they see.
inline std::vector<std::pair<std::string, SeenRows>> seen_patterns() {
  std::vector<std::pair<std::string, SeenRows>> patterns;
  patterns.push_back({"all see all", SeenRows().add(0, 290, {0, 290})});
  patterns.push_back({"windows", SeenRows().windows(0, 0, {64, 64, 32, 16, 48, 4, 1, 100, 64, 64})});
  patterns.push_back({"windows that begin anywhere", SeenRows().windows(0, 37, {56, 56, 3, 56, 28, 56, 70})});
  patterns.push_back({"rows that see nothing",
                      SeenRows().add(0, 3, {9, 2}).windows(0, 10, {40}).add(0, 40, {7, 7}).windows(0, 50, {30, 20}).add(0, 5, {200, 100})});
  patterns.push_back({"nobody sees anything", SeenRows().add(0, 20, {3, 3})});
  patterns.push_back({"one row", SeenRows().add(0, 1, {3, 70})});
  patterns.push_back({"few rows of long ranges",
                      SeenRows().add(0, 2, {0, 900}).add(0, 1, {100, 101}).add(0, 2, {850, 900}).add(0, 1, {4, 4}).add(0, 1, {255, 513})});
  patterns.push_back({"16 rows", SeenRows().windows(0, 0, {9, 7})});
  patterns.push_back({"17 rows", SeenRows().windows(0, 250, {9, 8})});
  patterns.push_back(
      {"several tables",
       SeenRows().windows(0, 0, {20, 70}).add(2, 60, {0, 60}).windows(1, 60, {64, 31}).add(0, 30, {64, 90}).add(3, 3, {500, 503})});
  patterns.push_back(
      {"ranges far apart",
       SeenRows().add(0, 30, {0, 30}).add(0, 40, {3000, 3040}).add(0, 9, {10, 30}).add(0, 1, {2, 2}).add(0, 33, {1500, 1600})});
  patterns.push_back({"few rows far apart", SeenRows().add(0, 3, {0, 30}).add(0, 4, {3000, 3040}).add(0, 1, {1500, 1600})});
  SeenRows sliding, anywhere;
  for (std::int32_t t = 0; t < 170; ++t) sliding.add(0, 1, {std::max(t - 20, 0), std::min(t + 21, 170)});
  patterns.push_back({"around each row", sliding});
  SplitMix64 random(77);
  for (std::int32_t t = 0; t < 150; ++t) {
    auto const begin = std::int32_t(random.below(600));
    anywhere.add(0, 1, {begin, begin + std::int32_t(random.below(t % 3 == 0 ? 300 : 5))});
  }
  patterns.push_back({"in no order", anywhere});
  return patterns;
}

/// Heads of image encoders, and others; one page for all, and many. Each pattern with four of them.
inline std::vector<SeenCase> seen_cases() {
  struct Shape {
    std::int32_t n_heads, n_kv_heads, head_dim, page_tokens;
  };
  constexpr Shape shapes[] = {{2, 2, 80, 256}, {3, 3, 72, 64},  {2, 2, 64, 4096}, {3, 1, 128, 64}, {2, 2, 72, 4096},
                              {5, 5, 20, 16},  {4, 2, 96, 128}, {2, 1, 256, 256}, {2, 1, 33, 32},  {4, 1, 80, 64}};
  constexpr std::size_t n_shapes = sizeof shapes / sizeof shapes[0];
  std::vector<SeenCase> cases;
  std::size_t next = 0;
  for (auto const& [what, rows] : seen_patterns()) {
    for (std::size_t i = 0; i < 4; ++i, next += 3) {
      Shape const& s = shapes[next % n_shapes];
      cases.push_back({what, s.n_heads, s.n_kv_heads, s.head_dim, s.page_tokens, rows});
    }
  }
  return cases;
}

/// Keys and values of what some row sees. Whatever else is in a page is garbage that is not a number, and pages of nothing else are null.
class SeenPages {
 public:
  SeenPages(SeenCase const& c, DType kv, SplitMix64& random) : case_(c), kv_(kv) {
    std::int32_t n_tables = 0;
    for (KvRow const row : c.rows.rows) n_tables = std::max(n_tables, row.table + 1);
    n_pages_ = std::size_t(c.max_position() / c.page_tokens + 1);
    page_bytes_ = std::size_t(c.n_kv_heads) * std::size_t(c.page_tokens) * kv_row_bytes(kv, c.head_dim);
    place_.resize(std::size_t(n_tables) * n_pages_, -1);
    std::vector<bool> is_seen(place_.size() * std::size_t(c.page_tokens));
    std::int64_t n_places = 0;
    for (std::size_t i = 0; i < c.rows.seen.size(); ++i) {
      for (std::int32_t p = c.rows.seen[i].begin; p < c.rows.seen[i].end; ++p) {
        std::size_t const page = std::size_t(c.rows.rows[i].table) * n_pages_ + std::size_t(p / c.page_tokens);
        std::size_t const at = page * std::size_t(c.page_tokens) + std::size_t(p % c.page_tokens);
        if (is_seen[at]) continue;
        is_seen[at] = true;
        written.push_back({c.rows.rows[i].table, p});
        if (place_[page] < 0) place_[page] = n_places++;
      }
    }
    bytes.resize(std::size_t(2 * n_places) * page_bytes_, std::byte{0xff});
    pointers_ = pointers_into(bytes.data());
    tables = tables_over(pointers_.data());
    std::size_t const n = written.size() * std::size_t(c.n_kv_heads) * std::size_t(c.head_dim);
    k = random_floats(n, random);
    v = random_floats(n, random);
  }
  SeenPages(SeenPages const&) = delete;
  SeenPages& operator=(SeenPages const&) = delete;

  void write() {
    reference::kv_write({k.data(), v.data(), written.data(), tables.data(), std::int32_t(written.size()), case_.n_kv_heads, case_.head_dim,
                         case_.page_tokens},
                        kv_);
  }
  /// Of `bytes`, where those begin at `base`: for each table the pages of keys, then those of values.
  std::vector<std::byte*> pointers_into(std::byte* base) const {
    std::vector<std::byte*> pointers;
    for (std::size_t table = 0; table < place_.size() / n_pages_; ++table) {
      for (std::int64_t half = 0; half < 2; ++half) {
        for (std::size_t p = 0; p < n_pages_; ++p) {
          std::int64_t const place = place_[table * n_pages_ + p];
          pointers.push_back(place < 0 ? nullptr : base + std::size_t(2 * place + half) * page_bytes_);
        }
      }
    }
    return pointers;
  }
  std::vector<KvTable> tables_over(std::byte* const* pointers) const {
    std::vector<KvTable> result;
    for (std::size_t table = 0; table < place_.size() / n_pages_; ++table)
      result.push_back({pointers + 2 * table * n_pages_, pointers + (2 * table + 1) * n_pages_});
    return result;
  }

  std::vector<std::byte> bytes;
  std::vector<KvTable> tables;
  std::vector<KvRow> written;
  std::vector<float> k, v;  ///< [written.size(), n_kv_heads, head_dim]

 private:
  SeenCase const& case_;
  DType kv_;
  std::size_t n_pages_ = 0, page_bytes_ = 0;
  std::vector<std::int64_t> place_;  // of each page in `bytes`, -1: nowhere
  std::vector<std::byte*> pointers_;
};

/// By the reference.
inline Outputs expected_of(SeenCase const& c, DType kv, SeenPages const& pages, std::vector<float> const& q, Range positions) {
  Outputs result{poisoned(q.size()), poisoned(std::size_t(c.n()) * std::size_t(c.n_heads))};
  AttentionArgs a = c.args();
  a.q = q.data(), a.rows = c.rows.rows.data(), a.seen = c.rows.seen.data(), a.tables = pages.tables.data();
  a.out = result.out.data(), a.log_sum_exp = result.log_sum_exp.data();
  a.positions = positions;
  reference::attention(a, kv);
  return result;
}

/// Cuts of the positions that together are all: some rows see nothing of one of them, and of the third nobody anything.
inline std::vector<Range> cuts_of(SeenCase const& c) {
  std::int32_t const end = c.max_position() + 1, early = end / 3, late = std::max(early, end - 2);
  return {{0, early}, {early, late}, {end + 7, end + 9}, {late, end}};
}

inline std::string describe(DType kv, SeenCase const& c) {
  return concat(name(kv), ", ", c.what, ": ", c.n_heads, " on ", c.n_kv_heads, " heads of ", c.head_dim, ", pages of ", c.page_tokens, ", ",
                c.n(), " rows");
}

}  // namespace tiered_test
