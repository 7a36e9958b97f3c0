/// The rules of plans and schedules as a check, for policies that users write and for tests.
#pragma once

#include <string>

#include "tiered/plan/experts.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

/// The first rule that a plan breaks, as a sentence; empty: none. Whether it fits the budget is ShardPlan::shortfall_bytes.
std::string verify(ShardPlan const& plan, ShardTable const& table);
/// With the table's experts, where somebody has them already.
std::string verify(ShardPlan const& plan, ShardTable const& table, ExpertLayers const& experts);

/// The first rule of plan/schedule.hpp that a schedule breaks, with the action's number; empty: none. The plan must be sound:
/// verify(plan, table) is empty.
std::string verify(Schedule const& schedule, ShardPlan const& plan, ShardTable const& table);

}  // namespace tiered
