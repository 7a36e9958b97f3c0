/// The list of actions that prediction and execution both read, and the policy that writes it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/plan/account.hpp"

namespace tiered {

enum class ActionKind : std::uint8_t {
  copy,          ///< shard rows [rows) -> ring bytes [ring_offset, ring_offset + bytes)
  run,           ///< a step on a device; of a shard that goes by rows: as far as those rows reach
  release,       ///< those ring bytes may be overwritten once what was run before this is done
  hop,           ///< the hidden rows move to `device`
  fetch_routed,  ///< the routed experts of the router's layer: cached, fetched or computed by the host, known only then
};
constexpr char const* name(ActionKind kind) {
  switch (kind) {
    case ActionKind::copy: return "copy";
    case ActionKind::run: return "run";
    case ActionKind::release: return "release";
    case ActionKind::hop: return "hop";
    case ActionKind::fetch_routed: return "fetch_routed";
  }
  return "?";
}

struct Action {
  ActionKind kind{};
  DeviceId device{};
  ShardId shard{};
  Range rows, tokens;
  std::size_t ring_offset = 0, bytes = 0;
  bool operator==(Action const&) const = default;
};
/// One pass over all steps. Order of the list is order of submission to the lanes.
using Schedule = std::vector<Action>;

/// | expression                | result   | meaning                                                                                |
/// |---------------------------|----------|----------------------------------------------------------------------------------------|
/// | `p.schedule(plan, table)` | Schedule | pure; every streamed byte range: released < copied < run; live ring ranges never overlap |
/// Rules that the executor relies on:
/// - one `run` for each step in the order of table.steps, but for a shard larger than the ring allows whole: that one has a
///   `run` for each of its row ranges, in order, ranges covering all rows, each range copied before and released after;
/// - a row range that begins inside a weight ends in it, so that every weight begins aligned, in the ring too; a router's
///   weights are not cut; `bytes` is row_offset(rows.end) - row_offset(rows.begin) of ShardTable; of a whole shard rows is {0, 0};
/// - a `hop` stands before a `run` whenever its device is not that of the `run` before (the embedding runs on the host);
/// - a router's `run` is followed by a `fetch_routed` with the same shard;
/// - `copy` stands as early as ring space allows; ring offsets are multiples of weight_alignment.
template <class P>
concept PrefetchPolicy = requires(P const& p, ShardPlan const& plan, ShardTable const& table) {
  { p.schedule(plan, table) } -> std::same_as<Schedule>;
};

}  // namespace tiered
