/// How long the device did nothing within each layer, out of a trace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/engine/trace.hpp"
#include "tiered/model/shard.hpp"

namespace tiered {

/// One layer of one pass: from the first begin to the last end of what the device ran for it.
struct LayerIdle {
  std::int32_t layer = -1;
  double begin_s = 0, end_s = 0;
  double idle_s = 0;  ///< of that, in which none of it ran
  bool of_encoder = false;
};

/// Of the events of one step, in the order of time. Layers follow each other on the device, so that one that comes again, in the next block
/// of a prompt, is counted again. What has no layer (embedding, output, patches) is left out; a layer whose events follow without a gap has
/// 0.
inline std::vector<LayerIdle> device_idle(std::span<TraceEvent const> events, TraceTables const& tables) {
  struct Run {
    double begin_s, end_s;
    std::int32_t layer;
    bool of_encoder;
  };
  std::vector<Run> runs;
  for (TraceEvent const& e : events) {
    if (e.is_copy() || e.action.device == host_device) continue;
    Shard const& s = tables.shard_of(e);
    bool const in_layer = s.kind != ShardKind::embedding && s.kind != ShardKind::output;
    runs.push_back({e.begin_s, e.end_s, in_layer ? s.layer : -1, e.of_encoder});
  }
  std::ranges::stable_sort(runs, {}, &Run::begin_s);
  std::vector<LayerIdle> layers;
  std::pair<std::int32_t, bool> last{-1, false};  // also of what is no layer: it ends one
  for (Run const& r : runs) {
    if (r.layer >= 0 && std::pair(r.layer, r.of_encoder) == last) {
      LayerIdle& l = layers.back();
      l.idle_s += std::max(0.0, r.begin_s - l.end_s);
      l.end_s = std::max(l.end_s, r.end_s);
    } else if (r.layer >= 0) {
      layers.push_back({r.layer, r.begin_s, r.end_s, 0, r.of_encoder});
    }
    last = {r.layer, r.of_encoder};
  }
  return layers;
}

/// Of several steps: how many layers there were, and what they were idle together.
struct IdleSum {
  std::size_t n_layers = 0;
  double idle_s = 0;
  double mean_s() const { return n_layers > 0 ? idle_s / double(n_layers) : 0; }
  void add(std::span<LayerIdle const> layers) {
    n_layers += layers.size();
    for (LayerIdle const& l : layers) idle_s += l.idle_s;
  }
};

}  // namespace tiered
