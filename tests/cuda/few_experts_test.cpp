/// Experts of few tokens on the GPU: each half for itself, by ids and by groups, against double arithmetic.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/few_rows_cases.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "tiered/kernels/reference/moe.hpp"

using namespace tiered_test;
using cuda::FewDownArgs;
using cuda::FewGateUpArgs;
using cuda::SlotList;

namespace {

struct FewCase {
  std::int32_t n_tokens, n_used, n_experts, in_blocks, out_rows;
  bool norm;
  bool by_groups;
  Activation activation = Activation::silu;
};

/// Experts whose matrices all have `out` rows of `in` elements: gate and up, or down.
struct Experts {
  Experts(DType type_, FewCase const& c_, std::uint64_t seed, std::int32_t in_ = 0)
      : type(type_), c(c_), in(in_ != 0 ? in_ : few_dim(type_, c_.in_blocks)), random(seed) {
    std::vector<ExpertGroup> experts;
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      ExpertGroup expert;
      expert.gate = upload(a);
      expert.up = upload(b);
      expert.down = expert.gate;
      experts.push_back(expert);
    }
    for (std::int32_t t = 0; t < c.n_tokens; ++t) {
      std::int32_t const first = std::int32_t(random.below(std::uint64_t(c.n_experts)));
      for (std::int32_t j = 0; j < c.n_used; ++j) ids.push_back((first + j) % c.n_experts);
    }
    make_groups(experts);
    device_experts = std::make_unique<DeviceArray<ExpertGroup>>(experts);
    device_ids = std::make_unique<DeviceArray<std::int32_t>>(ids);
  }
  std::int32_t n_slots() const { return c.n_tokens * c.n_used; }

  SlotList list() const {
    SlotList list;
    list.n_slots = n_slots();
    list.n_experts = c.n_experts;
    if (c.by_groups) {
      list.groups = device_groups->data();
      list.slots = device_slots->data();
      list.n_groups = std::int32_t(device_groups->size());
    } else {
      list.ids = device_ids->data();
      list.weights = device_experts->data();
    }
    return list;
  }
  std::byte const* first(std::int32_t slot) const {
    return a[std::size_t(ids[std::size_t(slot)])].data() + shift_a[std::size_t(ids[std::size_t(slot)])];
  }
  std::byte const* second(std::int32_t slot) const {
    return b[std::size_t(ids[std::size_t(slot)])].data() + shift_b[std::size_t(ids[std::size_t(slot)])];
  }

  DType type;
  FewCase c;
  std::int32_t in;
  SplitMix64 random;
  std::vector<std::vector<std::byte>> a, b;
  std::vector<std::size_t> shift_a, shift_b;
  std::vector<std::int32_t> ids;
  std::unique_ptr<DeviceArray<ExpertGroup>> device_experts, device_groups;
  std::unique_ptr<DeviceArray<std::int32_t>> device_ids, device_slots;

 private:
  void const* upload(std::vector<std::vector<std::byte>>& to) {
    std::size_t const shift = c.in_blocks % 8 == 0 ? 0 : alignment_of(type) * random.below(16);  // 0: as models have them
    (&to == &a ? shift_a : shift_b).push_back(shift);
    to.push_back(random_weights(type, std::int64_t(c.out_rows) * in, random));
    to.back().insert(to.back().begin(), shift, std::byte{0xff});
    arrays_.push_back(std::make_unique<DeviceArray<std::byte>>(to.back()));
    return arrays_.back()->data() + shift;
  }
  /// Experts in order, empty groups too; places in the array of slots with gaps between them.
  void make_groups(std::vector<ExpertGroup> experts) {
    std::vector<std::int32_t> slots;
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      slots.push_back(-1);
      experts[std::size_t(e)].first = std::int32_t(slots.size());
      for (std::int32_t i = 0; i < n_slots(); ++i) {
        if (ids[std::size_t(i)] == e) slots.push_back(i), ++experts[std::size_t(e)].n;
      }
    }
    device_groups = std::make_unique<DeviceArray<ExpertGroup>>(experts);
    device_slots = std::make_unique<DeviceArray<std::int32_t>>(slots);
  }
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> arrays_;
};

std::vector<FewCase> few_cases() {
  std::vector<FewCase> cases;
  for (bool const by_groups : {false, true}) {
    cases.push_back({1, 8, 40, 3, 7, true, by_groups});
    cases.push_back({2, 3, 5, 1, 33, !by_groups, by_groups, Activation::gelu_tanh});
    cases.push_back({5, 2, 7, 2, 20, false, by_groups});
    cases.push_back({16, 1, 4, 1, 3, true, by_groups});
    cases.push_back({1, 2, 3, 17, 19, false, by_groups});
    cases.push_back({2, 4, 6, 8, 50, true, by_groups});
    cases.push_back({1, 3, 4, 72, 20, false, by_groups});
  }
  return cases;
}

std::string describe(DType type, FewCase const& c, std::int32_t in) {
  return concat(name(type), ": ", c.n_tokens, " tokens, ", c.n_used, " of ", c.n_experts, " experts, ", c.out_rows, " rows of ", in,
                c.by_groups ? ", by groups" : ", by ids", c.norm ? ", normed" : "");
}

/// Logits of which the router would choose p.ids.
struct Router {
  Router(Experts& p, bool normalise) : chosen(p.ids.size()), weights(p.ids.size()) {
    std::vector<float> logits = random_floats(std::size_t(p.c.n_tokens) * std::size_t(p.c.n_experts), p.random);
    for (std::size_t i = 0; i < logits.size(); i += 5) logits[i] = logits[i / 2];  // equal ones
    if (p.c.n_tokens > 1) logits[0] = std::numeric_limits<float>::quiet_NaN();
    args.n_tokens = p.c.n_tokens;
    args.n_experts = p.c.n_experts;
    args.n_used = p.c.n_used;
    args.normalise = normalise;
    args.scale = 1.5f;
    expected_weights.resize(p.ids.size());
    RouteArgs here = args;
    here.logits = logits.data();
    here.ids = p.ids.data();
    here.weights = expected_weights.data();
    reference::route(here);
    device_logits = std::make_unique<DeviceArray<float>>(logits);
    args.logits = device_logits->data();
    args.ids = chosen.data();
    args.weights = weights.data();
  }
  RouteArgs args;
  DeviceArray<std::int32_t> chosen;
  DeviceArray<float> weights;
  std::vector<float> expected_weights;
  std::unique_ptr<DeviceArray<float>> device_logits;
};

Worst gate_up_against_doubles(Gpu& gpu, Experts& p, RouteArgs const& route = {}) {
  FewCase const& c = p.c;
  std::vector<float> x = random_floats(std::size_t(c.n_tokens) * std::size_t(p.in), p.random),
                     norm_weight = random_floats(std::size_t(p.in), p.random);
  for (float& v : x) v *= 0.05f;
  for (float& v : norm_weight) v *= 0.05f;
  DeviceArray<float> const device_x(x), device_norm(norm_weight);
  DeviceArray<float> h(std::size_t(p.n_slots()) * std::size_t(c.out_rows));
  FewGateUpArgs a;
  a.list = p.list();
  a.x = device_x.data();
  a.norm_weight = device_norm.data();
  a.h = h.data();
  a.n_tokens = c.n_tokens;
  a.n_used = c.n_used;
  a.dim = p.in;
  a.hidden_dim = c.out_rows;
  a.eps = 1e-5f;
  a.norm = c.norm;
  a.activation = c.activation;
  a.route = route;
  if (route.logits != nullptr) a.list.ids = route.ids;
  a.down_bytes = std::int64_t(row_bytes(p.type, std::uint64_t(p.in))) * c.out_rows / 16 * 16;
  gpu.run(format_kernels_of(p.type).few_gate_up, a);
  std::vector<float> const got = h.download();
  Worst worst;
  for (std::int32_t slot = 0; slot < p.n_slots(); ++slot) {
    float const* const row = x.data() + std::int64_t(slot / c.n_used) * p.in;
    std::vector<double> const plain(row, row + p.in);
    ReadRow const read =
        c.norm ? read_row(p.type, normed_row(row, p.in, norm_weight.data(), 1e-5f), 32 * epsilon) : read_row(p.type, plain, 0);
    for (std::int32_t r = 0; r < c.out_rows; ++r) {
      Sum const sum =
          exact_gate(c.activation, exact_product(p.type, p.first(slot), r, read), exact_product(p.type, p.second(slot), r, read));
      std::int64_t const at = std::int64_t(slot) * c.out_rows + r;
      worst.compare(at, double(got[std::size_t(at)]), sum.value, sum.allowed);
    }
  }
  return worst;
}

/// With slot weights (summed) or without; `skipped`: a slot whose id is none.
Worst down_against_doubles(Gpu& gpu, Experts& p, bool summed, std::int32_t skipped = -1) {
  FewCase const& c = p.c;
  std::vector<float> const h = random_floats(std::size_t(p.n_slots()) * std::size_t(p.in), p.random),
                           weights = random_floats(std::size_t(p.n_slots()), p.random),
                           before = random_floats(std::size_t(c.n_tokens) * std::size_t(c.out_rows), p.random);
  DeviceArray<float> const device_h(h), device_weights(weights);
  DeviceArray<float> y(std::size_t(p.n_slots()) * std::size_t(c.out_rows)), sum(before);
  FewDownArgs a;
  a.list = p.list();
  a.h = device_h.data();
  a.slot_weights = summed ? device_weights.data() : nullptr;
  a.y = y.data();
  a.sum = sum.data();
  a.n_tokens = c.n_tokens;
  a.n_used = c.n_used;
  a.dim = c.out_rows;
  a.hidden_dim = p.in;
  gpu.run(format_kernels_of(p.type).few_down, a);
  std::vector<float> const got_y = y.download(), got_sum = sum.download();
  std::vector<Sum> total(before.size());
  for (std::size_t i = 0; i < before.size(); ++i) total[i] = {double(before[i]), 0};
  Worst worst;
  for (std::int32_t slot = 0; slot < p.n_slots(); ++slot) {
    float const* const row = h.data() + std::int64_t(slot) * p.in;
    ReadRow const read = read_row(p.type, std::vector<double>(row, row + p.in), 0);
    for (std::int32_t r = 0; r < c.out_rows && slot != skipped; ++r) {
      Sum const one = exact_product(p.type, p.first(slot), r, read);
      std::int64_t const at = std::int64_t(slot) * c.out_rows + r;
      if (!summed) worst.compare(at, double(got_y[std::size_t(at)]), one.value, one.allowed);
      Sum& of_token = total[std::size_t(slot / c.n_used * c.out_rows + r)];
      double const weight = double(weights[std::size_t(slot)]);
      of_token.value += weight * one.value;  // one sum over all slots: as many more roundings as there are slots
      of_token.allowed += std::abs(weight) * one.allowed * c.n_used + 2 * c.n_used * epsilon * std::abs(weight * one.value);
    }
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    double const allowed = total[i].allowed + 2 * epsilon * std::abs(double(before[i]));
    worst.compare(std::int64_t(i), double(got_sum[i]), summed ? total[i].value : double(before[i]), summed ? allowed : 0);
  }
  return worst;
}

}  // namespace

TEST_CASE("gate and up of few slots equal double arithmetic within float rounding, in every format") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (FewCase const& c : few_cases()) {
      Experts p(type, c, ++seed);
      Worst const worst = gate_up_against_doubles(gpu, p);
      INFO(describe(type, c, p.in) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("gate and up of few slots choose their experts as the reference router does") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q6_k, DType::f32}) {
    std::uint64_t seed = fresh_seed();
    for (FewCase const& c : {FewCase{1, 8, 128, 8, 10, true, false}, FewCase{3, 2, 7, 3, 9, true, false},
                             FewCase{2, 6, 256, 8, 3, false, false}, FewCase{2, 9, 9, 8, 3, false, false}}) {
      Experts p(type, c, ++seed);
      Router router(p, c.n_used % 2 == 0);
      Worst const worst = gate_up_against_doubles(gpu, p, router.args);
      INFO(describe(type, c, p.in) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << worst.text());
      CHECK(worst.factor <= 1);
      CHECK(router.chosen.download() == p.ids);
      std::vector<float> const weights = router.weights.download();
      for (std::size_t i = 0; i < weights.size(); ++i) {
        INFO("slot " << i << ": " << weights[i] << ", not " << router.expected_weights[i]);
        CHECK((std::isnan(router.expected_weights[i]) ? std::isnan(weights[i])
                                                      : std::abs(weights[i] - router.expected_weights[i]) <= 2 * epsilon * weights[i]));
      }
    }
  }
}

TEST_CASE("down of few slots, by slot or summed with weights, equals double arithmetic within float rounding, in every format") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (FewCase const& c : few_cases()) {
      for (bool const summed : {false, true}) {
        if (summed && c.by_groups) continue;
        Experts p(type, c, ++seed);
        Worst const worst = down_against_doubles(gpu, p, summed);
        INFO(describe(type, c, p.in) << (summed ? ", summed" : ", by slot") << ", seed " << seed << " (TIERED_SEED=" << fresh_seed()
                                     << "): " << worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("down that chooses its experts beside gate and up gives the bits that it gives by their ids") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q6_k, DType::f16}) {
    for (FewCase const& c : {FewCase{1, 8, 128, 8, 300, true, false}, FewCase{3, 2, 7, 8, 41, true, false},
                             FewCase{2, 9, 9, 24, 20, false, false}, FewCase{2, 4, 40, 3, 20, false, false}}) {
      Experts p(type, c, fresh_seed());
      std::vector<float> const x = random_floats(std::size_t(c.n_tokens) * std::size_t(p.in), p.random),
                               h = random_floats(std::size_t(p.n_slots()) * std::size_t(p.in), p.random),
                               before = random_floats(std::size_t(c.n_tokens) * std::size_t(c.out_rows), p.random);
      DeviceArray<float> const device_x(x), device_h(h);
      DeviceArray<float> hidden(std::size_t(p.n_slots()) * std::size_t(c.out_rows));
      auto const sum_of = [&](Router& router, bool chooses) {
        DeviceArray<float> sum(before);
        FewGateUpArgs first;
        first.list = p.list();
        first.list.ids = router.args.ids;
        first.x = device_x.data();
        first.h = hidden.data();
        first.n_tokens = c.n_tokens, first.n_used = c.n_used, first.dim = p.in, first.hidden_dim = c.out_rows;
        first.route = router.args;
        FewDownArgs second;
        second.list = first.list;
        second.h = device_h.data();
        second.slot_weights = router.weights.data();
        second.sum = sum.data();
        second.n_tokens = c.n_tokens, second.n_used = c.n_used, second.dim = c.out_rows, second.hidden_dim = p.in;
        if (chooses) second.route = router.args;
        launch(format_kernels_of(type).few_gate_up, first, gpu.queue());
        gpu.run(format_kernels_of(type).few_down, second);
        return sum.download();
      };
      for (int round = 0; round < 5; ++round) {  // other logits each time: what a block might still have of those before is wrong
        Router router(p, true);
        INFO(describe(type, c, p.in) << ", round " << round << ", TIERED_SEED=" << fresh_seed());
        std::vector<float> const expected = sum_of(router, false);
        CHECK(same_bits(sum_of(router, true), expected));
        CHECK(router.chosen.download() == p.ids);
      }
    }
  }
}

TEST_CASE("down with hidden rows that join in a stage, fill slices, or do not fit beside each other") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q6_k, DType::q5_k, DType::mxfp4, DType::f16, DType::f32}) {
    for (std::int32_t const hidden_dim : {256, 768, 2048, 8192}) {
      Experts p(type, {2, 8, 9, 0, 37, false, false}, 3, hidden_dim);
      Worst const worst = down_against_doubles(gpu, p, true);
      INFO(describe(type, p.c, p.in) << ": " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("few slots of a few shapes: by ids, by groups, and chosen on the way", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q3_k, DType::f16}) {
    std::uint64_t seed = fresh_seed();
    for (FewCase const& c :
         {FewCase{2, 4, 6, 8, 9, true, false}, FewCase{2, 3, 6, 3, 9, true, false}, FewCase{3, 2, 5, 2, 9, false, true}}) {
      INFO(name(type) << ", " << c.in_blocks << " blocks, TIERED_SEED=" << fresh_seed());
      Experts p(type, c, ++seed);
      Worst worst = gate_up_against_doubles(gpu, p);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
      worst = down_against_doubles(gpu, p, !c.by_groups);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
    Experts p(type, {1, 4, 16, 8, 10, true, false}, ++seed);
    Router router(p, true);
    Worst const worst = gate_up_against_doubles(gpu, p, router.args);
    INFO(worst.text());
    CHECK(worst.factor <= 1);
    CHECK(router.chosen.download() == p.ids);
  }
}

TEST_CASE("a slot whose id is no expert is left out", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (std::int32_t const id : {-1, 6}) {
    for (std::int32_t const n_blocks : {24, 3}) {  // rows that begin at multiples of 16, and others
      Experts p(DType::q4_0, {2, 4, 6, n_blocks, 9, false, false}, 4);
      std::vector<std::int32_t> ids = p.ids;
      ids[5] = id;
      p.device_ids->upload(ids);
      Worst const worst = down_against_doubles(gpu, p, true, 5);
      INFO("id " << id << ", " << n_blocks << " blocks: " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}
