/// The buffers that rows need on one device, besides weights and layer states: one layout for all devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/model/config.hpp"
#include "tiered/plan/account.hpp"

namespace tiered {

/// Rows that take their logits in one run of the output step.
inline constexpr std::int32_t max_outputs_per_run = 16;

/// How many rows go through a step at once, and through a layer before any goes to the next.
struct RowLimits {
  std::int32_t chunk = 1, block = 1;
  std::int32_t experts = 0;  ///< rows whose slots of experts have room at once; 0: a block's
  std::int32_t expert_rows() const { return experts > 0 ? experts : block; }
};

/// Room in VRAM that keys and values from host memory go through: two halves, one filled while the other is read.
struct KvStream {
  std::int32_t half_pages = 0;  ///< of K, and as many of V; 0: nothing is streamed
  std::size_t page_bytes = 0;   ///< of the largest layer
  std::size_t bytes() const { return 4 * std::size_t(half_pages) * page_bytes; }
};

/// Offsets in bytes; see make_activation_layout for the shapes.
struct ActivationLayout {
  std::size_t hidden, tokens, positions, kv_rows, outputs, logits, kv_tables;
  std::size_t inputs, inputs_bytes;  ///< tokens, positions, kv_rows and outputs together: what each step uploads
  std::size_t expert_x, expert_ids, expert_weights, expert_y, expert_sum, expert_groups, expert_slots, expert_counts, expert_workspace;
  std::size_t few_lists;      ///< of FewRouted: what the host decided for the device's experts
  std::size_t few_tables;     ///< of FewRouted: where every expert is, [n_layers, n_experts]
  std::size_t expert_tables;  ///< of layers whose experts are all in VRAM: where. On the host, what is copied there
  std::size_t step, step_bytes;
  std::size_t kv_stream_at;
  KvStream kv_stream;
  std::size_t crossing_bytes;  ///< from the begin on: all that the host needs where every step is the device's
  std::size_t total_bytes;
  std::int32_t slots_per_launch;  ///< of one call of KernelTable::experts
  std::int32_t n_experts;         ///< most of any layer
  std::int32_t expert_rows;       ///< RowLimits::expert_rows()
};

/// Two lists of up to n_slots slots: for each an id, a weight, and where its expert is.
constexpr std::size_t few_list_bytes(std::int32_t n_slots) {
  return 2 * std::size_t(n_slots) * (sizeof(std::int32_t) + sizeof(float) + sizeof(ExpertGroup));
}

/// `step_bytes`: what ScratchMeter says for limits.chunk rows; `kv_table_bytes`: page lists of the layers whose KV is there.
inline ActivationLayout make_activation_layout(ModelConfig const& config, RowLimits limits, std::size_t step_bytes,
                                               std::size_t kv_table_bytes, KvStream const& kv_stream = {}) {
  ActivationLayout l{};
  auto const take = [&](std::size_t n, std::size_t elem_bytes) {
    std::size_t const at = l.total_bytes;
    l.total_bytes += VramAccount::round_up(n * elem_bytes);
    return at;
  };
  std::size_t const block = std::size_t(limits.block), dim = std::size_t(config.dim);
  std::int32_t n_used = 0, n_experts = 0, hidden_dim = 0;
  for (LayerConfig const& layer : config.layers) {
    if (layer.feed_forward != FeedForwardKind::experts) continue;
    n_used = std::max(n_used, layer.experts.n_experts_used);
    n_experts = std::max(n_experts, layer.experts.n_experts);
    hidden_dim = std::max(hidden_dim, layer.hidden_dim);
  }
  std::size_t const rows = std::size_t(limits.expert_rows()), slots = rows * std::size_t(n_used), is_moe = n_used > 0 ? 1 : 0;
  l.tokens = take(block, sizeof(std::int32_t));
  l.positions = take(block, sizeof(std::int32_t));
  l.kv_rows = take(block, sizeof(KvRow));
  l.outputs = take(block, sizeof(std::int32_t));
  l.inputs = l.tokens;
  l.inputs_bytes = l.total_bytes - l.inputs;
  l.logits = take(std::size_t(std::min(limits.block, max_outputs_per_run)) * std::size_t(config.vocab_size), sizeof(float));
  l.kv_tables = take(kv_table_bytes, 1);
  l.n_experts = n_experts;
  l.expert_tables = take(config.layers.size() * std::size_t(n_experts), sizeof(ExpertGroup));  // [n_layers, n_experts]
  l.crossing_bytes = l.total_bytes;
  l.hidden = take(block * dim, sizeof(float));
  l.expert_x = take(block * dim * is_moe, sizeof(float));                  // [block, dim]
  l.expert_ids = take(block * std::size_t(n_used), sizeof(std::int32_t));  // [block, n_used]
  l.expert_weights = take(block * std::size_t(n_used), sizeof(float));     // [block, n_used]
  l.expert_rows = limits.expert_rows();
  l.expert_y = take(slots * dim, sizeof(float));            // [expert_rows * n_used, dim]
  l.expert_sum = take(rows * dim * is_moe, sizeof(float));  // [expert_rows, dim]
  l.slots_per_launch = std::max(limits.chunk, 1) * n_used;
  // A launch takes at least one slot of each of its groups: both lists are bounded by the slots, once per launch of the layer.
  l.expert_groups = take((slots + std::size_t(n_experts) * 2) * is_moe, sizeof(ExpertGroup));
  l.expert_slots = take(slots, sizeof(std::int32_t));
  l.expert_counts = take(std::size_t(n_experts + 1) * is_moe, sizeof(std::int32_t));  // [n_experts + 1]
  l.expert_workspace = take(n_used == 0 ? 0 : experts_workspace_bytes(l.expert_rows, l.slots_per_launch, config.dim, hidden_dim), 1);
  l.few_lists = take(n_used == 0 ? 0 : few_list_bytes(std::min(limits.block, attention_few_rows) * n_used), 1);
  l.few_tables = take(config.layers.size() * std::size_t(n_experts), sizeof(ExpertGroup));
  l.step_bytes = step_bytes;
  l.step = take(step_bytes, 1);
  l.kv_stream = kv_stream;
  l.kv_stream_at = take(kv_stream.bytes(), 1);
  return l;
}

}  // namespace tiered
