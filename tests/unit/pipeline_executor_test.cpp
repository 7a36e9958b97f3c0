// What an executor sends by which lane: weights that are copied ahead hold up nothing but what needs them.
#include <algorithm>
#include <array>
#include <map>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "reference_device.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// Bytes of all attention shards, and of the largest of them.
std::pair<std::size_t, std::size_t> attention_bytes(std::span<Shard const> shards) {
  std::size_t all = 0, largest = 0;
  for (Shard const& s : shards) {
    if (s.kind == ShardKind::attention) all += VramAccount::round_up(s.bytes), largest = std::max(largest, s.bytes);
  }
  return {all, largest};
}

/// Attention goes to the device through a ring that has room for all of it, the host has the rest.
struct AttentionStreamed {
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    auto const [all, largest] = attention_bytes(r.shards);
    out.declined = r.ring_bytes < all + largest;
    for (std::size_t i = 0; i < r.shards.size() && !out.declined; ++i) {
      if (r.shards[i].kind == ShardKind::attention) out.shards[i] = {Tier::pinned, 1};
    }
    out.state_in_vram.assign(r.states.size(), 1);
    return out;
  }
};
/// Shards whole, or in pieces of about a third.
struct Pieces {
  bool by_rows = false;
  Schedule schedule(ShardPlan const& plan, ShardTable const& table) const {
    if (!by_rows || plan.ring_bytes == 0) return RingPrefetch{}.schedule(plan, table);
    double const share = double(attention_bytes(table.shards).second) / double(plan.ring_bytes);
    return RingPrefetch{share / 2, share / 3}.schedule(plan, table);
  }
};

struct OneTier {
  std::array<int, 1> all{16};
  std::span<int const> bounds() const { return all; }
  std::size_t select(int) const { return 0; }
};
struct StreamedPolicies : SimPolicies {
  using Placement = AttentionStreamed;
  using TokenTiers = OneTier;
  using Prefetch = Pieces;
};

/// A copy engine that remembers what it was given.
class ListedCopy {
 public:
  ListedCopy(std::shared_ptr<LaneSet> lanes, SimCopyOptions const& options) : engine_(std::move(lanes), options) {}
  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    submitted.emplace_back(pieces.begin(), pieces.end());
    return engine_.submit(pieces, after);
  }
  bool done(Ticket ticket) const { return engine_.done(ticket); }
  void wait(Ticket ticket) { engine_.wait(ticket); }
  void recover() { engine_.recover(); }
  LaneSet::Lane lane() const { return engine_.lane(); }

  std::vector<std::vector<CopyPiece>> submitted;

 private:
  SimCopyEngine engine_;
};

struct RigOptions {
  bool by_rows = false, maps_host = false, two_lanes = true;
  std::uint64_t seed = 1;
};

/// Two devices of kind B, and a copy lane for weights in which every copy takes a second; nothing else takes time.
template <class B>
class Rig {
 public:
  Rig(std::shared_ptr<Transformer const> m, B& host, B& device, std::shared_ptr<LaneSet> lanes, RigOptions const& o,
      std::shared_ptr<SimClock> of = std::make_shared<SimClock>())
      : clock(std::move(of)),
        model(std::move(m)),
        copy(lanes, {.clock = clock, .seconds_per_submit = 1}),
        kv_copy(lanes, {.clock = clock, .lane_name = "kv copy"}),
        plans(plan(host, device, o)),
        vram(device.memory(), plans.vram_bytes, weight_alignment),
        kv(model->config(), {plans.max_context, 1, DType::f32}, plans.images.front().plan.state_in_vram, vram.data()),
        cache(0, AnyEviction(Lru{})),
        activations(host_tier, plans.images.front().activations.total_bytes, weight_alignment),
        executor(ModelRef(*model), parts(host, device, o)) {}
  ~Rig() { executor.recover(); }

  PlanImage const& image() const { return plans.images.front(); }
  void activate() {
    executor.activate(image());
    activated_s = clock->lane_seconds(copy.lane());
    for (ListedCopy* lane : {&copy, &kv_copy}) lane->submitted.clear();
    log.clear();
  }
  /// Logits of the tokens, which stand at the sequence's begin.
  std::vector<float> run(std::vector<std::int32_t> const& tokens) {
    std::vector<BlockRow> rows;
    for (std::int32_t const token : tokens) rows.push_back({0, std::int32_t(rows.size()), token, true});
    kv.reserve(0, std::int32_t(rows.size()));
    std::vector<float> out(rows.size() * std::size_t(model->config().vocab_size));
    executor.run_block(rows, out.data());
    return out;
  }
  /// When, by the clock, a shard's step began and ended.
  SimSpan step_of(ShardId shard) const {
    auto const it =
        std::ranges::find_if(log, [&](TraceEntry const& e) { return e.action.kind == ActionKind::run && e.action.shard == shard; });
    REQUIRE(it != log.end());
    return {clock->seconds(it->begin) - activated_s, clock->seconds(it->end) - activated_s};
  }
  bool is_weight(std::byte const* data) const {
    return std::ranges::any_of(model->table().weights, [&](Weight const& w) { return w.data <= data && data < w.data + w.bytes(); });
  }

 private:
  EnginePlans plan(B const& host, B const& device, RigOptions const& o) {
    EngineOptions options;
    for (Shard const& s : model->table().shards) options.vram_bytes += 2 * s.bytes;
    options.vram_bytes += 2 * MiB;
    options.max_context = 64;
    options.kv_type = DType::f32;
    PolicyValues<StreamedPolicies> values;
    values.prefetch = {o.by_rows};
    return make_plans<StreamedPolicies>(*model, options, values, host.kernels(), device.kernels());
  }
  ExecutorParts parts(B& host, B& device, RigOptions const& o) {
    ExecutorParts p;
    p.table = model->table();
    p.config = &model->config();
    p.host = Side(host_device, host);
    p.device = Side(first_gpu, device);
    p.copy = CopyLane(copy);
    if (o.two_lanes) p.kv_copy = CopyLane(kv_copy);
    p.vram = vram.data();
    p.host_base = activations.data();
    p.kv = &kv;
    p.cache = &cache;
    p.host_access.activations = o.maps_host;
    p.trace = &log;
    return p;
  }

 public:
  std::shared_ptr<SimClock> clock;
  std::shared_ptr<Transformer const> model;
  ListedCopy copy, kv_copy;
  EnginePlans plans;
  Buffer vram;
  KvCache kv;
  ExpertCache cache;
  PageableTier host_tier;
  Buffer activations;
  TraceLog log;
  double activated_s = 0;
  Executor executor;
};

/// By attention shard: how many copies the schedule has up to the last one with rows of a matrix. Vectors are not waited for so long.
std::map<ShardId, double> copies_until(PlanImage const& image, ShardTable const& table) {
  std::map<ShardId, double> out;
  double n = 0;
  for (Action const& a : image.schedule) {
    if (a.kind != ActionKind::copy) continue;
    ++n;
    Range const of = table.shard(a.shard).weights;
    for (Weight const& w : table.weights.subspan(std::size_t(of.begin), std::size_t(of.size()))) {
      if (w.rows > 1 && (a.rows == Range{} || (w.first_row < a.rows.end && a.rows.begin < w.first_row + w.rows))) out[a.shard] = n;
    }
  }
  return out;
}

std::vector<std::int32_t> const tokens{5, 6, 7};

}  // namespace

TEST_CASE("a step waits for its own weights, and for none that are copied ahead of later ones", "[executor]") {
  for (char const* file : {"gemma3.f32.gguf", "qwen2.f32.gguf", "llama.f32.gguf"}) {
    for (bool by_rows : {false, true}) {
      INFO(file << (by_rows ? " by rows" : " whole"));
      auto const model = open_golden(file);
      auto const lanes = LaneSet::seeded(1);
      auto const clock = std::make_shared<SimClock>();
      SimBackend host(lanes, {.clock = clock}), device(lanes, {.vram_bytes = 4 * MiB, .clock = clock});
      Rig<SimBackend> rig(model, host, device, lanes, {.by_rows = by_rows}, clock);
      rig.activate();
      rig.run(tokens);
      std::map<ShardId, double> const n_copies = copies_until(rig.image(), model->table());
      REQUIRE(n_copies.size() == std::size_t(model->config().n_layers));
      REQUIRE((n_copies.rbegin()->second > double(n_copies.size())) == by_rows);
      double there_s = 0;
      for (Step const& step : model->table().steps) {
        INFO("layer " << step.layer);
        // The ring has room for all: its copies, a second each, come one behind the other, and nothing else takes time.
        if (auto const it = n_copies.find(step.shard); it != n_copies.end()) {
          CHECK(rig.step_of(step.shard).end_s == (there_s = it->second));
        } else if (model->table().shard(step.shard).kind == ShardKind::ffn) {
          CHECK(rig.step_of(step.shard).begin_s == there_s);  // the rows have hopped at once
        }
      }
    }
  }
}

TEST_CASE("the lane of weights carries what the schedule copies and nothing else", "[executor]") {
  KernelTable kernels = reference::kernels();
  kernels.transfer = reference::kernels_fused().transfer;
  for (char const* file : {"gemma3.f32.gguf", "qwen2.f32.gguf", "llama.f32.gguf"}) {
    auto const model = open_golden(file);
    std::vector<float> expected;
    for (std::uint64_t seed = 0; seed < 32; ++seed) {
      RigOptions const o{.by_rows = seed % 2 == 1, .maps_host = seed / 2 % 2 == 1, .two_lanes = seed / 4 % 2 == 0, .seed = seed};
      INFO(file << (o.by_rows ? " by rows" : " whole") << (o.maps_host ? ", maps the host's memory" : "") << ", seed " << seed);
      auto const lanes = LaneSet::seeded(seed);
      ReferenceDevice host(lanes, reference::kernels(), 0, "host"), device(lanes, kernels, 4 * MiB, "device");
      Rig<ReferenceDevice> rig(model, host, device, lanes, o);
      rig.activate();
      std::vector<float> const logits = rig.run(tokens);
      if (expected.empty()) expected = logits;
      CHECK(logits == expected);
      std::size_t const n_copies = std::size_t(std::ranges::count(rig.image().schedule, ActionKind::copy, &Action::kind));
      REQUIRE(n_copies > 0);
      if (!o.two_lanes) continue;
      CHECK(rig.copy.submitted.size() == n_copies);
      for (std::vector<CopyPiece> const& pieces : rig.copy.submitted)
        CHECK(std::ranges::all_of(pieces, [&](CopyPiece const& p) { return rig.is_weight(p.src); }));
      CHECK(rig.kv_copy.submitted.empty() == o.maps_host);  // a kernel takes all that is left
      CHECK((std::ranges::count(device.launches, "transfer") > 0) == o.maps_host);
    }
  }
}
