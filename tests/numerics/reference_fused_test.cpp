// The fused reference ops against the ops that they stand for, one after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "error_of.hpp"
#include "tiered/kernels/reference/table.hpp"

using namespace tiered_test;

namespace {

/// Both round to f32 here and there: some epsilons of the largest value.
void check_close(std::vector<float> const& got, std::vector<float> const& expected) {
  REQUIRE(got.size() == expected.size());
  double largest = 0;
  for (float v : expected) largest = std::max(largest, std::fabs(double(v)));
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i << ": " << got[i] << ", expected " << expected[i]);
    REQUIRE(std::fabs(double(got[i]) - double(expected[i])) <= 8 * epsilon * largest);
  }
}

struct Product {
  DType type{};
  std::int32_t rows = 0;
  std::vector<std::byte> w;
  std::vector<float> bias, y;
};

constexpr std::int32_t n_tokens = 3, dim = 256;

std::vector<Product> products(std::vector<DType> const& types, std::vector<std::int32_t> const& rows, SplitMix64& random) {
  std::vector<Product> out;
  for (std::size_t i = 0; i < types.size(); ++i) {
    out.push_back({types[i], rows[i], random_weights(types[i], std::int64_t(rows[i]) * dim, random),
                   random_floats(std::size_t(rows[i]), random), random_floats(std::size_t(n_tokens) * std::size_t(rows[i]), random)});
  }
  return out;
}

/// The rows, normed, then in the type that products with `weights` take.
std::vector<std::byte> converted(std::vector<float> const& x, float const* norm, bool normed, reference::ActivationRule rule,
                                 DType weights) {
  std::vector<float> rows = x;
  if (normed) reference::rms_norm({rows.data(), norm, rows.data(), n_tokens, dim, 1e-5f});
  DType const type = rule(weights);
  std::vector<std::byte> out(activation_bytes(type, n_tokens, dim));
  if (type == DType::f32) {
    std::memcpy(out.data(), rows.data(), out.size());
  } else {
    reference::quantize(QuantizeArgs{rows.data(), out.data(), n_tokens, dim}, type);
  }
  return out;
}

}  // namespace

TEST_CASE("reference fused_matmul: norm, conversion, products, then storing, adding or gating", "[numerics][reference]") {
  SplitMix64 random(5);
  for (reference::ActivationRule const rule : {&reference::f32_activation, &quantized_activation}) {
    for (DType const type : all_formats()) {
      for (bool const norm : {false, true}) {
        INFO(name(type) << " norm " << norm);
        std::vector<float> const x = random_floats(std::size_t(n_tokens * dim), random), weight = random_floats(dim, random);
        std::vector<Product> parts = products({type, DType::q8_0, DType::f32}, {5, 1, 7}, random);
        FusedMatmulArgs a;
        a.x = x.data();
        a.norm_weight = weight.data();
        a.norm = norm;
        a.eps = 1e-5f;
        a.n_parts = 3;
        a.n_tokens = n_tokens;
        a.dim = dim;
        std::vector<std::vector<float>> plain, before;
        for (int i = 0; i < 3; ++i) {
          Product& p = parts[std::size_t(i)];
          a.parts[i] = {p.w.data(), i == 1 ? nullptr : p.bias.data(), p.y.data(), p.rows, p.rows, p.type};
          std::vector<std::byte> const in = converted(x, weight.data(), norm, rule, p.type);
          plain.emplace_back(p.y.size());
          reference::matmul({p.w.data(), in.data(), a.parts[i].bias, plain.back().data(), n_tokens, p.rows, dim, p.rows}, p.type,
                            rule(p.type));
          before.push_back(p.y);
        }
        a.then = FusedMatmulArgs::Then::add;
        reference::fused_matmul(a, rule);
        for (std::size_t i = 0; i < 3; ++i) {
          reference::add({plain[i].data(), before[i].data(), std::int64_t(plain[i].size())});
          check_close(parts[i].y, before[i]);
          std::ranges::fill(parts[i].y, poison);
        }
        a.then = FusedMatmulArgs::Then::store;
        reference::fused_matmul(a, rule);
        for (std::size_t i = 0; i < 3; ++i) check_close(parts[i].y, plain[i]);
      }
    }
  }
}

TEST_CASE("reference fused_matmul: gate and up, wider strides, norm without weights", "[numerics][reference]") {
  SplitMix64 random(6);
  for (Activation const activation : {Activation::silu, Activation::gelu_tanh}) {
    std::vector<float> const x = random_floats(std::size_t(n_tokens * dim), random);
    std::vector<Product> parts = products({DType::q4_0, DType::q6_k}, {6, 6}, random);
    std::vector<float> got(n_tokens * 9, -5.f);
    FusedMatmulArgs a;
    a.x = x.data();
    a.norm = true;
    a.eps = 1e-5f;
    a.n_parts = 2;
    a.n_tokens = n_tokens;
    a.dim = dim;
    a.then = FusedMatmulArgs::Then::gate;
    a.activation = activation;
    a.parts[0] = {parts[0].w.data(), nullptr, got.data(), 9, 6, parts[0].type};
    a.parts[1] = {parts[1].w.data(), nullptr, nullptr, 9, 6, parts[1].type};
    reference::fused_matmul(a);
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<std::byte> const in = converted(x, nullptr, true, reference::f32_activation, parts[i].type);
      reference::matmul({parts[i].w.data(), in.data(), nullptr, parts[i].y.data(), n_tokens, 6, dim, 6}, parts[i].type);
    }
    reference::gated({parts[0].y.data(), parts[1].y.data(), parts[0].y.data(), std::int64_t(parts[0].y.size()), activation});
    std::vector<float> dense;
    for (std::size_t t = 0; t < n_tokens; ++t) {
      dense.insert(dense.end(), got.begin() + std::ptrdiff_t(9 * t), got.begin() + std::ptrdiff_t(9 * t + 6));
      for (std::size_t k = 6; k < 9; ++k) CHECK(got[9 * t + k] == -5.f);
    }
    check_close(dense, parts[0].y);
  }
}

TEST_CASE("reference routed_experts: the router's ids, sums into the rows that were normed", "[numerics][reference]") {
  SplitMix64 random(7);
  constexpr std::int32_t n_experts = 5, n_used = 2, hidden = 32, width = 64;
  std::vector<std::vector<std::byte>> matrices;
  std::vector<ExpertGroup> table;
  for (int i = 0; i < 3 * n_experts; ++i) matrices.push_back(random_weights(DType::q4_0, std::int64_t(hidden) * width, random));
  for (std::size_t e = 0; e < n_experts; ++e)
    table.push_back({matrices[3 * e].data(), matrices[3 * e + 1].data(), matrices[3 * e + 2].data(), 77, 99});  // ranges are not read
  std::vector<std::int32_t> ids{0, 4, 1, 2, 0, 1};
  std::vector<float> const x = random_floats(n_tokens * width, random), norm = random_floats(width, random),
                           weights = random_floats(n_tokens * n_used, random);
  std::vector<float> rows = x, y(n_tokens * n_used * width, poison), expected = x, normed = x, y2 = y, sum(x.size());

  RoutedExpertsArgs a;
  a.experts.x = rows.data();
  a.experts.y = y.data();
  a.experts.n_tokens = n_tokens;
  a.experts.n_used = n_used;
  a.experts.dim = width;
  a.experts.hidden_dim = hidden;
  a.experts.n_slots = n_tokens * n_used;
  a.experts.gate_type = a.experts.up_type = a.experts.down_type = DType::q4_0;
  a.ids = ids.data();
  a.weights = table.data();
  a.n_experts = n_experts;
  a.layer = 3;
  ExpertsArgs by_group = a.experts;
  reference::rms_norm({normed.data(), norm.data(), normed.data(), n_tokens, width, 1e-6f});
  by_group.x = normed.data();
  by_group.y = y2.data();
  std::vector<ExpertGroup> groups;
  std::vector<std::int32_t> slots;
  for (std::int32_t s = 0; s < n_tokens * n_used; ++s) {
    groups.push_back(table[std::size_t(ids[std::size_t(s)])]);
    groups.back().first = s;
    groups.back().n = 1;
    slots.push_back(s);
  }
  by_group.groups = groups.data();
  by_group.slots = slots.data();
  by_group.n_groups = std::int32_t(groups.size());
  reference::experts(by_group);
  reference::combine({y2.data(), weights.data(), sum.data(), n_tokens, n_used, width});
  reference::add({sum.data(), expected.data(), std::int64_t(sum.size())});

  a.norm = true;
  a.norm_weight = norm.data();
  a.eps = 1e-6f;
  a.slot_weights = weights.data();
  a.sum = rows.data();
  reference::routed_experts(a);
  check_close(rows, expected);

  rows = normed;
  a.norm = false;
  a.slot_weights = nullptr;
  std::ranges::fill(y, poison);
  reference::routed_experts(a);
  CHECK(y == y2);
  CHECK(rows == normed);
  for (std::int32_t const wrong : {-1, 5}) {
    ids[3] = wrong;
    Thrown const t = error_of([&] { reference::routed_experts(a); });
    CHECK(t.code == Errc::device);
    CHECK(t.says("layer 3", concat(wrong)));
  }
}

TEST_CASE("reference attention_input: norms where there are weights, rotation, keys and values stored", "[numerics][reference]") {
  SplitMix64 random(8);
  constexpr std::int32_t heads = 4, kv_heads = 2, head_dim = 20, n_rot = 16, page = 4;
  for (DType const kv : {DType::f16, DType::f32, DType::q8_0}) {
    for (auto const& [norms, maps] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
      std::vector<float> q = random_floats(n_tokens * heads * head_dim, random), k = random_floats(n_tokens * kv_heads * head_dim, random);
      std::vector<float> const v = random_floats(k.size(), random), q_norm = random_floats(head_dim, random),
                               k_norm = random_floats(head_dim, random), inv_freq = random_floats(n_rot / 2, random);
      std::vector<std::int32_t> const positions{5, 6, 2, 0, 9, 1, 7, 0, 4, 2, 2, 0};
      std::vector<std::uint8_t> const map{2, 0, 1, 1, 0, 2, 2, 1};
      std::uint8_t const* const position_row = maps ? map.data() : nullptr;
      constexpr std::int32_t stride = 4;
      std::vector<KvRow> const rows{{0, 5}, {0, 6}, {1, 2}};
      std::size_t const page_bytes = kv_row_bytes(kv, head_dim) * kv_heads * page;
      std::vector<std::byte> pages(8 * page_bytes, std::byte{0xff}), pages2 = pages;
      auto const lists = [&](std::vector<std::byte>& at) {
        std::vector<std::byte*> list;
        for (std::size_t p = 0; p < 8; ++p) list.push_back(at.data() + p * page_bytes);
        return list;
      };
      std::vector<std::byte*> const a_list = lists(pages), b_list = lists(pages2);
      KvTable const a_tables[] = {{a_list.data(), a_list.data() + 2}, {a_list.data() + 4, a_list.data() + 6}},
                    b_tables[] = {{b_list.data(), b_list.data() + 2}, {b_list.data() + 4, b_list.data() + 6}};
      std::vector<float> q2 = q, k2 = k;
      AttentionInputArgs a;
      a.q = q.data();
      a.k = k.data();
      a.v = v.data();
      if (norms) a.q_norm = q_norm.data(), a.k_norm = k_norm.data();
      a.positions = positions.data();
      a.inv_freq = inv_freq.data();
      a.rows = rows.data();
      a.tables = a_tables;
      a.n_tokens = n_tokens;
      a.n_heads = heads;
      a.n_kv_heads = kv_heads;
      a.head_dim = head_dim;
      a.n_rot = n_rot;
      a.page_tokens = page;
      a.eps = 1e-6f;
      a.magnitude = 1.5f;
      a.position_row = position_row;
      a.position_stride = stride;
      reference::attention_input(a, kv);
      if (norms) {
        reference::rms_norm({q2.data(), q_norm.data(), q2.data(), n_tokens * heads, head_dim, 1e-6f});
        reference::rms_norm({k2.data(), k_norm.data(), k2.data(), n_tokens * kv_heads, head_dim, 1e-6f});
      }
      auto const rotate = [&](std::vector<float>& x, std::int32_t n_heads) {
        reference::rope({x.data(), positions.data(), inv_freq.data(), n_tokens, n_heads, head_dim, n_rot, RopeKind::halves, 1.5f,
                         position_row, stride});
      };
      rotate(q2, heads);
      rotate(k2, kv_heads);
      reference::kv_write({k2.data(), v.data(), rows.data(), b_tables, n_tokens, kv_heads, head_dim, page}, kv);
      CHECK(q == q2);
      CHECK(pages == pages2);
    }
  }
}
