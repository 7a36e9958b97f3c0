/// What a machine's rates allow at best for a model inside a budget: seconds to the first token and seconds of a token behind it.
///
/// Every byte that VRAM does not hold is read from host memory once: by the CPU, or by the link, which share that memory. `physical` is
/// that and nothing else. `practical` knows that a layer's experts come after its attention, that a device has launches, and that a layer
/// whose work is shared hands over once. A prompt takes each weight that is not resident over the link once, and its arithmetic.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>

#include "tiered/kernels/args.hpp"
#include "tiered/model/config.hpp"
#include "tiered/model/shard.hpp"

namespace bench {

/// Bytes and operations per second, measured in the run whose results are held against them.
struct MachineRates {
  double cpu = 0, cpu_beside_link = 0;   ///< host memory read by the CPU: alone, and while the link copies
  double link = 0, link_beside_cpu = 0;  ///< to the device: alone, and while the CPU reads
  double device = 0;                     ///< of a copy within the device, bytes read and written
  double flops = 0;                      ///< that prompts are thought to reach: an assumption
  double context_bytes = 0;              ///< of VRAM, before anything of ours is in it; counted in a budget

  /// All that host memory gives: no less than what either takes alone.
  double host_memory() const { return std::max({cpu_beside_link + link_beside_cpu, cpu, link}); }
};

/// How tokens find their experts: see ids.hpp.
enum class Routing { uniform, topics };

/// What the bounds need to know of a model.
struct ModelBytes {
  int n_layers = 0;
  double dense = 0;             ///< read for every token: all but the experts, and the embedding, of which a token reads one row
  double experts = 0;           ///< all of them
  double experts_of_token = 0;  ///< those that one token is routed to
  double weights() const { return dense + experts; }
};

inline ModelBytes model_bytes(tiered::ShardTable const& table, int n_layers) {
  ModelBytes m;
  m.n_layers = n_layers;
  for (tiered::Shard const& s : table.shards) {
    if (s.kind == tiered::ShardKind::embedding) continue;
    bool const is_expert = s.kind == tiered::ShardKind::expert;
    (is_expert ? m.experts : m.dense) += double(s.bytes);
    if (is_expert) m.experts_of_token += double(s.bytes) * s.use_probability;
  }
  return m;
}

/// Keys and values that a token at position `context` reads.
inline double kv_bytes(tiered::ShardTable const& table, tiered::ModelConfig const& config, tiered::DType kv_type, double context) {
  double bytes = 0;
  for (std::size_t l = 0; l < table.states.size(); ++l) {
    tiered::LayerState const& state = table.states[l];
    if (state.elems_per_token == 0) continue;
    tiered::AttentionConfig const& a = config.layers.at(l).attention;
    double const seen = state.window > 0 ? std::min(context, double(state.window)) : context;
    bytes += seen * 2.0 * a.n_kv_heads * double(tiered::kv_row_bytes(kv_type, a.head_dim));
  }
  return bytes;
}

/// Operations of a prompt of n tokens: each attends to half of it on average, and only the last one meets the head.
inline double prompt_flops(tiered::ShardTable const& table, double n) {
  double macs = 0;
  for (tiered::Shard const& s : table.shards) {
    if (s.kind != tiered::ShardKind::output) macs += s.macs_per_token * s.use_probability;
  }
  for (tiered::LayerState const& state : table.states)
    macs += state.macs_per_position * (state.window > 0 ? std::min(n / 2, double(state.window)) : n / 2);
  return 2 * macs * n;
}

/// Share of a token's experts that an LRU cache holds which has room for `share` of all. With topics as measured on synthetic files whose
/// ids come in runs of some hundred of one topic, which is what engines with such caches report of real models.
inline double hit_rate(double share, Routing routing) {
  if (routing == Routing::uniform || share <= 0 || share >= 1) return std::clamp(share, 0.0, 1.0);
  struct Point {
    double share, hits;
  };
  static constexpr Point points[] = {{0, 0}, {0.10, 0.54}, {0.25, 0.81}, {0.32, 0.85}, {0.50, 0.90}, {0.66, 0.94}, {1, 1}};
  auto const above = std::find_if(std::begin(points), std::end(points), [&](Point const& p) { return share <= p.share; });
  Point const &a = above[-1], &b = above[0];
  return a.hits + (b.hits - a.hits) * (share - a.share) / (b.share - a.share);
}

struct DecodeBound {
  double physical_s = 0, practical_s = 0;
  double host_bytes = 0;    ///< of a token, that VRAM does not hold
  double device_bytes = 0;  ///< of a token, that it holds
};

/// VRAM that activations and the ring take at least, beside the context.
inline constexpr double decode_scratch_bytes = 0.15e9, prompt_scratch_bytes = 0.6e9;

/// One sequence; `kv` as kv_bytes() says. Without a device (rates.device 0) all is read by the CPU.
inline DecodeBound decode_bound(ModelBytes const& m, double kv, double budget, Routing routing, MachineRates const& rates) {
  DecodeBound out;
  if (rates.device <= 0 || budget <= 0) {
    out.host_bytes = m.dense + m.experts_of_token + kv;
    out.physical_s = out.practical_s = out.host_bytes / rates.cpu;
    return out;
  }
  double const room = std::max(0.0, budget - rates.context_bytes - decode_scratch_bytes), dense = m.dense + kv;
  double const dense_here = std::min(dense, room);
  double const share = m.experts > 0 ? std::clamp((room - dense) / m.experts, 0.0, 1.0) : 0;
  double const experts_here = hit_rate(share, routing) * m.experts_of_token;
  out.host_bytes = dense - dense_here + m.experts_of_token - experts_here;
  out.device_bytes = dense_here + experts_here;
  double const host_s = out.host_bytes / rates.host_memory();
  out.physical_s = std::max(host_s, out.device_bytes / rates.device);
  // What a good decoder takes for a layer's launches, the share of a copy's rate that its products reach, and one handing over.
  constexpr double dense_layer_s = 16e-6, experts_layer_s = 8e-6, hand_over_s = 20e-6, reached = 0.85;
  double const dense_s = dense_layer_s * m.n_layers + dense_here / (reached * rates.device);
  double const experts_s = experts_layer_s * m.n_layers + experts_here / (reached * rates.device);
  out.practical_s = dense_s + std::max(experts_s, host_s) + (out.host_bytes > 0 ? hand_over_s * m.n_layers : 0);
  return out;
}

struct PromptBound {
  double seconds = 0, streamed_bytes = 0;
};

/// `flops` as prompt_flops() says. Short prompts can beat it where the CPU computes a share of the rows meanwhile.
inline PromptBound prompt_bound(ModelBytes const& m, double flops, double budget, MachineRates const& rates) {
  PromptBound out;
  if (rates.device > 0 && budget > 0) {
    double const room = std::max(0.0, budget - rates.context_bytes - prompt_scratch_bytes);
    out.streamed_bytes = std::max(0.0, m.weights() - room);
    out.seconds = out.streamed_bytes / rates.link;
  }
  if (rates.flops > 0) out.seconds = std::max(out.seconds, flops / rates.flops);
  return out;
}

}  // namespace bench
