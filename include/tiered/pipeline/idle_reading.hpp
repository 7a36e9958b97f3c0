/// What threads of the host that wait read meanwhile: weights that the current step on the host, and the next one there, come to later.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/kernels/args.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

/// Lists of a plan, by action of its schedule. Few rows read every weight once, and a layer's step is some loops with pauses, in which the
/// memory would have nothing to do.
class IdleReading {
 public:
  /// Of every `run` on the host: the step's last matrix, unless it has but that one, and all matrices of the next such step but its last,
  /// likewise; those of the first step behind the last one's, as one token follows another.
  void prepare(Schedule const& schedule, ShardTable const& table) {
    lists_.assign(schedule.size(), {});
    std::vector<std::size_t> runs;
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      bool const is_first = schedule[i].kind == ActionKind::run && schedule[i].device == host_device &&
                            (runs.empty() || schedule[i].shard != schedule[runs.back()].shard);
      if (is_first && table.shard(schedule[i].shard).kind != ShardKind::embedding) runs.push_back(i);
    }
    for (std::size_t k = 0; k < runs.size(); ++k) {
      List& list = lists_[runs[k]];
      std::vector<Weight const*> const own = matrices(table, schedule[runs[k]].shard),
                                       next = matrices(table, schedule[runs[(k + 1) % runs.size()]].shard);
      if (own.size() > 1) list.add(*own.back());
      for (std::size_t m = 0; m < std::max<std::size_t>(next.size(), 2) - 1 && m < next.size(); ++m) list.add(*next[m]);
    }
  }
  void clear() { lists_.clear(); }

  /// Valid until the next prepare() or clear(). No parts: nothing is known of that action.
  ReadAheadArgs of(std::size_t action) const {
    return action < lists_.size() ? ReadAheadArgs{lists_[action].parts.data(), lists_[action].n} : ReadAheadArgs{};
  }

 private:
  struct List {
    std::array<ReadAheadArgs::Part, 6> parts;
    std::int32_t n = 0;
    void add(Weight const& w) {
      if (std::size_t(n) < parts.size()) parts[std::size_t(n++)] = {w.data, w.bytes()};
    }
  };
  static std::vector<Weight const*> matrices(ShardTable const& table, ShardId id) {
    std::vector<Weight const*> out;
    for (std::int32_t i = table.shard(id).weights.begin; i < table.shard(id).weights.end; ++i) {
      if (table.weights[std::size_t(i)].rows > 1) out.push_back(&table.weights[std::size_t(i)]);
    }
    return out;
  }

  std::vector<List> lists_;
};

}  // namespace tiered
