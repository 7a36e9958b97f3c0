/// Attention and the writing of KV pages by the CPU tables.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention_outputs.hpp"
#include "catch.hpp"
#include "tiered/kernels/reference/attention.hpp"

using namespace tiered_test;

namespace {

struct AttentionCase {
  std::int32_t n_heads, n_kv_heads, head_dim, page_tokens, window;
  std::vector<KvRow> rows;  ///< sequences are numbered from 0
};

std::vector<KvRow> run_of(std::int32_t table, std::int32_t first, std::int32_t n) {
  std::vector<KvRow> rows;
  for (std::int32_t i = 0; i < n; ++i) rows.push_back({table, first + i});
  return rows;
}

std::vector<KvRow> joined(std::vector<std::vector<KvRow>> const& parts) {
  std::vector<KvRow> rows;
  for (auto const& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

/// Spans are 256 positions: lengths around 1 and 2 of them, pages that divide and that hold a span, one row and many.
std::vector<AttentionCase> attention_cases() {
  return {
      {1, 1, 8, 16, 0, run_of(0, 0, 1)},
      {3, 1, 64, 32, 0, run_of(0, 5, 3)},
      {9, 3, 64, 64, 0, run_of(0, 0, 40)},
      {4, 2, 20, 16, 0, run_of(0, 250, 12)},  // a head size that fills no vector
      {4, 1, 256, 256, 0, run_of(0, 255, 1)},
      {4, 1, 256, 512, 0, run_of(0, 256, 2)},
      {2, 2, 32, 1, 0, run_of(0, 17, 3)},
      {40, 1, 64, 32, 0, run_of(0, 300, 2)},  // more heads on one KV head than a block takes
      {40, 1, 64, 32, 0, run_of(0, 290, 20)},
      {8, 2, 128, 64, 0, run_of(0, 500, 1)},
      {8, 2, 128, 64, 0, run_of(0, 500, 30)},
      {6, 3, 64, 32, 7, run_of(0, 0, 30)},
      {6, 3, 64, 32, 300, run_of(0, 700, 4)},
      {6, 3, 64, 32, 256, run_of(0, 500, 25)},
      {4, 2, 64, 16, 1, run_of(0, 600, 3)},
      {4, 2, 64, 16, 0, joined({run_of(0, 20, 2), run_of(1, 400, 1), run_of(2, 0, 3)})},
      {4, 2, 64, 16, 40, joined({run_of(0, 20, 9), run_of(1, 400, 7), run_of(2, 0, 13)})},
      {8, 1, 80, 256, 0, run_of(0, 440, 100)},  // blocks of 32 that do not divide a head; a span ends within a block of rows
      {5, 5, 96, 64, 0, run_of(0, 100, 70)},    // one head a KV head: many rows to a block
      {3, 3, 33, 32, 50, run_of(0, 0, 130)},    // a window shorter than a block of rows
      {12, 1, 17, 16, 0, run_of(0, 30, 18)},
      {24, 2, 48, 64, 3, run_of(0, 254, 20)},
      {7, 1, 160, 256, 0, run_of(0, 60, 20)},  // more elements than a tile has
      {22, 2, 64, 32, 0, joined({run_of(0, 511, 1), run_of(1, 512, 1), run_of(2, 0, 1), run_of(2, 1, 1)})},
  };
}

/// Keys and values of several sequences in pages, with NaN wherever nothing was written.
class Pages {
 public:
  Pages(AttentionCase const& c, DType kv, SplitMix64& random) : case_(c) {
    std::int32_t n_tables = 0;
    for (KvRow const row : c.rows) {
      n_tables = std::max(n_tables, row.table + 1);
      max_position = std::max(max_position, row.position);
    }
    std::size_t const n_pages = std::size_t(max_position / c.page_tokens + 1);
    page_bytes_ = std::size_t(c.n_kv_heads) * std::size_t(c.page_tokens) * kv_row_bytes(kv, c.head_dim);
    bytes.resize(std::size_t(n_tables) * 2 * n_pages * page_bytes_, std::byte{0xff});
    pointers_.resize(std::size_t(n_tables) * 2 * n_pages);
    for (std::size_t i = 0; i < pointers_.size(); ++i) pointers_[i] = bytes.data() + i * page_bytes_;
    for (std::size_t t = 0; t < std::size_t(n_tables); ++t) {
      tables.push_back({pointers_.data() + 2 * t * n_pages, pointers_.data() + (2 * t + 1) * n_pages});
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
  std::vector<std::byte> bytes;
  std::vector<KvTable> tables;
  std::vector<KvRow> written;
  std::vector<float> k, v;
  std::int32_t max_position = 0;

 private:
  AttentionCase const& case_;
  std::size_t page_bytes_ = 0;
  std::vector<std::byte*> pointers_;
};

/// `attend` gets the arguments, all rows at once.
template <class Attend>
Outputs attention_of(AttentionCase const& c, Pages const& pages, std::vector<float> const& q, std::int32_t first, std::int32_t n,
                     Attend attend) {
  std::size_t const row = std::size_t(c.n_heads) * std::size_t(c.head_dim);
  Outputs result{poisoned(std::size_t(n) * row), poisoned(std::size_t(n) * std::size_t(c.n_heads))};
  std::int32_t max_position = 0;
  for (std::int32_t i = first; i < first + n; ++i) max_position = std::max(max_position, c.rows[std::size_t(i)].position);
  std::vector<std::byte> workspace(attention_workspace_bytes(n, c.n_heads, c.head_dim, max_position), std::byte{0xff});
  AttentionArgs args;
  args.q = q.data() + std::size_t(first) * row;
  args.rows = c.rows.data() + first;
  args.tables = pages.tables.data();
  args.out = result.out.data();
  args.log_sum_exp = result.log_sum_exp.data();
  args.workspace = workspace.data();
  args.n_tokens = n;
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.page_tokens = c.page_tokens;
  args.max_position = max_position;
  args.window = c.window;
  args.scale = 1 / std::sqrt(float(c.head_dim));
  attend(args);
  return result;
}

std::string describe(Isa isa, DType kv, AttentionCase const& c) {
  return concat(name(isa), ' ', name(kv), ": ", c.n_heads, " on ", c.n_kv_heads, " heads of ", c.head_dim, ", pages of ", c.page_tokens,
                ", window ", c.window, ", ", c.rows.size(), " rows, the last at ", c.rows.back().position);
}

}  // namespace

TEST_CASE("KV pages are written as the reference writes them, and nothing else is") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : kv_types) {
      for (AttentionCase const& c : attention_cases()) {
        INFO(describe(isa, kv, c));
        SplitMix64 random(4), same(4);
        Pages ours(c, kv, random), theirs(c, kv, same);
        cpu.run(cpu.table().kv_write[std::uint32_t(kv)], ours.write_args());
        reference::kv_write(theirs.write_args(), kv);
        CHECK(ours.bytes == theirs.bytes);
      }
    }
  }
}

TEST_CASE("CPU attention equals the reference, whatever lies where nothing was written") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : kv_types) {
      for (AttentionCase const& c : attention_cases()) {
        INFO(describe(isa, kv, c));
        SplitMix64 random(8);
        Pages pages(c, kv, random);
        reference::kv_write(pages.write_args(), kv);
        std::vector<float> const q = random_floats(c.rows.size() * std::size_t(c.n_heads) * std::size_t(c.head_dim), random);
        auto const n = std::int32_t(c.rows.size());
        Outputs const got =
            attention_of(c, pages, q, 0, n, [&](AttentionArgs const& a) { cpu.run(cpu.table().attention[std::uint32_t(kv)], a); });
        Outputs const expected = attention_of(c, pages, q, 0, n, [&](AttentionArgs const& a) { reference::attention(a, kv); });
        check_close(got, expected, relative_error(c.head_dim, pages.max_position));
      }
    }
  }
}

TEST_CASE("a row's attention is the same for every thread count and whatever rows share the call") {
  for (Isa const isa : available_isas()) {
    Cpu one(isa, false, 1), two(isa, false, 2), three(isa, false, 3), seven(isa, false, 7);
    for (DType const kv : kv_types) {
      for (AttentionCase const& c : attention_cases()) {
        INFO(describe(isa, kv, c));
        SplitMix64 random(8);
        Pages pages(c, kv, random);
        reference::kv_write(pages.write_args(), kv);
        std::vector<float> const q = random_floats(c.rows.size() * std::size_t(c.n_heads) * std::size_t(c.head_dim), random);
        auto const n = std::int32_t(c.rows.size());
        auto const run = [&](Cpu& cpu, std::int32_t first, std::int32_t count) {
          return attention_of(c, pages, q, first, count,
                              [&](AttentionArgs const& a) { cpu.run(cpu.table().attention[std::uint32_t(kv)], a); });
        };
        Outputs const all = run(one, 0, n);
        for (Cpu* cpu : {&two, &three, &seven}) CHECK(same_bits(run(*cpu, 0, n).out, all.out));
        Outputs single;
        for (std::int32_t i = 0, step = 1; i < n; i += step, step = step % 18 + 3) {  // below and above the 16 rows that are split by spans
          Outputs const part = run(two, i, std::min(step, n - i));
          single.out.insert(single.out.end(), part.out.begin(), part.out.end());
          single.log_sum_exp.insert(single.log_sum_exp.end(), part.log_sum_exp.begin(), part.log_sum_exp.end());
        }
        CHECK(same_bits(single.out, all.out));
        CHECK(same_bits(single.log_sum_exp, all.log_sum_exp));
      }
    }
  }
}

TEST_CASE("attention with scores far apart, and with large ones, does not overflow") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    DType const kv = DType::f16;
    AttentionCase const c{2, 1, 16, 16, 0, run_of(0, 270, 1)};
    SplitMix64 random(3);
    Pages pages(c, kv, random);
    for (std::size_t i = 0; i < pages.k.size(); ++i) pages.k[i] = i / 16 == 30 ? 200.0f : -200.0f;  // one position has all the weight
    reference::kv_write(pages.write_args(), kv);
    std::vector<float> const q(2 * 16, 100.0f);
    Outputs const got =
        attention_of(c, pages, q, 0, 1, [&](AttentionArgs const& a) { cpu.run(cpu.table().attention[std::uint32_t(kv)], a); });
    for (std::size_t i = 0; i < 16; ++i) CHECK(got.out[i] == half_to_float(float_to_half(pages.v[30 * 16 + i])));
    CHECK(got.log_sum_exp[0] == Approx(200.0 * 100 * 16 / 4));
  }
}

TEST_CASE("one row of a long context") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : kv_types) {
      AttentionCase const c{4, 1, 64, 256, 0, run_of(0, 20000, 1)};
      INFO(describe(isa, kv, c));
      SplitMix64 random(21);
      Pages pages(c, kv, random);
      reference::kv_write(pages.write_args(), kv);
      std::vector<float> const q = random_floats(4 * 64, random);
      Outputs const got =
          attention_of(c, pages, q, 0, 1, [&](AttentionArgs const& a) { cpu.run(cpu.table().attention[std::uint32_t(kv)], a); });
      Outputs const expected = attention_of(c, pages, q, 0, 1, [&](AttentionArgs const& a) { reference::attention(a, kv); });
      check_close(got, expected, relative_error(c.head_dim, pages.max_position));
    }
  }
}

TEST_CASE("a row does not see what other rows of its call see: not even an infinity there") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : {DType::f16, DType::f32}) {
      AttentionCase const c{2, 1, 32, 32, 20, run_of(0, 0, 60)};
      INFO(describe(isa, kv, c));
      SplitMix64 random(5);
      Pages pages(c, kv, random);
      for (std::size_t d = 0; d < 32; ++d) pages.v[30 * 32 + d] = pages.k[40 * 32 + d] = std::numeric_limits<float>::infinity();
      reference::kv_write(pages.write_args(), kv);
      std::vector<float> const q = random_floats(60 * 2 * 32, random);
      Outputs const got =
          attention_of(c, pages, q, 0, 60, [&](AttentionArgs const& a) { cpu.run(cpu.table().attention[std::uint32_t(kv)], a); });
      for (std::size_t row = 0; row < 60; ++row) {
        bool const clean = row < 30 || row >= 60 || (row >= 30 + 20 && row < 40) || row >= 40 + 20;
        for (std::size_t i = 0; clean && i < 2 * 32; ++i) CHECK(std::isfinite(got.out[row * 64 + i]));
        for (std::size_t i = 0; row >= 30 && row < 40 && i < 2 * 32; ++i) CHECK(!std::isfinite(got.out[row * 64 + i]));
      }
    }
  }
}

TEST_CASE("attention over parts of the context, merged, is attention over all of it") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : kv_types) {
      for (AttentionCase const& c : attention_cases()) {
        INFO(describe(isa, kv, c));
        SplitMix64 random(13);
        Pages pages(c, kv, random);
        reference::kv_write(pages.write_args(), kv);
        std::vector<float> const q = random_floats(c.rows.size() * std::size_t(c.n_heads) * std::size_t(c.head_dim), random);
        auto const n = std::int32_t(c.rows.size());
        std::int32_t const last = pages.max_position + 1;
        // Some rows see nothing of the first part or of the last; the third is empty for all.
        Range const ranges[] = {
            {0, last / 3}, {last / 3, std::max(last / 3, last - 2)}, {last + 7, last + 9}, {std::max(last / 3, last - 2), last}};
        Outputs all, expected_all;
        for (Range const range : ranges) {
          INFO("positions " << range.begin << " to " << range.end);
          Outputs const got = attention_of(c, pages, q, 0, n, [&](AttentionArgs a) {
            a.positions = range;
            cpu.run(cpu.table().attention[std::uint32_t(kv)], a);
          });
          Outputs const expected = attention_of(c, pages, q, 0, n, [&](AttentionArgs a) {
            a.positions = range;
            reference::attention(a, kv);
          });
          check_close(got, expected, relative_error(c.head_dim, pages.max_position));
          all.out.insert(all.out.end(), got.out.begin(), got.out.end());
          all.log_sum_exp.insert(all.log_sum_exp.end(), got.log_sum_exp.begin(), got.log_sum_exp.end());
        }
        std::size_t const n_out = q.size(), n_logs = c.rows.size() * std::size_t(c.n_heads);
        Outputs merged{poisoned(n_out), poisoned(n_logs)}, reference_merged = merged;
        MergeAttentionArgs args{all.out.data(), all.log_sum_exp.data(), merged.out.data(), merged.log_sum_exp.data(), 4, n, c.n_heads,
                                c.head_dim};
        cpu.run(cpu.table().merge_attention, args);
        args.out = reference_merged.out.data();
        args.log_sum_exp = reference_merged.log_sum_exp.data();
        reference::merge_attention(args);
        check_close(merged, reference_merged, 20 * epsilon);
        Outputs const whole = attention_of(c, pages, q, 0, n, [&](AttentionArgs const& a) { reference::attention(a, kv); });
        check_close(merged, whole, relative_error(c.head_dim, pages.max_position) + 20 * epsilon);
        args.out = all.out.data();  // in place of part 0
        args.log_sum_exp = all.log_sum_exp.data();
        cpu.run(cpu.table().merge_attention, args);
        all.out.resize(n_out);
        all.log_sum_exp.resize(n_logs);
        CHECK(same_bits(all.out, merged.out));
        CHECK(same_bits(all.log_sum_exp, merged.log_sum_exp));
      }
    }
  }
}

TEST_CASE("merging: parts that saw nothing are not read; nothing at all gives zeros") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    float const nothing = -std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> const parts = {nan, nan, 1, 2, 3, 4, nan, nan, nan, nan, 5, 8};  // [3 parts, 2 heads, 2]
    std::vector<float> const logs = {nothing, 300, 300, nothing, nothing, 300};
    std::vector<float> out = poisoned(4), log_sum_exp = poisoned(2);
    cpu.run(cpu.table().merge_attention, {parts.data(), logs.data(), out.data(), log_sum_exp.data(), 3, 1, 2, 2});
    CHECK(out == std::vector<float>{3, 4, 3, 5});
    CHECK(log_sum_exp[0] == 300);
    CHECK(log_sum_exp[1] == Approx(300 + std::log(2.0)));
    std::vector<float> const no_logs(2, nothing);
    cpu.run(cpu.table().merge_attention, {parts.data(), no_logs.data(), out.data(), log_sum_exp.data(), 1, 1, 2, 2});
    CHECK(out == std::vector<float>(4, 0.0f));
    CHECK(log_sum_exp == no_logs);
  }
}
