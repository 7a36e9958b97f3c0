/// The experts op of the CPU tables: against the reference on the same activations, and independent of grouping and threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/moe.hpp"

using namespace tiered_test;

namespace {

struct ExpertsCase {
  DType gate, up, down;
  std::int32_t n_experts, n_used, n_tokens, dim, hidden_dim;
  Activation activation;
};

std::vector<ExpertsCase> experts_cases() {
  std::vector<ExpertsCase> cases;
  for (DType const type : all_formats()) cases.push_back({type, type, type, 4, 2, 3, 256, 512, Activation::silu});
  // Types that read different activations, dims that only some types allow.
  cases.push_back({DType::q4_0, DType::q4_k, DType::f16, 5, 3, 7, 512, 96, Activation::gelu_tanh});
  cases.push_back({DType::q6_k, DType::f32, DType::q8_0, 3, 1, 40, 256, 32, Activation::silu});
  cases.push_back({DType::f32, DType::bf16, DType::q5_1, 16, 4, 33, 77, 64, Activation::silu});
  cases.push_back({DType::q4_1, DType::q4_1, DType::q8_0, 6, 2, 1, 576, 96, Activation::silu});
  cases.push_back({DType::mxfp4, DType::iq4_nl, DType::q6_k, 6, 6, 2, 96, 256, Activation::silu});
  cases.push_back({DType::q4_k, DType::bf16, DType::q8_0, 2, 1, 90, 256, 160, Activation::silu});  // many tokens in each group
  cases.push_back({DType::q8_0, DType::q4_0, DType::q8_0, 2, 1, 3, 1024, 1024, Activation::silu});
  cases.push_back({DType::bf16, DType::f16, DType::bf16, 3, 2, 40, 1060, 1120, Activation::silu});  // panels of several stretches
  return cases;
}

/// Weights of all experts and a choice of experts for each token, as groups in ascending order of the expert.
struct Layer {
  Layer(ExpertsCase const& c_, std::uint64_t seed) : c(c_) {
    SplitMix64 random(seed);
    gate = random_weights(c.gate, std::int64_t(c.n_experts) * c.hidden_dim * c.dim, random);
    up = random_weights(c.up, std::int64_t(c.n_experts) * c.hidden_dim * c.dim, random);
    down = random_weights(c.down, std::int64_t(c.n_experts) * c.dim * c.hidden_dim, random);
    x = random_floats(std::size_t(c.n_tokens) * std::size_t(c.dim), random);
    for (float& v : x) v *= 0.2f;
    std::vector<std::vector<std::int32_t>> by_expert(static_cast<std::size_t>(c.n_experts));
    for (std::int32_t t = 0; t < c.n_tokens; ++t) {
      std::int32_t const first = std::int32_t(random.below(std::uint64_t(c.n_experts)));
      for (std::int32_t j = 0; j < c.n_used; ++j) by_expert[std::size_t((first + j) % c.n_experts)].push_back(t * c.n_used + j);
    }
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      groups.push_back(group(e, std::int32_t(slots.size()), std::int32_t(by_expert[std::size_t(e)].size())));
      slots.insert(slots.end(), by_expert[std::size_t(e)].begin(), by_expert[std::size_t(e)].end());
    }
  }
  ExpertGroup group(std::int32_t expert, std::int32_t first, std::int32_t n) const {
    auto const part = [&](std::vector<std::byte> const& all) {
      return all.data() + all.size() / std::size_t(c.n_experts) * std::size_t(expert);
    };
    return {part(gate), part(up), part(down), first, n};
  }
  ExpertsArgs args(std::vector<ExpertGroup> const& some, std::vector<float>& y, std::vector<std::byte>& workspace) const {
    ExpertsArgs a;
    a.x = x.data();
    a.y = y.data();
    a.groups = some.data();
    a.slots = slots.data();
    a.n_groups = std::int32_t(some.size());
    a.n_tokens = c.n_tokens;
    a.n_used = c.n_used;
    a.dim = c.dim;
    a.hidden_dim = c.hidden_dim;
    for (ExpertGroup const& g : some) a.n_slots += g.n;
    a.gate_type = c.gate;
    a.up_type = c.up;
    a.down_type = c.down;
    a.activation = c.activation;
    workspace.assign(experts_workspace_bytes(c.n_tokens, a.n_slots, c.dim, c.hidden_dim) + guard, std::byte{0xcd});
    a.workspace = workspace.data();
    return a;
  }
  std::vector<float> output() const { return poisoned(std::size_t(c.n_tokens) * std::size_t(c.n_used) * std::size_t(c.dim)); }

  static constexpr std::size_t guard = 256;
  ExpertsCase c;
  std::vector<std::byte> gate, up, down;
  std::vector<float> x;
  std::vector<std::int32_t> slots;
  std::vector<ExpertGroup> groups;
};

std::string describe(Isa isa, ExpertsCase const& c) {
  return concat(name(isa), ": ", name(c.gate), ' ', name(c.up), ' ', name(c.down), ", ", c.n_tokens, " tokens, ", c.n_used, " of ",
                c.n_experts, ", ", c.dim, " x ", c.hidden_dim);
}

std::vector<float> run(Cpu& cpu, Layer const& layer, std::vector<ExpertGroup> const& groups) {
  std::vector<float> y = layer.output();
  std::vector<std::byte> workspace;
  ExpertsArgs const args = layer.args(groups, y, workspace);
  cpu.run(cpu.table().experts, args);
  for (std::size_t i = workspace.size() - Layer::guard; i < workspace.size(); ++i) {
    if (workspace[i] != std::byte{0xcd}) FAIL("the workspace was overrun");
  }
  return y;
}

}  // namespace

TEST_CASE("CPU experts equal the reference with the same rounding of activations") {
  for (Isa const isa : available_isas()) {
    for (bool const f32 : {false, true}) {
      Cpu cpu(isa, f32);
      for (ExpertsCase const& c : experts_cases()) {
        Layer const layer(c, 17);
        std::vector<float> const y = run(cpu, layer, layer.groups);
        std::vector<float> expected = layer.output();
        std::vector<std::byte> workspace;
        reference::experts(layer.args(layer.groups, expected, workspace), activation_rule(cpu.table()));
        // A hidden value within rounding of two 8-bit steps may take the other one in the kernel: 1/127 of its block's largest (of two
        // bfloat16 values: 1/128 of itself). That bounds the error by a share of the row's norm; without steps float rounding is left.
        bool const stepped = activation_rule(cpu.table())(c.down) != DType::f32;
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
          error += std::pow(double(y[i]) - double(expected[i]), 2);
          norm += std::pow(double(expected[i]), 2);
        }
        INFO(describe(isa, c) << (f32 ? " f32" : "") << ": error " << std::sqrt(error) << " of " << std::sqrt(norm));
        CHECK(norm > 0);
        CHECK(std::sqrt(error) <= (stepped ? 2e-3 : 2e-5) * std::sqrt(norm));
      }
    }
  }
}

TEST_CASE("a slot's result depends neither on threads nor on which groups share the call; other slots are not touched") {
  for (Isa const isa : available_isas()) {
    Cpu one(isa, false, 1), two(isa, false, 2), seven(isa, false, 7);
    for (ExpertsCase const& c : experts_cases()) {
      INFO(describe(isa, c));
      Layer const layer(c, 18);
      std::vector<float> const all = run(one, layer, layer.groups);
      CHECK(same_bits(run(two, layer, layer.groups), all));
      CHECK(same_bits(run(seven, layer, layer.groups), all));
      std::vector<float> merged = layer.output();
      std::size_t const dim = std::size_t(c.dim);
      for (std::int32_t e = 0; e < c.n_experts; ++e) {
        ExpertGroup const whole = layer.groups[std::size_t(e)];
        for (std::int32_t i = 0; i < whole.n; ++i) {  // every slot by itself; slots of the call begin at 0
          Layer part = layer;
          part.slots = {layer.slots[std::size_t(whole.first + i)]};
          std::vector<float> const y = run(two, part, {part.group(e, 0, 1)});
          std::size_t const slot = std::size_t(part.slots[0]);
          for (std::size_t k = 0; k < y.size(); ++k) {
            if (k / dim == slot) {
              merged[k] = y[k];
            } else if (y[k] != poison) {
              FAIL("a slot of no group was written");
            }
          }
        }
      }
      CHECK(same_bits(merged, all));
    }
  }
}

TEST_CASE("groups of a call may lie anywhere among the slots, and may be empty") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, false, 3);
    Layer const layer({DType::q4_k, DType::q4_0, DType::q8_0, 9, 2, 30, 256, 96, Activation::silu}, 21);
    std::vector<float> const all = run(cpu, layer, layer.groups);
    ExpertGroup const empty = layer.group(2, 60, 0);
    std::vector<ExpertGroup> const some = {layer.groups[8], empty, layer.groups[5], layer.groups[1], empty};
    std::vector<float> const y = run(cpu, layer, some);
    std::vector<float> expected = layer.output();
    for (ExpertGroup const& g : some) {
      for (std::int32_t i = g.first; i < g.first + g.n; ++i) {
        auto const at = std::ptrdiff_t(layer.slots[std::size_t(i)]) * layer.c.dim;
        std::copy_n(all.begin() + at, layer.c.dim, expected.begin() + at);
      }
    }
    CHECK(same_bits(y, expected));
    CHECK(same_bits(run(cpu, layer, {empty}), layer.output()));
    CHECK(same_bits(run(cpu, layer, {}), layer.output()));
    std::vector<float> untouched = layer.output();  // n_slots as an upper bound, of slots that are elsewhere
    std::vector<std::byte> workspace(experts_workspace_bytes(layer.c.n_tokens, 60, layer.c.dim, layer.c.hidden_dim));
    std::vector<std::byte> unused;
    std::vector<ExpertGroup> const only_empty = {empty, empty};
    ExpertsArgs args = layer.args(only_empty, untouched, unused);
    args.n_slots = 60;
    args.workspace = workspace.data();
    cpu.run(cpu.table().experts, args);
    CHECK(same_bits(untouched, layer.output()));
  }
}

TEST_CASE("experts of a type without products are an error that names it") {
  Cpu cpu(Isa::baseline);
  Layer layer({DType::q4_0, DType::q4_0, DType::q4_0, 1, 1, 1, 32, 32, Activation::silu}, 1);
  layer.c.up = DType::iq3_s;
  std::vector<float> y = layer.output();
  std::vector<std::byte> workspace;
  ExpertsArgs const args = layer.args(layer.groups, y, workspace);
  CHECK_THROWS_AS(cpu.run(cpu.table().experts, args), Error);
}
