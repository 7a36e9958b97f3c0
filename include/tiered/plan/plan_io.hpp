/// Plans, schedules and hardware as text: for people, for bug reports, for golden tests.
#pragma once

#include <string>
#include <string_view>

#include "tiered/plan/planner.hpp"

namespace tiered {

/// Exact and complete: parse_plan gives back an equal plan. Runs of equal placements are written once, with their number.
std::string to_text(ShardPlan const& plan);

/// Errors  bad_file with the byte where `text` is not what to_text(plan) writes.
ShardPlan parse_plan(std::string_view text);

/// A letter per layer: R resident, S streamed, . host; of experts also C cached, r or c where only some are, m both; kv V in VRAM.
///   attention RRRR....
///   kv        VVVV....
///   ffn       SSSS....   (of a mixture of experts: the router)
///   experts   CCCC....
///   output    R
std::string layer_map(ShardPlan const& plan, ShardTable const& table);

/// One line: bytes by category, shards by where they are, predicted seconds and their bound.
std::string summary(TierPlan const& tier);

/// The summary line and the map of layers.
std::string to_text(TierPlan const& tier, ShardTable const& table);

/// One action a line: "copy 12 [0, 512) at 4096 bytes 262144".
std::string to_text(Schedule const& schedule);

/// A machine's rates, a line per device and link.
std::string to_text(HardwareProfile const& h);

}  // namespace tiered
