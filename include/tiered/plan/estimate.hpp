/// Predicted seconds of a schedule: its actions on one virtual clock per lane.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/hardware.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

/// Costs of one walk of a schedule, that is of one block of rows.
struct PassCosts {
  std::vector<PassCost> shards, states;  ///< as in ShardTable
  std::vector<double> read_bytes;        ///< expected bytes of each shard that are read at all
  double states_used = 1;                ///< the share of all positions that costs of states are for
  bool streams_states = false;           ///< rows on the device may bring what they attend to: see host_attention()
  bool looks_ahead = true;               ///< one row's step brings experts that it will probably want ahead of their layers: see FewRouted
  bool reads_ahead = false;              ///< then the host's caches read some of the others: see Team::read_ahead()
  double grown = 1 / long_contexts;      ///< of contexts, those taken to fill their room: 0 to predict one of a known length
};

/// Rows of a block that plans assume to want logits, or one of each sequence: of a prompt its last does.
inline constexpr std::int32_t most_output_rows = 16;

/// Dense shards are read once per chunk and cross the link once; the output meets most_output_rows of a block; experts meet all rows of the
/// block at once, or expert_tokens of them where that is not 0, and cross once; of the states, whose positions are those of all rows, a
/// block has its share, and where they cross, they do so for each chunk. `same_for_alike`: as CostModel says; then a shard_cost is asked
/// once for shards that are alike.
PassCosts pass_costs(ShardTable const& table, Rows rows, std::int32_t chunk_tokens, std::int32_t block_tokens,
                     FunctionRef<PassCost(Shard const&, Rows)> shard_cost, FunctionRef<PassCost(LayerState const&, Rows)> state_cost,
                     std::int32_t expert_tokens = 0, bool same_for_alike = false);

struct ActionTime {
  double begin_s = 0, end_s = 0;
  bool operator==(ActionTime const&) const = default;
};

struct Estimate {
  double seconds = 0;                        ///< of all rows
  double copy_s = 0, gpu_s = 0, host_s = 0;  ///< how long each lane is busy
  double bound_s = 0;  ///< no order of these actions could be faster: the busiest lane, or memory that host and link share
  double copied_bytes = 0, host_bytes = 0;  ///< over the link; read by the host's products
  std::vector<ActionTime> actions;          ///< of the first block, in the schedule's order
  bool operator==(Estimate const&) const = default;
};

/// Estimates many candidates for one model. The spans of the table must live as long.
class Estimator {
 public:
  Estimator(ShardTable const& table, HardwareProfile const& hardware);
  ExpertLayers const& experts() const { return experts_; }
  std::int32_t dim() const { return dim_; }  ///< of the hidden rows

  /// To move `n` hidden rows from one device to the other.
  double hop_s(std::int32_t n) const;

  /// No schedule of the plan is estimated at less: its steps run one after the other, and no copy is larger than the ring.
  double least_seconds(ShardPlan const& plan, PassCosts const& costs, Rows rows) const;

  /// Where it is not below `enough_s` nothing but the seconds, and of those any that are not.
  Estimate operator()(Schedule const& schedule, ShardPlan const& plan, PassCosts const& costs, Rows rows, double enough_s = HUGE_VAL) const;

 private:
  struct Walk;

  ShardTable table_;
  HardwareProfile const* hardware_;
  ExpertLayers experts_;
  std::int32_t dim_ = 0;
};

/// `costs` must be of the plan's chunk and block. The schedule must be sound (verify in plan/verify_schedule.hpp).
Estimate estimate(Schedule const& schedule, ShardPlan const& plan, ShardTable const& table, PassCosts const& costs,
                  HardwareProfile const& hardware, Rows rows);

}  // namespace tiered
