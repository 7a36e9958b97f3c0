/// What routed experts are given: where everything is, and the rows of one layer after its router.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/model/exec_context.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/expert_cache.hpp"
#include "tiered/pipeline/host_access.hpp"
#include "tiered/pipeline/residency.hpp"
#include "tiered/pipeline/side.hpp"
#include "tiered/pipeline/trace_log.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/expert_decode.hpp"

namespace tiered {

/// What the current plan says and where its buffers are; filled by the executor.
struct ExpertsEnvironment {
  ShardTable table;
  ModelConfig const* config = nullptr;
  Side host, device;
  CopyLane* copy = nullptr;          ///< the executor's own: it knows the newest copy
  std::byte* host_base = nullptr;    ///< activations of the host
  std::byte* device_base = nullptr;  ///< activations of the device; null where the plan does not use it
  ActivationLayout const* layout = nullptr;
  ShardPlan const* plan = nullptr;
  VramLayout const* vram_layout = nullptr;
  std::byte* vram = nullptr;
  std::span<Ticket const> resident_ready;  ///< per shard; value 0 where nobody needs to wait
  ExpertCache* cache = nullptr;
  TraceLog* trace = nullptr;
  HostAccess host_access;              ///< of the device's kernels
  std::uint64_t help_patience_ns = 0;  ///< HelpArgs::patience_ns; 0: its own
  CopyLane* rows_copy = nullptr;       ///< for rows of activations, which do not stand behind weights; may be `copy`
  LookAhead look_ahead = LookAhead::planned;
  bool read_ahead = false;
  bool helps = false;  ///< the step is enqueued as a whole: see FewRouted::enqueue
};

/// Rows of one layer after its router, on the device where the hidden rows are.
struct RoutedRows {
  std::int32_t layer = 0, n_rows = 0;
  LayerConfig const* config = nullptr;
  Activation activation = Activation::silu;
  DeviceId home;
  float const* x = nullptr;           ///< [n_rows, dim]
  RmsNormArgs norm{};                 ///< where norm.x is not null, not yet done: see RoutedExperts::norms
  std::int32_t const* ids = nullptr;  ///< [n_rows, n_used]
  float const* weights = nullptr;     ///< [n_rows, n_used]
  float* hidden = nullptr;            ///< [n_rows, dim]: receives the sum
  RouteArgs route{};                  ///< with logits: not yet done, ids and weights are still to come; as norm
};

}  // namespace tiered
