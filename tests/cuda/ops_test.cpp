/// The light ops of the CUDA table against the reference: norm, rope, activation, sums, gathers, embedding, router, combination, argmax.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "numerics/activation_cases.hpp"
#include "numerics/argmax_cases.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/reference/argmax.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/embed.hpp"
#include "tiered/kernels/reference/moe.hpp"
#include "tiered/kernels/reference/norm.hpp"
#include "tiered/kernels/reference/rope.hpp"
#include "tiered/model/arch/common.hpp"

using namespace tiered_test;

namespace {

constexpr float nan_f32 = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();

/// Rows and row sizes around warps, blocks, and loads of four elements.
struct RowShape {
  std::int32_t n_rows, dim;
  std::size_t n() const { return std::size_t(n_rows) * std::size_t(dim); }
};
std::vector<RowShape> const row_shapes = {{1, 1},    {1, 7},    {1, 8},    {2, 9},   {3, 31},  {5, 576},  {12, 640},
                                          {1, 4096}, {70, 333}, {41, 128}, {7, 512}, {7, 513}, {3, 5120}, {2, 8191}};

/// Elements at an address that is no multiple of 16: i such floats lie before them.
std::vector<float> shifted(std::vector<float> values, std::size_t i) {
  values.insert(values.begin(), i, poison);
  return values;
}

}  // namespace

TEST_CASE("CUDA rms_norm") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (RowShape const& shape : row_shapes) {
    for (Values const values : {Values::ordinary, Values::zeros, Values::subnormal, Values::large}) {
      for (bool const weighted : {false, true}) {
        INFO("TIERED_SEED=" << fresh_seed() << ": " << shape.n_rows << " rows of " << shape.dim << ", " << name(values));
        std::vector<float> x = random_floats(shape.n(), random, values);
        std::vector<float> const weight = random_floats(std::size_t(shape.dim), random);
        std::vector<float> expected = poisoned(shape.n());
        if (values == Values::large) {  // squares must stay in range, as in the models
          for (float& v : x) v *= 1e-15f;
        }
        reference::rms_norm(RmsNormArgs{x.data(), weighted ? weight.data() : nullptr, expected.data(), shape.n_rows, shape.dim, 1e-5f});
        DeviceArray<float> const device_x(x), device_weight(weight);
        DeviceArray<float> out(shape.n()), in_place(x), odd(shifted(x, 1));
        RmsNormArgs args{device_x.data(), weighted ? device_weight.data() : nullptr, out.data(), shape.n_rows, shape.dim, 1e-5f};
        gpu.run(gpu.table().rms_norm, args);
        args.x = args.y = in_place.data();
        gpu.run(gpu.table().rms_norm, args);
        args.x = args.y = odd.data() + 1;
        gpu.run(gpu.table().rms_norm, args);
        std::vector<float> const y = out.download(), unaligned = odd.download();
        CHECK(same_bits(in_place.download(), y));
        Worst worst;
        for (std::size_t i = 0; i < y.size(); ++i) {
          double const tolerance = (shape.dim / 16.0 + 8) * epsilon * std::abs(double(expected[i])) + 1e-42;
          worst.compare(std::int64_t(i), double(y[i]), double(expected[i]), tolerance);
          worst.compare(std::int64_t(i), double(unaligned[i + 1]), double(expected[i]), tolerance);
        }
        INFO(worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
  DeviceArray<float> with_nan(std::vector<float>{1, nan_f32, 2, 3, 4});
  gpu.run(gpu.table().rms_norm, RmsNormArgs{with_nan.data(), nullptr, with_nan.data(), 1, 5, 1e-5f});
  for (float const v : with_nan.download()) CHECK(std::isnan(v));
}

TEST_CASE("CUDA rope, of one row of positions and of three", "[sanitize]") {
  if (!has_gpu()) return;
  struct Shape {
    std::int32_t n_tokens, n_heads, head_dim, n_rot;
  };
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (auto const& [kind, n_rows] :
       {std::pair{RopeKind::adjacent, 1}, {RopeKind::halves, 1}, {RopeKind::adjacent, 3}, {RopeKind::halves, 3}}) {
    for (Shape const s :
         {Shape{1, 1, 2, 2}, {3, 2, 64, 64}, {40, 9, 64, 64}, {2, 3, 20, 12}, {5, 1, 600, 600}, {1, 32, 128, 128}, {70, 33, 80, 32}}) {
      std::size_t const n = std::size_t(s.n_tokens * s.n_heads * s.head_dim);
      std::vector<float> const x = random_floats(n, random);
      std::vector<float> inv_freq(std::size_t(s.n_rot / 2));
      for (std::size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = float(std::pow(10000.0, -2.0 * double(i) / s.n_rot));
      std::int32_t const stride = s.n_tokens + 3;
      std::vector<std::int32_t> positions(static_cast<std::size_t>(n_rows * stride));
      for (std::int32_t& p : positions) p = std::int32_t(random.below(1000000));
      positions[0] = s.n_tokens == 1 ? 131071 : 0;
      std::vector<std::uint8_t> row(std::size_t(s.n_rot / 2));
      for (std::uint8_t& r : row) r = std::uint8_t(random.below(std::uint64_t(n_rows)));
      std::vector<float> expected = x;
      DeviceArray<float> device_x(x), device_freq(inv_freq);
      DeviceArray<std::int32_t> device_positions(positions);
      DeviceArray<std::uint8_t> device_row(row);
      RopeArgs args{expected.data(), positions.data(), inv_freq.data(), s.n_tokens, s.n_heads, s.head_dim, s.n_rot, kind, 1.25f};
      if (n_rows > 1) args.position_row = row.data(), args.position_stride = stride;
      reference::rope(args);
      args.x = device_x.data();
      args.positions = device_positions.data();
      args.inv_freq = device_freq.data();
      if (n_rows > 1) args.position_row = device_row.data();
      gpu.run(gpu.table().rope, args);
      std::vector<float> const y = device_x.download();
      Worst worst;
      // The reduced angle, at most pi, is rounded once: pi * epsilon; sine and cosine are good to 2 steps; then two products and a sum of
      // values of at most 2 * 1.25. Elements that do not turn are exact.
      for (std::size_t i = 0; i < n; ++i) {
        bool const turns = std::int32_t(i % std::size_t(s.head_dim)) < s.n_rot;
        worst.compare(std::int64_t(i), double(y[i]), double(expected[i]), turns ? 5 * (3.2 + 4 + 3) * epsilon : 0);
      }
      INFO("TIERED_SEED=" << fresh_seed() << ": " << s.n_tokens << " tokens, " << s.n_heads << " heads of " << s.head_dim << ", " << s.n_rot
                          << " turned; " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("CUDA activation functions are right to a few roundings, from the smallest to the largest argument") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (Activation const activation : activations) {
    std::vector<float> const x = activation_arguments();
    SplitMix64 random(fresh_seed());
    std::vector<float> const up = random_floats(x.size(), random);
    std::vector<float> expected = poisoned(x.size());
    auto const n_all = std::int64_t(x.size());
    reference::gated(GatedArgs{x.data(), up.data(), expected.data(), n_all, activation});
    DeviceArray<float> in_place(x), device_up(up);  // out is gate
    gpu.run(gpu.table().gated, GatedArgs{in_place.data(), device_up.data(), in_place.data(), n_all, activation});
    std::vector<float> const y = in_place.download();
    std::vector<float> alone = x;
    reference::activate(ActivateArgs{alone.data(), n_all, activation});
    DeviceArray<float> device_alone(x), odd(shifted(x, 1));
    gpu.run(gpu.table().activate, ActivateArgs{device_alone.data(), n_all, activation});
    gpu.run(gpu.table().activate, ActivateArgs{odd.data() + 1, n_all, activation});
    std::vector<float> const z = device_alone.download();
    CHECK(same_bits(odd.download(), shifted(z, 1)));
    Worst worst;
    for (std::size_t i = 0; i < x.size(); ++i) {
      worst.compare(std::int64_t(i), double(y[i]), double(expected[i]), activation_tolerance(activation, x[i], expected[i]));
      worst.compare(std::int64_t(i), double(z[i]), double(alone[i]), activation_tolerance(activation, x[i], alone[i]));
    }
    INFO(name(activation) << " of " << (worst.index >= 0 ? x[std::size_t(worst.index)] : 0) << ": " << worst.text());
    CHECK(worst.factor <= 1);

    DeviceArray<float> parts(x.size());  // an element has the same bits wherever its row begins and ends; out is up
    DeviceArray<float> whole(x), alone_parts(x);
    parts.upload(up);
    for (std::size_t i = 0, step = 1; i < x.size(); i += step, step = step % 11 + 2) {
      std::int64_t const n = std::int64_t(std::min(step, x.size() - i));
      launch(gpu.table().gated, GatedArgs{whole.data() + i, parts.data() + i, parts.data() + i, n, activation}, gpu.queue());
      launch(gpu.table().activate, ActivateArgs{alone_parts.data() + i, n, activation}, gpu.queue());
    }
    gpu.run(gpu.table().gated, GatedArgs{whole.data(), parts.data(), parts.data(), 0, activation});
    gpu.run(gpu.table().activate, ActivateArgs{alone_parts.data(), 0, activation});
    CHECK(same_bits(parts.download(), y));
    CHECK(same_bits(alone_parts.download(), z));

    DeviceArray<float> none(std::vector<float>{nan_f32}), one(std::vector<float>{1});
    gpu.run(gpu.table().gated, GatedArgs{none.data(), one.data(), one.data(), 1, activation});
    CHECK(std::isnan(one.download()[0]));
    gpu.run(gpu.table().activate, ActivateArgs{none.data(), 1, activation});
    CHECK(std::isnan(none.download()[0]));
  }
}

TEST_CASE("CUDA add and gather are exact") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (std::int64_t const n : {1, 7, 8, 1001, 70000, 3000004}) {
    std::vector<float> const x = random_floats(std::size_t(n), random), y = random_floats(std::size_t(n), random);
    std::vector<float> expected = y;
    reference::add(AddArgs{x.data(), expected.data(), n});
    DeviceArray<float> device_x(shifted(x, 3)), odd(shifted(y, 1)), even(y), even_x(x);
    gpu.run(gpu.table().add, AddArgs{device_x.data() + 3, odd.data() + 1, n});
    gpu.run(gpu.table().add, AddArgs{even_x.data(), even.data(), n});
    CHECK(same_bits(even.download(), expected));
    CHECK(same_bits(odd.download(), shifted(expected, 1)));
  }
  for (RowShape const& shape : row_shapes) {
    std::vector<float> const x = random_floats(std::size_t(9 * shape.dim), random);
    std::vector<std::int32_t> index(static_cast<std::size_t>(shape.n_rows));
    for (std::int32_t& i : index) i = std::int32_t(random.below(9));
    std::vector<float> expected = poisoned(shape.n());
    reference::gather(GatherArgs{x.data(), index.data(), expected.data(), shape.n_rows, shape.dim});
    DeviceArray<float> device_x(x), y(shape.n());
    DeviceArray<std::int32_t> device_index(index);
    gpu.run(gpu.table().gather, GatherArgs{device_x.data(), device_index.data(), y.data(), shape.n_rows, shape.dim});
    CHECK(same_bits(y.download(), expected));
  }
}

TEST_CASE("CUDA norms, sums, gates, activations and rows of a table, a few each", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  std::int32_t const n_rows = 5;
  std::vector<std::int32_t> const first = {3, 0, 4, 4, 1};
  DeviceArray<std::int32_t> const index(first);
  for (std::int32_t const dim : {31, 512, 1280}) {
    INFO("TIERED_SEED=" << fresh_seed() << ", rows of " << dim);
    std::int64_t const n = std::int64_t(n_rows) * dim;
    std::vector<float> const x = random_floats(std::size_t(n), random), y = random_floats(std::size_t(n), random);
    DeviceArray<float> const device_x(x), device_y(y);
    DeviceArray<float> normed(x.size()), sum(y), rows(x.size()), gate(x), alone(x);
    std::vector<float> expected_norm = poisoned(x.size()), expected_sum = y, expected_rows = x, expected_gate = x, expected_alone = x;
    reference::rms_norm(RmsNormArgs{x.data(), nullptr, expected_norm.data(), n_rows, dim, 1e-5f});
    reference::add(AddArgs{x.data(), expected_sum.data(), n});
    reference::gather(GatherArgs{x.data(), first.data(), expected_rows.data(), n_rows, dim});
    reference::gated(GatedArgs{x.data(), y.data(), expected_gate.data(), n, Activation::silu});
    reference::activate(ActivateArgs{expected_alone.data(), n, Activation::gelu_erf});
    gpu.run(gpu.table().rms_norm, RmsNormArgs{device_x.data(), nullptr, normed.data(), n_rows, dim, 1e-5f});
    gpu.run(gpu.table().add, AddArgs{device_x.data(), sum.data(), n});
    gpu.run(gpu.table().gather, GatherArgs{device_x.data(), index.data(), rows.data(), n_rows, dim});
    gpu.run(gpu.table().gated, GatedArgs{gate.data(), device_y.data(), gate.data(), n, Activation::silu});
    gpu.run(gpu.table().activate, ActivateArgs{alone.data(), n, Activation::gelu_erf});
    CHECK(same_bits(sum.download(), expected_sum));
    CHECK(same_bits(rows.download(), expected_rows));
    std::vector<float> const got_norm = normed.download(), got_gate = gate.download(), got_alone = alone.download();
    Worst worst;
    for (std::size_t i = 0; i < x.size(); ++i) {
      std::int64_t const at = std::int64_t(i);
      worst.compare(at, double(got_norm[i]), double(expected_norm[i]), (dim / 16.0 + 8) * epsilon * std::abs(double(expected_norm[i])));
      worst.compare(at, double(got_gate[i]), double(expected_gate[i]), activation_tolerance(Activation::silu, x[i], expected_gate[i]));
      worst.compare(at, double(got_alone[i]), double(expected_alone[i]),
                    activation_tolerance(Activation::gelu_erf, x[i], expected_alone[i]));
    }
    INFO(worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE(
    "CUDA embedding equals the reference bit for bit in every format, from VRAM and from page-locked memory, wherever the table begins",
    "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  std::vector<std::int32_t> const tokens = {9, 0, 3, 3, 7};
  DeviceArray<std::int32_t> const device_tokens(tokens);
  for (DType const type : all_formats()) {
    std::int32_t const block = std::int32_t(block_elems(type));
    for (std::int32_t const dim : {block == 1 ? 77 : 3 * block, block == 1 ? 5001 : 2048 / block * block * 2 + 3 * block}) {
      for (float const scale : {1.0f, 25.298221f}) {
        std::vector<std::byte> const table = random_weights(type, 10 * std::int64_t(dim), random);
        std::vector<float> expected = poisoned(5 * std::size_t(dim));
        reference::embed(EmbedArgs{table.data(), tokens.data(), expected.data(), 5, dim, scale}, type);
        DeviceArray<std::byte> const in_vram(table);
        DeviceArray<float> y(expected.size()), from_host(expected.size());
        void* pinned = nullptr;
        cuda_check(cudaHostAlloc(&pinned, table.size() + 32, cudaHostAllocDefault));
        std::byte* const in_host = static_cast<std::byte*>(pinned) + 32;
        std::memcpy(in_host, table.data(), table.size());
        gpu.run(gpu.table().embed[std::uint32_t(type)], EmbedArgs{in_vram.data(), device_tokens.data(), y.data(), 5, dim, scale});
        gpu.run(gpu.table().embed[std::uint32_t(type)], EmbedArgs{in_host, device_tokens.data(), from_host.data(), 5, dim, scale});
        cuda_check(cudaFreeHost(pinned));
        INFO("TIERED_SEED=" << fresh_seed() << ": " << name(type) << ", " << dim);
        CHECK(same_bits(y.download(), expected));
        CHECK(same_bits(from_host.download(), expected));
      }
    }
  }
}

TEST_CASE("CUDA router chooses as the reference does, NaN included", "[sanitize]") {
  static_assert(tiered::arch::max_experts <= tiered::cuda::most_experts, "a model with more is refused when it is opened");
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (std::pair<std::int32_t, std::int32_t> const& shape :
       std::vector<std::pair<std::int32_t, std::int32_t>>{{1, 1}, {4, 4}, {8, 2}, {128, 8}, {60, 5}, {256, 8}, {1024, 10}, {33, 33}}) {
    std::int32_t const n_experts = shape.first, n_used = shape.second, n_tokens = 23;
    for (Gating const gating : {Gating::softmax, Gating::sigmoid}) {
      for (bool const biased : {false, true}) {
        INFO("TIERED_SEED=" << fresh_seed() << ": " << n_used << " of " << n_experts);
        std::vector<float> logits = random_floats(std::size_t(n_tokens * n_experts), random);
        std::vector<float> const bias = random_floats(std::size_t(n_experts), random);
        for (std::int32_t e = 0; e < n_experts; ++e) {
          logits[std::size_t(e)] = 1.5f;                   // all equal
          logits[std::size_t(n_experts + e)] = nan_f32;    // nothing to choose by
          logits[std::size_t(2 * n_experts + e)] *= 1e4f;  // far apart
        }
        logits[std::size_t(4 * n_experts - 1)] = nan_f32;
        logits[std::size_t(5 * n_experts - 1)] = -infinity;
        std::vector<std::int32_t> expected_ids(std::size_t(n_tokens * n_used), -1);
        std::vector<float> expected_weights = poisoned(expected_ids.size());
        RouteArgs args;
        args.logits = logits.data();
        args.bias = biased ? bias.data() : nullptr;
        args.ids = expected_ids.data();
        args.weights = expected_weights.data();
        args.n_tokens = n_tokens;
        args.n_experts = n_experts;
        args.n_used = n_used;
        args.gating = gating;
        args.normalise = !biased;
        args.scale = 2.5f;
        reference::route(args);
        DeviceArray<float> const device_logits(logits), device_bias(bias);
        DeviceArray<std::int32_t> ids(expected_ids.size());
        DeviceArray<float> device_weights(expected_ids.size());
        args.logits = device_logits.data();
        args.bias = biased ? device_bias.data() : nullptr;
        args.ids = ids.data();
        args.weights = device_weights.data();
        gpu.run(gpu.table().route, args);
        CHECK(ids.download() == expected_ids);
        std::vector<float> const weights = device_weights.download();
        Worst worst;
        for (std::size_t i = 0; i < weights.size(); ++i) {
          worst.compare(std::int64_t(i), double(weights[i]), double(expected_weights[i]),
                        2 * epsilon * std::abs(double(expected_weights[i])));
        }
        INFO(worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("CUDA combination of experts", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  std::int32_t const n_used = 3;
  for (RowShape const& shape : row_shapes) {
    std::vector<float> const y = random_floats(shape.n() * n_used, random),
                             weights = random_floats(std::size_t(shape.n_rows * n_used), random);
    std::vector<float> expected = poisoned(shape.n());
    reference::combine(CombineArgs{y.data(), weights.data(), expected.data(), shape.n_rows, n_used, shape.dim});
    DeviceArray<float> const device_y(y), device_weights(weights);
    DeviceArray<float> out(shape.n());
    gpu.run(gpu.table().combine, CombineArgs{device_y.data(), device_weights.data(), out.data(), shape.n_rows, n_used, shape.dim});
    std::vector<float> const got = out.download();
    Worst worst;
    for (std::size_t i = 0; i < got.size(); ++i) worst.compare(std::int64_t(i), double(got[i]), double(expected[i]), 5 * epsilon * 3 * 4);
    INFO("TIERED_SEED=" << fresh_seed() << ": " << worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE("CUDA argmax", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (ArgmaxCase const& c : argmax_cases()) {
    std::vector<float> const values = c.values();
    std::vector<std::int32_t> expected(std::size_t(c.n_rows), -1);
    reference::argmax(ArgmaxArgs{values.data(), expected.data(), c.n_rows, c.n});
    DeviceArray<float> const device_values(values);
    DeviceArray<std::int32_t> ids(expected.size());
    gpu.run(gpu.table().argmax, ArgmaxArgs{device_values.data(), ids.data(), c.n_rows, c.n});
    INFO(c.n_rows << " rows of " << c.n);
    CHECK(ids.download() == expected);
  }
}

TEST_CASE("CUDA ops of no rows do nothing") {
  if (!has_gpu()) return;
  Gpu gpu;
  gpu.run(gpu.table().rms_norm, RmsNormArgs{});
  gpu.run(gpu.table().rope, RopeArgs{});
  gpu.run(gpu.table().gated, GatedArgs{});
  gpu.run(gpu.table().add, AddArgs{});
  gpu.run(gpu.table().gather, GatherArgs{});
  gpu.run(gpu.table().route, RouteArgs{});
  gpu.run(gpu.table().combine, CombineArgs{});
  gpu.run(gpu.table().group_slots, ExpertWindowArgs{});
  gpu.run(gpu.table().expert_window, ExpertWindowArgs{});
  gpu.run(gpu.table().argmax, ArgmaxArgs{});
  gpu.run(gpu.table().experts, ExpertsArgs{});
  gpu.run(gpu.table().embed[std::uint32_t(DType::q4_0)], EmbedArgs{});
}

TEST_CASE("kernels that overlap see what the one before, and the one before that, has written") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  std::int32_t const dim = 40000;  // one block works long while others' blocks would have room
  std::vector<float> const x = random_floats(std::size_t(dim), random);
  std::vector<float> expected = x;
  DeviceArray<float> a(x), b(x.size());
  std::vector<std::int32_t> const first = {0};
  DeviceArray<std::int32_t> const index(first);
  for (int i = 0; i < 50; ++i) {
    reference::rms_norm(RmsNormArgs{expected.data(), nullptr, expected.data(), 1, dim, 1e-5f});
    reference::add(AddArgs{expected.data(), expected.data(), dim});
    launch(gpu.table().rms_norm, RmsNormArgs{a.data(), nullptr, b.data(), 1, dim, 1e-5f}, gpu.queue());
    launch(gpu.table().gather, GatherArgs{b.data(), index.data(), a.data(), 1, dim}, gpu.queue());  // a is what rms_norm still reads
    launch(gpu.table().add, AddArgs{a.data(), a.data(), dim}, gpu.queue());
  }
  gpu.run(gpu.table().add, AddArgs{});
  std::vector<float> const got = a.download();
  Worst worst;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst.compare(std::int64_t(i), double(got[i]), double(expected[i]), 50 * (dim / 1024.0 + 16) * epsilon * std::abs(double(expected[i])));
  INFO("TIERED_SEED=" << fresh_seed() << ": " << worst.text());
  CHECK(worst.factor <= 1);
}
