// What the engine promises its callers.
#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/plan/placements/stream_all.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

EngineOptions small() {
  EngineOptions options;
  options.max_context = 64;
  options.n_threads = 1;
  return options;
}

struct EverythingResident {
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind != ShardKind::embedding) out.shards[i] = {Tier::vram, 1};
    }
    return out;
  }
};
struct HalfOfTheRows {
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind == ShardKind::ffn) out.shards[i] = {Tier::vram, 0.5f};
    }
    return out;
  }
};
/// Attention on the host while its KV is on the device, feed-forward the other way round: legal, if silly.
struct Crossed {
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    VramAccount vram{r};
    for (std::size_t l = 0; l < r.states.size(); ++l) out.state_in_vram[l] = l % 2 == 0 && vram.try_state(l) ? 1.f : 0.f;
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      Shard const& s = r.shards[i];
      bool const device = s.kind == ShardKind::attention ? s.layer % 2 == 1 : s.kind == ShardKind::ffn || s.kind == ShardKind::output;
      if (device && vram.try_resident(i)) out.shards[i] = {Tier::vram, 1};
    }
    return out;
  }
};
template <class Policy>
struct With : SimPolicies {
  using Placement = Policy;
};

}  // namespace

TEST_CASE("a batch that breaks the rules is refused and changes nothing") {
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), small());
  Sequence const s = engine.new_sequence();
  auto const step = [&](std::vector<Row> rows) { return error_of([&] { engine.step({rows}); }); };
  CHECK(step({{s.id(), 1, 3, true}}).says("position 0"));
  CHECK(step({{s.id(), 0, 3, true}, {s.id(), 2, 3, true}}).code == Errc::precondition);
  CHECK(step({{s.id(), 0, -1, true}}).says("-1"));
  CHECK(step({{s.id(), 0, 1 << 20, true}}).says("1048576"));
  CHECK(step({{SequenceId{77}, 0, 3, true}}).says("77"));
  CHECK(s.length() == 0);
  CHECK_FALSE(step({{s.id(), 0, 3, true}}).code);
  CHECK(s.length() == 1);
  CHECK(engine.step({}).n_rows() == 0);
}

TEST_CASE("what does not fit the context is refused with both numbers before anything runs") {
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), small());
  Sequence const s = engine.new_sequence();
  Thrown const t = error_of([&] { engine.prefill(s, std::vector<std::int32_t>(65, 3)); });
  CHECK(t.code == Errc::over_budget);
  CHECK(t.says("65", "64"));
  CHECK(s.length() == 0);
  engine.prefill(s, std::vector<std::int32_t>(64, 3));
  CHECK(error_of([&] { engine.decode(s, 3); }).code == Errc::over_budget);
}

TEST_CASE("sequences are as many as were asked for, and their slots come back") {
  EngineOptions options = small();
  options.n_sequences = 2;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options);
  Sequence a = engine.new_sequence();
  {
    Sequence b = engine.new_sequence();
    engine.prefill(b, std::vector<std::int32_t>{1, 2, 3});
    CHECK(engine.stats().host_kv_bytes > 0);
    CHECK(error_of([&] { engine.new_sequence(); }).says("2"));
  }
  Sequence c = engine.new_sequence();
  CHECK(c.length() == 0);
  engine.prefill(a, std::vector<std::int32_t>{1});
  a.truncate(0);
  CHECK(error_of([&] { a.truncate(1); }).code == Errc::precondition);
  { Sequence moved = std::move(c); }
  engine.prefill(a, std::vector<std::int32_t>{1});
  std::size_t const of_one = engine.stats().host_kv_bytes;
  a.truncate(0);
  engine.prefill(a, std::vector<std::int32_t>{1});
  CHECK(engine.stats().host_kv_bytes == of_one);  // nothing is kept for those that ended
}

TEST_CASE("a sequence of another engine is refused") {
  auto const model = open_golden("llama.f32.gguf");
  Engine<CpuPolicies> one(model, small()), other(model, small());
  Sequence const a = one.new_sequence(), b = other.new_sequence();
  CHECK(error_of([&] { other.prefill(a, std::vector<std::int32_t>{1}); }).says("another engine"));
  CHECK(a.length() == 0);
  CHECK(b.length() == 0);
}

TEST_CASE("an engine may be moved, and a sequence may outlive it") {
  auto const model = open_golden("llama.mixed.gguf");
  EngineOptions options = small();
  options.vram_bytes = MiB;
  options.n_sequences = 2;
  auto first = std::make_unique<Engine<SimPolicies>>(model, options);
  std::vector<float> const expected = all_logits(*first, {1, 2, 3}, {3});
  Sequence const kept = first->new_sequence();
  Engine<SimPolicies> second(std::move(*first));
  first.reset();
  CHECK(all_logits(second, {1, 2, 3}, {3}) == expected);
  static_assert(!std::is_move_assignable_v<Engine<SimPolicies>>);
}

TEST_CASE("more positions than can be counted are refused with the numbers") {
  auto const model = open_golden("llama.f32.gguf");
  for (auto const& [context, n] : {std::pair{2147483647, 1}, std::pair{32768, 65536}, std::pair{65536, 65537}}) {
    EngineOptions options;
    options.max_context = context;
    options.n_sequences = n;
    Thrown const t = error_of([&] { Engine<CpuPolicies>(model, options); });
    CHECK(t.code == Errc::over_budget);
    CHECK(t.says(std::to_string(context), std::to_string(n)));
  }
}

TEST_CASE("a budget for a bundle without a device says so") {
  EngineOptions options = small();
  options.vram_bytes = MiB;
  Thrown const t = error_of([&] { Engine<CpuPolicies>(open_golden("llama.f32.gguf"), options); });
  CHECK(t.code == Errc::out_of_memory);
  CHECK(t.says("no device"));
}

namespace {

struct OneTier {
  std::vector<int> bound{32};
  std::size_t selected = 0;
  std::span<int const> bounds() const { return bound; }
  std::size_t select(int) const { return selected; }
};
struct OneTierPolicies : CpuPolicies {
  using TokenTiers = OneTier;
};

}  // namespace

TEST_CASE("blocks of every size run, whatever is left for the last chunk") {
  auto const model = open_golden("llama.mixed.gguf");
  EngineOptions options;
  options.max_context = 2048;
  options.n_threads = 1;
  Engine<OneTierPolicies> engine(model, options);
  for (std::int32_t n = 1; n <= 40; ++n) {
    INFO(n);
    Sequence const s = engine.new_sequence();
    engine.prefill(s, std::vector<std::int32_t>(1900, 3));
    engine.prefill(s, std::vector<std::int32_t>(std::size_t(n), 4));
    CHECK(s.length() == 1900 + n);
    n += 6;
  }
}

TEST_CASE("a token tier that does not exist is refused") {
  Engine<OneTierPolicies> engine(open_golden("llama.f32.gguf"), small(), {.token_tiers = {{32}, 5}});
  Sequence const s = engine.new_sequence();
  CHECK(error_of([&] { engine.prefill(s, std::vector<std::int32_t>{1}); }).says("5", "1"));
}

TEST_CASE("host pages of a sequence go back when it ends") {
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), small());
  std::size_t with_one = 0;
  for (int round = 0; round < 5; ++round) {
    Sequence const s = engine.new_sequence();
    engine.prefill(s, std::vector<std::int32_t>{1, 2});
    if (round == 0) with_one = engine.stats().host_kv_bytes;
    CHECK(engine.stats().host_kv_bytes == with_one);
  }
}

TEST_CASE("a policy's answer that cannot be run is refused with the reason") {
  EngineOptions options = small();
  options.vram_bytes = 64 * KiB;
  CHECK(error_of([&] { Engine<With<EverythingResident>>(open_golden("llama.f32.gguf"), options); }).code ==
        std::nullopt);  // then the host computes
  Engine<With<EverythingResident>> engine(open_golden("llama.f32.gguf"), options);
  CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
  options.vram_bytes = 16 * MiB;
  Thrown const half = error_of([&] { Engine<With<HalfOfTheRows>>(open_golden("llama.f32.gguf"), options); });
  CHECK(half.code == Errc::precondition);
  CHECK(half.says("gpu_rows"));
}

TEST_CASE("KV on another device than the attention that uses it gives the same bits") {
  for (char const* file : {"llama.mixed.gguf", "gemma3.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    INFO(file);
    auto const model = open_golden(file);
    std::vector<std::int32_t> const tokens{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    EngineOptions options = small();
    Engine<CpuPolicies> cpu(model, options);
    options.vram_bytes = 16 * MiB;
    Engine<With<Crossed>> crossed(model, options);
    CHECK(all_logits(crossed, tokens, {7, 1}) == all_logits(cpu, tokens, {7, 1}));
    CHECK(crossed.stats().vram_peak_bytes > 0);
  }
}

TEST_CASE("progress is told per block, up to the end") {
  struct Seen {
    std::int32_t done = 0, total = 0;
    int calls = 0;
  } seen;
  EngineOptions options = small();
  options.progress = [](void* context, std::int32_t done, std::int32_t total) {
    auto& s = *static_cast<Seen*>(context);
    CHECK(done > s.done);
    s = {done, total, s.calls + 1};
  };
  options.progress_context = &seen;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options);
  Sequence const s = engine.new_sequence();
  engine.prefill(s, std::vector<std::int32_t>(40, 2));
  CHECK(seen.done == 40);
  CHECK(seen.total == 40);
}

TEST_CASE("engines share a model, come and go, and leave nothing on the device") {
  auto const model = open_golden("qwen2.mixed.gguf");
  EngineOptions options = small();
  options.vram_bytes = 4 * MiB;
  std::vector<std::int32_t> const tokens{1, 2, 3, 4};
  Engine<SimPolicies> first(model, options);
  std::vector<float> const expected = all_logits(first, tokens, {4});
  for (int round = 0; round < 10; ++round) {
    Engine<SimPolicies> other(model, options);
    CHECK(all_logits(other, tokens, {4}) == expected);
    CHECK(other.stats().vram_peak_bytes <= options.vram_bytes);
  }
  CHECK(all_logits(first, tokens, {4}) == expected);
}

namespace {

/// A cache of more bytes than there are: sums must not wrap.
struct HugeCache {
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind == ShardKind::expert) out.shards[i] = {Tier::pageable, 1, true};
    }
    out.cache_bytes = std::size_t(0) - 64 * KiB;
    return out;
  }
};
struct UnknownShard {
  Schedule schedule(ShardPlan const&, ShardTable const&) const { return {{ActionKind::run, host_device, ShardId(1u << 30), {}, {}, 0, 0}}; }
};
struct UnknownShardPolicies : CpuPolicies {
  using Prefetch = UnknownShard;
};
struct OneVictim {
  void touch(ShardId, std::uint64_t) {}
  bool admit(ShardId) { return true; }
  void insert(ShardId) {}
  void erase(ShardId) {}
  std::optional<ShardId> victim() { return ShardId(3); }
};
struct OneVictimPolicies : With<StreamAll> {
  using Eviction = OneVictim;
};
struct Shortened {
  std::span<std::byte const> bring(std::span<std::byte const> mapped) { return mapped.first(mapped.size() / 2); }
  Tier tier() const { return Tier::pageable; }
};
struct ShortenedPolicies : CpuPolicies {
  using HostMemory = Shortened;
};

}  // namespace

TEST_CASE("policies that answer nonsense are refused, not believed") {
  EngineOptions options = small();
  options.vram_bytes = 2 * MiB;
  {
    Engine<With<HugeCache>> engine(open_golden("qwen3moe.mixed.gguf"), options);  // it does not fit: then the host computes
    CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
  }
  CHECK(error_of([&] { Engine<UnknownShardPolicies>(open_golden("llama.f32.gguf"), small()); }).says("no shard 1073741824"));
  CHECK(error_of([&] { Engine<ShortenedPolicies>(open_golden("llama.f32.gguf"), small()); }).says("bring()"));
  options.vram_bytes = 512 * KiB;
  Engine<OneVictimPolicies> engine(open_golden("qwen3moe.mixed.gguf"), options);
  Sequence const s = engine.new_sequence();
  Thrown const victim = error_of([&] {
    for (std::int32_t token = 1; token < 60; ++token) engine.decode(s, token);
  });
  CHECK((!victim.code || victim.says("eviction policy", "3")));
  CHECK(error_of([] { Engine<CpuPolicies>(nullptr, small()); }).says("no model"));
  CHECK(error_of([] {
          Engine<OneTierPolicies>(open_golden("llama.f32.gguf"), small(), {.token_tiers = {{1 << 30}, 0}});
        }).says("1073741824"));
}

TEST_CASE("a step from within a callback of a step is refused") {
  struct Inner {
    Engine<CpuPolicies>* engine = nullptr;
    SequenceId id{};
    Thrown thrown;
  } inner;
  EngineOptions options = small();
  options.progress = [](void* context, std::int32_t, std::int32_t) {
    auto& i = *static_cast<Inner*>(context);
    i.thrown = error_of([&] { i.engine->step({}); });
  };
  options.progress_context = &inner;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options);
  inner.engine = &engine;
  Sequence const s = engine.new_sequence();
  engine.prefill(s, std::vector<std::int32_t>{1, 2});
  CHECK(inner.thrown.code == Errc::precondition);
  engine.decode(s, 3);
}
