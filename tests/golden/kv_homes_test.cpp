// Keys and values here and there: borders between VRAM and host memory anywhere in the context, small pages, prompts that bring what
// lies in host memory by way of the device, and prompts that go to it.
#include <algorithm>
#include <array>
#include <cmath>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "golden/uneven_layers.hpp"
#include "tiered/plan/placements/stream_all.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// Attention on the device or on the host, and of every layer's positions a share in VRAM.
struct SharedStates {
  bool on_device = true;
  float share = 0;
  bool streams_weights = false;  ///< all of them, which the device takes

  Placements place(PlanRequest const& r) const {
    if (streams_weights) {
      Placements streamed = StreamAll{}.place(r);
      if (!streamed.declined) streamed.state_in_vram.assign(r.states.size(), share);
      return streamed;
    }
    Placements out = on_device ? AllVram{}.place(r) : Placements{r};
    if (r.ring_bytes > 0 || VramAccount{r}.used_bytes() > r.budget.vram_bytes) {
      Placements none{r};
      none.declined = r.ring_bytes > 0;
      return none;
    }
    out.state_in_vram.assign(r.states.size(), share);
    return out;
  }
};
/// One plan for all rows, so that states are where the placement has them.
struct OneTier {
  std::array<int, 1> all{700};
  std::span<int const> bounds() const { return all; }
  std::size_t select(int) const { return 0; }
};
struct KvPolicies : SimPolicies {
  using Placement = SharedStates;
  using TokenTiers = OneTier;
};

/// What it is told that states cost, whatever the machine can do.
struct ToldCost {
  AnalyticCost rest;
  PassCost state;
  PassCost cost(Shard const& s, Rows rows) const { return rest.cost(s, rows); }
  PassCost cost(LayerState const&, Rows) const { return state; }
};
static_assert(CostModel<ToldCost>);
struct ToldPolicies : KvPolicies {
  using Cost = ToldCost;
};

/// How many copies of the first lane were done when one of keys and values was.
struct CopyCounts {
  std::uint64_t submitted = 0, done = 0, kv = 0, kv_ahead = 0;  // kv_ahead: of kv, ahead of some that were submitted earlier
};
class CountedCopy {
 public:
  CountedCopy(std::shared_ptr<LaneSet> lanes, SimCopyOptions const& options, CopyCounts& counts, bool is_kv)
      : engine_(lanes, options), lanes_(std::move(lanes)), counts_(&counts), is_kv_(is_kv) {}
  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    engine_.submit(pieces, after);
    CopyCounts* const c = counts_;
    if (is_kv_) {
      lanes_->submit(engine_.lane(), [c, earlier = c->submitted] { ++c->kv, c->kv_ahead += c->done < earlier ? 1 : 0; });
    } else {
      ++c->submitted;
      lanes_->submit(engine_.lane(), [c] { ++c->done; });
    }
    return lanes_->record(engine_.lane());
  }
  bool done(Ticket ticket) const { return engine_.done(ticket); }
  void wait(Ticket ticket) { engine_.wait(ticket); }
  void recover() { engine_.recover(); }

 private:
  SimCopyEngine engine_;
  std::shared_ptr<LaneSet> lanes_;
  CopyCounts* counts_;
  bool is_kv_;
};
/// A machine with a copy lane for keys and values.
struct TwoLaneMachine {
  std::unique_ptr<CopyCounts> counts = std::make_unique<CopyCounts>();
  std::shared_ptr<LaneSet> lanes;
  std::unique_ptr<CpuBackend> host;
  std::unique_ptr<SimBackend> device;
  std::unique_ptr<CountedCopy> copy, kv_copy;
};
struct TwoLanePolicies : KvPolicies {
  using Copy = CountedCopy;
  static TwoLaneMachine make_machine(MachineOptions const& o, std::uint64_t seed = 0, std::shared_ptr<Faults> kv_faults = nullptr) {
    auto sim = SimPolicies::make_machine(o, LaneSet::seeded(seed), nullptr);
    TwoLaneMachine m;
    m.copy = std::make_unique<CountedCopy>(sim.lanes, SimCopyOptions{}, *m.counts, false);
    m.kv_copy =
        std::make_unique<CountedCopy>(sim.lanes, SimCopyOptions{.faults = std::move(kv_faults), .lane_name = "kv copy"}, *m.counts, true);
    m.lanes = std::move(sim.lanes), m.host = std::move(sim.host), m.device = std::move(sim.device);
    return m;
  }
};

struct Homes {
  bool on_device = true;
  float share = 0;
  bool slow_host = false;  ///< estimated as too slow for attention of many rows: those bring keys and values
  std::int32_t page_tokens = 16;
  bool streams_weights = false;
};

constexpr std::int32_t max_context = 4096;

EngineOptions options_of(Transformer const& model, Homes const& h, DType kv_type) {
  EngineOptions o;
  o.max_context = max_context;
  o.n_threads = 1;
  o.n_sequences = 2;
  o.f32_activations = kv_type == DType::f32;
  o.kv_type = kv_type;
  o.kv_page_tokens = h.page_tokens;
  std::size_t state_bytes = 0;
  for (Shard const& s : model.table().shards) o.vram_bytes += s.bytes;
  for (LayerConfig const& layer : model.config().layers)
    state_bytes += 4 * KvCache::page_bytes(layer.attention, kv_type) * std::size_t(max_context / kv_page_tokens);
  o.vram_bytes += state_bytes + 3 * MiB;
  HardwareProfile hardware = HardwareProfile::simulated();
  (h.slow_host ? hardware.host : hardware.gpu).attention_bytes_per_s /= 1e6;
  o.hardware = hardware;
  return o;
}

Engine<KvPolicies> engine_of(std::shared_ptr<Transformer const> model, Homes const& h, DType kv_type, std::uint64_t seed) {
  EngineOptions const o = options_of(*model, h, kv_type);
  PolicyValues<KvPolicies> values;
  values.placement = {h.on_device, h.share, h.streams_weights};
  return Engine<KvPolicies>(std::move(model), o, std::move(values),
                            SimPolicies::make_machine({o.vram_bytes, 1, o.f32_activations, false}, LaneSet::seeded(seed), nullptr));
}
Engine<TwoLanePolicies> two_lanes_of(std::shared_ptr<Transformer const> model, Homes const& h, DType kv_type, std::uint64_t seed,
                                     std::shared_ptr<Faults> kv_faults = nullptr) {
  EngineOptions const o = options_of(*model, h, kv_type);
  PolicyValues<TwoLanePolicies> values;
  values.placement = {h.on_device, h.share, h.streams_weights};
  return Engine<TwoLanePolicies>(std::move(model), o, std::move(values),
                                 TwoLanePolicies::make_machine({o.vram_bytes, 1, o.f32_activations, false}, seed, std::move(kv_faults)));
}

std::int32_t token_at(std::int32_t position, std::int32_t sequence) {
  return 3 + (position * 7 + position * position / 5 + sequence * 11) % 60;
}

/// A long prompt, a token, another prompt, two sequences in one batch, one cut back, tokens: logits of the last rows.
template <class E>
std::vector<float> talk(E& engine) {
  Sequence a = engine.new_sequence(), b = engine.new_sequence();
  std::int32_t at[2] = {0, 0};
  std::vector<float> out;
  auto const step = [&](std::vector<std::pair<int, std::int32_t>> const& counts) {
    std::vector<Row> rows;
    for (auto const& [which, n] : counts) {
      for (std::int32_t i = 0; i < n; ++i, ++at[which])
        rows.push_back({which == 0 ? a.id() : b.id(), at[which], token_at(at[which], which), i + 3 >= n});
    }
    Logits const logits = engine.step({rows});
    for (std::int32_t i = 0; i < logits.n_rows(); ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
  };
  step({{0, 1331}});
  step({{0, 1}});
  step({{0, 100}, {1, 57}, {0, 3}});
  step({{1, 1}, {0, 1}});
  a.truncate(at[0] -= 150);
  step({{0, 40}});
  step({{0, 1}, {1, 2}});
  step({{1, 690}});
  for (int i = 0; i < 3; ++i) step({{0, 1}, {1, 1}});
  return out;
}

double range_of(std::vector<float> const& logits) {
  auto const [least, most] = std::minmax_element(logits.begin(), logits.end());
  return double(*most) - double(*least);
}
double worst(std::vector<float> const& got, std::vector<float> const& expected) {
  REQUIRE(got.size() == expected.size());
  double d = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double const e = std::fabs(double(got[i]) - double(expected[i])) / range_of(expected);
    if (!(e <= d)) d = e;
  }
  return d;
}

std::vector<float> on_cpu(std::shared_ptr<Transformer const> model, DType kv_type) {
  EngineOptions o = options_of(*model, {}, kv_type);
  o.vram_bytes = 0;
  Engine<CpuPolicies> cpu(std::move(model), o);
  return talk(cpu);
}

}  // namespace

TEST_CASE("split and streamed keys and values: logits as of the whole, to the rounding of f32", "[golden][kv]") {
  for (char const* file : {"llama.f32.gguf", "gemma3.f32.gguf", "qwen2.mixed.gguf"}) {
    auto const model = open_golden(file);
    std::vector<float> const expected = on_cpu(model, DType::f32);
    // A sum of parts rounds each weight, product and sum once more: four times in a layer, at most, which later layers enlarge.
    double const tolerance = gain * 4 * std::ldexp(1.0, -24) * model->config().n_layers;
    std::uint64_t seed = 0;
    for (bool on_device : {true, false}) {
      for (bool slow_host : {true, false}) {
        if (slow_host && !on_device) continue;  // only the device brings any
        for (float share : {0.f, 0.0625f, 0.1f, 0.3f, 0.7f, 1.f}) {
          for (std::int32_t page_tokens : {16, 256}) {
            INFO(file << (on_device ? " on device, " : " on host, ") << share << (slow_host ? " streamed, " : " split, ") << page_tokens);
            Engine<KvPolicies> engine = engine_of(model, {on_device, share, slow_host, page_tokens}, DType::f32, ++seed);
            ShardPlan const& plan = engine.plans().images.front().plan;
            std::int32_t const n_pages = max_context / page_tokens, there = pages_in_vram(share, n_pages);
            REQUIRE(plan.state_in_vram.front() == share);
            KvStream const stream = engine.plans().images.back().activations.kv_stream;
            REQUIRE(stream.half_pages > 0);
            CHECK(stream.half_pages * page_tokens < 1331);
            std::vector<float> const got = talk(engine);
            CHECK(worst(got, expected) < tolerance);
            CHECK(engine.stats().vram_peak_bytes <= options_of(*model, {}, DType::f32).vram_bytes);
            if (share == 0) CHECK((got == expected) == !slow_host);  // all in one place; or brought, in parts
            if (there == n_pages) CHECK(engine.stats().host_kv_bytes == 0);
            if (there < n_pages && there > 1500 / page_tokens) CHECK(got == expected);  // nobody came beyond the border
          }
        }
      }
    }
  }
}

TEST_CASE("whether a prompt goes to keys and values or brings them is what the bundle's cost model says", "[golden][kv]") {
  auto const model = open_golden("llama.f32.gguf");
  std::vector<float> const expected = on_cpu(model, DType::f32);
  double const tolerance = gain * 4 * std::ldexp(1.0, -24) * model->config().n_layers;
  for (bool const brings : {true, false}) {
    INFO((brings ? "brought" : "gone to"));
    EngineOptions const o = options_of(*model, {.slow_host = !brings}, DType::f32);  // by the machine's rates it would be the reverse
    PolicyValues<ToldPolicies> values;
    values.cost.state = brings ? PassCost{1, 1e-9, 1e-9} : PassCost{1e-9, 1, 1};
    Engine<ToldPolicies> engine(model, o, std::move(values));
    REQUIRE(engine.plans().images.back().activations.kv_stream.half_pages > 0);
    std::vector<float> const got = talk(engine);
    CHECK(worst(got, expected) < tolerance);
    CHECK((got == expected) == !brings);  // all in one place; or brought, in parts
  }
}

TEST_CASE("pages whose bytes differ from layer to layer: logits as of the whole", "[golden][kv]") {
  for (char const* file : {"llama.f32.gguf", "qwen3.mixed.gguf"}) {
    auto const model = open_uneven(file);
    REQUIRE(KvCache::page_bytes(model->config().layers[0].attention, DType::f32) >
            KvCache::page_bytes(model->config().layers[1].attention, DType::f32));
    std::vector<float> const expected = on_cpu(model, DType::f32);
    double const tolerance = gain * 4 * std::ldexp(1.0, -24) * model->config().n_layers;
    std::uint64_t seed = 0;
    for (Homes const& homes : {Homes{true, 0.f, true, 16}, Homes{true, 0.0625f, true, 16}, Homes{true, 0.1f, false, 16},
                               Homes{false, 0.3f, false, 16}, Homes{true, 0.125f, true, 256}, Homes{true, 1.f, false, 16}}) {
      INFO(file << (homes.on_device ? " on device, " : " on host, ") << homes.share << (homes.slow_host ? " streamed" : " split"));
      Engine<KvPolicies> engine = engine_of(model, homes, DType::f32, ++seed);
      std::vector<float> const got = talk(engine);
      CHECK(worst(got, expected) < tolerance);
      if (homes.share == 1) CHECK(got == expected);
    }
  }
}

TEST_CASE("lanes in any order give the same bits", "[golden][kv]") {
  auto const model = open_golden("llama.f32.gguf");
  for (bool slow_host : {true, false}) {
    std::vector<float> expected;
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      INFO((slow_host ? "streamed, seed " : "split, seed ") << seed);
      Engine<KvPolicies> engine = engine_of(model, {true, 0.0625f, slow_host, 16}, DType::f16, seed);
      std::vector<float> const got = talk(engine);
      if (expected.empty()) expected = got;
      CHECK(got == expected);
    }
  }
}

TEST_CASE("keys and values in a copy lane of their own: the bits of one lane, and no waiting behind weights", "[golden][kv]") {
  struct Case {
    char const* file;
    Homes homes;
  };
  Case const cases[] = {{"llama.f32.gguf", {true, 0.0625f, true, 16, false}},
                        {"llama.f32.gguf", {true, 0.f, true, 16, true}},
                        {"llama.f32.gguf", {true, 0.0625f, false, 16, true}},
                        {"llama.f32.gguf", {false, 0.0625f, false, 16, false}},
                        {"qwen3moe.f32.gguf", {true, 0.0625f, true, 16, true}}};
  for (Case const& c : cases) {
    auto const model = open_golden(c.file);
    std::vector<float> expected;
    {
      Engine<KvPolicies> one_lane = engine_of(model, c.homes, DType::f16, 1);
      expected = talk(one_lane);
    }
    std::uint64_t n_ahead = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      INFO(c.file << (c.homes.slow_host ? " streamed" : " split") << (c.homes.streams_weights ? " beside weights" : "") << ", seed "
                  << seed);
      Engine<TwoLanePolicies> engine = two_lanes_of(model, c.homes, DType::f16, seed);
      std::vector<float> const got = talk(engine);
      CHECK(got == expected);
      CHECK(engine.machine().counts->kv > 0);
      n_ahead += engine.machine().counts->kv_ahead;
    }
    if (c.homes.streams_weights) CHECK(n_ahead > 20);
  }
}

TEST_CASE("a copy of keys and values that fails, whichever, ends its step; the next one goes on with the same bits", "[golden][kv]") {
  auto const model = open_golden("llama.f32.gguf");
  for (Homes const& homes : {Homes{true, 0.f, true, 16, true}, Homes{true, 0.0625f, false, 16, false}}) {
    std::vector<float> expected;
    std::uint64_t fired = 1;
    for (std::uint64_t nth = 0; nth <= 1 || fired > 0; ++nth) {
      INFO((homes.slow_host ? "streamed, copy " : "split, copy ") << nth);
      auto const faults = std::make_shared<Faults>();
      Engine<TwoLanePolicies> engine = two_lanes_of(model, homes, DType::f16, nth, faults);
      Sequence const sequence = engine.new_sequence();
      faults->fail_at(FaultKind::copy, nth);
      std::vector<float> got;
      std::uint64_t n_errors = 0;
      for (std::int32_t const end : {700, 800, 801}) {
        while (sequence.length() < end) {
          std::vector<std::int32_t> tokens;
          for (std::int32_t i = sequence.length(); i < end; ++i) tokens.push_back(token_at(i, 0));
          try {
            std::span<float const> const logits = engine.prefill(sequence, tokens);
            got.insert(got.end(), logits.begin(), logits.end());
          } catch (Error const& e) {
            REQUIRE(e.code() == Errc::device);
            ++n_errors;
          }
        }
      }
      fired = faults->fired();
      CHECK(n_errors == fired);
      if (nth == 0) expected = got;
      CHECK(got == expected);
      if (nth > 0 && fired == 0) CHECK(nth > 10);
    }
  }
}

TEST_CASE("decode uploads no keys and values that were there before", "[golden][kv]") {
  auto const model = open_golden("llama.f32.gguf");
  for (float share : {0.f, 0.0625f}) {
    INFO(share);
    Engine<KvPolicies> engine = engine_of(model, {true, share, true, 16}, DType::f32, 1);
    Sequence const sequence = engine.new_sequence();
    std::vector<std::int32_t> prompt;
    for (std::int32_t i = 0; i < 1200; ++i) prompt.push_back(token_at(i, 0));
    engine.prefill(sequence, prompt);
    std::uint64_t before = engine.machine().copy->bytes_to_device(), first = 0;
    for (std::int32_t i = 0; i < 20; ++i) {
      engine.decode(sequence, token_at(i, 1));
      std::uint64_t const now = engine.machine().copy->bytes_to_device(), bytes = now - std::exchange(before, now);
      if (i == 1) first = bytes;
      if (i > 1) CHECK(bytes == first);  // whatever the length
      CHECK(bytes < engine.core().kv_bytes(1200) / 8);
    }
  }
}

TEST_CASE("whatever the home of keys and values, greedy text is the same", "[golden][kv]") {
  for (char const* file : {"llama.f16.gguf", "gemma3.f16.gguf", "qwen2.f16.gguf"}) {
    auto const model = open_golden(file);
    EngineOptions o = options_of(*model, {}, DType::f16);
    o.vram_bytes = 0;
    std::vector<std::int32_t> prompt;
    for (std::int32_t i = 0; i < 300; ++i) prompt.push_back(token_at(i, 0));
    Engine<CpuPolicies> cpu(model, o);
    std::vector<std::int32_t> const expected = greedy(cpu, prompt, 24);
    for (bool slow_host : {true, false}) {
      for (float share : {0.f, 0.02f, 0.06f}) {
        INFO(file << " " << share << (slow_host ? " streamed" : " split"));
        Engine<KvPolicies> engine = engine_of(model, {true, share, slow_host, 16}, DType::f16, 1);
        CHECK(greedy(engine, prompt, 24) == expected);
      }
    }
  }
}

TEST_CASE("keys and values are exported in one form, wherever they are", "[golden][kv]") {
  auto const model = open_golden("llama.f32.gguf");
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 300; ++i) prompt.push_back(token_at(i, 0));
  std::vector<std::byte> whole;
  std::vector<float> next;
  for (Homes const& h :
       {Homes{true, 1.f, false, 256}, Homes{true, 0.01f, false, 16}, Homes{true, 0.04f, false, 16}, Homes{false, 0.f, false, 256}}) {
    INFO(h.share << " " << h.page_tokens);
    Engine<KvPolicies> engine = engine_of(model, h, DType::f32, 1);
    if (whole.empty()) {
      Sequence const from = engine.new_sequence();
      engine.prefill(from, prompt);
      engine.core().export_kv(from, [&](std::span<std::byte const> bytes) { whole.insert(whole.end(), bytes.begin(), bytes.end()); });
      std::span<float const> const logits = engine.decode(from, 7);
      next.assign(logits.begin(), logits.end());
    }
    CHECK(whole.size() == engine.core().kv_bytes(300));
    Sequence to = engine.new_sequence();
    std::size_t at = 0;
    engine.core().import_kv(to, 300, [&](std::span<std::byte> bytes) {
      std::copy_n(whole.begin() + std::ptrdiff_t(at), bytes.size(), bytes.begin());
      at += bytes.size();
    });
    std::vector<std::byte> again;
    engine.core().export_kv(to, [&](std::span<std::byte const> bytes) { again.insert(again.end(), bytes.begin(), bytes.end()); });
    CHECK(again == whole);
    std::span<float const> const logits = engine.decode(to, 7);
    CHECK(worst({logits.begin(), logits.end()}, next) < 1e-5);
  }
}
