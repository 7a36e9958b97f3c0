/// Attention by the CUDA kernels: on tensor cores and without, few rows and many, in one go and in parts.
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "cuda/attention_check.hpp"
#include "tiered/kernels/cuda/attention_tuning.hpp"

using namespace tiered_test;

namespace {

constexpr PositionShare over_link{0, PositionShare::whole, 0};  ///< all positions as if they were in the host's memory

/// Rows [first, first + n) of the case on the device; all positions up to max_position must be allowed for.
Outputs attend_rows(Gpu& gpu, AttentionCase const& c, DType kv, DevicePages const& pages, std::vector<float> const& q, std::int32_t first,
                    std::int32_t n, Range positions = everything, std::int32_t max_position = 0, PositionShare share = {}) {
  std::ptrdiff_t const row = std::ptrdiff_t(c.n_heads) * c.head_dim;
  std::vector<KvRow> const chosen(c.rows.begin() + first, c.rows.begin() + first + n);
  AttentionArgs args = args_of(c, n, std::max(max_position, largest_position(chosen)));
  args.positions = positions;
  args.share = share;
  DeviceArray<float> queries(std::vector<float>(q.begin() + first * row, q.begin() + (first + n) * row));
  DeviceArray<float> out(std::size_t(n) * std::size_t(row)), log_sum_exp(std::size_t(n) * std::size_t(c.n_heads));
  DeviceArray<KvRow> rows(chosen);
  DeviceArray<std::byte> workspace(attention_workspace_bytes(n, c.n_heads, c.head_dim, args.max_position));
  args.q = queries.data();
  args.rows = rows.data();
  args.tables = pages.tables.data();
  args.out = out.data();
  args.log_sum_exp = log_sum_exp.data();
  args.workspace = workspace.data();
  gpu.run(gpu.table().attention[std::uint32_t(kv)], args);
  workspace.download();  // nothing was written behind it
  return {out.download(), log_sum_exp.download()};
}

/// A case's keys and values in pages, here and in VRAM, and queries of its rows.
struct Problem {
  Problem(AttentionCase const& case_, DType kv_, std::uint64_t seed) : Problem(case_, kv_, seed, [](Pages&) {}) {}
  /// `change` is given keys and values before they are written.
  template <class Change>
  Problem(AttentionCase const& case_, DType kv_, std::uint64_t seed, Change change)
      : c(case_), kv(kv_), random(seed), pages(c, kv, random), device(written(change)), q(queries_of(c, random)) {}
  std::int32_t n() const { return std::int32_t(c.rows.size()); }
  double allowed() const { return tolerance(c, kv, n(), pages.max_position); }
  Outputs expected(Range positions = everything) const { return expected_of(c, kv, pages, q, positions); }
  /// All rows: see attend_rows().
  Outputs attend(Gpu& gpu, Range positions = everything, std::int32_t max_position = 0, PositionShare share = {}) const {
    return attend_rows(gpu, c, kv, device, q, 0, n(), positions, max_position, share);
  }

  AttentionCase const c;
  DType kv;
  SplitMix64 random;
  Pages pages;
  DevicePages device;
  std::vector<float> q;

 private:
  template <class Change>
  Pages const& written(Change change) {
    change(pages);
    pages.write();
    return pages;
  }
};

/// Queries, keys and values of all rows before norms and rotations, and the weights of norms. Normed, no element is larger than 2.
struct Input {
  Input(AttentionCase const& c, SplitMix64& random)
      : q(queries_of(c, random)),
        k(random_floats(c.rows.size() * std::size_t(c.n_kv_heads) * std::size_t(c.head_dim), random)),
        v(random_floats(k.size(), random)),
        weight(random_floats(std::size_t(c.head_dim), random)),
        inv_freq(std::size_t(c.head_dim)) {
    for (float& w : weight) w *= 0.4f;
    for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(10000.0f, -2 * float(i) / float(c.head_dim));
    for (KvRow const row : c.rows) positions.push_back(row.position);
    for (std::size_t i = 0; i < 2 * c.rows.size(); ++i) positions.push_back(std::int32_t(random.below(5000)));
    for (std::int32_t i = 0; i < c.head_dim; ++i) position_row.push_back(std::uint8_t(random.below(3)));
  }
  std::vector<float> q, k, v, weight, inv_freq;
  std::vector<std::int32_t> positions;  ///< [3, rows]: as in the cache, and of other rows of rotary positions
  std::vector<std::uint8_t> position_row;
};

DecodeAttentionArgs decode_args_of(AttentionCase const& c, std::int32_t max_position, bool norm, RopeKind kind) {
  DecodeAttentionArgs args;
  args.attention = args_of(c, std::int32_t(c.rows.size()), max_position);
  AttentionInputArgs& input = args.input;
  input.n_tokens = std::int32_t(c.rows.size());
  input.n_heads = c.n_heads;
  input.n_kv_heads = c.n_kv_heads;
  input.head_dim = c.head_dim;
  input.n_rot = c.head_dim / (norm ? 4 : 2) * 2;  // part of the head, or all
  input.page_tokens = c.page_tokens;
  input.eps = 1e-6f;
  input.kind = kind;
  std::vector<bool> seen(c.rows.size() + 64);
  args.rows_apart = true;
  for (KvRow const row : c.rows) {
    args.rows_apart = args.rows_apart && !seen[std::size_t(row.table)];
    seen[std::size_t(row.table)] = true;
  }
  return args;
}

/// With sections where the stride of position rows says so.
void point_to(DecodeAttentionArgs& args, float* q, float* k, float const* v, float const* weight, float const* inv_freq,
              std::int32_t const* positions, std::uint8_t const* position_row, KvRow const* rows, KvTable const* tables) {
  args.input.q = q;
  args.input.k = k;
  args.input.v = v;
  args.input.q_norm = args.input.n_rot < args.input.head_dim / 2 * 2 ? weight : nullptr;
  args.input.k_norm = args.input.q_norm;
  args.input.inv_freq = inv_freq;
  args.input.positions = positions;
  args.input.position_row = args.input.position_stride > 0 ? position_row : nullptr;
  args.input.rows = rows;
  args.input.tables = tables;
  args.attention.q = q;
  args.attention.rows = rows;
  args.attention.tables = tables;
}

/// On the device, at once or one op after the other; what is in the pages then goes to `bytes`.
Outputs decode(Gpu& gpu, AttentionCase const& c, DType kv, Pages const& pages, Input const& in, DecodeAttentionArgs args, bool at_once,
               std::vector<std::byte>& bytes) {
  DevicePages device(pages);
  DeviceArray<float> q(in.q), k(in.k), v(in.v), weight(in.weight), inv_freq(in.inv_freq);
  DeviceArray<float> out(in.q.size()), log_sum_exp(c.rows.size() * std::size_t(c.n_heads));
  DeviceArray<std::int32_t> positions(in.positions);
  DeviceArray<std::uint8_t> position_row(in.position_row);
  DeviceArray<KvRow> rows(c.rows);
  DeviceArray<std::byte> workspace(attention_workspace_bytes(args.attention.n_tokens, c.n_heads, c.head_dim, args.attention.max_position));
  point_to(args, q.data(), k.data(), v.data(), weight.data(), inv_freq.data(), positions.data(), position_row.data(), rows.data(),
           device.tables.data());
  args.attention.out = out.data();
  args.attention.log_sum_exp = log_sum_exp.data();
  args.attention.workspace = workspace.data();
  if (at_once) {
    gpu.run(gpu.table().decode_attention[std::uint32_t(kv)], args);
  } else {
    gpu.run(gpu.table().attention_input[std::uint32_t(kv)], args.input);
    gpu.run(gpu.table().attention[std::uint32_t(kv)], args.attention);
  }
  workspace.download();
  bytes = device.bytes.download();
  return {out.download(), log_sum_exp.download()};
}

/// The cases of attention, and rows of sequences of their own.
std::vector<AttentionCase> decode_cases() {
  std::vector<AttentionCase> cases = all_attention_cases();
  for (std::int32_t const head_dim : {64, 80, 96, 128, 256}) {
    cases.push_back({8, 2, head_dim, 256, 0, joined({run_of(0, 20, 1), run_of(1, 400, 1), run_of(2, 0, 1), run_of(3, 1000, 1)})});
    cases.push_back({18, 1, head_dim, 64, 0, run_of(0, 1087, 1)});
    cases.push_back({2, 1, head_dim, 64, 70, run_of(0, 640, 1)});
  }
  return cases;
}

}  // namespace

TEST_CASE("CUDA: attention equals the reference, whatever lies where nothing was written") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : all_attention_cases()) {
      INFO(describe(kv, c));
      Problem const p(c, kv, 8);
      Outputs const expected = p.expected(), got = p.attend(gpu);
      check_close(got, expected, p.allowed());
      CHECK(same_bits(p.attend(gpu).out, got.out));
      if (p.n() > attention_few_rows) continue;
      INFO("launched for contexts of 40000 positions, as in a graph");
      check_close(p.attend(gpu, everything, 39999), expected, p.allowed());
    }
  }
}

TEST_CASE("CUDA: attention of one row, a few and many, over the link and with its input", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : {AttentionCase{4, 2, 64, 64, 0, run_of(0, 270, 1)},
                                   {4, 2, 80, 64, 70, joined({run_of(0, 90, 2), run_of(1, 3, 3)})},
                                   {2, 1, 128, 64, 0, run_of(0, 70, 40)},
                                   {3, 1, 33, 32, 0, run_of(0, 40, 3)}}) {
      INFO(describe(kv, c));
      Problem p(c, kv, 8);
      Outputs const got = p.attend(gpu);
      check_close(got, p.expected(), p.allowed());
      if (p.n() > attention_few_rows) continue;
      if (kv != DType::f32) CHECK(same_bits(p.attend(gpu, everything, 0, over_link).out, got.out));
      Input const in(c, p.random);
      DecodeAttentionArgs const args = decode_args_of(c, p.pages.max_position, true, RopeKind::halves);
      std::vector<std::byte> bytes, expected_bytes;
      Outputs const two = decode(gpu, c, kv, p.pages, in, args, false, expected_bytes);
      CHECK(same_bits(decode(gpu, c, kv, p.pages, in, args, true, bytes).out, two.out));
      CHECK(bytes == expected_bytes);
    }
  }
}

TEST_CASE("CUDA: attention by the kernels for keys and values over the link has the same bits, whoever reads how much") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : {DType::f16, DType::q8_0}) {
    for (AttentionCase const& c : decode_cases()) {
      auto const n = std::int32_t(c.rows.size());
      if (n > attention_few_rows) continue;
      INFO(describe(kv, c));
      Problem const p(c, kv, 9);
      Outputs const expected = p.attend(gpu), got = p.attend(gpu, everything, 0, over_link);
      CHECK(same_bits(got.out, expected.out));
      CHECK(same_bits(got.log_sum_exp, expected.log_sum_exp));
      check_close(got, p.expected(), p.allowed());
      if (n > 1 || c.window > 0 || c.rows[0].position < 200) continue;
      Range const first{0, c.rows[0].position / 2 / 64 * 64};  // the device's part of what is in two places
      check_close(p.attend(gpu, everything, 0, {first.end, 0, 0}), p.expected(first), p.allowed());
    }
  }
}

TEST_CASE("CUDA: attention with its input prepared at once is one op after the other") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : decode_cases()) {
      auto const n = std::int32_t(c.rows.size());
      if (n > attention_few_rows + 1) continue;
      for (auto const& [norm, sections] : {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
        INFO(describe(kv, c) << (norm ? ", normed" : "") << (sections ? ", in sections" : ""));
        SplitMix64 random(21);
        Pages pages(c, kv, random);
        pages.write();
        Input const in(c, random);
        DecodeAttentionArgs args = decode_args_of(c, pages.max_position, norm, norm ? RopeKind::halves : RopeKind::adjacent);
        args.input.position_stride = sections ? n : 0;
        std::vector<std::byte> bytes, expected_bytes;
        Outputs const two = decode(gpu, c, kv, pages, in, args, false, expected_bytes);
        Outputs const one = decode(gpu, c, kv, pages, in, args, true, bytes);
        CHECK(same_bits(one.out, two.out));
        CHECK(same_bits(one.log_sum_exp, two.log_sum_exp));
        CHECK(bytes == expected_bytes);

        args.attention.max_position = 39999;  // as in a graph
        Outputs const in_graph = decode(gpu, c, kv, pages, in, args, true, bytes);
        CHECK(bytes == expected_bytes);

        std::vector<float> q = in.q, k = in.k;
        Outputs expected{poisoned(q.size()), poisoned(c.rows.size() * std::size_t(c.n_heads))};
        point_to(args, q.data(), k.data(), in.v.data(), in.weight.data(), in.inv_freq.data(), in.positions.data(), in.position_row.data(),
                 c.rows.data(), pages.tables.data());
        args.attention.out = expected.out.data();
        args.attention.log_sum_exp = expected.log_sum_exp.data();
        reference::decode_attention(args, kv);
        double const allowed = 2 * tolerance(c, kv, n, pages.max_position);  // norms and rotations round too
        check_close(one, expected, allowed);
        check_close(in_graph, expected, allowed);
      }
    }
  }
}

TEST_CASE("CUDA: a row's attention is the same whatever rows share the call") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : all_attention_cases()) {
      auto const n = std::int32_t(c.rows.size());
      if (n <= attention_few_rows + 1) continue;
      INFO(describe(kv, c));
      Problem const p(c, kv, 8);
      Outputs const all = p.attend(gpu), later = attend_rows(gpu, c, kv, p.device, p.q, 1, n - 1);
      std::vector<float> const tail(all.out.begin() + std::ptrdiff_t(c.n_heads) * c.head_dim, all.out.end());
      CHECK(same_bits(tail, later.out));
    }
  }
}

TEST_CASE("CUDA: attention with scores far apart, and with large ones, does not overflow") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (std::int32_t const head_dim : {16, 64, 128}) {
    for (std::int32_t const n : {1, 20}) {
      AttentionCase const c{2, 1, head_dim, 64, 0, run_of(0, 270, n)};
      INFO(describe(DType::f16, c));
      std::size_t const dim = std::size_t(head_dim);
      Problem p(c, DType::f16, 3, [&](Pages& pages) {  // one position has all the weight
        for (std::size_t i = 0; i < pages.k.size(); ++i) pages.k[i] = i / dim == 30 ? 200.0f : -200.0f;
      });
      p.q.assign(p.q.size(), 100.0f);
      Outputs const got = p.attend(gpu);
      for (std::size_t i = 0; i < dim; ++i) CHECK(got.out[i] == half_to_float(float_to_half(p.pages.v[30 * dim + i])));
      CHECK(got.log_sum_exp[0] == Approx(200.0 * 100 * std::sqrt(double(head_dim))).epsilon(1e-3));
    }
  }
}

TEST_CASE("CUDA: a row does not see what other rows of its call see: not even an infinity there") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : {DType::f16, DType::f32}) {
    for (std::int32_t const head_dim : {32, 64, 128, 256}) {
      for (AttentionCase const& c :
           {AttentionCase{2, 1, head_dim, 64, 20, run_of(0, 25, 16)},  // few
            AttentionCase{2, 1, head_dim, 64, 20, run_of(0, 25, 60)},
            AttentionCase{2, 1, head_dim, 64, 0, joined({run_of(1, 3, 30), run_of(0, 25, 60), run_of(1, 33, 9)})}}) {
        INFO(describe(kv, c));
        std::size_t const dim = std::size_t(head_dim), row = 2 * dim;
        std::size_t const odd[] = {3, 17};  // elements of the value at position 30 of sequence 0
        Problem const p(c, kv, 5, [&](Pages& pages) {
          pages.v[30 * dim + odd[0]] = std::numeric_limits<float>::infinity();
          pages.v[30 * dim + odd[1]] = std::numeric_limits<float>::quiet_NaN();
        });
        Outputs const got = p.attend(gpu), expected = p.expected();
        Worst worst;
        for (std::size_t i = 0; i < got.out.size(); ++i) {
          KvRow const r = c.rows[i / row];
          bool const sees = r.table == 0 && r.position >= 30 && (c.window == 0 || r.position < 30 + c.window);
          INFO("row " << i / row << ", element " << i % dim);
          if (sees && (i % dim == odd[0] || i % dim == odd[1])) {
            CHECK(!std::isfinite(got.out[i]));
          } else {
            worst.compare(std::int64_t(i), double(got.out[i]), double(expected.out[i]),
                          2 * tolerance(c, kv, p.n(), p.pages.max_position + 1));
          }
        }
        INFO(worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("CUDA: attention over parts of the context, merged, is attention over all of it") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const kv : kv_types) {
    for (AttentionCase const& c : all_attention_cases()) {
      INFO(describe(kv, c));
      Problem const p(c, kv, 13);
      std::int32_t const n = p.n(), last = p.pages.max_position + 1;
      // Some rows see nothing of the first part or of the last; the third is empty for all.
      Range const ranges[] = {
          {0, last / 3}, {last / 3, std::max(last / 3, last - 2)}, {last + 7, last + 9}, {std::max(last / 3, last - 2), last}};
      Outputs all;
      for (Range const range : ranges) {
        INFO("positions " << range.begin << " to " << range.end);
        Outputs const got = p.attend(gpu, range);
        check_close(got, p.expected(range), p.allowed());
        all.out.insert(all.out.end(), got.out.begin(), got.out.end());
        all.log_sum_exp.insert(all.log_sum_exp.end(), got.log_sum_exp.begin(), got.log_sum_exp.end());
      }
      std::size_t const n_out = p.q.size(), n_logs = c.rows.size() * std::size_t(c.n_heads);
      DeviceArray<float> parts(all.out), logs(all.log_sum_exp), out(n_out), log_sum_exp(n_logs);
      MergeAttentionArgs args{parts.data(), logs.data(), out.data(), log_sum_exp.data(), 4, n, c.n_heads, c.head_dim};
      gpu.run(gpu.table().merge_attention, args);
      Outputs const merged{out.download(), log_sum_exp.download()};
      Outputs reference_merged{poisoned(n_out), poisoned(n_logs)};
      reference::merge_attention({all.out.data(), all.log_sum_exp.data(), reference_merged.out.data(), reference_merged.log_sum_exp.data(),
                                  4, n, c.n_heads, c.head_dim});
      check_close(merged, reference_merged, 20 * epsilon);
      check_close(merged, p.expected(), p.allowed() + 20 * epsilon);
      args.out = parts.data();  // in place of part 0
      args.log_sum_exp = logs.data();
      gpu.run(gpu.table().merge_attention, args);
      std::vector<float> in_place = parts.download(), in_place_logs = logs.download();
      in_place.resize(n_out);
      in_place_logs.resize(n_logs);
      CHECK(same_bits(in_place, merged.out));
      CHECK(same_bits(in_place_logs, merged.log_sum_exp));
    }
  }
}

TEST_CASE("CUDA: merging: parts that saw nothing are not read; nothing at all gives zeros", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  float const nothing = -std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  DeviceArray<float> parts(std::vector<float>{nan, nan, 1, 2, 3, 4, nan, nan, nan, nan, 5, 8});  // [3 parts, 2 heads, 2]
  DeviceArray<float> logs(std::vector<float>{nothing, 300, 300, nothing, nothing, 300}), out(4), log_sum_exp(2);
  gpu.run(gpu.table().merge_attention, {parts.data(), logs.data(), out.data(), log_sum_exp.data(), 3, 1, 2, 2});
  CHECK(out.download() == std::vector<float>{3, 4, 3, 5});
  CHECK(log_sum_exp.download()[0] == 300);
  CHECK(log_sum_exp.download()[1] == Approx(300 + std::log(2.0)));
  std::vector<float> const no_logs(2, nothing);
  logs.upload(no_logs);
  gpu.run(gpu.table().merge_attention, {parts.data(), logs.data(), out.data(), log_sum_exp.data(), 1, 1, 2, 2});
  CHECK(out.download() == std::vector<float>(4, 0.0f));
  CHECK(log_sum_exp.download() == no_logs);
}
