/// Experts on the CUDA table: few rows and many, listed and routed, every format and mixes, against the reference.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "tiered/kernels/reference/moe.hpp"

using namespace tiered_test;

namespace {

struct ExpertsCase {
  DType gate, up, down;
  std::int32_t n_experts, n_used, n_tokens, dim, hidden_dim;
  Activation activation = Activation::silu;

  /// Halves of rows longer than this find no room in the shared memory of any device so far (227 KiB).
  static constexpr std::int32_t longest_row = 55'872;
  bool few() const { return n_tokens <= cuda::fused_rows && gate == up && dim <= longest_row && hidden_dim <= longest_row; }
  std::string text() const {
    return concat("TIERED_SEED=", fresh_seed(), ": ", name(gate), ' ', name(up), ' ', name(down), ", ", n_tokens, " tokens, ", n_used,
                  " of ", n_experts, ", ", dim, " x ", hidden_dim);
  }
};

std::vector<ExpertsCase> experts_cases() {
  std::vector<ExpertsCase> cases;
  for (DType const type : all_formats()) {
    cases.push_back({type, type, type, 4, 2, 3, 256, 512});
    cases.push_back({type, type, type, 4, 2, 19, 512, 256});
  }
  cases.push_back({DType::q4_0, DType::q4_0, DType::q4_0, 16, 8, 1, 2048, 768});  // as decoded
  cases.push_back({DType::q4_0, DType::q4_0, DType::q8_0, 128, 8, 16, 256, 96});
  cases.push_back({DType::q4_0, DType::q4_0, DType::q8_0, 128, 8, 17, 256, 96});  // some experts have no slots
  cases.push_back({DType::q4_0, DType::q4_0, DType::q8_0, 2, 1, 300, 256, 96});   // many slots each
  cases.push_back({DType::q8_0, DType::q8_0, DType::q8_0, 1, 1, 5, 96, 32});
  cases.push_back({DType::q4_1, DType::q4_1, DType::q8_0, 6, 2, 1, 576, 96});
  cases.push_back({DType::q4_0, DType::q4_k, DType::f16, 5, 3, 7, 512, 96, Activation::gelu_tanh});  // types of different forms
  cases.push_back({DType::q6_k, DType::f32, DType::q8_0, 3, 1, 40, 256, 32});
  cases.push_back({DType::f32, DType::bf16, DType::q5_1, 16, 4, 33, 77, 64});
  cases.push_back({DType::mxfp4, DType::iq4_nl, DType::q6_k, 6, 6, 2, 96, 256});
  cases.push_back({DType::q4_k, DType::bf16, DType::q8_0, 2, 1, 90, 256, 160});
  cases.push_back({DType::f16, DType::f16, DType::f16, 2, 1, 3, 64, ExpertsCase::longest_row + 32});
  cases.push_back({DType::f16, DType::f16, DType::f16, 2, 2, 1, ExpertsCase::longest_row + 32, 64});
  return cases;
}

/// Weights of all experts, on both sides, and a choice of experts for each token, as ids and as groups in ascending order of the expert.
class Layer {
 public:
  explicit Layer(ExpertsCase const& c_)
      : c(c_),
        random_(fresh_seed()),
        gate_(random_weights(c.gate, std::int64_t(c.n_experts) * c.hidden_dim * c.dim, random_)),
        up_(random_weights(c.up, std::int64_t(c.n_experts) * c.hidden_dim * c.dim, random_)),
        down_(random_weights(c.down, std::int64_t(c.n_experts) * c.dim * c.hidden_dim, random_)),
        x(random_floats(std::size_t(c.n_tokens) * std::size_t(c.dim), random_)),
        slot_weights(random_floats(std::size_t(c.n_tokens * c.n_used), random_)),
        norm_weight(random_floats(std::size_t(c.dim), random_)),
        device_gate_(gate_),
        device_up_(up_),
        device_down_(down_) {
    for (float& v : x) v *= 0.2f;
    std::vector<std::vector<std::int32_t>> by_expert(static_cast<std::size_t>(c.n_experts));
    for (std::int32_t t = 0; t < c.n_tokens; ++t) {
      std::int32_t const first = std::int32_t(random_.below(std::uint64_t(c.n_experts)));
      std::vector<std::int32_t> chosen;
      std::int32_t const step = c.n_experts % 5 == 0 ? 1 : 5;
      for (std::int32_t j = 0; j < c.n_used; ++j) chosen.push_back((first + j * step) % c.n_experts);
      std::sort(chosen.begin(), chosen.end());
      for (std::int32_t j = 0; j < c.n_used; ++j) {
        ids.push_back(chosen[std::size_t(j)]);
        by_expert[std::size_t(ids.back())].push_back(t * c.n_used + j);
      }
    }
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      std::int32_t const first = std::int32_t(slots.size()), n = std::int32_t(by_expert[std::size_t(e)].size());
      groups.push_back(group(e, first, n, true));
      host_groups.push_back(group(e, first, n, false));
      slots.insert(slots.end(), by_expert[std::size_t(e)].begin(), by_expert[std::size_t(e)].end());
    }
  }

  ExpertGroup group(std::int32_t expert, std::int32_t first, std::int32_t n, bool on_device) const {
    auto const part = [&](std::vector<std::byte> const& host, DeviceArray<std::byte> const& device) {
      return (on_device ? device.data() : host.data()) + host.size() / std::size_t(c.n_experts) * std::size_t(expert);
    };
    return {part(gate_, device_gate_), part(up_, device_up_), part(down_, device_down_), first, n};
  }
  std::size_t n_slots() const { return slots.size(); }
  std::size_t output_size() const { return n_slots() * std::size_t(c.dim); }
  /// Without what lies on one side only.
  ExpertsArgs args(std::int32_t n_of_slots) const {
    ExpertsArgs a;
    a.n_tokens = c.n_tokens;
    a.n_used = c.n_used;
    a.dim = c.dim;
    a.hidden_dim = c.hidden_dim;
    a.n_slots = n_of_slots;
    a.gate_type = c.gate;
    a.up_type = c.up;
    a.down_type = c.down;
    a.activation = c.activation;
    return a;
  }
  /// Few rows are rounded to 8-bit blocks where weights are in blocks; many to halves, which the tolerance allows for.
  reference::ActivationRule rule() const { return c.few() ? &quantized_activation : &reference::f32_activation; }
  /// Of the norm of all outputs. Few rows: a hidden value near the border of two 8-bit steps may take the other one, 2e-3, as on the CPU;
  /// floats are as good as f32 sums. Many rows: x, h and the weights of three products are rounded to halves, u = 2^-12 (bfloat16: 2^-9)
  /// at most and u / sqrt(3) on average, and errors of x and of gate and up go through two more products: 4 u, of four standard deviations.
  double tolerance() const {
    bool const blocks = block_elems(c.down) > 1 || block_elems(c.gate) > 1,
               f32 = c.gate == DType::f32 && c.up == DType::f32 && c.down == DType::f32;
    if (c.few()) return blocks ? 2e-3 : 2e-5;
    auto const coarse = [](DType type) { return product_activation(type) == DType::act_bf16_rows; };
    return f32 ? 2e-5 : (coarse(c.gate) || coarse(c.up) || coarse(c.down) ? 8 : 1) * 1e-3;
  }

  ExpertsCase const c;

 private:
  SplitMix64 random_;
  std::vector<std::byte> const gate_, up_, down_;

 public:
  std::vector<float> x, slot_weights, norm_weight;
  std::vector<std::int32_t> ids, slots;
  std::vector<ExpertGroup> groups, host_groups;  ///< with pointers into VRAM, and into host memory

 private:
  DeviceArray<std::byte> const device_gate_, device_up_, device_down_;
};

void check_close(std::vector<float> const& y, std::vector<float> const& expected, double tolerance) {
  double error = 0, norm = 0;
  Worst worst;
  for (std::size_t i = 0; i < y.size(); ++i) {
    error += std::pow(double(y[i]) - double(expected[i]), 2);
    norm += std::pow(double(expected[i]), 2);
    worst.compare(std::int64_t(i), double(y[i]), double(expected[i]), 1);
  }
  INFO("error " << std::sqrt(error) << " of " << std::sqrt(norm) << "; " << worst.text());
  CHECK(norm > 0);
  CHECK(std::sqrt(error) <= tolerance * std::sqrt(norm));
}

/// The op on some groups of the layer, and the slots that they list.
std::vector<float> run_listed(Gpu& gpu, Layer const& layer, std::vector<ExpertGroup> const& groups, std::vector<std::int32_t> const& slots,
                              std::int32_t n_slots) {
  DeviceArray<float> const x(layer.x);
  DeviceArray<float> y(layer.output_size());
  y.upload(poisoned(layer.output_size()));
  std::vector<ExpertGroup> const at_least_one = groups.empty() ? std::vector<ExpertGroup>(1) : groups;
  DeviceArray<ExpertGroup> const device_groups(at_least_one);
  DeviceArray<std::int32_t> const device_slots(slots);
  DeviceArray<std::byte> workspace(experts_workspace_bytes(layer.c.n_tokens, n_slots, layer.c.dim, layer.c.hidden_dim));
  ExpertsArgs args = layer.args(n_slots);
  args.x = x.data();
  args.y = y.data();
  args.groups = device_groups.data();
  args.n_groups = std::int32_t(groups.size());
  args.slots = device_slots.data();
  args.workspace = workspace.data();
  gpu.run(gpu.table().experts, args);
  workspace.download();  // looks behind its end
  return y.download();
}
std::vector<float> run_listed(Gpu& gpu, Layer const& layer) {
  return run_listed(gpu, layer, layer.groups, layer.slots, std::int32_t(layer.n_slots()));
}

/// What RoutedExpertsArgs takes beside ExpertsArgs.
struct Extras {
  bool sum = false, norm = false;
  bool route = false;  ///< with sum: the op finds ids and slot weights itself
};

/// Scores whose largest ones are those of the layer's ids.
std::vector<float> router_scores(Layer const& layer) {
  SplitMix64 random(fresh_seed());
  std::vector<float> scores = random_floats(std::size_t(layer.c.n_tokens * layer.c.n_experts), random);
  for (std::size_t slot = 0; slot < layer.ids.size(); ++slot)
    scores[slot / std::size_t(layer.c.n_used) * std::size_t(layer.c.n_experts) + std::size_t(layer.ids[slot])] += 5;
  return scores;
}
RouteArgs route_args(Layer const& layer, float const* scores, std::int32_t* ids, float* weights) {
  return {scores, nullptr, ids, weights, layer.c.n_tokens, layer.c.n_experts, layer.c.n_used};
}

std::vector<float> run_routed(Gpu& gpu, Layer const& layer, Extras extras, std::vector<float> const& scores = {}) {
  ExpertsCase const& c = layer.c;
  std::int32_t const n_slots = std::int32_t(layer.n_slots());
  DeviceArray<float> x(layer.x), y(layer.output_size()), norm_weight(layer.norm_weight), slot_weights(layer.slot_weights);
  DeviceArray<float> sum(layer.x);  // what is added to
  DeviceArray<std::byte> workspace(experts_workspace_bytes(c.n_tokens, n_slots, c.dim, c.hidden_dim));
  DeviceArray<float> const logits(scores);
  DeviceArray<std::int32_t> ids(layer.ids.size());
  DeviceArray<ExpertGroup> const weights(layer.groups);
  DeviceArray<ExpertGroup> groups(layer.groups.size());
  DeviceArray<std::int32_t> slots(layer.n_slots()), counts(layer.groups.size() + 1);
  RoutedExpertsArgs args;
  args.experts = layer.args(n_slots);
  args.experts.x = x.data();
  args.experts.y = y.data();
  args.experts.workspace = workspace.data();
  args.ids = ids.data();
  args.weights = weights.data();
  args.groups = groups.data();
  args.slots = slots.data();
  args.counts = counts.data();
  args.n_experts = c.n_experts;
  if (extras.sum) {
    args.slot_weights = slot_weights.data();
    args.sum = extras.norm ? x.data() : sum.data();  // the residual stream itself, where it is normed on the way in
  }
  if (extras.route) {
    args.route = route_args(layer, logits.data(), ids.data(), slot_weights.data());
  } else {
    ids.upload(layer.ids);
  }
  if (extras.norm) {
    args.norm = true;
    args.norm_weight = norm_weight.data();
    args.eps = 1e-5f;
  }
  gpu.run(gpu.table().routed_experts, args);
  workspace.download();
  groups.download();
  slots.download();
  if (!extras.norm) CHECK(same_bits(x.download(), layer.x));
  return extras.sum ? (extras.norm ? x : sum).download() : y.download();
}

struct WindowExtras {
  bool backwards = false;  ///< experts' ranks: the last is the first
  bool from_zero = false;
  bool to_zeros = false;  ///< what is added to, in place of layer.x
};

/// Windows that end at `ends`, `piece_slots` slots at once: y by slot, or the sum.
std::vector<float> run_windows(Gpu& gpu, Layer const& layer, std::vector<std::int32_t> const& ends, std::int32_t piece_slots, bool sums,
                               WindowExtras const& extras = {}) {
  ExpertsCase const& c = layer.c;
  DeviceArray<float> const x(layer.x), slot_weights(layer.slot_weights);
  DeviceArray<float> y(layer.output_size()), sum(extras.to_zeros ? std::vector<float>(layer.x.size(), 0.0f) : layer.x);
  y.upload(poisoned(layer.output_size()));
  std::vector<std::int32_t> ranks(layer.groups.size());
  for (std::size_t e = 0; e < ranks.size(); ++e) ranks[e] = std::int32_t(extras.backwards ? ranks.size() - 1 - e : e);
  DeviceArray<std::int32_t> const device_ranks(ranks);
  std::vector<ExpertGroup> by_rank = layer.groups;
  if (extras.backwards) std::reverse(by_rank.begin(), by_rank.end());
  DeviceArray<std::byte> workspace(expert_window_bytes(piece_slots, c.dim, c.hidden_dim)), x_rows(expert_rows_bytes(c.n_tokens, c.dim));
  DeviceArray<std::int32_t> const ids(layer.ids);
  DeviceArray<std::int32_t> begins(layer.groups.size() + 1), slots(layer.n_slots()), places(layer.n_slots());
  DeviceArray<ExpertGroup> weights(layer.groups.size());
  ExpertWindowArgs args;
  args.experts = layer.args(piece_slots);
  args.experts.x = x.data();
  args.experts.y = sums ? nullptr : y.data();
  args.experts.workspace = workspace.data();
  args.ids = ids.data();
  args.weights = weights.data();
  args.begins = begins.data(), args.slots = slots.data(), args.places = places.data(), args.x_rows = x_rows.data();
  args.n_experts = c.n_experts;
  if (sums) args.slot_weights = slot_weights.data(), args.sum = sum.data();
  if (extras.backwards) args.ranks = device_ranks.data();
  args.from_zero = extras.from_zero;
  gpu.run(gpu.table().group_slots, args);
  std::vector<std::int32_t> const listed = slots.download(), at = places.download();
  if (!extras.backwards) CHECK(listed == layer.slots);
  for (std::size_t i = 0; i < listed.size(); ++i) REQUIRE(at[std::size_t(listed[i])] == std::int32_t(i));
  std::int32_t first = 0;
  for (std::int32_t const end : ends) {
    std::vector<ExpertGroup> only(layer.groups.size());  // where the window's are, and nothing of others
    std::copy(by_rank.begin() + first, by_rank.begin() + end, only.begin() + first);
    for (ExpertGroup& g : only) g.first = g.n = 1 << 30;
    weights.upload(only);
    args.first_expert = first;
    args.end_expert = first = end;
    gpu.run(gpu.table().expert_window, args);
  }
  workspace.download();
  x_rows.download();
  begins.download();
  CHECK(same_bits(x.download(), layer.x));
  return sums ? sum.download() : y.download();
}

std::vector<float> reference_routed(Layer const& layer, Extras extras) {
  std::vector<float> y = poisoned(layer.output_size()), sum = layer.x;
  std::vector<ExpertGroup> groups = layer.host_groups;
  std::vector<std::int32_t> slots(layer.n_slots()), counts(groups.size() + 1);
  RoutedExpertsArgs args;
  args.experts = layer.args(std::int32_t(layer.n_slots()));
  args.experts.x = layer.x.data();
  args.experts.y = y.data();
  args.ids = layer.ids.data();
  args.weights = layer.host_groups.data();
  args.groups = groups.data();
  args.slots = slots.data();
  args.counts = counts.data();
  args.n_experts = layer.c.n_experts;
  args.slot_weights = extras.sum ? layer.slot_weights.data() : nullptr;
  args.sum = extras.sum ? sum.data() : nullptr;
  args.norm = extras.norm;
  args.norm_weight = extras.norm ? layer.norm_weight.data() : nullptr;
  args.eps = 1e-5f;
  reference::routed_experts(args, layer.rule());
  return extras.sum ? sum : y;
}

}  // namespace

TEST_CASE("CUDA experts equal the reference, listed and routed") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (ExpertsCase const& c : experts_cases()) {
    INFO(c.text());
    Layer const layer(c);
    std::vector<float> const y = run_listed(gpu, layer), expected = reference_routed(layer, {}), routed = run_routed(gpu, layer, {});
    check_close(y, expected, layer.tolerance());
    check_close(routed, expected, layer.tolerance());
    if (c.n_tokens > cuda::fused_rows) CHECK(same_bits(routed, y));  // few rows have a way of their own where nobody made a list
  }
}

TEST_CASE("CUDA windows of experts give what all at once give, wherever windows and pieces end") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (ExpertsCase const& c : experts_cases()) {
    if (c.n_tokens <= cuda::fused_rows) continue;
    Layer const layer(c);
    std::int32_t const n = c.n_experts, n_slots = std::int32_t(layer.n_slots());
    std::vector<float> const y = run_routed(gpu, layer, {}), summed = run_windows(gpu, layer, {n}, n_slots, true);
    check_close(summed, reference_routed(layer, {true}), layer.tolerance());
    for (std::int32_t const piece_slots : {n_slots + 5, n_slots / 3, 7}) {
      for (std::vector<std::int32_t> const& ends : {std::vector<std::int32_t>{n}, std::vector<std::int32_t>{n / 3, n / 3, n - 1, n}}) {
        INFO(c.text() << "; " << ends.size() << " windows, pieces of " << piece_slots);
        CHECK(same_bits(run_windows(gpu, layer, ends, piece_slots, false), y));
        CHECK(same_bits(run_windows(gpu, layer, ends, piece_slots, true), summed));
        CHECK(same_bits(run_windows(gpu, layer, ends, piece_slots, false, {true}), y));
      }
    }
    check_close(run_windows(gpu, layer, {n / 2, n}, n_slots, true, {true}), reference_routed(layer, {true}), layer.tolerance());
    CHECK(same_bits(run_windows(gpu, layer, {n / 2, n}, n_slots, true, {false, true}),
                    run_windows(gpu, layer, {n / 2, n}, n_slots, true, {false, false, true})));
  }
}

TEST_CASE("CUDA experts of few and of many rows, listed, routed and in windows", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (std::int32_t const n_tokens : {3, 19}) {
    Layer const layer({DType::q4_0, DType::q4_0, DType::q8_0, 4, 2, n_tokens, 256, 96});
    INFO(layer.c.text());
    std::vector<float> const expected = reference_routed(layer, {});
    check_close(run_listed(gpu, layer), expected, layer.tolerance());
    check_close(run_routed(gpu, layer, {}), expected, layer.tolerance());
    if (n_tokens <= cuda::fused_rows) continue;
    check_close(run_windows(gpu, layer, {1, 4}, 7, false), expected, layer.tolerance());
    check_close(run_windows(gpu, layer, {4}, 60, true), reference_routed(layer, {true}), layer.tolerance());
  }
}

TEST_CASE("CUDA slots of many rows are grouped by expert") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (std::int32_t const n_tokens : {1, 511, 5000}) {
    std::int32_t const n_experts = n_tokens == 511 ? 300 : 64, n_used = 4;
    std::vector<std::int32_t> ids;
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      std::int32_t const first = std::int32_t(random.below(random.below(2) == 0 ? 5 : std::uint64_t(n_experts)));
      for (std::int32_t j : {0, 9, 3, 27}) ids.push_back((first + j) % n_experts);
    }
    std::vector<std::int32_t> begins(std::size_t(n_experts) + 1), slots(ids.size()), places(ids.size());
    ExpertWindowArgs args;
    args.experts.gate_type = args.experts.up_type = args.experts.down_type = DType::f32;  // x stays as it is
    args.experts.n_tokens = n_tokens;
    args.experts.n_used = n_used;
    args.n_experts = n_experts;
    args.ids = ids.data(), args.begins = begins.data(), args.slots = slots.data(), args.places = places.data();
    std::vector<std::int32_t> ranks;  // by twos: an expert's neighbour is no neighbour
    for (std::int32_t e = 0; e < n_experts; ++e) ranks.push_back(e % 2 == 0 ? e / 2 : n_experts - 1 - e / 2);
    DeviceArray<std::int32_t> const device_ranks(ranks);
    if (n_tokens == 5000) args.ranks = ranks.data();
    reference::group_slots(args);
    if (args.ranks != nullptr) args.ranks = device_ranks.data();
    DeviceArray<std::int32_t> const device_ids(ids);
    DeviceArray<std::int32_t> device_begins(begins.size()), device_slots(ids.size()), device_places(ids.size());
    args.ids = device_ids.data();
    args.begins = device_begins.data(), args.slots = device_slots.data(), args.places = device_places.data();
    gpu.run(gpu.table().group_slots, args);
    INFO("TIERED_SEED=" << fresh_seed() << ": " << n_tokens << " tokens");
    CHECK(device_begins.download() == begins);
    CHECK(device_slots.download() == slots);
    CHECK(device_places.download() == places);
  }
}

TEST_CASE("CUDA routed experts choose as the router would") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (ExpertsCase const& c : experts_cases()) {
    INFO(c.text());
    Layer layer(c);
    std::vector<float> const scores = router_scores(layer);
    std::vector<std::int32_t> ids(layer.ids.size());
    reference::route(route_args(layer, scores.data(), ids.data(), layer.slot_weights.data()));
    REQUIRE(ids == layer.ids);
    for (bool const norm : {false, true}) {
      if (norm && c.n_tokens > cuda::fused_rows) continue;
      Extras const extras{true, norm, false};
      check_close(run_routed(gpu, layer, {true, norm, true}, scores), reference_routed(layer, extras), layer.tolerance());
    }
  }
}

TEST_CASE("CUDA routed experts add what they computed, of rows normed on the way in") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (ExpertsCase const& c : experts_cases()) {
    for (Extras const extras : {Extras{true, false}, Extras{true, true}, Extras{false, true}}) {
      if (extras.norm && c.n_tokens > cuda::fused_rows) continue;
      INFO(c.text() << (extras.sum ? ", summed" : "") << (extras.norm ? ", normed" : ""));
      Layer const layer(c);
      check_close(run_routed(gpu, layer, extras), reference_routed(layer, extras), layer.tolerance());
    }
  }
}

TEST_CASE("a slot's result on the CUDA table does not depend on which groups share the call; other slots are not touched") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (std::int32_t const n_tokens : {3, 20}) {
    for (DType const up : {DType::q4_0, DType::q8_0}) {
      Layer const layer({DType::q4_0, up, DType::q4_0, 4, 2, n_tokens, 256, 96});
      INFO(layer.c.text());
      std::vector<float> const all = run_listed(gpu, layer);
      std::vector<float> merged = poisoned(all.size());
      std::size_t const dim = std::size_t(layer.c.dim);
      for (std::int32_t e = 0; e < layer.c.n_experts; ++e) {
        ExpertGroup const whole = layer.groups[std::size_t(e)];
        for (std::int32_t i = 0; i < whole.n; ++i) {  // every slot by itself
          std::vector<std::int32_t> const slots = {layer.slots[std::size_t(whole.first + i)]};
          std::vector<float> const y = run_listed(gpu, layer, {layer.group(e, 0, 1, true)}, slots, 1);
          for (std::size_t k = 0; k < y.size(); ++k) {
            if (k / dim == std::size_t(slots[0])) {
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

TEST_CASE("groups of a call to the CUDA table may lie anywhere among the slots, and may be empty") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (std::int32_t const n_tokens : {5, 30}) {
    Layer const layer({DType::q4_k, DType::q4_k, DType::q8_0, 9, 2, n_tokens, 256, 96});
    INFO(layer.c.text());
    std::vector<float> const all = run_listed(gpu, layer);
    ExpertGroup const empty = layer.group(2, 2 * n_tokens, 0, true);
    std::vector<ExpertGroup> const some = {layer.groups[8], empty, layer.groups[5], layer.groups[1], empty};
    std::vector<float> expected = poisoned(all.size());
    std::int32_t n_slots = 0;
    for (ExpertGroup const& g : some) {
      n_slots += g.n;
      for (std::int32_t i = g.first; i < g.first + g.n; ++i) {
        auto const at = std::ptrdiff_t(layer.slots[std::size_t(i)]) * layer.c.dim;
        std::copy_n(all.begin() + at, layer.c.dim, expected.begin() + at);
      }
    }
    CHECK(same_bits(run_listed(gpu, layer, some, layer.slots, n_slots), expected));
    CHECK(same_bits(run_listed(gpu, layer, {empty, empty}, layer.slots, 0), poisoned(all.size())));
    CHECK(same_bits(run_listed(gpu, layer, {}, layer.slots, 0), poisoned(all.size())));
    CHECK(same_bits(run_listed(gpu, layer, {empty, empty}, layer.slots, 2 * n_tokens), poisoned(all.size())));  // an upper bound
  }
}
