/// The buffers that rows need on one device, besides weights and layer states: one layout for all devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/model/config.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/expert_flow.hpp"

namespace tiered {

/// Rows that take their logits in one run of the output step.
inline constexpr std::int32_t max_outputs_per_run = 16;

/// Experts that may be on their way ahead of their layers at once, and entries of the device's table that wait for their weights: more, so
/// that none is overwritten before it is read.
inline constexpr std::int32_t most_on_way = 2, ahead_entries = 8;

/// How many rows go through a step at once, and through a layer before any goes to the next.
struct RowLimits {
  std::int32_t chunk = 1, block = 1;
  std::int32_t experts = 0;  ///< not 0: more rows use whole layers of experts, which come in windows; 0: a block's slots have room at once
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
  std::int32_t position_rows;        ///< positions: [position_rows, block] of the rotary embedding
  std::size_t expert_x, expert_ids, expert_weights, expert_y, expert_sum, expert_groups, expert_slots, expert_counts, expert_workspace;
  std::size_t expert_places;  ///< of ExpertWindowArgs, for a block's rows
  std::size_t expert_x_rows;  ///< likewise
  std::size_t expert_ranks;   ///< likewise, where layers are shared with the host: over expert_groups, which windows do not use
  std::size_t windows_end;    ///< of what windows may use from expert_y on
  std::size_t few_lists;      ///< of FewRouted: what the host decided for the device's experts
  std::size_t few_tables;     ///< of FewRouted: where every expert is, [n_layers, n_experts]
  std::size_t help;           ///< of FewRouted: HelpMail on the host, HelpState on the device
  std::size_t help_zeros;     ///< [dim], on the host
  std::size_t help_log;       ///< [n_layers + 1], on the host; the last: of the step's begin
  std::size_t help_sum;       ///< [dim], on the device
  std::size_t help_guesses;   ///< [n_layers, GuessArgs::max_layers, n_experts], on the host: by the layer that guessed
  std::size_t help_entries;   ///< [ahead_entries], on the host: what copies write into the device's table behind an expert's weights
  std::size_t help_seen;      ///< [n_experts], on the device: its table of a layer as the layer saw it
  std::size_t help_row;       ///< [dim], on the device: a layer's row, for its guesses
  std::size_t help_kv;        ///< of HelpedAttention: AttentionMail and logs [n_layers] on the host, the step on the device
  std::size_t expert_tables;  ///< of layers whose experts are all in VRAM: where. On the host, what is copied there
  std::size_t step, step_bytes;
  std::size_t kv_stream_at;
  KvStream kv_stream;
  std::size_t crossing_bytes;  ///< from the begin on: all that the host needs where every step is the device's
  std::size_t total_bytes;
  std::int32_t slots_per_launch;  ///< of one call of KernelTable::experts
  std::int32_t n_experts;         ///< most of any layer
  std::int32_t expert_rows;       ///< whose slots have room at once
  std::int32_t window_slots;      ///< of a piece of a window, where outputs of all slots are in expert_y
  std::int32_t summed_slots;      ///< where they are summed: expert_y, and the workspace behind it, are the op's. 0: outputs have room
};

/// Two lists of up to n_slots slots: for each an id, a weight, and where its expert is.
constexpr std::size_t few_list_bytes(std::int32_t n_slots) {
  return 2 * std::size_t(n_slots) * (sizeof(std::int32_t) + sizeof(float) + sizeof(ExpertGroup));
}

/// Slots that a piece of a window can have in so many bytes.
inline std::int32_t window_slots_in(std::size_t bytes, std::int32_t dim, std::int32_t hidden_dim) {
  constexpr std::size_t most = std::size_t{1} << 24;
  if (bytes <= expert_window_fixed_bytes) return 0;
  return std::int32_t(std::min(most, (bytes - expert_window_fixed_bytes) / expert_window_slot_bytes(dim, hidden_dim)));
}

/// Where windows of experts are added to rows, and to these what the host computed of the layer: offsets from the activations' begin.
struct SharedRoom {
  std::size_t sum = 0;        ///< the host's, [n_rows, dim], on the device
  std::size_t workspace = 0;  ///< of windows, behind it, on either device
  std::int32_t slots = 0;     ///< of a piece of these; 0: there is no room
};
inline SharedRoom shared_room(ActivationLayout const& l, std::int32_t n_rows, std::int32_t dim, std::int32_t hidden_dim) {
  std::size_t const workspace = l.expert_y + VramAccount::round_up(std::size_t(n_rows) * std::size_t(dim) * sizeof(float));
  return {l.expert_y, workspace, workspace < l.windows_end ? window_slots_in(l.windows_end - workspace, dim, hidden_dim) : 0};
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
  double least_use = 1;
  for (LayerConfig const& layer : config.layers) {
    if (layer.feed_forward != FeedForwardKind::experts) continue;
    n_used = std::max(n_used, layer.experts.n_experts_used);
    n_experts = std::max(n_experts, layer.experts.n_experts);
    hidden_dim = std::max(hidden_dim, layer.hidden_dim);
    least_use = std::min(least_use, double(layer.experts.n_experts_used) / double(layer.experts.n_experts));
  }
  bool const in_windows = n_used > 0 && limits.experts > 0;
  l.expert_rows = in_windows ? rows_beside_windows(least_use, limits.experts) : limits.block;
  std::size_t const rows = std::size_t(l.expert_rows), slots = rows * std::size_t(n_used), is_moe = n_used > 0 ? 1 : 0;
  l.tokens = take(block, sizeof(std::int32_t));
  l.position_rows = config.n_position_rows();
  l.positions = take(std::size_t(l.position_rows) * block, sizeof(std::int32_t));
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
  l.expert_sum = take(rows * dim * is_moe, sizeof(float));                 // [expert_rows, dim]
  l.slots_per_launch = (in_windows ? std::min(limits.chunk, l.expert_rows) : std::max(limits.chunk, 1)) * n_used;
  // A launch takes at least one slot of each of its groups: both lists are bounded by the slots, once per launch of the layer.
  l.expert_groups = take((slots + std::size_t(n_experts) * 2) * is_moe, sizeof(ExpertGroup));
  l.expert_ranks = l.expert_groups;
  l.expert_slots = take(block * std::size_t(n_used), sizeof(std::int32_t));
  l.expert_counts = take(std::size_t(n_experts + 1) * is_moe, sizeof(std::int32_t));  // [n_experts + 1]
  std::size_t const places_bytes = VramAccount::round_up(block * std::size_t(n_used) * sizeof(std::int32_t)),
                    x_rows_bytes = VramAccount::round_up(n_used == 0 ? 0 : expert_rows_bytes(limits.block, config.dim));
  if (in_windows) {
    l.expert_places = take(places_bytes, 1);
    l.expert_x_rows = take(x_rows_bytes, 1);
  }
  l.expert_y = take(slots * dim, sizeof(float));  // [expert_rows * n_used, dim]
  std::size_t const workspace_bytes =
      VramAccount::round_up(n_used == 0 ? 0 : experts_workspace_bytes(l.expert_rows, l.slots_per_launch, config.dim, hidden_dim));
  l.expert_workspace = take(workspace_bytes, 1);
  l.windows_end = l.expert_workspace + workspace_bytes;
  if (in_windows) {
    l.window_slots = window_slots_in(workspace_bytes, config.dim, hidden_dim);
    l.summed_slots = window_slots_in(workspace_bytes + (l.expert_workspace - l.expert_y), config.dim, hidden_dim);
  } else if (n_used > 0) {  // both at the workspace's end: it has room for other forms of x than windows need
    l.expert_x_rows = l.expert_workspace + workspace_bytes - x_rows_bytes;
    l.windows_end = l.expert_places = l.expert_x_rows - places_bytes;
    l.window_slots = window_slots_in(workspace_bytes - std::min(workspace_bytes, x_rows_bytes + places_bytes), config.dim, hidden_dim);
  }
  l.few_lists = take(n_used == 0 ? 0 : few_list_bytes(std::min(limits.block, attention_few_rows) * n_used), 1);
  l.few_tables = take(config.layers.size() * std::size_t(n_experts), sizeof(ExpertGroup));
  l.help = take(is_moe, std::max(sizeof(HelpMail), sizeof(HelpState)));
  l.help_zeros = take(dim * is_moe, sizeof(float));
  l.help_log = take((config.layers.size() + 1) * is_moe, sizeof(HelpLog));
  l.help_sum = take(dim * is_moe, sizeof(float));
  l.help_guesses = take(config.layers.size() * std::size_t(GuessArgs::max_layers) * std::size_t(n_experts), sizeof(ExpertGuess));
  l.help_entries = take(is_moe * std::size_t(ahead_entries), sizeof(ExpertGroup));
  l.help_seen = take(std::size_t(n_experts), sizeof(ExpertGroup));
  l.help_row = take(dim * is_moe, sizeof(float));
  l.help_kv = take(sizeof(AttentionMail) + config.layers.size() * sizeof(AttentionHelpLog), 1);
  l.step_bytes = step_bytes;
  l.step = take(step_bytes, 1);
  l.kv_stream = kv_stream;
  l.kv_stream_at = take(kv_stream.bytes(), 1);
  return l;
}

}  // namespace tiered
