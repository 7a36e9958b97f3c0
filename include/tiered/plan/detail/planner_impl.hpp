/// Defines plan_tier: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/detail/tier_share.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/helped_layer.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/plan/verify_schedule.hpp"

namespace tiered {

namespace detail {

class TierPlanner {
 public:
  TierPlanner(HardwareProfile const& hardware, ShardTable const& table, PlannerInput const& input)
      : table_(table),
        input_(input),
        hardware_(hardware),
        mutual_(hardware.mutual),
        mutual_attention_(attention_beside_link(hardware)),
        estimator_(table, hardware),
        experts_(estimator_.experts()) {
    expects(input.rows.n > 0 && input.rows.n_sequences > 0 && input.rows.context >= 0,
            "plan_tier: rows.n and rows.n_sequences must be positive");
    expects(input.fixed_state_in_vram.empty() || input.fixed_state_in_vram.size() == table.states.size(),
            "plan_tier: fixed_state_in_vram must name every layer or none");
    request_.states = table.states;
    request_.rows = input.rows;
    request_.fixed_state_in_vram = input.fixed_state_in_vram;
    request_.state_pages = input.state_pages;
    request_.deterministic = input.deterministic;
    fixed_bytes_ = VramAccount{request_}.used_bytes();
    for (Shard const& s : table.shards) {
      if (s.kind == ShardKind::router) routers_.push_back(s.id);
    }
  }

  /// Chunks from all rows down by halves, until three sizes gave plans that compute on the device: a smaller one is slower by
  /// itself, but leaves VRAM to weights.
  TierPlan plan(PlaceRef place, PrefetchRef prefetch, CostRefs costs) {
    // Of later shapes: those near the best of the first that streams. What goes in several chunks needs whole shards in its ring, and is
    // quickest with room for the next; what goes by rows does with little.
    std::vector<std::size_t> rings_by_rows, rings_of_wholes;
    int n_useful = 0, halvings = 0;
    for (std::int32_t chunk = input_.rows.n; n_useful < 3; chunk = (chunk + 1) / 2, ++halvings) {
      useful_ = in_windows_ = false;
      for (Shape const& shape : shapes(chunk, halvings)) {
        // More scratch for no larger a block; or a smaller one, where all but experts has room beside the larger.
        if (in_windows_ && shape.block > shape.chunk && (shape.experts == 0 || best_->plan.ring_bytes == 0)) continue;
        set_shape(shape, costs);
        std::vector<std::size_t>& rings = shape.block > shape.chunk ? rings_of_wholes : rings_by_rows;
        std::vector<std::size_t> const sizes = rings.empty() ? ring_sizes() : rings;
        for (std::size_t const ring : sizes) {
          if (try_ring(shape, ring, place, prefetch)) break;
        }
        if (rings.empty() && is_best(shape) && best_->plan.ring_bytes > 0) rings = neighbours(sizes, best_->plan.ring_bytes);
      }
      n_useful += useful_;
      if (chunk == 1) break;
    }
    if (!best_) fall_back(prefetch, costs);
    return finish();
  }

 private:
  struct Shape {
    std::int32_t chunk = 0, block = 0;
    std::size_t scratch_bytes = 0;
    std::int32_t experts = 0;  ///< ShardPlan::expert_tokens
  };

  /// For a chunk the largest block whose hidden rows fit beside it and the states that are fixed, and the chunk itself; before those
  /// the two largest whose experts come in windows, of which the smaller leaves more to these.
  std::vector<Shape> shapes(std::int32_t chunk, int halvings) const {
    std::vector<Shape> out;
    auto const add_if_fits = [&](int k, std::optional<ScratchBytes> const& scratch, std::int32_t experts) {
      std::int32_t const block = chunk << k;
      if (k > 0 && block / 2 >= input_.rows.n) return false;
      std::size_t const bytes = (*scratch)(chunk, block);
      if (bytes > input_.budget.vram_bytes || fixed_bytes_ > input_.budget.vram_bytes - bytes) return false;
      out.push_back({chunk, block, bytes, experts});
      return true;
    };
    if (input_.scratch_in_windows && goes_in_windows(chunk)) {
      for (int k = halvings; k > 0 && out.size() < 2; --k) add_if_fits(k, input_.scratch_in_windows, chunk);
    }
    int k = halvings;
    while (k > 0 && !add_if_fits(k, input_.scratch_bytes, 0)) --k;
    add_if_fits(0, input_.scratch_bytes, 0);
    return out;
  }

  /// Whether any rows that are more than a chunk use all experts of a layer.
  bool goes_in_windows(std::int32_t chunk) const {
    return chunk >= least_window_rows && !experts_.layers.empty() && std::ranges::all_of(experts_.layers, [&](ExpertLayer const& l) {
             return uses_whole_layer(table_.shards[experts_.ids[l.begin]], chunk + 1);
           });
  }
  /// Whether the plan has its rows on the device wherever there are experts, and has those come there: where all are there for good,
  /// windows are pieces too small for a device that waits for nothing (prompts of 4096 rows with 128 resident experts took 1.4 times as
  /// long).
  bool runs_in_windows(ShardPlan const& plan) const {
    return routers_.size() == experts_.layers.size() &&
           std::ranges::all_of(routers_, [&](ShardId id) { return plan.shards[std::size_t(id)].gpu_rows > 0; }) &&
           std::ranges::all_of(experts_.ids, [&](std::uint32_t id) { return plan.shards[id].resident() || plan.shards[id].cached; }) &&
           std::ranges::any_of(experts_.ids, [&](std::uint32_t id) { return plan.shards[id].cached; });
  }

  void set_shape(Shape const& shape, CostRefs costs) {
    Rows rows = input_.rows;
    // A block's last row sees all of it.
    if (input_.cost_context > 0) rows.context = (std::min)(rows.context, (std::max)(input_.cost_context, rows.n));
    costs_ = pass_costs(table_, rows, shape.chunk, shape.block, costs.shard, costs.state, shape.experts, costs.same_for_alike);
    expert_costs_ = ExpertCosts{experts_, costs_.shards};
    costs_.streams_states = input_.streams_states;
    costs_.looks_ahead = input_.looks_ahead;
    costs_.reads_ahead = input_.reads_ahead;
    share_ = {};
    if (input_.shares_windows && !input_.deterministic)
      share_ = tier_share(hardware_, table_, experts_, costs_, estimator_.dim(), {(std::min)(shape.block, input_.rows.n), rows.context},
                          costs.shard);
    if (input_.rows.context > 0) costs_.states_used = (std::min)(1.0, double(rows.context) / double(input_.rows.context));
    request_ = {.shards = table_.shards,
                .costs = costs_.shards,
                .states = table_.states,
                .state_costs = costs_.states,
                .budget = input_.budget,
                .rows = input_.rows,
                .ring_bytes = 0,
                .scratch_bytes = shape.scratch_bytes,
                .fixed_state_in_vram = input_.fixed_state_in_vram,
                .hop_s = estimator_.hop_s((std::min)(shape.block, input_.rows.n)),
                .state_pages = input_.state_pages,
                .states_used = costs_.states_used,
                .streams_states = costs_.streams_states,
                .launches_attention = input_.launches_attention,
                .looks_ahead = input_.looks_ahead,
                .reads_ahead = input_.reads_ahead,
                .deterministic = input_.deterministic,
                .mutual = mutual_,
                .mutual_attention = mutual_attention_,
                .helped = helped_machine(hardware_),
                .experts = &experts_,
                .expert_costs = &expert_costs_,
                .expert_share = share_};
  }

  /// None, one to three of the largest shards of a layer, two of the largest of all, and a geometric row up to what is free.
  std::vector<std::size_t> ring_sizes() const {
    std::size_t in_layer = 0, largest = 0, all = 0;
    for (Step const& step : table_.steps) {
      Shard const& s = table_.shard(step.shard);
      if (s.kind == ShardKind::embedding) continue;
      std::size_t const bytes = VramAccount::round_up(s.bytes);
      if (s.kind != ShardKind::output) in_layer = (std::max)(in_layer, bytes);
      largest = (std::max)(largest, bytes);
      all += bytes;
    }
    std::size_t const used = VramAccount{request_}.used_bytes();
    std::size_t const most = used < input_.budget.vram_bytes ? (std::min)(input_.budget.vram_bytes - used, all) : 0;
    std::vector<std::size_t> sizes{0, in_layer, 2 * in_layer, 3 * in_layer, 2 * largest};
    for (int shift = 0; shift < 8; ++shift) sizes.push_back(most >> shift);
    for (std::size_t& size : sizes) size = size / weight_alignment * weight_alignment;
    std::erase_if(sizes, [&](std::size_t size) { return size > most; });
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    return sizes;
  }

  bool is_best(Shape const& shape) const {
    return best_ && best_->plan.chunk_tokens == shape.chunk && best_->plan.block_tokens == shape.block &&
           best_->plan.expert_tokens == shape.experts;
  }

  static std::vector<std::size_t> neighbours(std::vector<std::size_t> const& sizes, std::size_t best) {
    std::vector<std::size_t> near_best{0};
    auto const at = std::lower_bound(sizes.begin(), sizes.end(), best);
    if (at != sizes.end() && at != sizes.begin()) {
      if (at - 1 != sizes.begin()) near_best.push_back(*(at - 1));
      near_best.push_back(*at);
      if (at + 1 != sizes.end()) near_best.push_back(*(at + 1));
    }
    return near_best;
  }

  /// True: nothing is left to stream, so no other ring can be better.
  bool try_ring(Shape const& shape, std::size_t ring, PlaceRef place, PrefetchRef prefetch) {
    request_.ring_bytes = ring;
    Placements placements = place(request_);
    if (placements.declined) return false;
    expects(placements.shards.size() == table_.shards.size() && placements.state_in_vram.size() == table_.states.size(),
            "a placement policy must place every shard and every state");
    return consider(shape, make_plan(request_, std::move(placements)), prefetch);
  }

  bool consider(Shape const& shape, ShardPlan plan, PrefetchRef prefetch) {
    plan.chunk_tokens = shape.chunk;
    plan.block_tokens = shape.block;
    plan.expert_tokens = shape.experts;
    bool const in_windows = runs_in_windows(plan);
    if (plan.shortfall_bytes > 0 || (shape.experts > 0 && !in_windows)) return false;
    if (in_windows && plan.cache_bytes > 0) plan.share = share_;
    useful_ = useful_ || plan.scratch_bytes > 0;
    if (std::string const broken = verify(plan, table_, experts_); !broken.empty())
      throw Error(Errc::precondition, concat("placement policy: ", broken));
    if (plan.chunk_tokens != plan.block_tokens && must_go_by_rows(plan)) return false;
    bool const all_resident =
        request_.ring_bytes == 0 && std::all_of(table_.steps.begin(), table_.steps.end(), [&](Step const& step) {
          return plan.shards[std::size_t(step.shard)].resident() || table_.shard(step.shard).kind == ShardKind::embedding;
        });
    double const enough_s = best_ ? clear_share(plan, all_resident) * best_->estimate.seconds : HUGE_VAL;
    bool const is_known = shape.experts == 0 || in_windows_;  // that such plans can be scheduled
    if (best_ && is_known && estimator_.least_seconds(plan, costs_, input_.rows) >= enough_s) return all_resident;
    Schedule schedule;
    try {
      schedule = prefetch(plan, table_);
    } catch (Error const& error) {
      if (error.code() != Errc::over_budget) throw;
      return false;  // the ring is too small for one row
    }
    bool const by_rows = std::any_of(schedule.begin(), schedule.end(), [&](Action const& a) {  // but the output, which runs once a block
      return a.rows != Range{} && std::size_t(a.shard) < table_.shards.size() && table_.shard(a.shard).kind != ShardKind::output;
    });
    if (by_rows && plan.chunk_tokens != plan.block_tokens) return false;
    for (Action const& a : schedule) {
      if (std::size_t(a.shard) < table_.shards.size()) continue;
      throw Error(Errc::precondition, concat("prefetch policy: there is no shard ", std::uint32_t(a.shard)));
    }
    Estimate estimate = estimator_(schedule, plan, costs_, input_.rows, enough_s);
    in_windows_ = in_windows_ || shape.experts > 0;
    if (!best_ || estimate.seconds < enough_s) {
      best_ = TierPlan{input_.rows, std::move(plan), std::move(schedule), std::move(estimate)};
    }
    return all_resident;
  }

  /// Some of a layer's weights are larger than the ring: each chunk would need them again.
  bool must_go_by_rows(ShardPlan const& plan) const {
    return std::ranges::any_of(table_.steps, [&](Step const& step) {
      Shard const& s = table_.shard(step.shard);
      return s.kind != ShardKind::output && s.bytes > plan.ring_bytes && plan.shards[std::size_t(step.shard)].streamed();
    });
  }

  /// Of the best one's time, what a plan must stay below. A smaller chunk only for a clear gain: what the estimate leaves out is mostly per
  /// chunk. Where it leaves no room to anything, both plans having all in VRAM, a gain is one of rates measured at two numbers of rows, in
  /// pieces of different sizes: 10 % must be seen, but for chunks that are large enough for full rates. Products of an 8B model on an H200
  /// run at 655, 718, 716, 683, 664 TFLOP/s with 512 to 8192 rows.
  double clear_share(ShardPlan const& plan, bool all_resident) const {
    if (!best_ || best_->plan.chunk_tokens == plan.chunk_tokens) return 1;
    bool const alike = all_resident && best_->plan.resident_bytes == plan.resident_bytes && best_->plan.cache_bytes == 0;
    if (!alike) return 0.98;
    return plan.chunk_tokens >= full_rate_tokens ? 1.02 : 0.9;
  }
  static constexpr std::int32_t full_rate_tokens = 2048;

  /// Everything on the host; states that are fixed in VRAM still need scratch for their attention.
  void fall_back(PrefetchRef prefetch, CostRefs costs) {
    bool const on_device =
        std::any_of(input_.fixed_state_in_vram.begin(), input_.fixed_state_in_vram.end(), [](float share) { return share > 0; });
    std::int32_t chunk = input_.rows.n;
    while (chunk > (on_device ? 1 : 512)) chunk = (chunk + 1) / 2;
    Shape shape{chunk, chunk, 0};
    while (!on_device && shape.block < input_.rows.n) shape.block *= 2;
    if (on_device) shape.scratch_bytes = input_.scratch_bytes(shape.chunk, shape.block);
    set_shape(shape, costs);
    ShardPlan plan = make_plan(request_, Placements{request_});
    if (plan.shortfall_bytes > 0) {
      throw Error(Errc::over_budget, concat("states of ", plan.state_bytes, " bytes and scratch of ", plan.scratch_bytes,
                                            " bytes do not fit a VRAM budget of ", input_.budget.vram_bytes,
                                            " bytes: ", plan.shortfall_bytes, " are missing"));
    }
    consider(shape, std::move(plan), prefetch);
  }

  TierPlan finish() {
    if (!best_) throw Error(Errc::precondition, "prefetch policy: it refuses a plan that streams nothing");
    if (!std::isfinite(best_->estimate.seconds)) throw_unsupported();
    if (std::string const broken = verify(best_->schedule, best_->plan, table_); !broken.empty()) {
      throw Error(Errc::precondition, concat("prefetch policy: ", broken));
    }
    return std::move(*best_);
  }

  [[noreturn]] void throw_unsupported() const {
    for (Shard const& s : table_.shards) {
      PassCost const& cost = costs_.shards[std::size_t(s.id)];
      if (std::isfinite(best_->plan.shards[std::size_t(s.id)].gpu_rows > 0 ? cost.gpu_s : cost.host_s)) continue;
      throw Error(Errc::unsupported,
                  concat("no device has kernels for shard ", std::uint32_t(s.id), " (", name(s.kind), " of layer ", s.layer, ")"));
    }
    throw Error(Errc::unsupported, "no device has kernels for this model's attention");
  }

  ShardTable table_;
  PlannerInput const& input_;
  HardwareProfile const& hardware_;
  MutualRates mutual_, mutual_attention_;
  Estimator estimator_;
  PassCosts costs_;
  ExpertCosts expert_costs_;
  ExpertShare share_;  ///< of the shape
  PlanRequest request_;
  ExpertLayers const& experts_;
  std::vector<ShardId> routers_;
  std::size_t fixed_bytes_ = 0;
  bool useful_ = false;      ///< the chunk size being tried gave a plan that computes on the device
  bool in_windows_ = false;  ///< and one whose experts come in windows
  std::optional<TierPlan> best_;
};

TierPlan plan_tier(HardwareProfile const& hardware, ShardTable const& table, PlannerInput const& input, PlaceRef place,
                   PrefetchRef prefetch, CostRefs costs) {
  return TierPlanner{hardware, table, input}.plan(place, prefetch, costs);
}

}  // namespace detail

}  // namespace tiered
