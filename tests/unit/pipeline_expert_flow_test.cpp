// Experts of prompts of many rows: brought ahead of the router, kept from prompt to prompt; and never another text than the CPU's.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/expert_cache.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// Everything in VRAM but experts, which have a cache for a share of them; some of them may be resident.
struct CachedExperts {
  double share = 0.5;
  std::uint32_t every_resident = 0;  ///< each so manieth expert; 0: none

  Placements place(PlanRequest const& r) const {
    Placements out{r};
    ExpertLayers const experts(r.shards);
    std::fill(out.state_in_vram.begin(), out.state_in_vram.end(), 1.f);
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind != ShardKind::embedding) out.shards[i] = {Tier::vram, 1};
    }
    for (std::uint32_t const id : experts.ids) {
      if (every_resident == 0 || id % every_resident != 0) out.shards[id] = {Tier::pinned, 1, true};
    }
    out.cache_bytes = std::max(experts.min_cache_bytes(), std::size_t(share * double(experts.bytes)) / weight_alignment * weight_alignment);
    return out;
  }
};

/// LRU that calls somebody when it is asked about the n-th expert.
struct WatchedLru : Lru {
  struct Watch {
    int asked = 0, at = -1;
    std::function<void()> then;
  };
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  bool admit(ShardId) {
    if (watch->asked++ == watch->at) watch->then();
    return true;
  }
};

struct FlowPolicies : SimPolicies {
  using Placement = CachedExperts;
  using Eviction = WatchedLru;
  using Trace = RecordingTrace;
};

constexpr std::int32_t many = 64, few = 3;

EngineOptions options_for(std::size_t vram_bytes) {
  EngineOptions options;
  options.vram_bytes = vram_bytes;
  options.max_context = 256;
  options.n_threads = 1;
  return options;
}

std::vector<std::int32_t> prompt_of(std::int32_t n, std::int32_t salt) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back(3 + (i * 7 + salt * 13) % 60);
  return tokens;
}

template <class E>
std::vector<float> prefill(E& engine, std::vector<std::int32_t> const& prompt) {
  Sequence const sequence = engine.new_sequence();
  std::span<float const> const logits = engine.prefill(sequence, prompt);
  return {logits.begin(), logits.end()};
}

/// Of experts, by shard.
std::map<std::uint32_t, std::size_t> copied(std::vector<TraceEvent> const& events, ShardTable const& table) {
  std::map<std::uint32_t, std::size_t> bytes;
  for (TraceEvent const& e : events) {
    if (e.action.kind == ActionKind::copy && table.shard(e.action.shard).kind == ShardKind::expert)
      bytes[std::uint32_t(e.action.shard)] += e.action.bytes;
  }
  return bytes;
}
std::size_t sum(std::map<std::uint32_t, std::size_t> const& bytes) {
  std::size_t total = 0;
  for (auto const& [id, n] : bytes) total += n;
  return total;
}

}  // namespace

TEST_CASE("prompts of many rows have the CPU's bits, whatever the cache holds") {
  for (char const* file : {"qwen3moe.mixed.gguf", "qwen3moe_k.mixed.gguf"}) {
    auto const model = open_golden(file);
    REQUIRE(uses_whole_layer(model->table().shards[ExpertLayers(model->table().shards).ids[0]], many));
    Engine<CpuPolicies> cpu(model, options_for(0));
    for (double const share : {0.0, 0.3, 0.5, 0.9, 1.0}) {
      for (std::uint32_t const every_resident : {0u, 3u}) {
        INFO(file << " share " << share << " resident " << every_resident);
        PolicyValues<FlowPolicies> values{.placement = {share, every_resident}};
        std::uint64_t const seed = std::uint64_t(share * 10) + every_resident;
        Engine<FlowPolicies> engine(model, options_for(64 * MiB), std::move(values),
                                    SimPolicies::make_machine({64 * MiB, 1, false, false}, LaneSet::seeded(seed), nullptr));
        for (std::int32_t const n : {many, many, few, 1, many + 37, few, many}) {
          std::vector<std::int32_t> const prompt = prompt_of(n, n);
          CHECK(prefill(engine, prompt) == prefill(cpu, prompt));
        }
        CHECK(greedy(engine, prompt_of(many, 5), 12) == greedy(cpu, prompt_of(many, 5), 12));
      }
    }
  }
}

TEST_CASE("copies for the next layer are issued before its router runs") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  ShardTable const& table = model->table();
  Engine<FlowPolicies> engine(model, options_for(64 * MiB), PolicyValues<FlowPolicies>{.placement = {0.5}});
  prefill(engine, prompt_of(many, 1));
  engine.trace().events.clear();
  prefill(engine, prompt_of(many, 2));
  std::vector<bool> is_copied(std::size_t(model->config().n_layers), false), ahead = is_copied;
  for (TraceEvent const& e : engine.trace().events) {
    Shard const& s = table.shard(e.action.shard);
    if (s.layer < 0 || s.layer >= model->config().n_layers) continue;
    if (e.action.kind == ActionKind::copy && s.kind == ShardKind::expert) is_copied[std::size_t(s.layer)] = true;
    if (e.action.kind == ActionKind::run && s.kind == ShardKind::router) ahead[std::size_t(s.layer)] = is_copied[std::size_t(s.layer)];
  }
  REQUIRE(ahead.size() > 1);
  for (std::size_t l = 1; l < ahead.size(); ++l) CHECK(ahead[l] == is_copied[l]);
  CHECK(std::ranges::count(ahead, true) > 0);
}

TEST_CASE("what the cache keeps is not copied for the next prompt, though prompts go through all experts in turn") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  ShardTable const& table = model->table();
  ExpertLayers const experts(table.shards);
  double const share = 0.5;
  Engine<FlowPolicies> engine(model, options_for(64 * MiB), PolicyValues<FlowPolicies>{.placement = {share}});
  prefill(engine, prompt_of(many, 1));
  std::size_t first_bytes = 0;
  for (std::int32_t n : {0, 1, 2}) {
    engine.trace().events.clear();
    ExpertCache::Counters const before = engine.stats().experts;
    prefill(engine, prompt_of(many, n));
    auto const bytes = copied(engine.trace().events, table);
    for (auto const& [id, copied_bytes] : bytes) CHECK(copied_bytes == table.shards[id].bytes);
    // Half of all fits, and a quarter of that is what the others pass through.
    CHECK(double(sum(bytes)) >= (1 - share) * double(experts.bytes));
    CHECK(double(sum(bytes)) <= (1 - 0.6 * share) * double(experts.bytes));
    CHECK(engine.stats().experts.hits - before.hits == experts.ids.size() - bytes.size());
    CHECK(engine.stats().experts.evictions == before.evictions);
    if (n == 0) first_bytes = sum(bytes);
    CHECK(sum(bytes) == first_bytes);
  }
}

TEST_CASE("prompts of few rows fetch what their rows were routed to, each once, and use the whole cache") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  ShardTable const& table = model->table();
  std::int32_t const n_used = model->config().layers[0].experts.n_experts_used;
  Engine<FlowPolicies> engine(model, options_for(64 * MiB), PolicyValues<FlowPolicies>{.placement = {1.0}});
  prefill(engine, prompt_of(many, 1));  // lends
  for (std::int32_t salt = 0; salt < 8; ++salt) {
    engine.trace().events.clear();
    prefill(engine, prompt_of(few, salt));
    std::map<std::int32_t, std::int32_t> per_layer;
    for (auto const& [id, bytes] : copied(engine.trace().events, table)) {
      CHECK(bytes == table.shards[id].bytes);
      ++per_layer[table.shards[id].layer];
    }
    for (auto const& [layer, n] : per_layer) CHECK(n <= few * n_used);
  }
  engine.trace().events.clear();
  for (std::int32_t salt = 0; salt < 8; ++salt) prefill(engine, prompt_of(few, salt));
  CHECK(copied(engine.trace().events, table).empty());
}

TEST_CASE("a prompt that is cancelled or fails in the middle of a layer leaves an engine that goes on") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  Engine<CpuPolicies> cpu(model, options_for(0));
  std::vector<std::int32_t> const prompt = prompt_of(many, 3);
  std::vector<float> const expected = prefill(cpu, prompt);
  for (int const at : {0, 3, 7, 15}) {
    INFO("cancelled at expert " << at);
    PolicyValues<FlowPolicies> values{.placement = {0.5}};
    auto const watch = values.eviction.watch;
    Engine<FlowPolicies> engine(model, options_for(64 * MiB), std::move(values));
    watch->then = [&] { engine.cancel_token().cancel(); };
    watch->asked = 0;
    watch->at = at;
    CHECK(error_of([&] { prefill(engine, prompt); }).code == Errc::cancelled);
    engine.cancel_token().reset();
    CHECK(prefill(engine, prompt) == expected);
    CHECK(prefill(engine, prompt) == expected);
  }
  std::uint64_t n_failed = 0;
  for (std::uint64_t n = 1; n < 40; n += 3) {
    INFO("fault at copy " << n);
    auto faults = std::make_shared<Faults>();
    Engine<FlowPolicies> engine(model, options_for(64 * MiB), PolicyValues<FlowPolicies>{.placement = {0.5}},
                                SimPolicies::make_machine({64 * MiB, 1, false, false}, LaneSet::seeded(n), faults));
    faults->fail_at(FaultKind::copy, n);
    Thrown const thrown = error_of([&] { prefill(engine, prompt); });
    CHECK(thrown.code.has_value() == (faults->fired() > 0));
    CHECK(thrown.code.value_or(Errc::device) == Errc::device);
    n_failed += faults->fired();
    faults->fail_at(FaultKind::copy, 0);
    CHECK(prefill(engine, prompt) == expected);
  }
  CHECK(n_failed > 5);
}

TEST_CASE("what is lent leaves the cache, and comes back after its last use") {
  ExpertCache cache(100, Lru{});
  for (std::uint32_t id = 0; id < 4; ++id) {
    ExpertCache::Entry* const entry = cache.acquire(ShardId(id), 25)->entry;
    entry->pins = 0;
    entry->last_use = {1, 10 + id};
  }
  cache.peek(ShardId(3))->pins = 1;
  CHECK_FALSE(cache.lend(30).has_value());
  CHECK(cache.size() == 4);
  cache.peek(ShardId(3))->pins = 0;
  auto const loan = cache.lend(30);
  REQUIRE(loan.has_value());
  CHECK(loan->offset == 70);
  CHECK(loan->after == Ticket{1, 13});
  CHECK(cache.peek(ShardId(1)) != nullptr);
  CHECK(cache.peek(ShardId(2)) == nullptr);
  CHECK(cache.peek(ShardId(3)) == nullptr);
  CHECK(cache.free_bytes() == 20);
  CHECK_FALSE(cache.lend(10).has_value());
  CHECK_FALSE(cache.acquire_free(ShardId(7), 25).has_value());
  CHECK(cache.acquire_free(ShardId(8), 20)->entry->offset == 50);
  cache.take_back({1, 99});
  CHECK(cache.lent_bytes() == 0);
  auto const room = cache.acquire_free(ShardId(7), 30);
  REQUIRE(room.has_value());
  CHECK(room->after == Ticket{1, 99});
  cache.lend(5);
  cache.clear({});
  CHECK(cache.free_bytes() == 100);
}

TEST_CASE("a cache of another size keeps what is wholly inside, and gives all of the rest") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::size_t bytes = 1000;
    ExpertCache cache(bytes, AnyEviction(Lru{}));
    for (int step = 0; step < 60; ++step) {
      std::uint32_t const id = std::uint32_t(random.below(64));
      if (random.below(4) == 0) {
        if (random.below(3) == 0) cache.lend(1 + random.below(bytes));
        bytes = 100 + random.below(2000);
        std::uint64_t const before = cache.version();
        bool const changes = bytes != cache.bytes();
        std::vector<bool> inside(64, false);
        for (std::uint32_t i = 0; i < 64; ++i) {
          ExpertCache::Entry const* const e = cache.peek(ShardId(i));
          inside[i] = e != nullptr && e->offset + e->bytes <= bytes;
        }
        cache.resize(bytes);
        CHECK(cache.bytes() == bytes);
        CHECK((cache.version() != before) == changes);
        if (!changes) continue;
        CHECK(cache.lent_bytes() == 0);
        for (std::uint32_t i = 0; i < 64; ++i) CHECK((cache.peek(ShardId(i)) != nullptr) == inside[i]);
        CHECK(cache.free_bytes() == bytes - cache.used_bytes());
      } else if (cache.lent_bytes() == 0 && cache.peek(ShardId(id)) == nullptr) {
        auto const room = cache.acquire(ShardId(id), 1 + random.below(90));
        REQUIRE(room.has_value());  // nothing is pinned for long: all of it can be had
        CHECK(room->entry->offset + room->entry->bytes <= bytes);
        --room->entry->pins;
      }
      std::vector<std::pair<std::size_t, std::size_t>> ranges;
      for (std::uint32_t i = 0; i < 64; ++i) {
        if (ExpertCache::Entry const* const e = cache.peek(ShardId(i))) ranges.push_back({e->offset, e->offset + e->bytes});
      }
      std::sort(ranges.begin(), ranges.end());
      for (std::size_t i = 1; i < ranges.size(); ++i) CHECK(ranges[i - 1].second <= ranges[i].first);
    }
    cache.resize(bytes + 1);
    for (std::uint32_t i = 0; i < 64; ++i) {
      if (cache.peek(ShardId(i)) != nullptr) cache.drop(ShardId(i));
    }
    REQUIRE(cache.acquire(ShardId(1), bytes + 1).has_value());  // one hole again
  }
}

TEST_CASE("a flow leaves most of a cache alone and holds an expert") {
  for (std::size_t const cache : {std::size_t{100}, 64 * MiB, 1024 * MiB, 16 * 1024 * MiB}) {
    for (std::size_t const expert : {std::size_t{1}, std::size_t{90}, 3 * MiB}) {
      if (expert > cache) continue;
      std::size_t const flow = flow_bytes(cache, expert);
      CHECK(flow >= expert);
      CHECK(flow <= std::max(cache / 4, expert));
      CHECK(flow_window_bytes(flow) * 3 <= flow);
      CHECK(flow_window_bytes(flow) >= std::min(flow / 3, long_window_bytes));
    }
  }
}

TEST_CASE("a cache that is small beside all that passes is a flow, up to what makes windows long enough") {
  std::size_t const all = 16 * 1024 * MiB, expert = 3 * MiB;
  CHECK(flow_bytes(64 * MiB, expert, all) == 64 * MiB);
  CHECK(flow_bytes(256 * MiB, expert, all) == least_flow_bytes);
  CHECK(flow_bytes(1024 * MiB, expert, all) == 256 * MiB);  // its hits are worth something, a quarter of it is long enough
  for (std::size_t const cache : {8 * MiB, 64 * MiB, 1024 * MiB}) {
    for (std::size_t const passes : {std::size_t{0}, cache, 4 * cache})  // a share of it that is not small
      CHECK(flow_bytes(cache, expert, passes) == flow_bytes(cache, expert));
  }
}

TEST_CASE("what a block's rows take beside their experts' windows does not grow with the chunk, and little with the block") {
  ModelConfig config{};
  config.dim = 2048;
  config.vocab_size = 1000;
  LayerConfig layer{};
  layer.feed_forward = FeedForwardKind::experts;
  layer.hidden_dim = 768;
  layer.experts.n_experts = 128;
  layer.experts.n_experts_used = 8;
  config.layers.assign(4, layer);
  std::size_t const row_bytes = std::size_t(config.dim) * sizeof(float);
  ActivationLayout const small = make_activation_layout(config, {1024, 8192, 1024}, 0, 0);
  ActivationLayout const large = make_activation_layout(config, {4096, 16384, 4096}, 0, 0);
  for (ActivationLayout const& l : {small, large}) {
    CHECK(l.expert_rows == least_piece_rows);
    CHECK(l.slots_per_launch == least_piece_rows * 8);
    CHECK(l.window_slots > 0);
    CHECK(l.summed_slots > l.window_slots);
    CHECK(l.expert_y + std::size_t(l.expert_rows) * 8 * row_bytes <= l.expert_workspace);
    CHECK(l.expert_y + expert_window_bytes(l.summed_slots, config.dim, layer.hidden_dim) <= l.few_lists);
    CHECK(l.expert_workspace + expert_window_bytes(l.window_slots, config.dim, layer.hidden_dim) <= l.few_lists);
  }
  CHECK(small.summed_slots == large.summed_slots);
  // Hidden rows, the experts' input, that in 16-bit floats; lists.
  CHECK(double(large.total_bytes - small.total_bytes) < 1.02 * 8192 * 2.5 * double(row_bytes));
  CHECK(small.expert_x_rows + expert_rows_bytes(8192, config.dim) <= small.expert_y);

  ActivationLayout const whole = make_activation_layout(config, {1024, 8192}, 0, 0);  // its windows find room in what is there anyway
  CHECK(whole.expert_rows == 8192);
  CHECK(whole.summed_slots == 0);
  CHECK(whole.expert_workspace + expert_window_bytes(whole.window_slots, config.dim, layer.hidden_dim) <= whole.expert_places);
  CHECK(whole.expert_places + std::size_t{8192} * 8 * sizeof(std::int32_t) <= whole.expert_x_rows);
  CHECK(whole.expert_x_rows + expert_rows_bytes(8192, config.dim) <= whole.few_lists);
  CHECK(whole.expert_x_rows % weight_alignment == 0);

  // Where the host has a part in a layer, its sum and the windows share the room of outputs, whatever the rows.
  for (ActivationLayout const* l : {&small, &large, &whole}) {
    for (std::int32_t const n_rows : {200, 1024, 8192}) {
      SharedRoom const room = shared_room(*l, n_rows, config.dim, layer.hidden_dim);
      CHECK(room.sum >= l->expert_y);
      CHECK(room.workspace >= room.sum + std::size_t(n_rows) * std::size_t(config.dim) * sizeof(float));
      CHECK(room.workspace % weight_alignment == 0);
      REQUIRE(room.slots > 0);
      CHECK(room.workspace + expert_window_bytes(room.slots, config.dim, layer.hidden_dim) <= l->windows_end);
      CHECK(l->windows_end <= (l == &whole ? l->expert_places : l->few_lists));
    }
    CHECK(l->expert_ranks + std::size_t(l->n_experts) * sizeof(std::int32_t) <= l->expert_slots);
  }
  CHECK(shared_room(small, 1 << 20, config.dim, layer.hidden_dim).slots == 0);

  layer.experts.n_experts = 512;  // of which few are used: more rows than those go to single experts
  layer.experts.n_experts_used = 2;
  config.layers.assign(4, layer);
  ActivationLayout const sparse = make_activation_layout(config, {4096, 8192, 4096}, 0, 0);
  Shard expert{};
  expert.use_probability = 2.0 / 512;
  CHECK_FALSE(uses_whole_layer(expert, least_piece_rows + 1));
  CHECK(uses_whole_layer(expert, sparse.expert_rows + 1));
}

TEST_CASE("blocks with room for the experts' outputs of a chunk have the same bits wherever windows and chunks end") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  std::vector<std::int32_t> const prompt = prompt_of(230, 3);
  EngineOptions options = options_for(0);
  options.f32_activations = true;
  Engine<CpuPolicies> cpu(model, options);
  std::vector<float> const expected = prefill(cpu, prompt);
  double largest = 0;
  for (float const v : expected) largest = std::max(largest, std::abs(double(v)));
  std::vector<float> first;
  std::set<std::int32_t> chunks;
  for (double const share : {0.0, 0.3, 0.6}) {
    for (std::uint32_t const every_resident : {0u, 3u}) {
      for (std::size_t budget = 16 * MiB; budget > 64 * KiB; budget -= budget / 16) {
        options.vram_bytes = budget;
        std::unique_ptr<Engine<FlowPolicies>> engine;
        try {
          engine = std::make_unique<Engine<FlowPolicies>>(model, options, PolicyValues<FlowPolicies>{.placement = {share, every_resident}});
        } catch (Error const& e) {
          REQUIRE(e.code() == Errc::over_budget);
          break;
        }
        RowLimits const limits = engine->plans().images.back().limits;
        if (limits.experts == 0 || limits.chunk >= std::int32_t(prompt.size())) continue;
        CHECK(limits.experts < limits.block);
        INFO("share " << share << " resident " << every_resident << " chunk " << limits.chunk << " block " << limits.block);
        chunks.insert(limits.chunk);
        for (int i = 0; i < 2; ++i) {
          std::vector<float> const got = prefill(*engine, prompt);
          if (first.empty()) first = got;
          CHECK(got == first);
        }
        CHECK(prefill(*engine, prompt_of(few, 1)) == prefill(cpu, prompt_of(few, 1)));
      }
    }
  }
  REQUIRE(!first.empty());
  for (std::size_t i = 0; i < first.size(); ++i) REQUIRE(std::abs(double(first[i]) - double(expected[i])) <= 1e-4 * largest);
  REQUIRE(chunks.size() > 1);
}
