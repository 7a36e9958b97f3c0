/// Experts that come in windows: slots are grouped once, windows and pieces cut wherever they are, sums and outputs have the same bits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/moe.hpp"

using namespace tiered_test;

namespace {

struct WindowCase {
  DType gate, up, down;
  std::int32_t n_experts, n_used, n_tokens, dim, hidden_dim;
};

constexpr WindowCase cases[] = {
    {DType::q4_0, DType::q4_0, DType::q8_0, 7, 3, 40, 64, 96},    // y is longer than up
    {DType::q8_0, DType::q8_0, DType::q4_0, 5, 2, 33, 32, 320},   // and shorter
    {DType::q4_k, DType::f16, DType::bf16, 9, 4, 30, 256, 32},    // of different forms
    {DType::bf16, DType::bf16, DType::f16, 4, 4, 21, 80, 48},     // all experts
    {DType::f32, DType::f32, DType::f32, 6, 1, 50, 77, 33},       // lengths that only floats have
    {DType::q6_k, DType::q4_0, DType::f32, 130, 8, 25, 256, 64},  // experts that nobody chose
};

std::string text(WindowCase const& c) {
  return concat(name(c.gate), ' ', name(c.up), ' ', name(c.down), ", ", c.n_tokens, " tokens, ", c.n_used, " of ", c.n_experts, ", ", c.dim,
                " x ", c.hidden_dim);
}

/// A layer, its rows, and a choice of experts that has favourites.
struct Layer {
  explicit Layer(WindowCase const& of, std::uint64_t seed) : c(of) {
    SplitMix64 random(seed);
    std::int64_t const elems = std::int64_t(c.n_experts) * c.hidden_dim * c.dim;
    gate = random_weights(c.gate, elems, random);
    up = random_weights(c.up, elems, random);
    down = random_weights(c.down, elems, random);
    x = random_floats(std::size_t(c.n_tokens) * std::size_t(c.dim), random);
    before = random_floats(x.size(), random);
    slot_weights = random_floats(n_slots(), random);
    for (float& v : x) v *= 0.2f;
    for (std::int32_t t = 0; t < c.n_tokens; ++t) {
      std::vector<std::int32_t> chosen;
      while (std::int32_t(chosen.size()) < c.n_used) {
        std::int32_t const e = std::int32_t(random.below(std::uint64_t(random.below(3) == 0 ? c.n_experts : (c.n_experts + 1) / 2)));
        if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
      }
      ids.insert(ids.end(), chosen.begin(), chosen.end());  // in any order
    }
    for (std::int32_t e = 0; e < c.n_experts; ++e) weights.push_back({part(gate, e), part(up, e), part(down, e), 0, 0});
  }
  std::size_t n_slots() const { return std::size_t(c.n_tokens) * std::size_t(c.n_used); }
  std::byte const* part(std::vector<std::byte> const& all, std::int32_t expert) const {
    return all.data() + all.size() / std::size_t(c.n_experts) * std::size_t(expert);
  }
  ExpertsArgs args() const {
    ExpertsArgs a;
    a.x = x.data();
    a.n_tokens = c.n_tokens;
    a.n_used = c.n_used;
    a.dim = c.dim;
    a.hidden_dim = c.hidden_dim;
    a.gate_type = c.gate, a.up_type = c.up, a.down_type = c.down;
    return a;
  }

  WindowCase c;
  std::vector<std::byte> gate, up, down;
  std::vector<float> x, before, slot_weights;
  std::vector<std::int32_t> ids;
  std::vector<ExpertGroup> weights;
};

constexpr std::size_t guard = 256;
void check_guard(std::vector<std::byte> const& room) {
  for (std::size_t i = room.size() - guard; i < room.size(); ++i) {
    if (room[i] != std::byte{0xcd}) FAIL("room was overrun");
  }
}

/// Where windows end, and how many slots are computed at once.
struct Cut {
  std::vector<std::int32_t> at;
  std::int32_t piece_slots;
  std::vector<std::int32_t> ranks = {};  ///< by expert; none: experts in their order
  bool from_zero = false;
};

/// What is in y, or the sum. run(op, args) runs one of the ops of `table`.
template <class Run>
std::vector<float> in_windows(Layer const& layer, Cut const& cut, bool sums, Run const& run) {
  WindowCase const& c = layer.c;
  std::vector<float> y = poisoned(layer.n_slots() * std::size_t(c.dim)), sum = layer.before;
  std::vector<std::byte> workspace(expert_window_bytes(cut.piece_slots, c.dim, c.hidden_dim) + guard, std::byte{0xcd}),
      x_rows(expert_rows_bytes(c.n_tokens, c.dim) + guard, std::byte{0xcd});
  std::vector<std::int32_t> begins(std::size_t(c.n_experts) + 1), slots(layer.n_slots()), places(layer.n_slots());
  ExpertWindowArgs a;
  a.experts = layer.args();
  a.experts.y = sums ? nullptr : y.data();
  a.experts.n_slots = cut.piece_slots;
  a.experts.workspace = workspace.data();
  a.ids = layer.ids.data();
  a.begins = begins.data(), a.slots = slots.data(), a.places = places.data(), a.x_rows = x_rows.data();
  a.n_experts = c.n_experts;
  if (sums) a.slot_weights = layer.slot_weights.data(), a.sum = sum.data();
  a.from_zero = cut.from_zero;
  std::vector<ExpertGroup> by_rank = layer.weights;
  if (!cut.ranks.empty()) {
    a.ranks = cut.ranks.data();
    for (std::size_t e = 0; e < by_rank.size(); ++e) by_rank[std::size_t(cut.ranks[e])] = layer.weights[e];
  }
  run(true, a);
  for (std::size_t i = 0; i + 1 < cut.at.size(); ++i) {
    std::vector<ExpertGroup> only(layer.weights.size());  // the window's alone are there
    std::copy(by_rank.begin() + cut.at[i], by_rank.begin() + cut.at[i + 1], only.begin() + cut.at[i]);
    a.weights = only.data();
    a.first_expert = cut.at[i];
    a.end_expert = cut.at[i + 1];
    run(false, a);
  }
  check_guard(workspace);
  check_guard(x_rows);
  return sums ? sum : y;
}

std::vector<float> in_windows(Cpu& cpu, Layer const& layer, Cut const& cut, bool sums) {
  return in_windows(layer, cut, sums, [&](bool groups, ExpertWindowArgs const& a) {
    cpu.run(groups ? cpu.table().group_slots : cpu.table().expert_window, a);
  });
}

std::vector<Cut> cuts(Layer const& layer) {
  std::int32_t const n = layer.c.n_experts, all = std::int32_t(layer.n_slots());
  return {{{0, n}, all}, {{0, n}, 1}, {{0, n / 3, n / 3, n - 1, n}, all}, {{0, 1, n / 2, n}, 7}, {{0, n / 2, n}, all / 2}};
}

/// By routed_experts, which needs no windows.
std::vector<float> at_once(Cpu& cpu, Layer const& layer) {
  WindowCase const& c = layer.c;
  std::vector<float> y = poisoned(layer.n_slots() * std::size_t(c.dim));
  std::vector<std::byte> workspace(experts_workspace_bytes(c.n_tokens, std::int32_t(layer.n_slots()), c.dim, c.hidden_dim));
  std::vector<ExpertGroup> groups(layer.weights.size());
  std::vector<std::int32_t> slots(layer.n_slots()), counts(layer.weights.size() + 1);
  RoutedExpertsArgs a;
  a.experts = layer.args();
  a.experts.y = y.data();
  a.experts.n_slots = std::int32_t(layer.n_slots());
  a.experts.workspace = workspace.data();
  a.ids = layer.ids.data();
  a.weights = layer.weights.data();
  a.groups = groups.data(), a.slots = slots.data(), a.counts = counts.data();
  a.n_experts = c.n_experts;
  cpu.run(cpu.table().routed_experts, a);
  return y;
}

}  // namespace

TEST_CASE("slots are listed by expert, ascending, and each knows its place") {
  for (WindowCase const& c : cases) {
    Layer const layer(c, 31);
    INFO(text(c));
    std::vector<std::int32_t> expected_slots, expected_begins{0};
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      for (std::size_t i = 0; i < layer.ids.size(); ++i) {
        if (layer.ids[i] == e) expected_slots.push_back(std::int32_t(i));
      }
      expected_begins.push_back(std::int32_t(expected_slots.size()));
    }
    auto const check = [&](auto const& run) {
      std::vector<std::int32_t> begins(std::size_t(c.n_experts) + 1, -1), slots(layer.n_slots(), -1), places(layer.n_slots(), -1);
      std::vector<std::byte> x_rows(expert_rows_bytes(c.n_tokens, c.dim));
      ExpertWindowArgs a;
      a.experts = layer.args();
      a.ids = layer.ids.data();
      a.begins = begins.data(), a.slots = slots.data(), a.places = places.data(), a.x_rows = x_rows.data();
      a.n_experts = c.n_experts;
      run(a);
      CHECK(begins == expected_begins);
      CHECK(slots == expected_slots);
      for (std::size_t i = 0; i < slots.size(); ++i) REQUIRE(places[std::size_t(slots[i])] == std::int32_t(i));
    };
    check([](ExpertWindowArgs const& a) { reference::group_slots(a); });
    for (Isa const isa : available_isas()) {
      Cpu cpu(isa, false, 2);
      check([&](ExpertWindowArgs const& a) { cpu.run(cpu.table().group_slots, a); });
    }
  }
}

TEST_CASE("the least of a token's places in a range is found, or none") {
  std::int32_t const places[] = {40, 3, 17, 90};
  CHECK(next_place(places, 4, 0, 100) == 3);
  CHECK(next_place(places, 4, 4, 100) == 17);
  CHECK(next_place(places, 4, 17, 18) == 17);
  CHECK(next_place(places, 4, 18, 40) == -1);
  CHECK(next_place(places, 2, 41, 100) == -1);
}

TEST_CASE("reference windows of experts are the experts of each slot, and their sum in order of experts") {
  for (WindowCase const& c : cases) {
    INFO(text(c));
    Layer const layer(c, 32);
    auto const run = [](bool groups, ExpertWindowArgs const& a) { groups ? reference::group_slots(a) : reference::expert_window(a); };
    std::vector<float> expected = poisoned(layer.n_slots() * std::size_t(c.dim));
    RoutedExpertsArgs routed;
    routed.experts = layer.args();
    routed.experts.y = expected.data();
    routed.experts.n_slots = std::int32_t(layer.n_slots());
    routed.ids = layer.ids.data();
    routed.weights = layer.weights.data();
    routed.n_experts = c.n_experts;
    reference::routed_experts(routed);
    CHECK(same_bits(in_windows(layer, {{0, c.n_experts / 2, c.n_experts}, 3}, false, run), expected));
    std::vector<float> sum = layer.before;
    for (std::int32_t e = 0; e < c.n_experts; ++e) {
      for (std::size_t slot = 0; slot < layer.ids.size(); ++slot) {
        if (layer.ids[slot] != e) continue;
        for (std::size_t k = 0; k < std::size_t(c.dim); ++k) {
          float& s = sum[slot / std::size_t(c.n_used) * std::size_t(c.dim) + k];
          s = float(double(s) + double(layer.slot_weights[slot]) * double(expected[slot * std::size_t(c.dim) + k]));
        }
      }
    }
    CHECK(same_bits(in_windows(layer, {{0, c.n_experts / 2, c.n_experts}, 3}, true, run), sum));
  }
}

TEST_CASE("CPU windows of experts give what all at once give, wherever windows and pieces end") {
  for (Isa const isa : available_isas()) {
    for (bool const f32 : {false, true}) {
      Cpu one(isa, f32, 1), three(isa, f32, 3);
      for (WindowCase const& c : cases) {
        INFO(name(isa) << (f32 ? " f32: " : ": ") << text(c));
        Layer const layer(c, 33);
        std::vector<float> const expected = at_once(one, layer);
        for (Cut const& cut : cuts(layer)) {
          CHECK(same_bits(in_windows(one, layer, cut, false), expected));
          CHECK(same_bits(in_windows(three, layer, cut, false), expected));
        }
      }
    }
  }
}

TEST_CASE("CPU windows of experts, added to the rows one after another, give the same sum wherever windows and pieces end") {
  for (Isa const isa : available_isas()) {
    for (bool const f32 : {false, true}) {
      Cpu one(isa, f32, 1), three(isa, f32, 3);
      for (WindowCase const& c : cases) {
        INFO(name(isa) << (f32 ? " f32: " : ": ") << text(c));
        Layer const layer(c, 34);
        std::vector<float> const all = in_windows(one, layer, {{0, c.n_experts}, std::int32_t(layer.n_slots())}, true);
        for (Cut const& cut : cuts(layer)) {
          CHECK(same_bits(in_windows(one, layer, cut, true), all));
          CHECK(same_bits(in_windows(three, layer, cut, true), all));
        }
        // Outputs of slots are tested elsewhere: here, that each is added once, with its weight.
        std::vector<float> const y = at_once(one, layer);
        Worst worst;
        for (std::size_t i = 0; i < all.size(); ++i) {
          double expected = double(layer.before[i]), size = std::abs(expected);
          std::size_t const token = i / std::size_t(c.dim), k = i % std::size_t(c.dim);
          for (std::size_t slot = token * std::size_t(c.n_used); slot < (token + 1) * std::size_t(c.n_used); ++slot) {
            double const term = double(layer.slot_weights[slot]) * double(y[slot * std::size_t(c.dim) + k]);
            expected += term;
            size += std::abs(term);
          }
          worst.compare(std::int64_t(i), double(all[i]), expected, (c.n_used + 1) * double(epsilon) * size);
        }
        INFO(worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("windows take experts by rank: one part of the ranks here, the other elsewhere") {
  for (WindowCase const& c : cases) {
    Layer const layer(c, 36);
    SplitMix64 random(37);
    std::vector<std::int32_t> ranks(std::size_t(c.n_experts));
    for (std::size_t e = 0; e < ranks.size(); ++e) ranks[e] = std::int32_t(e);
    for (std::size_t e = ranks.size(); e > 1; --e) std::swap(ranks[e - 1], ranks[random.below(e)]);
    std::int32_t const n = c.n_experts, half = n / 2, all = std::int32_t(layer.n_slots());
    auto const check = [&](std::vector<float> const& expected, auto const& run) {
      std::vector<float> const first = in_windows(layer, {{0, half / 2, half}, all, ranks}, false, run),
                               rest = in_windows(layer, {{half, n}, 5, ranks}, false, run);
      for (std::size_t slot = 0; slot < layer.ids.size(); ++slot) {
        bool const is_first = ranks[std::size_t(layer.ids[slot])] < half;
        for (std::size_t i = slot * std::size_t(c.dim); i < (slot + 1) * std::size_t(c.dim); ++i) {
          REQUIRE(same_bits({(is_first ? first : rest)[i]}, {expected[i]}));
          REQUIRE(same_bits({(is_first ? rest : first)[i]}, {poison}));
        }
      }
      // Sums of both parts, one of them from nothing, are the sum of all.
      Cut nothing{{half, n}, 5, ranks};
      nothing.from_zero = true;
      std::vector<float> const here = in_windows(layer, {{0, half}, all, ranks}, true, run), there = in_windows(layer, nothing, true, run);
      Worst worst;
      for (std::size_t i = 0; i < here.size(); ++i) {
        double sum = double(layer.before[i]), size = std::abs(sum);
        std::size_t const token = i / std::size_t(c.dim), k = i % std::size_t(c.dim);
        for (std::size_t slot = token * std::size_t(c.n_used); slot < (token + 1) * std::size_t(c.n_used); ++slot) {
          double const term = double(layer.slot_weights[slot]) * double(expected[slot * std::size_t(c.dim) + k]);
          sum += term;
          size += std::abs(term);
        }
        worst.compare(std::int64_t(i), double(here[i]) + double(there[i]), sum, (c.n_used + 2) * double(epsilon) * size);
      }
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    };
    INFO(text(c));
    auto const reference_run = [](bool groups, ExpertWindowArgs const& a) {
      groups ? reference::group_slots(a) : reference::expert_window(a);
    };
    check(in_windows(layer, {{0, n}, all}, false, reference_run), reference_run);
    for (Isa const isa : available_isas()) {
      INFO(name(isa));
      Cpu cpu(isa, false, 3);
      check(at_once(cpu, layer),
            [&](bool groups, ExpertWindowArgs const& a) { cpu.run(groups ? cpu.table().group_slots : cpu.table().expert_window, a); });
    }
  }
}

TEST_CASE("a router's id that is no expert is an error of the device where slots are grouped for windows, too") {
  for (std::int32_t const bad : {-1, cases[0].n_experts, 1 << 30}) {
    Layer layer(cases[0], 35);
    layer.ids[5] = bad;
    std::string const expected = concat("layer 0: the router chose expert ", bad, " of ", cases[0].n_experts);
    auto const check = [&](auto const& run) {
      try {
        in_windows(layer, {{}, 1}, false, run);
        FAIL("nothing was thrown");
      } catch (Error const& e) {
        CHECK(e.code() == Errc::device);
        INFO(e.what());
        CHECK(std::string(e.what()).find(expected) != std::string::npos);
      }
    };
    Cpu cpu(Isa::baseline);
    check([&](bool, ExpertWindowArgs const& a) { cpu.run(cpu.table().group_slots, a); });
    check([](bool, ExpertWindowArgs const& a) { reference::group_slots(a); });
  }
}
