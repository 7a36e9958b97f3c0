// Experts that come ahead of their layers, on guesses of a device that computes meanwhile (GuessArgs): right ones and wrong ones, in
// time, and between a layer's look and its request. Copies are held back to have each of it at will.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "error_of.hpp"
#include "golden/deep_mixture.hpp"
#include "golden/fused_rig.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

constexpr std::int32_t n_layers = 6;

RigOptions options(double cache_share, float fetched, LookAhead look_ahead = LookAhead::always) {
  return {.device_embeds = true,
          .capture = true,
          .maps_host = true,
          .fetched_misses = fetched,
          .cache_share = cache_share,
          .capture_rows = 1,
          .look_ahead = look_ahead,
          .read_ahead = true,
          .helps = true};
}

/// What each layer of each step chose. Written by a device's thread, read once it is idle.
using Routes = std::vector<std::vector<std::set<std::int32_t>>>;

Routes routes_of(std::shared_ptr<Transformer const> const& model, std::vector<std::int32_t> const& tokens) {
  Rig rig(model, options(0.4, 1, LookAhead::never));
  Routes routes;
  rig.device.before_help = [&](HelpArgs const& a) {
    if (a.layer == 0) routes.emplace_back();
    routes.back().emplace_back(a.ids, a.ids + a.n_used);
  };
  rig.all(tokens, {1});
  return routes;
}

/// Guesses made up by the test: what the next layers will choose, or what they will not. In each step the first one that is missing is
/// on its way before the device goes on.
class Guesser {
 public:
  Guesser(Rig& rig, Routes const& routes, bool right) : rig_(&rig), routes_(&routes), right_(right) {
    rig.device.before_router = [this](RouterAheadArgs const& a) {
      if (a.layer == 0) target_ = -1, ++step_;
      if (a.layer == target_ && before_look) before_look();
      experts_ = a.experts;
    };
    rig.device.before_help = [this](HelpArgs& a) {
      if (a.layer == target_ && when_looked) when_looked(a);
      guess(a);
      a.guesses.n_layers = 0;
    };
  }
  /// Before the layer of that guess looks which of its experts are there; after it has. On the device's thread.
  std::function<void()> before_look;
  std::function<void(HelpArgs const&)> when_looked;
  std::atomic<bool> holds{false};         ///< from before the guess on: for HeldCopies::may_go
  std::atomic<std::uint64_t> n_steps{0};  ///< that had one

 private:
  void guess(HelpArgs const& a) {
    bool const first = target_ < 0;
    layer_ = a.layer;
    for (std::int32_t d = 0; d < a.guesses.n_layers && target_ < 0; ++d) {
      if (misses(a, d)) target_ = layer_ + 1 + d;
    }
    std::uint64_t const n_before = rig_->copy.n_submitted;
    if (first && target_ >= 0) holds = true;
    for (std::int32_t d = 0; d < a.guesses.n_layers; ++d) {
      for (std::int32_t e = 0; e < a.n_experts; ++e) {
        auto const word = std::bit_cast<std::uint64_t>(ExpertGuess{is_guessed(d, e) ? 1.0f : 0.0f, std::uint32_t(a.state->step)});
        std::atomic_ref(reinterpret_cast<std::uint64_t&>(a.guesses.layers[d].guesses[e])).store(word);
      }
    }
    if (!first || target_ < 0) return;
    while (rig_->copy.n_submitted == n_before) std::this_thread::yield();
    ++n_steps;
  }
  bool is_guessed(std::int32_t d, std::int32_t e) const { return (*routes_)[step_][std::size_t(layer_ + 1 + d)].contains(e) == right_; }
  /// Of as many as the host takes; tables of layers follow each other.
  bool misses(HelpArgs const& a, std::int32_t d) const {
    std::size_t n = 0;
    for (std::int32_t e = 0; e < a.n_experts && n < (*routes_)[0][0].size(); ++e) {
      if (!is_guessed(d, e)) continue;
      ++n;
      auto& gate = const_cast<void const*&>(experts_[(1 + d) * a.n_experts + e].gate);
      if (std::atomic_ref(gate).load() == nullptr) return true;
    }
    return false;
  }

  Rig* rig_;
  Routes const* routes_;
  bool right_;
  ExpertGroup const* experts_ = nullptr;  // the device's table of the layer
  std::int32_t layer_ = 0, target_ = -1;
  std::size_t step_ = ~std::size_t{0};
};

void wait_for_copies(Rig& rig) {
  while (rig.copy.n_done < rig.copy.n_submitted) std::this_thread::yield();
}

struct Fixture {
  explicit Fixture(std::int32_t n = n_layers) : model(open_deep("qwen3moe.f32.gguf", n)) {}
  std::shared_ptr<Transformer const> model;
  GoldenFixture f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<float> expected = Rig(model, {.vram_bytes = 0}).all(f.tokens, {1});
  float range() const {
    auto const [least, most] = std::minmax_element(expected.begin(), expected.end());
    return *most - *least;
  }
};

}  // namespace

TEST_CASE("ahead: whatever is guessed, in time or not, logits stay", "[golden][helped]") {
  Fixture const x;
  for (std::vector<std::size_t> const& sizes : {std::vector<std::size_t>{1}, {1, 1, 9, 1, 2, 1, 2, 1, 5, 1}}) {
    for (double const cache_share : {0.1, 0.25, 0.5}) {
      for (float const fetched : {0.0f, 0.4f, 1.0f}) {
        INFO("cache " << cache_share << ", fetched " << fetched << ", " << sizes.size());
        Rig rig(x.model, options(cache_share, fetched));
        CHECK(worst_difference(rig.all(x.f.tokens, sizes), x.expected, x.range()) < tolerance);
        HelpCounters const help = rig.executor.help_counters();
        CHECK(help.n_in_time <= help.n_right);
        CHECK(help.n_right <= help.n_guessed);
        CHECK((help.wasted_bytes == 0) == (help.n_right == help.n_guessed));
        if (fetched == 0) CHECK(help.n_guessed == 0);
      }
    }
  }
}

TEST_CASE("ahead: guesses are of the row that the layer's router had, whatever became of it since", "[golden][helped]") {
  Fixture const x;
  for (double const cache_share : {0.25, 0.5}) {
    Rig rig(x.model, options(cache_share, 0.5f));
    // On the device's thread, read once it is idle.
    std::vector<float> row;
    std::int32_t layer = -1;
    std::size_t n_same = 0, n_other = 0, n_apart = 0;
    rig.device.before_router = [&](RouterAheadArgs const& a) {
      row.assign(a.own.x, a.own.x + a.own.dim);
      layer = a.layer;
      n_other += (a.row != nullptr) != (a.layer + 1 < n_layers);
    };
    rig.device.before_help = [&](HelpArgs& a) {
      n_other += a.guesses.n_layers != std::min(GuessArgs::max_layers, n_layers - 1 - a.layer);
      if (a.guesses.n_layers == 0) return;
      bool const same = layer == a.layer && std::equal(row.begin(), row.end(), a.guesses.row) &&
                        a.state->row == a.state->step * 1024 + std::uint64_t(a.layer) + 1;
      ++(same ? n_same : n_other);
      n_apart += a.guesses.row != a.hidden;
    };
    CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
    CHECK(n_other == 0);
    CHECK(n_same >= (n_layers - 1) * x.f.tokens.size());
    CHECK(n_apart == n_same);
  }
  Rig rig(x.model, options(0.5, 0.5f, LookAhead::never));
  std::size_t n_guesses = 0;
  rig.device.before_help = [&](HelpArgs& a) { n_guesses += std::size_t(a.guesses.n_layers); };
  rig.all(x.f.tokens, {1});
  CHECK(n_guesses == 0);
}

// In the next cases all that is missing is fetched, so that no copies but those of guesses are made.

TEST_CASE("ahead: an expert that comes before its layer looks is asked for by nobody", "[golden][helped]") {
  Fixture const x;
  Routes const routes = routes_of(x.model, x.f.tokens);
  Rig rig(x.model, options(0.25, 1));
  Guesser guesser(rig, routes, true);
  guesser.before_look = [&] { wait_for_copies(rig); };
  CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
  HelpCounters const help = rig.executor.help_counters();
  CHECK(guesser.n_steps > 0);
  CHECK(help.n_in_time >= guesser.n_steps);
  CHECK(help.n_right == help.n_guessed);
  CHECK(help.wasted_bytes == 0);
}

TEST_CASE("ahead: an expert that comes between its layer's look and the request is computed once", "[golden][helped]") {
  Fixture const x;
  Routes const routes = routes_of(x.model, x.f.tokens);
  Rig rig(x.model, options(0.25, 1));
  Guesser guesser(rig, routes, true);
  rig.copy.may_go = [&] { return !guesser.holds; };
  guesser.when_looked = [&](HelpArgs const&) {
    guesser.holds = false;
    wait_for_copies(rig);
  };
  CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
  HelpCounters const help = rig.executor.help_counters();
  CHECK(guesser.n_steps > 0);
  CHECK(help.n_right >= help.n_in_time + guesser.n_steps);
}

TEST_CASE("ahead: an expert that is still on its way when it is asked for is waited for", "[golden][helped]") {
  Fixture const x;
  Routes const routes = routes_of(x.model, x.f.tokens);
  Rig rig(x.model, options(0.25, 1));
  Guesser guesser(rig, routes, true);
  std::atomic<std::uint64_t> request = 0;
  std::atomic<HelpMail*> mail = nullptr;
  rig.copy.may_go = [&] {
    if (!guesser.holds) return true;
    if (mail == nullptr || std::atomic_ref(mail.load()->decided).load() < request) return false;
    guesser.holds = false;
    return true;
  };
  guesser.when_looked = [&](HelpArgs const& a) {
    request = a.state->step * 1024 + std::uint64_t(a.layer) + 1;
    mail = a.mail;
  };
  std::vector<float> got;
  for (std::int32_t const token : x.f.tokens) {
    mail = nullptr;
    std::vector<float> const logits = rig.step({{0, token}});
    got.insert(got.end(), logits.begin(), logits.end());
  }
  CHECK(worst_difference(got, x.expected, x.range()) < tolerance);
  HelpCounters const help = rig.executor.help_counters();
  CHECK(guesser.n_steps > 0);
  CHECK(help.n_right >= help.n_in_time + guesser.n_steps);
}

TEST_CASE("ahead: what is brought for later never outnumbers the entries of copies", "[golden][helped]") {
  constexpr std::int32_t n_deep = 12;
  static_assert(n_deep - 2 > ahead_entries);
  Fixture const x(n_deep);
  for (bool const guesses_cached : {false, true}) {
    INFO((guesses_cached ? "guesses of experts that are there" : "no guesses"));
    Rig rig(x.model, options(1.5, 0.3f));  // room for all: what has been there stays
    std::atomic<bool> holds = false;
    rig.copy.may_go = [&] { return !holds; };
    // On the device's thread: within a step nobody comes before its last layer asks.
    std::uint64_t most = 0;
    std::atomic<std::uint64_t> n_guesses = 0;
    ExpertGroup const* experts = nullptr;
    auto const guess = [&](HelpArgs const& a) {
      std::int32_t const n_used = x.model->config().layers.front().experts.n_experts_used;
      auto const is_there = [&](std::int32_t d, std::int32_t e) {
        auto& gate = const_cast<void const*&>(experts[(1 + d) * a.n_experts + e].gate);
        return std::atomic_ref(gate).load() != nullptr;
      };
      for (std::int32_t d = 0; d < a.guesses.n_layers; ++d) {
        std::int32_t n = 0;
        for (std::int32_t e = 0; e < a.n_experts; ++e) n += is_there(d, e);
        if (!guesses_cached || n < n_used) return;  // a layer's guesses are for all that it will choose
      }
      for (std::int32_t d = 0; d < a.guesses.n_layers; ++d) {
        for (std::int32_t e = 0; e < a.n_experts; ++e) {
          auto const word = std::bit_cast<std::uint64_t>(ExpertGuess{is_there(d, e) ? 1.0f : 0.0f, std::uint32_t(a.state->step)});
          std::atomic_ref(reinterpret_cast<std::uint64_t&>(a.guesses.layers[d].guesses[e])).store(word);
        }
      }
      n_guesses += a.guesses.n_layers > 0;
    };
    rig.device.before_router = [&](RouterAheadArgs const& a) { experts = a.experts; };
    rig.device.before_help = [&](HelpArgs& a) {
      if (a.layer == n_deep - 1) {
        most = std::max(most, rig.copy.n_submitted - rig.copy.n_done);
        holds = false;
      } else if (a.layer == 0) {
        wait_for_copies(rig);
        holds = true;
      }
      guess(a);
      a.guesses.n_layers = 0;
    };
    CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
    CHECK(most > std::uint64_t(most_on_way));
    CHECK(most <= std::uint64_t(ahead_entries));
    CHECK((n_guesses > 0) == guesses_cached);
    CHECK(rig.executor.help_counters().n_guessed == 0);
  }
}

TEST_CASE("ahead: wrong guesses cost room and bytes, and are the first to go", "[golden][helped]") {
  Fixture const x;
  Routes const routes = routes_of(x.model, x.f.tokens);
  Rig rig(x.model, options(0.25, 1));
  Guesser guesser(rig, routes, false);
  CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
  HelpCounters const help = rig.executor.help_counters();
  CHECK(guesser.n_steps > 0);
  CHECK(help.n_guessed >= guesser.n_steps);
  CHECK(help.n_right == 0);
  std::size_t const bytes = std::ranges::find(x.model->table().shards, ShardKind::expert, &Shard::kind)->bytes;
  CHECK(help.wasted_bytes == help.n_guessed * bytes);
  CHECK(rig.cache.counters().evictions >= help.n_guessed - rig.cache.bytes() / bytes);
}

TEST_CASE("ahead: a copy that cannot be submitted fails the step, and the next one is right", "[golden][helped]") {
  Fixture const x;
  Rig rig(x.model, options(0.25, 0.5f));
  std::atomic<int> n_left = 0;
  rig.copy.before_submit = [&] {
    if (n_left-- == 1) throw Error(Errc::device, "no copy");
  };
  for (int at = 1; at < 4; ++at) {
    n_left = at;
    CHECK(error_of([&] { rig.all(x.f.tokens, {1}); }).code == Errc::device);
    rig.executor.recover();
    rig.lengths[0] = 0;
    CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
  }
}

TEST_CASE("ahead: where the device loses patience, or somebody cancels, the next step is right", "[golden][helped]") {
  Fixture const x;
  for (std::uint64_t const patience_ns : {1, 5'000, 20'000, 100'000}) {
    INFO(patience_ns << " ns");
    RigOptions o = options(0.25, 0.5f);
    o.help_patience_ns = patience_ns;
    Rig rig(x.model, o);
    CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
    HelpCounters const help = rig.executor.help_counters();
    CHECK(help.n_steps + help.n_timed_out == x.f.tokens.size());
  }
  Rig rig(x.model, options(0.25, 0.3f));
  rig.all({x.f.tokens.begin(), x.f.tokens.begin() + 4}, {1});
  for (int round = 0; round < 3; ++round) {
    rig.host.launches.clear();
    rig.host.fail_at = 0;  // the experts that the host computes for the next request
    CHECK(error_of([&] { rig.step({{0, x.f.tokens[4]}}); }).code == Errc::device);
    rig.host.fail_at = ~std::size_t{0};
    rig.executor.recover();
    rig.lengths[0] = 0;
    CHECK(worst_difference(rig.all(x.f.tokens, {1}), x.expected, x.range()) < tolerance);
  }
}

TEST_CASE("ahead: the cache changes its size between steps", "[golden][helped]") {
  Fixture const x;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    Rig rig(x.model, options(0.6, 0.5f));
    std::size_t const bytes = rig.cache.bytes();
    std::vector<float> got;
    for (std::int32_t const token : x.f.tokens) {
      rig.plans.images.front().vram.cache_bytes = VramAccount::round_up(bytes * (2 + random.below(7)) / 8);
      std::vector<float> const logits = rig.step({{0, token}});
      got.insert(got.end(), logits.begin(), logits.end());
    }
    CHECK(worst_difference(got, x.expected, x.range()) < tolerance);
  }
}
