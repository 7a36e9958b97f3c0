/// An executor with devices of reference kernels: for tests of what is launched, captured, and who computes experts.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "reference_device.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/sim/faults.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

namespace tiered::test {

/// What a device's kernels may read of the host's weights.
struct ReadableParts {
  std::function<bool(void const*, std::size_t)> may_read;
  bool covers(void const* data, std::size_t bytes) const { return may_read(data, bytes); }
};

struct RigOptions {
  std::string policy = "all_vram";
  std::size_t vram_bytes = std::size_t{1} << 24;
  bool device_embeds = false, capture = false;
  bool maps_host = false;
  float fetched_misses = 1;
  bool deterministic = false;
  double cache_share = 0;  ///< of all weights, more than the plan's cache: behind what the plan takes
  std::int32_t n_sequences = 1;
  std::int32_t capture_rows = 16;
  std::int32_t chunk = 0;   ///< rows that go through a step at once; 0: as planned
  bool in_windows = false;  // with chunk: room for experts' outputs of so many rows only
  std::uint64_t seed = 1;
  std::uint64_t help_patience_ns = 0;
  bool cached_experts = false;  ///< all but the experts in VRAM, these in the cache or not
  ExpertShare share = {};       ///< of layers that come in windows
  std::int32_t max_context = 256;
  std::shared_ptr<Faults> faults = nullptr;  ///< of copies
  LookAhead look_ahead = LookAhead::never;
  bool read_ahead = false;
  bool experts_in_vram = false;  ///< where it helps
  bool threads = false;          ///< lanes, which otherwise take turns by the seed
  bool helps = false;  ///< all but the experts in VRAM, these in the cache or not: the device asks the host (lanes are threads then)
  KernelTable const* device = &reference::kernels_fused();
  DType kv_type = DType::f32;  ///< smooth: no rounding that a last bit could turn
  float kv_share = 0;          ///< of positions, in VRAM; 0: as planned
  float read_share = 0;        ///< ShardPlan::state_read_share
  std::int32_t read_tokens = 0;
  TraceLog* trace = nullptr;
  std::atomic<bool> const* cancelled = nullptr;
  std::int32_t page_tokens = kv_page_tokens;
  bool slow_attention = false;              ///< of the host: many rows bring keys and values that are there
  ReadableParts const* readable = nullptr;  ///< what the device embeds and fetches from; null: all weights
  bool own_kv_copy = false;                 ///< ExecutorParts::kv_copy: rows and states do not stand behind weights
};

inline std::size_t all_bytes(Transformer const& model) {
  std::size_t sum = 0;
  for (Shard const& s : model.table().shards) sum += s.bytes;
  return sum;
}

/// Copies that can be held back. Counters and `may_go` may be used by any thread.
class HeldCopies {
 public:
  HeldCopies(std::shared_ptr<LaneSet> lanes, SimCopyOptions options) : lanes_(lanes), engine_(lanes, std::move(options)) {}

  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    if (before_submit) before_submit();
    if (may_go) {
      lanes_->submit(engine_.lane(), [this] {
        while (!may_go()) std::this_thread::yield();
      });
    }
    for (int i = late_by ? late_by(pieces.front()) : 0; i > 0; --i) lanes_->submit(engine_.lane(), [] {});
    engine_.submit(pieces, after);
    lanes_->submit(engine_.lane(), [this] { ++n_done; });
    ++n_submitted;
    return lanes_->record(engine_.lane());
  }
  void recover() { engine_.recover(); }
  bool done(Ticket ticket) const { return engine_.done(ticket); }
  void wait(Ticket ticket) { engine_.wait(ticket); }

  std::atomic<std::uint64_t> n_submitted{0}, n_done{0};
  std::function<bool()> may_go;                  ///< asked by the copies' own thread, again and again; none: at once
  std::function<void()> before_submit;           ///< of the thread that submits
  std::function<int(CopyPiece const&)> late_by;  ///< turns that a copy's lane takes before it, by its first piece; none: 0

 private:
  std::shared_ptr<LaneSet> lanes_;
  SimCopyEngine engine_;
};
static_assert(CopyEngine<HeldCopies>);

/// An executor by hand: what an engine does with its parts, with backends of the test.
class Rig {
 public:
  Rig(std::shared_ptr<Transformer const> m, RigOptions const& o)
      : model(std::move(m)),
        lanes(o.helps || o.threads ? LaneSet::threads() : LaneSet::seeded(o.seed)),
        host(lanes, reference::kernels(), 0, "host"),
        device(lanes, *o.device, 2 * o.vram_bytes, "device"),
        copy(lanes, SimCopyOptions{.device = &device.memory(), .faults = o.faults}),
        kv_copy(o.own_kv_copy ? std::make_unique<HeldCopies>(
                                    lanes, SimCopyOptions{.device = &device.memory(), .faults = o.faults, .lane_name = "kv copy"})
                              : nullptr),
        plans(plan(o)),
        vram(device.memory(), plans.vram_bytes, weight_alignment),
        kv(model->config(), {plans.max_context, o.n_sequences, o.kv_type, o.page_tokens}, plans.images.front().plan.state_in_vram,
           vram.data() + plans.images.front().vram.state_offset),
        cache(most([](PlanImage const& i) { return i.vram.cache_bytes; }), AnyEviction(Lru{})),
        activations(host_tier, most([](PlanImage const& i) { return i.activations.total_bytes; }), weight_alignment),
        lengths(std::size_t(o.n_sequences), 0),
        executor(ModelRef(*model), parts(o)) {
    device.may_capture = o.capture;
  }
  ~Rig() { executor.recover(); }

  PlanImage const& image_for(std::size_t n_rows) const { return plans.images[DecodePrefillTiers{}.select(int(n_rows))]; }

  /// (slot, token) behind what the sequences have; logits of all rows, or of the last only.
  std::vector<float> step(std::vector<std::pair<std::int32_t, std::int32_t>> const& tokens, bool last_only = false) {
    std::size_t const vocab = std::size_t(model->config().vocab_size);
    std::vector<float> out;
    for (std::size_t begin = 0; begin < tokens.size();) {
      PlanImage const& image = image_for(tokens.size() - begin);
      std::size_t const end = std::min(tokens.size(), begin + std::size_t(image.output_by_rows ? 1 : image.limits.block));
      std::vector<BlockRow> rows;
      for (std::size_t i = begin; i < end; ++i) {
        auto const [slot, token] = tokens[i];
        rows.push_back({slot, lengths[std::size_t(slot)]++, token, !last_only || i + 1 == tokens.size()});
        for (std::size_t k = 0; k < rope_position_rows; ++k) rows.back().rope_positions[k] = rows.back().position + rope_shift[k];
        kv.reserve(slot, lengths[std::size_t(slot)]);
      }
      std::size_t const n_outputs = std::size_t(std::ranges::count_if(rows, &BlockRow::want_logits));
      out.resize(out.size() + n_outputs * vocab, -1.f);
      executor.activate(image);
      executor.run_block(rows, out.data() + out.size() - n_outputs * vocab);
      begin = end;
    }
    return out;
  }
  /// Logits after every token, taken in steps of the given sizes (the last again and again).
  std::vector<float> all(std::vector<std::int32_t> const& tokens, std::vector<std::size_t> const& sizes) {
    std::vector<float> out;
    for (std::size_t begin = 0, s = 0; begin < tokens.size(); ++s) {
      std::size_t const end = std::min(tokens.size(), begin + sizes[std::min(s, sizes.size() - 1)]);
      std::vector<std::pair<std::int32_t, std::int32_t>> rows;
      for (std::size_t i = begin; i < end; ++i) rows.push_back({0, tokens[i]});
      std::vector<float> const logits = step(rows);
      out.insert(out.end(), logits.begin(), logits.end());
      begin = end;
    }
    return out;
  }
  /// Launches of the device in one more step of these rows.
  std::vector<std::string> launches_of(std::vector<std::pair<std::int32_t, std::int32_t>> const& rows) {
    device.launches.clear();
    host.launches.clear();
    device.n_waits = 0;
    step(rows);
    return device.launches;
  }

 private:
  /// From a plan with everything in VRAM; their room stays empty.
  void take_experts_out(PlanImage& image) const {
    for (Shard const& s : model->table().shards) {
      if (s.kind != ShardKind::expert) continue;
      Placement& p = image.plan.shards[std::size_t(s.id)];
      p = {Tier::pageable, 1, true};
      image.vram.resident[std::size_t(s.id)] = VramLayout::none;
    }
    image.plan.cache_bytes = 1;  // cache_share says how much
  }
  EnginePlans plan(RigOptions const& o) {
    EngineOptions options;
    options.vram_bytes = o.vram_bytes;
    options.max_context = o.max_context;
    options.n_sequences = o.n_sequences;
    options.kv_type = o.kv_type;
    options.kv_page_tokens = o.page_tokens;
    PolicyValues<SweepPolicies> const values{.placement = make_placement(o.policy)};
    EnginePlans out = make_plans<SweepPolicies>(*model, options, values, host.kernels(), device.kernels());
    std::size_t const end = out.vram_bytes;
    for (PlanImage& image : out.images) {
      image.plan.fetched_misses = o.deterministic ? 1 : o.fetched_misses;
      image.plan.deterministic = o.deterministic;
      image.plan.share = o.deterministic ? ExpertShare{} : o.share;
      image.plan.state_read_share = o.read_share;
      image.plan.state_read_tokens = o.read_tokens;
      if ((o.helps || o.cached_experts) && !o.experts_in_vram) take_experts_out(image);
      if (o.kv_share > 0) std::ranges::fill(image.plan.state_in_vram, o.kv_share);
      if (image.plan.cache_bytes > 0 && o.cache_share > 0) {
        image.vram.cache_bytes = VramAccount::round_up(std::size_t(o.cache_share * double(all_bytes(*model))));
        image.vram.cache_offset = end;
        image.vram.shared_bytes = 0;
        out.vram_bytes = std::max(out.vram_bytes, end + image.vram.cache_bytes);
      }
      if (o.chunk == 0 || o.chunk >= image.limits.chunk) continue;
      std::size_t const tables = image.activations.expert_tables - image.activations.kv_tables;
      image.limits.chunk = o.chunk;
      image.limits.experts = o.in_windows ? o.chunk : 0;
      image.activations =
          make_activation_layout(model->config(), image.limits, image.activations.step_bytes, tables, image.activations.kv_stream);
    }
    return out;
  }
  template <class F>
  std::size_t most(F const& bytes) const {
    std::size_t n = 0;
    for (PlanImage const& image : plans.images) n = std::max(n, bytes(image));
    return n;
  }
  ExecutorParts parts(RigOptions const& o) {
    host.may_run_now = o.helps;
    if (o.helps) device.offer_help();
    ExecutorParts p;
    p.table = model->table();
    p.config = &model->config();
    p.host = Side(host_device, host);
    p.device = Side(first_gpu, device);
    p.copy = CopyLane(copy);
    if (kv_copy) p.kv_copy = CopyLane(*kv_copy);
    p.vram = vram.data();
    p.host_base = activations.data();
    p.kv = &kv;
    p.cache = &cache;
    p.trace = o.trace;
    p.cancelled = o.cancelled;
    if (o.device_embeds) p.host_access.weights = o.readable != nullptr ? ReadableBytes(*o.readable) : ReadableBytes::all();
    p.capture_rows = o.capture_rows;
    if (o.slow_attention) {
      AnalyticCost slow;
      slow.hardware.host.attention_bytes_per_s /= 1e6;
      p.state_cost = AnyStateCost(slow);
    }
    p.host_access.activations = o.maps_host;
    p.host_access.kv = o.maps_host && o.helps;
    p.help_patience_ns = o.help_patience_ns;
    p.look_ahead = o.look_ahead;
    p.read_ahead = o.read_ahead;
    return p;
  }

 public:
  std::shared_ptr<Transformer const> model;
  std::shared_ptr<LaneSet> lanes;
  ReferenceDevice host, device;
  HeldCopies copy;
  std::unique_ptr<HeldCopies> kv_copy;  ///< or null
  EnginePlans plans;
  Buffer vram;
  KvCache kv;
  ExpertCache cache;
  PageableTier host_tier;
  Buffer activations;
  std::vector<std::int32_t> lengths;
  std::array<std::int32_t, rope_position_rows> rope_shift{};  ///< by which rows of steps to come are turned more than by their positions
  Executor executor;
};

/// Every sum in f64, every result rounded to f32: what fusing changes is some roundings of 2^-24 in each op, at the most.
inline double worst_difference(std::vector<float> const& a, std::vector<float> const& b, float range) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    double const d = std::fabs(double(a[i]) - double(b[i])) / double(range);
    if (!(d <= worst)) worst = d;
  }
  return worst;
}
inline constexpr double tolerance = 1e-5;

}  // namespace tiered::test
