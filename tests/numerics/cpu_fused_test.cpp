/// Ops that do in one go what others do in several: the same bits either way.
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"

using namespace tiered_test;

namespace {

/// Rows x as products with weights of a type read them.
class Input {
 public:
  Input(Cpu& cpu, std::vector<float> const& x, std::int32_t n_tokens, std::int32_t dim) : cpu_(cpu), x_(x) {
    for (DType const type : {DType::act_q8, DType::act_bf16}) {
      int const form = activation_form(type);
      if (cpu.table().convert[form] == nullptr) continue;
      converted_[form].resize(activation_bytes(type, std::uint64_t(n_tokens), std::uint64_t(dim)));
      cpu.run(cpu.table().convert[form], QuantizeArgs{x.data(), converted_[form].data(), n_tokens, dim});
    }
  }
  void const* of(DType weights) const {
    DType const type = cpu_.table().activation[std::uint32_t(weights)];
    return type == DType::f32 ? static_cast<void const*>(x_.data()) : converted_[activation_form(type)].data();
  }

 private:
  Cpu& cpu_;
  std::vector<float> const& x_;
  std::vector<std::byte> converted_[n_activation_forms];
};

struct Mix {
  DType a, b, c;
};
constexpr Mix mixes[] = {{DType::q4_0, DType::q4_0, DType::q4_0},
                         {DType::q4_k, DType::q4_k, DType::q6_k},
                         {DType::f16, DType::bf16, DType::f32},
                         {DType::q8_0, DType::f32, DType::q5_1},
                         {DType::q2_k, DType::mxfp4, DType::f16}};

}  // namespace

TEST_CASE("a set of products equals its products one by one, whatever their types and sizes") {
  constexpr std::int32_t dim = 512, rows[] = {83, 16, 200};
  for (Isa const isa : available_isas()) {
    for (int const n_threads : {1, 3}) {
      Cpu cpu(isa, false, n_threads);
      for (Mix const& mix : mixes) {
        DType const types[] = {mix.a, mix.b, mix.c};
        for (std::int32_t const n_tokens : {1, 3, 37}) {
          INFO(name(isa) << ", " << n_threads << " threads, " << name(mix.a) << ' ' << name(mix.b) << ' ' << name(mix.c) << ", " << n_tokens
                         << " tokens");
          SplitMix64 random(7);
          std::vector<float> const x = random_floats(std::size_t(n_tokens) * dim, random);
          Input const input(cpu, x, n_tokens, dim);
          std::vector<float> const bias = random_floats(200, random);
          std::vector<std::byte> w[3];
          std::vector<float> expected[3], got[3];
          MatmulSetArgs set;
          for (int i = 0; i < 3; ++i) {
            w[i] = random_weights(types[i], std::int64_t(rows[i]) * dim, random);
            expected[i] = poisoned(std::size_t(n_tokens) * std::size_t(rows[i]));
            got[i] = expected[i];
            MatmulArgs args{w[i].data(), input.of(types[i]), i == 1 ? nullptr : bias.data(), expected[i].data(), n_tokens, rows[i], dim,
                            rows[i]};
            cpu.run(cpu.table().matmul[std::uint32_t(types[i])], args);
            args.y = got[i].data();
            set.types[i] = types[i];
            set.parts[i] = args;
          }
          set.n_parts = 3;
          cpu.run(cpu.table().matmul_set, set);
          for (int i = 0; i < 3; ++i) CHECK(same_bits(got[i], expected[i]));
        }
      }
    }
  }
}

TEST_CASE("a gated product equals two products and their activation") {
  constexpr std::int32_t dim = 512, rows = 147;
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, false, 3);
    for (Mix const& mix : mixes) {
      for (Activation const activation : {Activation::silu, Activation::gelu_tanh}) {
        for (std::int32_t const n_tokens : {1, 2, 40}) {
          INFO(name(isa) << ", " << name(mix.a) << ' ' << name(mix.c) << ", " << n_tokens << " tokens");
          SplitMix64 random(8);
          std::vector<float> x = random_floats(std::size_t(n_tokens) * dim, random);
          for (float& v : x) v *= 0.1f;
          Input const input(cpu, x, n_tokens, dim);
          std::vector<std::byte> const gate_w = random_weights(mix.a, std::int64_t(rows) * dim, random),
                                       up_w = random_weights(mix.c, std::int64_t(rows) * dim, random);
          std::size_t const n = std::size_t(n_tokens) * rows;
          std::vector<float> gate = poisoned(n), up = poisoned(n), out = poisoned(n), spare = poisoned(n);
          MatmulArgs gate_args{gate_w.data(), input.of(mix.a), nullptr, gate.data(), n_tokens, rows, dim, rows},
              up_args{up_w.data(), input.of(mix.c), nullptr, up.data(), n_tokens, rows, dim, rows};
          cpu.run(cpu.table().matmul[std::uint32_t(mix.a)], gate_args);
          cpu.run(cpu.table().matmul[std::uint32_t(mix.c)], up_args);
          cpu.run(cpu.table().gated, GatedArgs{gate.data(), up.data(), gate.data(), std::int64_t(n), activation});
          gate_args.y = out.data();
          up_args.y = spare.data();
          cpu.run(cpu.table().gated_matmul, GatedMatmulArgs{gate_args, up_args, mix.a, mix.c, activation});
          CHECK(same_bits(out, gate));
        }
      }
    }
  }
}

namespace {

struct Routed {
  static constexpr std::int32_t n_experts = 9, n_used = 3, dim = 256, hidden_dim = 96;
  Routed(std::int32_t n_tokens_, std::uint64_t seed) : n_tokens(n_tokens_) {
    SplitMix64 random(seed);
    x = random_floats(std::size_t(n_tokens) * dim, random);
    for (int e = 0; e < n_experts; ++e) {
      for (auto* list : {&gate, &up}) list->push_back(random_weights(DType::q4_0, std::int64_t(hidden_dim) * dim, random));
      down.push_back(random_weights(DType::q8_0, std::int64_t(hidden_dim) * dim, random));
      weights.push_back({gate.back().data(), up.back().data(), down.back().data(), 0, 0});
    }
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      std::int32_t const first = std::int32_t(random.below(n_experts));
      for (std::int32_t j = 0; j < n_used; ++j) ids.push_back((first + 2 * j) % n_experts);
    }
  }
  ExpertsArgs args(std::vector<float>& y, std::vector<std::byte>& workspace) const {
    ExpertsArgs a;
    a.x = x.data();
    a.y = y.data();
    workspace.resize(experts_workspace_bytes(n_tokens, n_tokens * n_used, dim, hidden_dim));
    a.workspace = workspace.data();
    a.n_tokens = n_tokens;
    a.n_used = n_used;
    a.dim = dim;
    a.hidden_dim = hidden_dim;
    a.n_slots = n_tokens * n_used;
    a.gate_type = a.up_type = DType::q4_0;
    a.down_type = DType::q8_0;
    return a;
  }
  std::int32_t n_tokens;
  std::vector<float> x;
  std::vector<std::vector<std::byte>> gate, up, down;
  std::vector<ExpertGroup> weights;
  std::vector<std::int32_t> ids;
};

std::vector<float> run_routed(Cpu& cpu, Routed const& p) {
  std::size_t const n_slots = p.ids.size();
  std::vector<float> y = poisoned(n_slots * Routed::dim);
  std::vector<std::byte> workspace;
  std::vector<ExpertGroup> groups(std::min(n_slots, std::size_t(Routed::n_experts)));
  std::vector<std::int32_t> slots(n_slots), counts(Routed::n_experts + 1);
  cpu.run(cpu.table().routed_experts, RoutedExpertsArgs{p.args(y, workspace), p.ids.data(), p.weights.data(), groups.data(), slots.data(),
                                                        counts.data(), Routed::n_experts, 3});
  return y;
}

}  // namespace

TEST_CASE("routed experts that group by themselves equal experts that were grouped") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, false, 3);
    for (std::int32_t const n_tokens : {1, 2, 50}) {
      INFO(name(isa) << ", " << n_tokens << " tokens");
      Routed const p(n_tokens, 5);
      std::vector<ExpertGroup> groups;
      std::vector<std::int32_t> slots;
      for (std::int32_t e = 0; e < Routed::n_experts; ++e) {
        ExpertGroup group = p.weights[std::size_t(e)];
        group.first = std::int32_t(slots.size());
        for (std::size_t i = 0; i < p.ids.size(); ++i) {
          if (p.ids[i] == e) slots.push_back(std::int32_t(i));
        }
        group.n = std::int32_t(slots.size()) - group.first;
        if (group.n > 0) groups.push_back(group);
      }
      std::vector<float> y = poisoned(p.ids.size() * Routed::dim);
      std::vector<std::byte> workspace;
      ExpertsArgs args = p.args(y, workspace);
      args.groups = groups.data();
      args.slots = slots.data();
      args.n_groups = std::int32_t(groups.size());
      cpu.run(cpu.table().experts, args);
      CHECK(same_bits(run_routed(cpu, p), y));
    }
  }
}

TEST_CASE("a router's id that is no expert is an error of the device, not a wild read") {
  for (std::int32_t const bad : {-1, Routed::n_experts, 1 << 30}) {
    Cpu cpu(Isa::baseline);
    Routed p(4, 6);
    p.ids[5] = bad;
    try {
      run_routed(cpu, p);
      FAIL("nothing was thrown");
    } catch (Error const& e) {
      CHECK(e.code() == Errc::device);
      INFO(e.what());
      CHECK(std::string(e.what()).find(concat("layer 3: the router chose expert ", bad, " of 9")) != std::string::npos);
    }
  }
}
