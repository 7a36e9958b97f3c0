/// Products of many rows grouped by expert on a GPU, against the decoded weights: lists with empty groups, by place and by slot.
#include <cstdint>
#include <vector>

#include "cuda/fresh_seed.hpp"
#include "cuda/half_rows.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"

using namespace tiered_test;

namespace {

struct Case {
  std::int32_t n_tokens, n_used, n_experts, rows, n_blocks;
  bool x_by_place, y_by_slot;
  std::int32_t favourite = 0;  ///< tokens that all choose experts 0 .. n_used - 1
};

constexpr Case cases[] = {
    {1, 1, 1, 5, 1, false, false},         {5, 2, 4, 33, 2, false, true},    {19, 4, 300, 31, 1, false, false},
    {40, 8, 16, 67, 1, true, true},        {100, 4, 8, 129, 1, true, false}, {90, 2, 3, 40, 3, false, true, 80},
    {300, 2, 5, 35, 1, false, false, 131},
};

/// A routing at random, as a list.
struct Routing {
  Routing(Case const& c, SplitMix64& random) : members(std::size_t(c.n_experts)) {
    for (std::int32_t t = 0; t < c.n_tokens; ++t) {
      std::vector<std::int32_t> chosen;
      for (std::int32_t j = 0; j < c.n_used; ++j) {
        std::int32_t e = t < c.favourite ? j : std::int32_t(random.below(std::uint64_t(c.n_experts)));
        while (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) e = (e + 1) % c.n_experts;
        chosen.push_back(e);
        members[std::size_t(e)].push_back(t * c.n_used + j);
      }
    }
    for (std::vector<std::int32_t> const& m : members) slots.insert(slots.end(), m.begin(), m.end());
  }
  std::vector<std::vector<std::int32_t>> members;  ///< slots of each expert
  std::vector<std::int32_t> slots;
};

template <class F>
void check(Gpu& gpu, Case const& c, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::int32_t const dim = F::block_elems == 1 ? c.n_blocks * 67 : c.n_blocks * F::block_elems, n_slots = c.n_tokens * c.n_used;
  DType const form = product_activation(F::dtype);
  Routing const routing(c, random);
  std::uint64_t const matrix_bytes = std::uint64_t(c.rows) * row_bytes(F::dtype, std::uint64_t(dim));
  std::vector<std::byte> const weights = random_weights(F::dtype, std::int64_t(c.n_experts) * c.rows * dim, random);
  std::int32_t const x_rows = c.x_by_place ? n_slots : c.n_tokens;
  std::vector<float> x = random_floats(std::size_t(x_rows) * std::size_t(dim), random);
  for (std::int32_t k = 0; k < dim; ++k) x[std::size_t(k)] *= 1e6f;
  std::vector<std::byte> const input = half_rows(form, x, x_rows, dim);

  DeviceArray<std::byte> const w(weights), device_input(input);
  DeviceArray<std::int32_t> const slots(routing.slots);
  std::vector<ExpertGroup> groups;
  std::int32_t first = 0;
  for (std::int32_t e = 0; e < c.n_experts; ++e) {
    ExpertGroup group;
    group.up = w.data() + std::uint64_t(e) * matrix_bytes;
    group.first = first, group.n = std::int32_t(routing.members[std::size_t(e)].size());
    first += group.n;
    groups.push_back(group);
  }
  DeviceArray<ExpertGroup> const device_groups(groups);
  std::int32_t const y_stride = c.rows + 2;
  DeviceArray<float> y(poisoned(std::size_t(n_slots) * std::size_t(y_stride)));
  cuda::GroupedMatmulArgs args;
  args.groups = device_groups.data(), args.slots = slots.data(), args.x = device_input.data(), args.y = y.data();
  args.y_stride = y_stride, args.n_groups = c.n_experts, args.n_slots = n_slots, args.n_tokens = c.n_tokens, args.n_used = c.n_used;
  args.rows = c.rows, args.dim = dim, args.matrix = cuda::ExpertMatrix::up, args.x_by_place = c.x_by_place, args.y_by_slot = c.y_by_slot;
  gpu.run(cuda::format_kernels<F>().grouped_matmul, args);
  std::vector<float> const got = y.download();

  std::vector<std::vector<double>> values;
  for (std::int32_t i = 0; i < x_rows; ++i) values.push_back(half_row_values(form, input, x_rows, dim, i));
  Worst worst;
  for (std::int32_t e = 0; e < c.n_experts; ++e) {
    ExpertGroup const& group = groups[std::size_t(e)];
    for (std::int32_t r = 0; group.n > 0 && r < y_stride; ++r) {
      std::vector<float> const row =
          r < c.rows ? decoded_row(F::dtype, weights.data() + std::uint64_t(e) * matrix_bytes, dim, r) : std::vector<float>();
      for (std::int32_t i = group.first; i < group.first + group.n; ++i) {
        std::int32_t const slot = routing.slots[std::size_t(i)], x_row = c.x_by_place ? i : slot / c.n_used;
        std::int64_t const at = std::int64_t(c.y_by_slot ? slot : i) * y_stride + r;
        Expected const expected = r < c.rows ? expected_product(F::dtype, values[std::size_t(x_row)], row, 0) : Expected{double(poison), 0};
        worst.compare(at, double(got[std::size_t(at)]), expected.value, expected.tolerance);
      }
    }
  }
  INFO(name(F::dtype) << ": " << c.n_tokens << " tokens, " << c.n_used << " of " << c.n_experts << " experts, " << c.rows << " x " << dim
                      << (c.x_by_place ? ", x by place" : "") << (c.y_by_slot ? ", y by slot" : "") << ", seed " << seed);
  INFO(worst.text());
  CHECK(worst.factor <= 1);
}

}  // namespace

TEST_CASE("CUDA products grouped by expert equal those of each expert alone") {
  if (!has_gpu()) return;
  Gpu gpu;
  INFO("TIERED_SEED=" << fresh_seed());
  for_each_format([&](auto format) {
    std::uint64_t seed = fresh_seed();
    for (Case const& c : cases) check<decltype(format)>(gpu, c, ++seed);
  });
}
