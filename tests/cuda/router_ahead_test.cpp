// A router that looks at a table which copies change meanwhile, and hands on its row; guesses of that for later layers.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "catch.hpp"
#include "cuda/asking_gpu.hpp"
#include "tiered/kernels/reference/help.hpp"
#include "tiered/memory/buffer.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

struct Case {
  std::int32_t dim, n_experts, n_ahead;
  bool own, norm_weights;
};

constexpr std::uint64_t step = (std::uint64_t{5} << 32) + 77;
constexpr std::int32_t layer = 5;

/// Inputs on both sides.
struct Problem {
  Problem(Case const& which, SplitMix64& random) : c(which), x(random_floats(std::size_t(c.dim), random)) {
    for (int i = 0; i <= GuessArgs::max_layers; ++i) {
      weights.push_back(random_floats(std::size_t(c.dim) * std::size_t(c.n_experts), random));
      norms.push_back(random_floats(std::size_t(c.dim), random));
    }
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      auto const at = [&](int matrix) { return reinterpret_cast<void const*>(std::uintptr_t(256 * (e + 1) + 64 * matrix)); };
      // One that is about to come has its gate last.
      bool const there = random.below(3) != 0;
      table.push_back({there ? at(0) : nullptr, at(1), at(2), 0, 0});
    }
  }
  RouterAheadArgs args(float const* x_at, float const* w_at, float const* norm_at, float* scores, HelpState* state,
                       ExpertGroup const* experts, ExpertGroup* seen, float* row = nullptr) const {
    RouterAheadArgs a;
    a.own.x = x_at;
    a.own.norm = true;
    a.own.norm_weight = c.norm_weights ? norm_at : nullptr;
    a.own.eps = 1e-6f;
    a.own.n_tokens = 1;
    a.own.dim = c.dim;
    if (c.own) a.own.parts[a.own.n_parts++] = {w_at, nullptr, scores, c.n_experts, c.n_experts, DType::f32};
    a.n_experts = c.n_experts;
    a.layer = layer;
    a.state = state;
    a.experts = experts;
    a.seen = seen;
    a.row = row;
    return a;
  }
  GuessArgs guesses(std::vector<float const*> const& w_at, std::vector<float const*> const& norm_at, float const* row,
                    ExpertGuess* to) const {
    GuessArgs g;
    for (std::int32_t d = 0; d < c.n_ahead; ++d)
      g.layers[d] = {w_at[std::size_t(d + 1)], c.norm_weights ? norm_at[std::size_t(d + 1)] : nullptr, to + d * c.n_experts};
    g.row = row;
    g.eps = 1e-6f;
    g.n_layers = c.n_ahead;
    return g;
  }
  /// Sums of dim products in f32, in any order, of a row whose norm is rounded, too.
  double tolerance(std::int32_t of_layer, std::int32_t expert) const {
    double squares = 0, sum = 0;
    for (float const v : x) squares += double(v) * double(v);
    for (std::size_t i = 0; i < x.size(); ++i) {
      double const norm = c.norm_weights ? double(norms[std::size_t(of_layer)][i]) : 1;
      sum += std::fabs(double(weights[std::size_t(of_layer)][std::size_t(expert) * x.size() + i]) * double(x[i]) * norm);
    }
    return std::ldexp(double(c.dim + 16), -24) * sum / std::sqrt(squares / double(c.dim) + 1e-6);
  }
  Case c;
  std::vector<float> x;
  std::vector<std::vector<float>> weights, norms;
  std::vector<ExpertGroup> table;
};

/// The end of a layer whose only expert is there: nobody is asked. On the device, the mail and the log on the host.
struct LayerEnd {
  LayerEnd(PinnedTier& pinned, std::int32_t n_experts, std::int32_t dim)
      : host(pinned, 64 * KiB, 4096),
        table(std::vector<ExpertGroup>(std::size_t(n_experts), {this, this, this, 0, 0})),
        hidden{std::vector<float>(std::size_t(dim))},
        sum{std::vector<float>(std::size_t(dim))},
        weights{std::vector<float>(1)},
        ids{std::vector<std::int32_t>(1)},
        fetched{std::size_t{1}} {
    std::memset(host.data(), 0, host.bytes());
    args.mail = new (host.data()) HelpMail;
    args.log = new (host.data() + 32 * KiB) HelpLog;
    args.experts = table.data();
    args.ids = ids.data();
    args.weights = weights.data();
    args.row = {hidden.data(), nullptr, nullptr, 1, dim, -1.0f};
    args.sum = sum.data();
    args.hidden = hidden.data();
    args.fetched_ids = fetched.data();
    args.n_used = 1;
    args.n_experts = n_experts;
    args.dim = dim;
    args.layer = layer;
    args.copies = true;
  }
  Buffer host;
  DeviceArray<ExpertGroup> table;
  DeviceArray<float> hidden, sum, weights;
  DeviceArray<std::int32_t> ids, fetched;
  HelpArgs args;
};

bool same(ExpertGroup const& a, ExpertGroup const& b) { return a.gate == b.gate && a.up == b.up && a.down == b.down; }

}  // namespace

TEST_CASE("CUDA router_ahead: scores as alone to the bit, guesses within rounding, the table as it is", "[cuda][sanitize]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  SplitMix64& random = gpu->random;
  std::vector<Case> const cases = {{2048, 128, 2, true, true}, {4096, 160, 2, true, true}, {64, 8, 1, true, true},
                                   {100, 24, 2, true, false},  {7168, 33, 2, true, true},  {2048, 128, 0, true, true},
                                   {512, 3, 2, false, true},   {2050, 16, 2, true, true}};
  for (Case const& c : cases) {
    INFO("TIERED_SEED=" << fresh_seed() << ", " << c.n_experts << " experts of " << c.dim << ", " << c.n_ahead << " ahead");
    Problem const p(c, random);
    DeviceArray<float> x(p.x);
    std::vector<std::unique_ptr<DeviceArray<float>>> kept;
    auto const on_device = [&](std::vector<std::vector<float>> const& all) {
      std::vector<float const*> at;
      for (std::vector<float> const& one : all) at.push_back(kept.emplace_back(std::make_unique<DeviceArray<float>>(one))->data());
      return at;
    };
    std::vector<float const*> const w = on_device(p.weights), norms = on_device(p.norms);
    DeviceArray<float> scores{std::size_t(c.n_experts)}, alone{std::size_t(c.n_experts)};
    DeviceArray<HelpState> state(std::vector<HelpState>{{step, 0, 0, 0}});
    DeviceArray<ExpertGroup> const table(p.table);
    DeviceArray<ExpertGroup> seen{std::size_t(c.n_experts)};
    DeviceArray<float> row{std::size_t(c.dim)};
    std::size_t const n_guesses = std::size_t(GuessArgs::max_layers) * std::size_t(c.n_experts);
    Buffer host(gpu->pinned, n_guesses * sizeof(ExpertGuess), 4096);
    auto* const guesses = reinterpret_cast<ExpertGuess*>(host.data());
    std::fill_n(guesses, n_guesses, ExpertGuess{-1, 3});
    RouterAheadArgs const args =
        p.args(x.data(), w[0], norms[0], scores.data(), state.data(), table.data(), seen.data(), c.n_ahead > 0 ? row.data() : nullptr);
    LayerEnd end(gpu->pinned, c.n_experts, c.dim);
    end.args.state = state.data();
    end.args.guesses = p.guesses(w, norms, row.data(), guesses);
    gpu->launch(gpu->table().router_ahead, args);
    FusedMatmulArgs own = args.own;
    own.parts[0].y = alone.data();
    if (c.own) gpu->launch(gpu->table().fused_matmul, own);
    gpu->launch(gpu->table().add, AddArgs{x.data(), x.data(), c.dim});  // guesses are of what the row was
    gpu->launch(gpu->table().help, end.args);
    gpu->finish();
    if (c.own) CHECK(std::memcmp(scores.download().data(), alone.download().data(), scores.size() * sizeof(float)) == 0);

    std::vector<ExpertGroup> expected_seen(p.table.size());
    std::vector<ExpertGuess> expected(n_guesses);
    std::vector<float> expected_scores(p.table.size());
    std::vector<float const*> host_w, host_norms;
    for (std::size_t i = 0; i < p.weights.size(); ++i) host_w.push_back(p.weights[i].data()), host_norms.push_back(p.norms[i].data());
    HelpState host_state{step, 0, 0, 0};
    std::vector<float> host_row(std::size_t(c.dim));
    reference::router_ahead(p.args(p.x.data(), host_w[0], host_norms[0], expected_scores.data(), &host_state, p.table.data(),
                                   expected_seen.data(), host_row.data()));
    HelpArgs host_end = end.args;
    host_end.state = &host_state;
    host_end.guesses = p.guesses(host_w, host_norms, host_row.data(), expected.data());
    reference::guess(host_end);
    CHECK(state.download()[0].row == (c.n_ahead > 0 ? host_state.row : 0));
    std::vector<ExpertGroup> const got_seen = seen.download();
    CHECK(std::equal(got_seen.begin(), got_seen.end(), expected_seen.begin(), same));
    for (std::int32_t d = 0; d < c.n_ahead; ++d) {
      for (std::int32_t e = 0; e < c.n_experts; ++e) {
        ExpertGuess const got = guesses[d * c.n_experts + e], wanted = expected[std::size_t(d * c.n_experts + e)];
        INFO("layer " << d << ", expert " << e);
        if (c.dim % 4 != 0) {  // irregular: left out
          CHECK((got.step == 3 && got.score == -1));
          continue;
        }
        REQUIRE(got.step == std::uint32_t(step));
        REQUIRE(std::fabs(double(got.score) - double(wanted.score)) <= p.tolerance(d + 1, e));
      }
    }
    for (std::size_t i = std::size_t(c.n_ahead * c.n_experts); i < n_guesses; ++i) CHECK(guesses[i].step == 3);
  }
}

TEST_CASE("CUDA router_ahead: while copies enter experts, each is seen whole or not at all, and stays", "[cuda]") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaDevice const device = CudaDevice::open(0);
  PinnedTier pinned;
  SplitMix64 random(fresh_seed());
  constexpr std::int32_t n_experts = 64, n_looks = 400, dim = 256;
  constexpr std::size_t weight_bytes = 256 * KiB;
  Problem const p({dim, n_experts, 0, true, true}, random);
  DeviceArray<float> const x(p.x), w(p.weights[0]), norm(p.norms[0]);
  DeviceArray<float> scores{std::size_t(n_experts)};
  DeviceArray<HelpState> state(std::vector<HelpState>{{step, 0, 0, 0}});
  DeviceArray<ExpertGroup> table{std::vector<ExpertGroup>(std::size_t{n_experts})};
  DeviceArray<ExpertGroup> seen(std::size_t(n_experts) * n_looks);
  DeviceArray<std::byte> weights(weight_bytes);
  Buffer host(pinned, weight_bytes + sizeof(ExpertGroup) * n_experts, 4096);
  std::memset(host.data(), 7, weight_bytes);
  auto* const entries = reinterpret_cast<ExpertGroup*>(host.data() + weight_bytes);
  for (std::int32_t e = 0; e < n_experts; ++e) {
    auto const at = [&](int matrix) { return reinterpret_cast<void const*>(std::uintptr_t(256 * (e + 1) + 64 * matrix)); };
    entries[e] = {at(0), at(1), at(2), 0, 0};
  }
  cudaStream_t copies = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
  std::int32_t next = 0;
  for (std::int32_t look = 0; look < n_looks; ++look) {
    tiered::launch(gpu.table().router_ahead,
                   p.args(x.data(), w.data(), norm.data(), scores.data(), state.data(), table.data(), seen.data() + look * n_experts),
                   gpu.queue());
    if (look % 4 != 0 || next == n_experts) continue;
    auto* const to = reinterpret_cast<std::byte*>(table.data() + next);
    auto const* const from = reinterpret_cast<std::byte const*>(entries + next++);
    cuda_check(cudaMemcpyAsync(weights.data(), host.data(), weight_bytes, cudaMemcpyDefault, copies));
    cuda_check(cudaMemcpyAsync(to + 8, from + 8, sizeof(ExpertGroup) - 8, cudaMemcpyDefault, copies));
    cuda_check(cudaMemcpyAsync(to, from, 8, cudaMemcpyDefault, copies));
  }
  cuda_check(cudaDeviceSynchronize());
  cuda_check(cudaStreamDestroy(copies));
  std::vector<ExpertGroup> const all = seen.download();
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::size_t const e = i % n_experts;
    INFO("look " << i / n_experts << ", expert " << e);
    REQUIRE((same(all[i], {}) || same(all[i], entries[e])));
    if (i >= n_experts && same(all[i - n_experts], entries[e])) REQUIRE(same(all[i], entries[e]));
  }
}

TEST_CASE("CUDA guesses: of many layers and steps behind each other, each is of its own layer's row", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  SplitMix64& random = gpu->random;
  constexpr std::int32_t n_experts = 128, dim = 4096, n_layers = 3, n_steps = 60, n_rows = 7;
  Problem const p({dim, n_experts, 1, true, true}, random);
  std::vector<Problem> rows;
  std::vector<std::unique_ptr<DeviceArray<float>>> x;
  for (std::int32_t r = 0; r < n_rows; ++r) {
    rows.push_back(p);
    rows.back().x = random_floats(std::size_t(dim), random);
    x.push_back(std::make_unique<DeviceArray<float>>(rows.back().x));
  }
  DeviceArray<float> const w(p.weights[0]), norm(p.norms[0]), next_w(p.weights[1]), next_norm(p.norms[1]);
  DeviceArray<float> scores{std::size_t(n_experts)}, row{std::size_t(dim)}, spare{std::size_t(dim)};
  DeviceArray<HelpState> state(std::vector<HelpState>(1));
  DeviceArray<ExpertGroup> const table(p.table);
  DeviceArray<ExpertGroup> seen{std::size_t(n_experts)};
  constexpr std::size_t n_guesses = std::size_t(n_layers) * n_steps * n_experts;
  Buffer host(gpu->pinned, n_guesses * sizeof(ExpertGuess) + (n_steps + 3) * sizeof(std::uint64_t), 4096);
  std::memset(host.data(), 0, host.bytes());
  auto* const guesses = reinterpret_cast<ExpertGuess*>(host.data());
  auto* const numbers = reinterpret_cast<std::uint64_t*>(guesses + n_guesses);  // of steps; the last three stay 0
  LayerEnd end(gpu->pinned, n_experts, dim);
  end.args.state = state.data();
  for (std::int32_t i = 0; i < n_steps * n_layers; ++i) {
    std::int32_t const s = i / n_layers, l = i % n_layers;
    if (l == 0) {
      numbers[s] = step + std::uint64_t(s);
      TransferArgs begin;
      begin.parts[0] = {numbers + s, &state.data()->step, std::int32_t(sizeof(std::uint64_t))};
      begin.parts[1] = {numbers + n_steps, &state.data()->decided, std::int32_t(3 * sizeof(std::uint64_t))};
      begin.n_parts = 2;
      gpu->launch(gpu->table().transfer, begin);
    }
    RouterAheadArgs router = p.args(x[std::size_t(i % n_rows)]->data(), w.data(), norm.data(), scores.data(), state.data(), table.data(),
                                    seen.data(), row.data());
    router.layer = l;
    gpu->launch(gpu->table().router_ahead, router);
    // Short ones between, so that the guesses' blocks are there before the router has ended.
    for (int between = 0; between < 1 + i % 3; ++between)
      gpu->launch(gpu->table().rms_norm, RmsNormArgs{x[0]->data(), norm.data(), spare.data(), 1, dim, 1e-6f});
    end.args.layer = l;
    end.args.guesses = p.guesses({nullptr, next_w.data()}, {nullptr, next_norm.data()}, row.data(), guesses + i * n_experts);
    gpu->launch(gpu->table().help, end.args);
  }
  gpu->finish();
  std::vector<std::vector<ExpertGuess>> expected(rows.size(), std::vector<ExpertGuess>(std::size_t{n_experts}));
  for (std::size_t r = 0; r < expected.size(); ++r) {
    HelpState host_state{0, 0, 0, 1};
    HelpArgs host_end = end.args;
    host_end.state = &host_state;
    host_end.guesses = p.guesses({nullptr, p.weights[1].data()}, {nullptr, p.norms[1].data()}, rows[r].x.data(), expected[r].data());
    reference::guess(host_end);
  }
  for (std::int32_t i = 0; i < n_steps * n_layers; ++i) {
    std::size_t const r = std::size_t(i % n_rows);
    for (std::int32_t e = 0; e < n_experts; ++e) {
      INFO("TIERED_SEED=" << fresh_seed() << ", step " << i / n_layers << ", layer " << i % n_layers << ", expert " << e);
      ExpertGuess const got = guesses[i * n_experts + e];
      REQUIRE(got.step == std::uint32_t(step + std::uint64_t(i / n_layers)));
      REQUIRE(std::fabs(double(got.score) - double(expected[r][std::size_t(e)].score)) <= rows[r].tolerance(1, e));
    }
  }
}

TEST_CASE("CUDA guesses: where no router has left the row, they end all the same", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  SplitMix64& random = gpu->random;
  Problem const p({256, 16, 1, true, true}, random);
  DeviceArray<float> const w(p.weights[1]), norm(p.norms[1]), row(p.x);
  DeviceArray<HelpState> state(std::vector<HelpState>{{step, 0, 0, 0}});
  Buffer host(gpu->pinned, 16 * sizeof(ExpertGuess), 4096);
  auto* const guesses = reinterpret_cast<ExpertGuess*>(host.data());
  std::fill_n(guesses, 16, ExpertGuess{-1, 3});
  LayerEnd end(gpu->pinned, 16, 256);
  end.args.state = state.data();
  end.args.guesses = p.guesses({nullptr, w.data()}, {nullptr, norm.data()}, row.data(), guesses);
  gpu->launch(gpu->table().help, end.args);
  gpu->finish();
  CHECK(std::all_of(guesses, guesses + 16, [](ExpertGuess const& g) { return g.step == 0; }));  // of no step
}
