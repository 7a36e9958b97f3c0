/// Attention of rows that are given what they see, by the CUDA kernels: on tensor cores and without, few rows and many.
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "cuda/attention_check.hpp"
#include "numerics/seen_cases.hpp"

using namespace tiered_test;

namespace {

/// The pages of a case in VRAM.
class DeviceSeenPages {
 public:
  explicit DeviceSeenPages(SeenPages const& pages)
      : bytes_(pages.bytes), pointers_(pages.pointers_into(bytes_.data())), tables_(pages.tables_over(pointers_.data())) {}
  KvTable const* tables() const { return tables_.data(); }

 private:
  DeviceArray<std::byte> bytes_;
  DeviceArray<std::byte*> pointers_;
  DeviceArray<KvTable> tables_;
};

Outputs attend_rows(Gpu& gpu, SeenCase const& c, DType kv, DeviceSeenPages const& pages, float const* q, Range positions = everything) {
  DeviceArray<float> queries(std::vector<float>(q, q + std::ptrdiff_t(c.row_elems()) * c.n())), out(queries.size());
  DeviceArray<float> log_sum_exp(std::size_t(c.n()) * std::size_t(c.n_heads));
  DeviceArray<KvRow> rows(c.rows.rows);
  DeviceArray<Range> seen(c.rows.seen);
  AttentionArgs a = c.args();
  DeviceArray<std::byte> workspace(attention_workspace_bytes(a.n_tokens, a.n_heads, a.head_dim, a.max_position));
  a.q = queries.data(), a.rows = rows.data(), a.seen = seen.data(), a.tables = pages.tables();
  a.out = out.data(), a.log_sum_exp = log_sum_exp.data(), a.workspace = workspace.data();
  a.positions = positions;
  gpu.run(gpu.table().attention[std::uint32_t(kv)], a);
  workspace.download();  // nothing was written behind it
  return {out.download(), log_sum_exp.download()};
}

/// As that of causal rows.
double allowed_of(SeenCase const& c, DType kv) {
  AttentionCase const shape{c.n_heads, c.n_kv_heads, c.head_dim, c.page_tokens, 0, {}};
  return tolerance(shape, kv, c.n(), c.max_position());
}

/// A case's keys and values in pages, here and in VRAM, and queries of its rows.
struct Problem {
  Problem(SeenCase const& case_, DType kv_, std::uint64_t seed = 8) : Problem(case_, kv_, seed, [](SeenPages&) {}) {}
  /// `change` is given keys and values before they are written.
  template <class Change>
  Problem(SeenCase const& case_, DType kv_, std::uint64_t seed, Change change)
      : c(case_), kv(kv_), random(seed), pages(c, kv, random), device(written(change)), q(c.queries(random)) {}
  Outputs attend(Gpu& gpu, Range positions = everything) const { return attend_rows(gpu, c, kv, device, q.data(), positions); }
  Outputs expected(Range positions = everything) const { return expected_of(c, kv, pages, q, positions); }
  double allowed() const { return allowed_of(c, kv); }

  SeenCase const c;
  DType kv;
  SplitMix64 random;
  SeenPages pages;
  DeviceSeenPages device;
  std::vector<float> q;

 private:
  template <class Change>
  SeenPages const& written(Change change) {
    change(pages);
    pages.write();
    return pages;
  }
};

void check_against_reference(Gpu& gpu, Problem const& p) {
  SeenCase const& c = p.c;
  Outputs const got = p.attend(gpu);
  check_close(got, p.expected(), p.allowed());
  CHECK(same_bits(p.attend(gpu).out, got.out));
  for (std::size_t row = 0; row < c.rows.seen.size(); ++row) {
    if (c.rows.seen[row].size() > 0) continue;
    for (std::size_t i = 0; i < c.row_elems(); ++i) CHECK(got.out[row * c.row_elems() + i] == 0);
    for (std::size_t h = 0; h < std::size_t(c.n_heads); ++h)
      CHECK(got.log_sum_exp[row * std::size_t(c.n_heads) + h] == -std::numeric_limits<float>::infinity());
  }
}

template <class Use>
void for_each_case(DType kv, Use use) {
  for (SeenCase const& c : seen_cases()) {
    INFO(describe(kv, c));
    use(Problem(c, kv));
  }
}

}  // namespace

TEST_CASE("CUDA: attention of given ranges equals the reference, and reads nothing that nobody sees") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for_each_case(kv, [&](Problem const& p) { check_against_reference(gpu, p); });
  }
}

TEST_CASE("CUDA: attention of given ranges, a few rows and some more", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (SeenCase const& c : {SeenCase{"windows", 2, 2, 80, 256, SeenRows().windows(0, 0, {5, 7, 3})},
                              SeenCase{"windows", 2, 1, 72, 64, SeenRows().windows(0, 0, {20, 64, 9})},
                              SeenCase{"all", 2, 2, 64, 64, SeenRows().add(0, 40, {0, 130}).add(0, 3, {0, 0})},
                              SeenCase{"windows", 2, 2, 33, 32, SeenRows().windows(0, 0, {20, 9})}}) {
      INFO(describe(kv, c));
      check_against_reference(gpu, Problem(c, kv));
    }
  }
}

TEST_CASE("CUDA: a row's attention to its range is the same whatever rows share the call") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for_each_case(kv, [&](Problem const& p) {
      SeenCase const& c = p.c;
      if (c.n() <= attention_few_rows + 1) return;
      Outputs const all = p.attend(gpu);
      Outputs const later = attend_rows(gpu, c.part(1, c.n() - 1), kv, p.device, p.q.data() + c.row_elems());
      CHECK(same_bits({all.out.begin() + std::ptrdiff_t(c.row_elems()), all.out.end()}, later.out));
      CHECK(same_bits({all.log_sum_exp.begin() + c.n_heads, all.log_sum_exp.end()}, later.log_sum_exp));
    });
  }
}

TEST_CASE("CUDA: attention to parts of given ranges, merged, is attention to all of them") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for_each_case(kv, [&](Problem const& p) {
      SeenCase const& c = p.c;
      Outputs const whole = p.expected();
      Outputs all;
      for (Range const cut : cuts_of(c)) {
        INFO("positions " << cut.begin << " to " << cut.end);
        Outputs const got = p.attend(gpu, cut);
        check_close(got, p.expected(cut), p.allowed());
        all.out.insert(all.out.end(), got.out.begin(), got.out.end());
        all.log_sum_exp.insert(all.log_sum_exp.end(), got.log_sum_exp.begin(), got.log_sum_exp.end());
      }
      DeviceArray<float> parts(all.out), logs(all.log_sum_exp), out(whole.out.size()), log_sum_exp(whole.log_sum_exp.size());
      gpu.run(gpu.table().merge_attention,
              {parts.data(), logs.data(), out.data(), log_sum_exp.data(), std::int32_t(cuts_of(c).size()), c.n(), c.n_heads, c.head_dim});
      check_close({out.download(), log_sum_exp.download()}, whole, p.allowed() + 20 * epsilon);
    });
  }
}

TEST_CASE("CUDA: a row does not see what lies in its neighbour's window: not even an infinity there", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : {DType::f16, DType::f32}) {
    for (std::int32_t const head_dim : {32, 64, 72, 80, 128}) {
      SeenCase const c{"windows", 2, 2, head_dim, 64, SeenRows().windows(0, 0, {20, 40, 33, 64, 8})};
      INFO(describe(kv, c));
      std::size_t const row = c.row_elems();
      Problem const p(c, kv, 5, [&](SeenPages& pages) {
        constexpr std::size_t odd = 30;  // position 30 is in the second window
        REQUIRE(pages.written[odd].position == 30);
        for (std::size_t d = 0; d < row; ++d) pages.v[odd * row + d] = std::numeric_limits<float>::infinity();
      });
      Outputs const got = p.attend(gpu);
      for (std::size_t t = 0; t < c.rows.seen.size(); ++t) {
        bool const sees = t >= 20 && t < 60;
        for (std::size_t i = 0; i < row; ++i) CHECK(std::isfinite(got.out[t * row + i]) == !sees);
      }
    }
  }
}
