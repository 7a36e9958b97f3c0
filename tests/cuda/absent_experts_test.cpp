// Experts that are computed elsewhere, and the small copies by which the device and the host tell each other about them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "tiered/kernels/reference/table.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/pinned.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

struct Shape {
  std::int32_t n_tokens, dim, hidden_dim;
};

/// Eight experts of one type, four for a token, and which slots and experts are not there.
struct Absence {
  static constexpr std::int32_t n_experts = 8, n_used = 4;
  Absence(DType type_, Shape s_, SplitMix64& random)
      : type(type_),
        s(s_),
        gate(random_weights(type, std::int64_t(n_experts) * s.hidden_dim * s.dim, random)),
        up(random_weights(type, std::int64_t(n_experts) * s.hidden_dim * s.dim, random)),
        down(random_weights(type, std::int64_t(n_experts) * s.dim * s.hidden_dim, random)),
        x(random_floats(std::size_t(s.n_tokens) * std::size_t(s.dim), random)),
        weights(random_floats(n_slots(), random)) {
    for (float& v : x) v *= 0.2f;
    for (std::int32_t e = 0; e < n_experts; ++e) is_there.push_back(random.below(2) == 1);
    for (std::int32_t t = 0; t < s.n_tokens; ++t) {
      std::int32_t const first = std::int32_t(random.below(n_experts - n_used + 1));
      for (std::int32_t j = 0; j < n_used; ++j) ids.push_back(random.below(4) == 0 ? -1 : first + j);
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0) weights[i] = 0;
    }
  }
  std::size_t n_slots() const { return std::size_t(s.n_tokens) * n_used; }
  std::vector<ExpertGroup> table(std::byte const* g, std::byte const* u, std::byte const* d) const {
    std::vector<ExpertGroup> out;
    for (std::size_t e = 0; e < n_experts; ++e) {
      ExpertGroup const there{g + gate.size() / n_experts * e, u + up.size() / n_experts * e, d + down.size() / n_experts * e, 0, 0};
      out.push_back(is_there[e] ? there : ExpertGroup{});
    }
    return out;
  }
  RoutedExpertsArgs args() const {
    RoutedExpertsArgs a;
    a.experts.n_tokens = s.n_tokens;
    a.experts.n_used = n_used;
    a.experts.n_slots = std::int32_t(n_slots());
    a.experts.dim = s.dim;
    a.experts.hidden_dim = s.hidden_dim;
    a.experts.gate_type = a.experts.up_type = a.experts.down_type = type;
    a.n_experts = n_experts;
    a.absent_slots = true;
    return a;
  }

  DType type;
  Shape s;
  std::vector<std::byte> gate, up, down;
  std::vector<float> x, weights;
  std::vector<bool> is_there;
  std::vector<std::int32_t> ids;
};

std::vector<float> on_gpu(Gpu& gpu, Absence const& p) {
  DeviceArray<std::byte> const gate(p.gate), up(p.up), down(p.down);
  DeviceArray<float> const x(p.x), weights(p.weights);
  DeviceArray<std::int32_t> const ids(p.ids);
  DeviceArray<ExpertGroup> const table(p.table(gate.data(), up.data(), down.data()));
  DeviceArray<float> sum(p.x), y(p.n_slots() * std::size_t(p.s.dim));
  DeviceArray<std::byte> workspace(experts_workspace_bytes(p.s.n_tokens, std::int32_t(p.n_slots()), p.s.dim, p.s.hidden_dim));
  RoutedExpertsArgs a = p.args();
  a.experts.x = x.data();
  a.experts.y = y.data();
  a.experts.workspace = workspace.data();
  a.ids = ids.data();
  a.weights = table.data();
  a.slot_weights = weights.data();
  a.sum = sum.data();
  gpu.run(gpu.table().routed_experts, a);
  workspace.download();
  y.download();
  return sum.download();
}

std::vector<float> by_reference(Absence const& p) {
  std::vector<ExpertGroup> const table = p.table(p.gate.data(), p.up.data(), p.down.data());
  std::vector<float> sum = p.x, y(p.n_slots() * std::size_t(p.s.dim));
  RoutedExpertsArgs a = p.args();
  a.experts.x = p.x.data();
  a.experts.y = y.data();
  a.ids = p.ids.data();
  a.weights = table.data();
  a.slot_weights = p.weights.data();
  a.sum = sum.data();
  reference::routed_experts(a, block_elems(p.type) > 1 ? &quantized_activation : &reference::f32_activation);
  return sum;
}

}  // namespace

TEST_CASE("CUDA routed experts leave out what is computed elsewhere", "[cuda]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (DType const type : all_formats()) {
    for (Shape const s : {Shape{1, 512, 256}, Shape{1, 256, 512}, Shape{3, 512, 256}, Shape{16, 256, 256}}) {
      INFO("TIERED_SEED=" << fresh_seed() << ": " << name(type) << ", " << s.n_tokens << " tokens, " << s.dim << " x " << s.hidden_dim);
      Absence const p(type, s, random);
      std::vector<float> const got = on_gpu(gpu, p), expected = by_reference(p);
      double error = 0, norm = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        REQUIRE(std::isfinite(got[i]));
        error += std::pow(double(got[i]) - double(expected[i]), 2);
        norm += double(expected[i]) * double(expected[i]);
      }
      CHECK(std::sqrt(error) <= (block_elems(type) > 1 ? 2e-3 : 2e-5) * std::sqrt(norm));  // as tests/cuda/experts_test.cpp says why
      for (std::int32_t t = 0; t < s.n_tokens; ++t) {                                      // a row of which nothing is here keeps its bits
        auto const is_here = [&](std::int32_t id) { return id >= 0 && p.is_there[std::size_t(id)]; };
        std::ptrdiff_t const first = std::ptrdiff_t(t) * Absence::n_used, begin = std::ptrdiff_t(t) * s.dim;
        if (std::any_of(p.ids.begin() + first, p.ids.begin() + first + Absence::n_used, is_here)) continue;
        CHECK(std::memcmp(got.data() + begin, p.x.data() + begin, std::size_t(s.dim) * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("CUDA transfers go either way between VRAM and pinned memory, and touch nothing else", "[cuda][sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaDevice const device = CudaDevice::open(0);
  PinnedTier pinned;
  SplitMix64 random(fresh_seed());
  for (int round = 0; round < 40; ++round) {
    INFO("TIERED_SEED=" << fresh_seed() << ", round " << round);
    constexpr std::int32_t room = 64 << 10;
    Buffer host(pinned, 2 * room, 256);
    auto* const host_floats = reinterpret_cast<float*>(host.data());
    std::vector<float> const values = random_floats(2 * room / sizeof(float), random);
    std::memcpy(host_floats, values.data(), 2 * room);
    DeviceArray<float> vram(values);
    std::vector<float> expected_host = values, expected_vram = values;
    TransferArgs args;
    args.n_parts = std::int32_t(random.below(TransferArgs::max_parts + 1));
    std::int32_t const each = room / TransferArgs::max_parts / std::int32_t(sizeof(float));  // floats that a part may have
    for (std::int32_t i = 0; i < args.n_parts; ++i) {
      std::int32_t const skip = std::int32_t(random.below(5)), n = std::int32_t(random.below(std::uint64_t(each - 4)));
      std::int32_t const from = i * each + skip, to = room / std::int32_t(sizeof(float)) + i * each + std::int32_t(random.below(5));
      bool const down = random.below(2) == 1;
      args.parts[i] = {(down ? vram.data() : host_floats) + from, (down ? host_floats : vram.data()) + to, n * std::int32_t(sizeof(float))};
      std::copy_n(values.begin() + from, n, (down ? expected_host : expected_vram).begin() + to);
    }
    gpu.run(gpu.table().transfer, args);
    CHECK(std::memcmp(host_floats, expected_host.data(), 2 * room) == 0);
    CHECK(vram.download() == expected_vram);
  }
}
