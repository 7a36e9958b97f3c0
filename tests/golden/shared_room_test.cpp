// One room for keys and values and for cached experts: sequences grow, end and begin again while experts give way and come back; and
// always the bits of an engine where nothing is shared.
#include <algorithm>
#include <array>
#include <optional>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "golden/uneven_layers.hpp"
#include "temp_dir.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

constexpr std::int32_t max_context = 1024, page_tokens = 16;

/// Everything in VRAM but experts, of which the cache has few when all positions are used; of positions a share.
struct RoomForFew {
  float share = 1;
  bool resident = false;

  Placements place(PlanRequest const& r) const {
    Placements out{r};
    if (r.ring_bytes > 0) {
      out.declined = true;
      return out;
    }
    std::fill(out.state_in_vram.begin(), out.state_in_vram.end(), share);
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind == ShardKind::embedding) continue;
      bool const cached = r.shards[i].kind == ShardKind::expert && !resident;
      out.shards[i] = cached ? Placement{Tier::pinned, 1, true} : Placement{Tier::vram, 1};
    }
    if (!resident) out.cache_bytes = ExpertLayers(r.shards).min_cache_bytes();
    return out;
  }
};
struct Tiers {
  std::array<int, 3> all{1, 16, 128};
  std::span<int const> bounds() const { return all; }
  std::size_t select(int n) const { return n <= all[0] ? 0 : n <= all[1] ? 1 : 2; }
};
/// With a copy lane for keys and values, which stand behind no expert then.
struct TwoLanes {
  std::shared_ptr<LaneSet> lanes;
  std::unique_ptr<CpuBackend> host;
  std::unique_ptr<SimBackend> device;
  std::unique_ptr<SimCopyEngine> copy, kv_copy;
};
struct RoomPolicies : SimPolicies {
  using Placement = RoomForFew;
  using TokenTiers = Tiers;
  static TwoLanes make_machine(MachineOptions const& o, std::uint64_t seed = 0, std::shared_ptr<Faults> faults = nullptr) {
    auto sim = SimPolicies::make_machine(o, LaneSet::seeded(seed), std::move(faults));
    TwoLanes m{std::move(sim.lanes), std::move(sim.host), std::move(sim.device), std::move(sim.copy), nullptr};
    m.kv_copy = std::make_unique<SimCopyEngine>(m.lanes, SimCopyOptions{.lane_name = "kv copy"});
    return m;
  }
};
struct HostPolicies : CpuPolicies {
  using TokenTiers = Tiers;
};

EngineOptions options_of(std::size_t vram_bytes) {
  EngineOptions o;
  o.vram_bytes = vram_bytes;
  o.max_context = max_context;
  o.n_threads = 1;
  o.n_sequences = 2;
  o.kv_page_tokens = page_tokens;
  return o;
}

Engine<RoomPolicies> engine_of(std::shared_ptr<Transformer const> model, RoomForFew placement, std::uint64_t seed,
                               std::shared_ptr<Faults> faults = nullptr, std::string const& prior_folder = {}) {
  PolicyValues<RoomPolicies> values;
  values.placement = placement;
  EngineOptions o = options_of(16 * MiB);
  o.profile.folder = prior_folder;
  o.expert_prior = !prior_folder.empty();
  return Engine<RoomPolicies>(std::move(model), o, std::move(values),
                              RoomPolicies::make_machine({o.vram_bytes, 1, false, false}, seed, std::move(faults)));
}

std::vector<std::int32_t> tokens_of(std::int32_t n, std::uint64_t salt) {
  SplitMix64 random(salt);
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back(3 + std::int32_t(random.below(60)));
  return tokens;
}

/// Two sequences that grow by prompts and tokens, are cut back, end and begin again, by seed; logits of every step.
template <class E>
std::vector<float> lives(E& engine, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::array<std::optional<Sequence>, 2> sequences{engine.new_sequence(), engine.new_sequence()};
  std::vector<float> out;
  for (int i = 0; i < 40; ++i) {
    std::optional<Sequence>& held = sequences[random.below(2)];
    Sequence& s = *held;
    std::uint64_t const choice = random.below(8);
    std::int32_t const left = max_context - s.length();
    if (choice == 0 || left < 4) {
      if (random.below(2) == 0) {
        s.truncate(std::int32_t(random.below(std::uint64_t(s.length()) + 1)));
      } else {
        held.reset();
        held.emplace(engine.new_sequence());
      }
      continue;
    }
    std::int32_t const n = choice < 4 ? std::int32_t(1 + random.below(std::uint64_t(std::min(left, 300)))) : 1;
    std::span<float const> const logits = engine.prefill(s, tokens_of(n, random.below(1 << 30)));
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

template <class E>
void say_tokens(E& engine, Sequence const& sequence) {
  for (std::int32_t const token : tokens_of(24, 7)) engine.decode(sequence, token);
}

/// Share of uses of experts that found them in the cache, of a few tokens behind what a sequence has.
double hits_of(Engine<RoomPolicies>& engine, Sequence const& sequence) {
  ExpertCache::Counters const before = engine.stats().experts;
  say_tokens(engine, sequence);
  ExpertCache::Counters const after = engine.stats().experts;
  double const hits = double(after.hits - before.hits), misses = double(after.misses - before.misses);
  return hits / (hits + misses);
}

}  // namespace

TEST_CASE("while sequences live and die in the room of cached experts, logits have the CPU's bits", "[golden][kv]") {
  std::uint64_t n_evictions = 0;
  for (bool const uneven : {false, true}) {
    for (char const* file : {"qwen3moe.mixed.gguf", "qwen3moe_k.mixed.gguf"}) {
      auto const model = uneven ? open_uneven(file) : open_golden(file);
      REQUIRE(4 * max_context * KvCache::page_bytes(model->config().layers[0].attention, DType::f16, page_tokens) / page_tokens >
              ExpertLayers(model->table().shards).bytes);  // much is shared
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        Engine<HostPolicies> cpu(model, options_of(0));
        std::vector<float> const expected = lives(cpu, seed);
        for (RoomForFew const& placement : {RoomForFew{1, false}, RoomForFew{1, true}}) {
          INFO(file << (uneven ? " uneven" : "") << " seed " << seed << (placement.resident ? " resident" : ""));
          Engine<RoomPolicies> engine = engine_of(model, placement, seed);
          for (PlanImage const& image : engine.plans().images) {
            CHECK((image.plan.cache_bytes > 0) == !placement.resident);
            CHECK((image.vram.shared_bytes > 0) == !placement.resident);
            CHECK(image.vram.total_bytes <= image.plan.vram_bytes);
          }
          CHECK(lives(engine, seed) == expected);
          n_evictions += engine.stats().experts.evictions;
        }
      }
    }
  }
  CHECK(n_evictions > 0);
}

TEST_CASE("positions beyond the border are the host's, those before it share their room", "[golden][kv]") {
  auto const model = open_uneven("qwen3moe.mixed.gguf");
  Engine<RoomPolicies> part = engine_of(model, {0.25f, false}, 3), resident = engine_of(model, {0.25f, true}, 5);
  CHECK(lives(part, 11) == lives(resident, 11));
  CHECK(part.stats().experts.evictions > 0);
}

TEST_CASE("experts come back when contexts end", "[golden][kv]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  Engine<RoomPolicies> engine = engine_of(model, {}, 1);
  {
    Sequence const sequence = engine.new_sequence();
    engine.prefill(sequence, tokens_of(40, 1));
    hits_of(engine, sequence);  // most are there then
    CHECK(hits_of(engine, sequence) > 0.9);
  }
  Sequence other = engine.new_sequence();
  {
    Sequence const full = engine.new_sequence();
    engine.prefill(full, tokens_of(max_context - 48, 2));
    hits_of(engine, full);
    CHECK(hits_of(engine, full) < 0.6);
    CHECK(full.length() == max_context);
    engine.prefill(other, tokens_of(10, 3));
    CHECK(hits_of(engine, other) < 0.6);  // of whatever sequence
  }
  hits_of(engine, other);
  CHECK(hits_of(engine, other) > 0.9);
}

TEST_CASE("a sequence that is restored takes its room from experts", "[golden][kv]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  Engine<HostPolicies> cpu(model, options_of(0)), cpu2(model, options_of(0));
  Sequence const from = cpu.new_sequence(), same = cpu2.new_sequence();
  std::int32_t const n = max_context - 60;
  cpu.prefill(from, tokens_of(n, 5));
  std::vector<std::byte> kv;
  cpu.core().export_kv(from, [&](std::span<std::byte const> bytes) { kv.insert(kv.end(), bytes.begin(), bytes.end()); });
  Engine<RoomPolicies> engine = engine_of(model, {}, 2);
  Sequence const warm = engine.new_sequence();
  engine.prefill(warm, tokens_of(20, 1));
  hits_of(engine, warm);
  REQUIRE(hits_of(engine, warm) > 0.9);
  cpu2.prefill(same, tokens_of(20, 1));
  for (int i = 0; i < 2; ++i) say_tokens(cpu2, same);
  auto const restore = [&](Sequence& to) {
    std::size_t at = 0;
    engine.core().import_kv(to, n, [&](std::span<std::byte> bytes) {
      std::copy_n(kv.begin() + std::ptrdiff_t(at), bytes.size(), bytes.begin());
      at += bytes.size();
    });
  };
  {
    Sequence ends = engine.new_sequence();
    restore(ends);
  }
  for (std::int32_t const token : tokens_of(8, 9)) {  // whose experts lay where that was
    std::span<float const> const expected = cpu2.decode(same, token), got = engine.decode(warm, token);
    REQUIRE(std::ranges::equal(got, expected));
  }
  Sequence to = engine.new_sequence();
  restore(to);
  for (std::int32_t const token : tokens_of(50, 6)) {
    std::span<float const> const expected = cpu.decode(from, token), got = engine.decode(to, token);
    REQUIRE(std::ranges::equal(got, expected));
  }
}

TEST_CASE("experts that are still coming when a sequence takes their room do not fall on it", "[golden][kv]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  Engine<HostPolicies> cpu(model, options_of(0));
  Sequence const sequence = cpu.new_sequence();
  std::vector<std::int32_t> const prompt = tokens_of(900, 3), more = tokens_of(8, 4);
  std::vector<std::vector<float>> expected;
  auto const say = [&](auto& engine, Sequence const& s, auto const& took) {
    for (std::int32_t const token : more) took(engine.decode(s, token));  // of the plan that experts came for
    took(engine.prefill(s, prompt));
  };
  say(cpu, sequence, [&](std::span<float const> logits) { expected.emplace_back(logits.begin(), logits.end()); });
  TempDir const folder;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Engine<RoomPolicies> engine = engine_of(model, {}, seed, nullptr, folder / "prior");
    CHECK((engine.expert_prior().filled_bytes > 0) == (seed > 0));  // what the first one used
    std::size_t at = 0;
    say(engine, engine.new_sequence(), [&](std::span<float const> logits) { CHECK(std::ranges::equal(logits, expected.at(at++))); });
  }
}

TEST_CASE("where experts that were coming fail as a sequence is restored in their place, the next step is right", "[golden][kv]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  std::int32_t const n = max_context - 60;
  Engine<HostPolicies> cpu(model, options_of(0));
  Sequence const from = cpu.new_sequence(), fresh = cpu.new_sequence();
  cpu.prefill(from, tokens_of(n, 5));
  std::vector<std::byte> kv;
  cpu.core().export_kv(from, [&](std::span<std::byte const> bytes) { kv.insert(kv.end(), bytes.begin(), bytes.end()); });
  std::span<float const> const logits = cpu.prefill(fresh, tokens_of(30, 6));
  std::vector<float> const expected(logits.begin(), logits.end());
  TempDir const folder;
  {
    Engine<RoomPolicies> first = engine_of(model, {}, 1, nullptr, folder / "prior");
    say_tokens(first, first.new_sequence());
  }
  auto const counted = std::make_shared<Faults>();
  static_cast<void>(engine_of(model, {}, 0, counted, folder / "prior"));
  int n_failed = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    auto const faults = std::make_shared<Faults>();
    faults->fail_at(FaultKind::copy, counted->seen(FaultKind::copy));  // the last one of loading, which brings experts ahead
    Engine<RoomPolicies> engine = engine_of(model, {}, seed, faults, folder / "prior");
    REQUIRE(engine.expert_prior().filled_bytes > 0);
    REQUIRE(faults->fired() == 1);
    Sequence to = engine.new_sequence();
    std::size_t at = 0;
    try {
      engine.core().import_kv(to, n, [&](std::span<std::byte> bytes) {
        std::copy_n(kv.begin() + std::ptrdiff_t(at), bytes.size(), bytes.begin());
        at += bytes.size();
      });
    } catch (Error const& e) {
      REQUIRE(e.code() == Errc::device);
      CHECK(to.length() == 0);
      ++n_failed;
    }
    faults->reset();
    CHECK(std::ranges::equal(engine.prefill(engine.new_sequence(), tokens_of(30, 6)), expected));
  }
  CHECK(n_failed > 0);
}

TEST_CASE("a copy that fails, whichever, costs its step alone where room is shared", "[golden][kv]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  std::vector<float> expected;
  std::uint64_t fired = 1;
  for (std::uint64_t nth = 0; nth <= 1 || fired > 0; nth += nth < 20 ? 1 : 17) {
    INFO("copy " << nth);
    auto const faults = std::make_shared<Faults>();
    Engine<RoomPolicies> engine = engine_of(model, {}, nth, faults);
    faults->fail_at(FaultKind::copy, nth);
    std::vector<float> got;
    for (std::int32_t const length : {300, 301, 40, 600}) {
      Sequence const sequence = engine.new_sequence();
      std::vector<std::int32_t> const all = tokens_of(length, std::uint64_t(length));
      while (sequence.length() < length) {
        try {
          std::span<float const> const logits = engine.prefill(sequence, std::span(all).subspan(std::size_t(sequence.length())));
          got.insert(got.end(), logits.begin(), logits.end());
        } catch (Error const& e) {
          REQUIRE(e.code() == Errc::device);
        }
      }
    }
    fired = faults->fired();
    if (nth == 0) expected = got;
    CHECK(got == expected);
  }
}
