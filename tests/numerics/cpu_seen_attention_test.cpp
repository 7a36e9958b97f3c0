/// Attention of rows that are given what they see, by the CPU tables.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "seen_cases.hpp"

using namespace tiered_test;

namespace {

Outputs attend(Cpu& cpu, SeenCase const& c, DType kv, SeenPages const& pages, float const* q, Range positions) {
  Outputs result{poisoned(std::size_t(c.n()) * c.row_elems()), poisoned(std::size_t(c.n()) * std::size_t(c.n_heads))};
  AttentionArgs a = c.args();
  std::vector<std::byte> workspace(attention_workspace_bytes(a.n_tokens, a.n_heads, a.head_dim, a.max_position), std::byte{0xff});
  a.q = q, a.rows = c.rows.rows.data(), a.seen = c.rows.seen.data(), a.tables = pages.tables.data();
  a.out = result.out.data(), a.log_sum_exp = result.log_sum_exp.data(), a.workspace = workspace.data();
  a.positions = positions;
  cpu.run(cpu.table().attention[std::uint32_t(kv)], a);
  return result;
}

constexpr Range everything{0, std::numeric_limits<std::int32_t>::max()};

/// What the cases of one KV type are made of; `use(case, pages, queries)`.
template <class Use>
void for_each_case(DType kv, Use use) {
  for (SeenCase const& c : seen_cases()) {
    INFO(describe(kv, c));
    SplitMix64 random(8);
    SeenPages pages(c, kv, random);
    pages.write();
    std::vector<float> const q = c.queries(random);
    use(c, pages, q);
  }
}

}  // namespace

TEST_CASE("attention of given ranges equals the reference, and reads nothing that nobody sees") {
  for (DType const kv : kv_types) {
    for_each_case(kv, [&](SeenCase const& c, SeenPages const& pages, std::vector<float> const& q) {
      Outputs const expected = expected_of(c, kv, pages, q, everything);
      for (Isa const isa : available_isas()) {
        INFO(name(isa));
        Cpu cpu(isa);
        check_close(attend(cpu, c, kv, pages, q.data(), everything), expected, relative_error(c.head_dim, c.max_position()));
      }
    });
  }
}

TEST_CASE("a row that sees nothing gets zeros, and a logarithm of minus infinity") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : kv_types) {
      for_each_case(kv, [&](SeenCase const& c, SeenPages const& pages, std::vector<float> const& q) {
        Outputs const got = attend(cpu, c, kv, pages, q.data(), everything);
        for (std::size_t row = 0; row < c.rows.seen.size(); ++row) {
          if (c.rows.seen[row].size() > 0) continue;
          for (std::size_t i = 0; i < c.row_elems(); ++i) CHECK(got.out[row * c.row_elems() + i] == 0);
          for (std::size_t h = 0; h < std::size_t(c.n_heads); ++h)
            CHECK(got.log_sum_exp[row * std::size_t(c.n_heads) + h] == -std::numeric_limits<float>::infinity());
        }
      });
    }
  }
}

TEST_CASE("a row's attention to its range is the same for every thread count and whatever rows share the call") {
  for (Isa const isa : available_isas()) {
    Cpu one(isa, false, 1), two(isa, false, 2), three(isa, false, 3), seven(isa, false, 7);
    for (DType const kv : kv_types) {
      for_each_case(kv, [&](SeenCase const& c, SeenPages const& pages, std::vector<float> const& q) {
        INFO(name(isa));
        Outputs const all = attend(one, c, kv, pages, q.data(), everything);
        for (Cpu* cpu : {&two, &three, &seven}) CHECK(same_bits(attend(*cpu, c, kv, pages, q.data(), everything).out, all.out));
        Outputs single;
        for (std::int32_t i = 0, step = 1; i < c.n(); i += step, step = step % 18 + 3) {
          Outputs const part =
              attend(two, c.part(i, std::min(step, c.n() - i)), kv, pages, q.data() + std::size_t(i) * c.row_elems(), everything);
          single.out.insert(single.out.end(), part.out.begin(), part.out.end());
          single.log_sum_exp.insert(single.log_sum_exp.end(), part.log_sum_exp.begin(), part.log_sum_exp.end());
        }
        CHECK(same_bits(single.out, all.out));
        CHECK(same_bits(single.log_sum_exp, all.log_sum_exp));
      });
    }
  }
}

TEST_CASE("a row's attention is the same wherever what it sees lies, and whatever lies before it") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, false, 2);
    for (DType const kv : kv_types) {
      for (std::vector<std::int32_t> const& sizes : {std::vector<std::int32_t>{600, 64, 100, 290}, {5}, {16, 1}}) {
        std::optional<Outputs> at_first;
        for (std::int32_t const first : {0, 37, 256, 1000}) {
          SeenCase const c{"windows", 2, 1, 80, first == 37 ? 64 : 256, SeenRows().windows(0, first, sizes)};
          INFO(name(isa) << ' ' << describe(kv, c) << " from " << first);
          SplitMix64 random(9);
          SeenPages pages(c, kv, random);
          REQUIRE(pages.written.front().position == first);
          pages.write();
          std::vector<float> const q = c.queries(random);
          Outputs const all = attend(cpu, c, kv, pages, q.data(), everything);
          if (!at_first) at_first = all;
          CHECK(same_bits(all.out, at_first->out));
          CHECK(same_bits(all.log_sum_exp, at_first->log_sum_exp));
          // Few rows, which are split along what they see.
          Outputs const few = attend(cpu, c.part(0, std::min(c.n(), 7)), kv, pages, q.data(), everything);
          CHECK(same_bits(few.out, std::vector<float>(all.out.begin(), all.out.begin() + std::ptrdiff_t(few.out.size()))));
        }
      }
    }
  }
}

TEST_CASE("attention to parts of given ranges, merged, is attention to all of them") {
  for (DType const kv : kv_types) {
    for_each_case(kv, [&](SeenCase const& c, SeenPages const& pages, std::vector<float> const& q) {
      double const allowed = relative_error(c.head_dim, c.max_position());
      Outputs const whole = expected_of(c, kv, pages, q, everything);
      std::vector<Outputs> expected;
      for (Range const cut : cuts_of(c)) expected.push_back(expected_of(c, kv, pages, q, cut));
      for (Isa const isa : available_isas()) {
        INFO(name(isa));
        Cpu cpu(isa);
        Outputs all;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          Range const cut = cuts_of(c)[i];
          INFO("positions " << cut.begin << " to " << cut.end);
          Outputs const got = attend(cpu, c, kv, pages, q.data(), cut);
          check_close(got, expected[i], allowed);
          all.out.insert(all.out.end(), got.out.begin(), got.out.end());
          all.log_sum_exp.insert(all.log_sum_exp.end(), got.log_sum_exp.begin(), got.log_sum_exp.end());
        }
        Outputs merged{poisoned(whole.out.size()), poisoned(whole.log_sum_exp.size())};
        cpu.run(cpu.table().merge_attention, {all.out.data(), all.log_sum_exp.data(), merged.out.data(), merged.log_sum_exp.data(),
                                              std::int32_t(expected.size()), c.n(), c.n_heads, c.head_dim});
        check_close(merged, whole, allowed + 20 * epsilon);
      }
    });
  }
}

TEST_CASE("a row does not see what lies in its neighbour's window: not even an infinity there") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const kv : {DType::f16, DType::f32}) {
      SeenCase const c{"windows", 2, 2, 72, 64, SeenRows().windows(0, 0, {20, 40, 33, 64})};
      INFO(name(isa) << ' ' << describe(kv, c));
      SplitMix64 random(5);
      SeenPages pages(c, kv, random);
      std::size_t const row = c.row_elems(), odd = 30;  // position 30 is in the second window
      REQUIRE(pages.written[odd].position == 30);
      for (std::size_t d = 0; d < row; ++d) pages.v[odd * row + d] = std::numeric_limits<float>::infinity();
      pages.write();
      std::vector<float> const q = c.queries(random);
      Outputs const got = attend(cpu, c, kv, pages, q.data(), everything);
      for (std::size_t t = 0; t < c.rows.seen.size(); ++t) {
        bool const sees = t >= 20 && t < 60;
        for (std::size_t i = 0; i < row; ++i) CHECK(std::isfinite(got.out[t * row + i]) == !sees);
      }
    }
  }
}
