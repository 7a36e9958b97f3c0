/// The light ops of the CPU tables: norm, rope, activation, sums, gathers, embedding, quantisation, router, combination.
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "activation_cases.hpp"
#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/embed.hpp"
#include "tiered/kernels/reference/moe.hpp"
#include "tiered/kernels/reference/norm.hpp"
#include "tiered/kernels/reference/quantize.hpp"
#include "tiered/kernels/reference/rope.hpp"

using namespace tiered_test;

namespace {

/// Rows and row sizes around vector widths and around the parts that threads take.
struct RowShape {
  std::int32_t n_rows, dim;
};
std::vector<RowShape> const row_shapes = {{1, 1}, {1, 7}, {1, 8}, {2, 9}, {3, 31}, {5, 576}, {12, 640}, {1, 4096}, {70, 333}};

/// Runs `op(cpu)` with several thread counts, compares the bits, and returns the result.
template <class Op>
std::vector<float> same_for_all_threads(Isa isa, Op op) {
  std::vector<float> first;
  for (int const n_threads : {1, 2, 3, 7}) {
    Cpu cpu(isa, false, n_threads);
    std::vector<float> const result = op(cpu);
    if (n_threads == 1) first = result;
    CHECK(same_bits(result, first));
  }
  return first;
}

}  // namespace

TEST_CASE("CPU rms_norm") {
  for (Isa const isa : available_isas()) {
    for (RowShape const& shape : row_shapes) {
      std::int32_t const n_rows = shape.n_rows, dim = shape.dim;
      for (Values const values : {Values::ordinary, Values::zeros, Values::subnormal, Values::large}) {
        for (bool const weighted : {false, true}) {
          INFO(name(isa) << ' ' << n_rows << " rows of " << dim << ", " << name(values));
          SplitMix64 random(1);
          std::size_t const n = std::size_t(n_rows) * std::size_t(dim);
          std::vector<float> x = random_floats(n, random, values), weight = random_floats(std::size_t(dim), random), expected = poisoned(n);
          if (values == Values::large) {  // squares must stay in range, as in the models
            for (float& v : x) v *= 1e-15f;
          }
          RmsNormArgs args{x.data(), weighted ? weight.data() : nullptr, expected.data(), n_rows, dim, 1e-5f};
          reference::rms_norm(args);
          std::vector<float> const y = same_for_all_threads(isa, [&](Cpu& cpu) {
            std::vector<float> out = x;  // in place
            args.x = args.y = out.data();
            cpu.run(cpu.table().rms_norm, args);
            return out;
          });
          Worst worst;
          for (std::size_t i = 0; i < n; ++i)
            worst.compare(std::int64_t(i), double(y[i]), double(expected[i]),
                          (dim / 16.0 + 8) * epsilon * std::abs(double(expected[i])) + 1e-42);
          INFO(worst.text());
          CHECK(worst.factor <= 1);
        }
      }
    }
  }
}

TEST_CASE("CPU rope, of one row of positions and of three") {
  std::vector<RopeArgs> rope_shapes;
  for (std::vector<std::int32_t> const& v :
       std::vector<std::vector<std::int32_t>>{{1, 1, 2, 2}, {3, 2, 64, 64}, {40, 9, 64, 64}, {2, 3, 20, 12}, {5, 1, 600, 600}}) {
    rope_shapes.push_back({});
    rope_shapes.back().n_tokens = v[0];
    rope_shapes.back().n_heads = v[1];
    rope_shapes.back().head_dim = v[2];
    rope_shapes.back().n_rot = v[3];
  }
  for (Isa const isa : available_isas()) {
    for (auto const& [kind, n_rows] :
         {std::pair{RopeKind::adjacent, 1}, {RopeKind::halves, 1}, {RopeKind::adjacent, 3}, {RopeKind::halves, 3}}) {
      for (RopeArgs const& shape : rope_shapes) {
        std::int32_t const n_tokens = shape.n_tokens, n_heads = shape.n_heads, head_dim = shape.head_dim, n_rot = shape.n_rot;
        SplitMix64 random(2);
        std::size_t const n = std::size_t(n_tokens) * std::size_t(n_heads) * std::size_t(head_dim);
        std::vector<float> const x = random_floats(n, random);
        std::vector<float> inv_freq(std::size_t(n_rot / 2));
        for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = float(std::pow(10000.0, -2.0 * double(i) / n_rot));
        std::int32_t const stride = n_tokens + 2;
        std::vector<std::int32_t> positions(static_cast<std::size_t>(n_rows * stride));
        for (std::int32_t& p : positions) p = std::int32_t(random.below(30000));
        positions[0] = 0;
        std::vector<std::uint8_t> row(std::size_t(n_rot / 2));
        for (std::uint8_t& r : row) r = std::uint8_t(random.below(std::uint64_t(n_rows)));
        std::vector<float> expected = x;
        RopeArgs args{expected.data(), positions.data(), inv_freq.data(), n_tokens, n_heads, head_dim, n_rot, kind, 1.25f};
        if (n_rows > 1) args.position_row = row.data(), args.position_stride = stride;
        reference::rope(args);
        std::vector<float> const y = same_for_all_threads(isa, [&](Cpu& cpu) {
          std::vector<float> out = x;
          args.x = out.data();
          cpu.run(cpu.table().rope, args);
          return out;
        });
        Worst worst;
        for (std::size_t i = 0; i < n; ++i) {
          std::size_t const token = i / std::size_t(n_heads * head_dim);
          double position = 0;
          for (std::size_t r = 0; r < std::size_t(n_rows); ++r)
            position = std::max(position, double(positions[r * std::size_t(stride) + token]));
          // The angle is rounded once, in f32; then come two products and a sum of values of at most 2 * 1.25.
          worst.compare(std::int64_t(i), double(y[i]), double(expected[i]), 5 * (position * epsilon + 4 * epsilon));
        }
        INFO(name(isa) << ' ' << n_tokens << " tokens, " << n_heads << " heads of " << head_dim << ", " << n_rot << " turned; "
                       << worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("CPU activation functions are right to a few roundings, from the smallest to the largest argument") {
  for (Isa const isa : available_isas()) {
    for (Activation const activation : activations) {
      std::vector<float> const x = activation_arguments();
      SplitMix64 random(5);
      std::vector<float> const up = random_floats(x.size(), random);
      std::vector<float> gated = poisoned(x.size()), alone = x;
      GatedArgs args{x.data(), up.data(), gated.data(), std::int64_t(x.size()), activation};
      reference::gated(args);
      reference::activate(ActivateArgs{alone.data(), std::int64_t(x.size()), activation});
      std::vector<float> const y = same_for_all_threads(isa, [&](Cpu& cpu) {
        std::vector<float> out = x;  // in place
        args.gate = args.out = out.data();
        cpu.run(cpu.table().gated, args);
        return out;
      });
      std::vector<float> const z = same_for_all_threads(isa, [&](Cpu& cpu) {
        std::vector<float> out = x;
        cpu.run(cpu.table().activate, ActivateArgs{out.data(), std::int64_t(out.size()), activation});
        return out;
      });
      Worst worst;
      for (std::size_t i = 0; i < x.size(); ++i) {
        worst.compare(std::int64_t(i), double(y[i]), double(gated[i]), activation_tolerance(activation, x[i], gated[i]));
        worst.compare(std::int64_t(i), double(z[i]), double(alone[i]), activation_tolerance(activation, x[i], alone[i]));
      }
      INFO(name(isa) << ' ' << name(activation) << " of " << (worst.index >= 0 ? x[std::size_t(worst.index)] : 0) << ": " << worst.text());
      CHECK(worst.factor <= 1);
      float const nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
      float out = 0, in_place = nan;
      Cpu cpu(isa);
      cpu.run(cpu.table().gated, GatedArgs{&nan, &one, &out, 1, activation});
      cpu.run(cpu.table().activate, ActivateArgs{&in_place, 1, activation});
      CHECK(std::isnan(out));
      CHECK(std::isnan(in_place));
    }
  }
}

TEST_CASE("an element of gated, and of activate, does not depend on where its row begins or ends") {
  for (Isa const isa : available_isas()) {
    for (Activation const activation : activations) {
      INFO(name(isa) << ' ' << name(activation));
      Cpu cpu(isa);
      SplitMix64 random(5);
      std::vector<float> const gate = random_floats(101, random), up = random_floats(101, random);
      std::vector<float> all = poisoned(101), parts = poisoned(101), alone = gate, alone_parts = gate;
      cpu.run(cpu.table().gated, GatedArgs{gate.data(), up.data(), all.data(), 101, activation});
      cpu.run(cpu.table().activate, ActivateArgs{alone.data(), 101, activation});
      for (std::int64_t i = 0, step = 1; i < 101; i += step, step = step % 11 + 2) {
        std::int64_t const n = std::min<std::int64_t>(step, 101 - i);
        cpu.run(cpu.table().gated, GatedArgs{gate.data() + i, up.data() + i, parts.data() + i, n, activation});
        cpu.run(cpu.table().activate, ActivateArgs{alone_parts.data() + i, n, activation});
      }
      CHECK(same_bits(all, parts));
      CHECK(same_bits(alone, alone_parts));
    }
  }
}

TEST_CASE("CPU add and gather are exact") {
  for (Isa const isa : available_isas()) {
    for (std::int64_t const n : {1, 7, 8, 1001, 70000}) {
      SplitMix64 random(6);
      std::vector<float> const x = random_floats(std::size_t(n), random), y = random_floats(std::size_t(n), random);
      std::vector<float> expected = y;
      reference::add(AddArgs{x.data(), expected.data(), n});
      CHECK(same_bits(expected, same_for_all_threads(isa, [&](Cpu& cpu) {
                        std::vector<float> out = y;
                        cpu.run(cpu.table().add, AddArgs{x.data(), out.data(), n});
                        return out;
                      })));
    }
    for (RowShape const& shape : row_shapes) {
      std::int32_t const n_rows = shape.n_rows, dim = shape.dim;
      SplitMix64 random(7);
      std::vector<float> const x = random_floats(std::size_t(9 * dim), random);
      std::vector<std::int32_t> index(static_cast<std::size_t>(n_rows));
      for (std::int32_t& i : index) i = std::int32_t(random.below(9));
      std::vector<float> expected = poisoned(std::size_t(n_rows * dim));
      reference::gather(GatherArgs{x.data(), index.data(), expected.data(), n_rows, dim});
      CHECK(same_bits(expected, same_for_all_threads(isa, [&](Cpu& cpu) {
                        std::vector<float> out = poisoned(expected.size());
                        cpu.run(cpu.table().gather, GatherArgs{x.data(), index.data(), out.data(), n_rows, dim});
                        return out;
                      })));
    }
  }
}

TEST_CASE("CPU embedding equals the reference bit for bit in every format") {
  for (Isa const isa : available_isas()) {
    for (DType const type : all_formats()) {
      for (float const scale : {1.0f, 25.298221f}) {
        SplitMix64 random(9);
        std::int32_t const dim = block_elems(type) == 1 ? 77 : std::int32_t(3 * block_elems(type));
        std::vector<std::byte> const table = random_weights(type, 10 * dim, random);
        std::vector<std::int32_t> const tokens = {9, 0, 3, 3, 7};
        std::vector<float> expected = poisoned(5 * std::size_t(dim));
        reference::embed(EmbedArgs{table.data(), tokens.data(), expected.data(), 5, dim, scale}, type);
        INFO(name(isa) << ' ' << name(type));
        CHECK(
            same_bits(expected, same_for_all_threads(isa, [&](Cpu& cpu) {
                        std::vector<float> out = poisoned(expected.size());
                        cpu.run(cpu.table().embed[std::uint32_t(type)], EmbedArgs{table.data(), tokens.data(), out.data(), 5, dim, scale});
                        return out;
                      })));
      }
    }
  }
}

TEST_CASE("CPU activations, in blocks or panels, equal their definition bit for bit") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, false, 3);
    for (Values const values : {Values::ordinary, Values::zeros, Values::subnormal, Values::large}) {
      SplitMix64 random(10);
      std::int32_t const dim = 544, n_rows = 37;
      std::vector<float> x = random_floats(std::size_t(dim * n_rows), random, values);
      x[3] = std::numeric_limits<float>::infinity();
      x[600] = std::numeric_limits<float>::quiet_NaN();
      x[1025] = std::ldexp(1.0f, -100);  // the border below which a block is zero
      for (std::size_t i = 1536; i < 2048; ++i) x[i] = std::ldexp(x[i] == 0 ? 1.0f : x[i], -99);
      for (std::size_t i = 2048; i < 2560; ++i) x[i] = float(i % 255) - 127.0f + 0.5f * float(i % 2);  // ties
      for (std::size_t i = 2048; i < 2560; i += 32) x[i] = 127.0f;
      for (DType const type : {DType::act_q8, DType::act_bf16, DType::act_bf16_two}) {
        auto const kernel = cpu.table().convert[activation_form(type)];
        if (kernel == nullptr) continue;
        std::size_t const bytes = block_bytes(type);
        std::vector<std::byte> got(activation_bytes(type, std::uint64_t(n_rows), std::uint64_t(dim)) + 64, std::byte{0x55}), expected = got;
        QuantizeArgs args{x.data(), expected.data(), n_rows, dim};
        reference::quantize(args, type);
        args.y = got.data();
        cpu.run(kernel, args);
        std::size_t first = 0;
        while (first < got.size() && got[first] == expected[first]) ++first;
        INFO(name(isa) << ' ' << name(values) << ": first difference in block " << first / bytes << ", byte " << first % bytes);
        CHECK(first == got.size());
      }
    }
  }
}

TEST_CASE("CPU router chooses as the reference does, NaN included") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  for (Isa const isa : available_isas()) {
    for (std::pair<std::int32_t, std::int32_t> const& shape :
         std::vector<std::pair<std::int32_t, std::int32_t>>{{1, 1}, {4, 4}, {8, 2}, {128, 8}, {60, 5}}) {
      std::int32_t const n_experts = shape.first, n_used = shape.second;
      for (Gating const gating : {Gating::softmax, Gating::sigmoid}) {
        for (bool const biased : {false, true}) {
          SplitMix64 random(11);
          std::int32_t const n_tokens = 23;
          std::vector<float> logits = random_floats(std::size_t(n_tokens * n_experts), random),
                             bias = random_floats(std::size_t(n_experts), random);
          for (std::int32_t e = 0; e < n_experts; ++e) {
            logits[std::size_t(e)] = 1.5f;                   // all equal
            logits[std::size_t(n_experts + e)] = nan;        // nothing to choose by
            logits[std::size_t(2 * n_experts + e)] *= 1e4f;  // far apart
          }
          logits[std::size_t(4 * n_experts - 1)] = nan;
          std::vector<std::int32_t> ids(std::size_t(n_tokens * n_used), -1), expected_ids = ids;
          std::vector<float> weights = poisoned(ids.size()), expected_weights = weights;
          RouteArgs args{logits.data(),
                         biased ? bias.data() : nullptr,
                         expected_ids.data(),
                         expected_weights.data(),
                         n_tokens,
                         n_experts,
                         n_used,
                         gating,
                         !biased,
                         2.5f};
          reference::route(args);
          args.ids = ids.data();
          args.weights = weights.data();
          Cpu cpu(isa);
          cpu.run(cpu.table().route, args);
          CHECK(ids == expected_ids);
          for (std::size_t i = 0; i < weights.size(); ++i) {
            if (std::isnan(expected_weights[i])) {
              CHECK(std::isnan(weights[i]));
            } else {
              CHECK(weights[i] == Approx(double(expected_weights[i])).epsilon(1e-6));
            }
          }
          for (std::int32_t t = 0; t < n_tokens; ++t) {
            std::set<std::int32_t> const distinct(ids.begin() + t * n_used, ids.begin() + (t + 1) * n_used);
            CHECK(distinct.size() == std::size_t(n_used));
            CHECK(*distinct.begin() >= 0);
            CHECK(*distinct.rbegin() < n_experts);
          }
        }
      }
    }
  }
}

TEST_CASE("CPU combination of experts") {
  for (Isa const isa : available_isas()) {
    for (RowShape const& shape : row_shapes) {
      std::int32_t const n_tokens = shape.n_rows, dim = shape.dim;
      SplitMix64 random(12);
      std::int32_t const n_used = 3;
      std::vector<float> const y = random_floats(std::size_t(n_tokens * n_used * dim), random),
                               weights = random_floats(std::size_t(n_tokens * n_used), random);
      std::vector<float> expected = poisoned(std::size_t(n_tokens * dim));
      CombineArgs args{y.data(), weights.data(), expected.data(), n_tokens, n_used, dim};
      reference::combine(args);
      std::vector<float> const got = same_for_all_threads(isa, [&](Cpu& cpu) {
        std::vector<float> out = poisoned(expected.size());
        args.out = out.data();
        cpu.run(cpu.table().combine, args);
        return out;
      });
      Worst worst;
      for (std::size_t i = 0; i < got.size(); ++i) worst.compare(std::int64_t(i), double(got[i]), double(expected[i]), 5 * epsilon * 3 * 4);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}
