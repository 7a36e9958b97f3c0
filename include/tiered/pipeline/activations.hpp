/// The buffers that rows need on one device, besides weights and layer states: one layout for all devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

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
  /// Hidden rows of a block, of a model with a BlockConfig, stay in host memory: chunks of them come to the device for each step, and go
  /// back.
  bool rows_on_host = false;
  /// Likewise its keys and values of a layer, with hidden rows: the device attends to pages of a chunk's rows, one after the other.
  bool kv_on_host = false;
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
  std::size_t seen;                            ///< of a model with a BlockConfig: Range [n_ranges, block]; with the inputs
  std::size_t row_inputs, row_inputs_bytes;    ///< n_halves of so many bytes: of a chunk's rows
  std::size_t row_outputs, row_outputs_bytes;  ///< likewise
  /// Keys of a page of block_kv_tokens, then values, of block_kv_pages: of one layer after the other. With RowLimits::kv_on_host the device
  /// has two pages, by turns, and the host all, at host_block_kv.
  std::size_t block_kv, host_block_kv;
  std::int32_t n_halves, block_kv_tokens, block_kv_pages;
  std::size_t hidden_halves;   ///< with RowLimits::rows_on_host: n_halves of [chunk, dim], on the device
  std::size_t crossing_bytes;  ///< from the begin on: all that the host needs where every step is the device's
  std::size_t total_bytes;
  std::size_t host_bytes;         ///< of the host's: total_bytes, and `hidden` behind it where only the host has it
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

/// Of a block's page lists: of one sequence.
constexpr std::size_t block_table_bytes(std::int32_t n_pages) { return sizeof(KvTable) + 2 * std::size_t(n_pages) * sizeof(std::byte*); }

/// Keys or values of so many rows, of the widest layer.
inline std::size_t block_kv_page_bytes(ModelConfig const& config, std::int32_t n_tokens) {
  std::size_t bytes = 0;
  for (LayerConfig const& layer : config.layers) {
    AttentionConfig const& a = layer.attention;
    bytes = std::max(bytes, std::size_t(a.n_kv_heads) * std::size_t(n_tokens) * kv_row_bytes(DType::f16, a.head_dim));
  }
  return bytes;
}

namespace detail {

/// Takes the parts of a layout one behind the other.
class ActivationTaker {
 public:
  ActivationTaker(ModelConfig const& config, RowLimits limits)
      : config_(config), limits_(limits), block_(std::size_t(limits.block)), dim_(std::size_t(config.dim)) {
    double least_use = 1;
    for (LayerConfig const& layer : config.layers) {
      if (layer.feed_forward != FeedForwardKind::experts) continue;
      n_used_ = std::max(n_used_, layer.experts.n_experts_used);
      n_experts_ = std::max(n_experts_, layer.experts.n_experts);
      hidden_dim_ = std::max(hidden_dim_, layer.hidden_dim);
      least_use = std::min(least_use, double(layer.experts.n_experts_used) / double(layer.experts.n_experts));
    }
    is_moe_ = n_used_ > 0 ? 1 : 0;
    in_windows_ = n_used_ > 0 && limits.experts > 0;
    l_.expert_rows = in_windows_ ? rows_beside_windows(least_use, limits.experts) : limits.block;
    l_.n_experts = n_experts_;
    l_.n_halves = limits.chunk < limits.block ? 2 : 1;
  }

  /// What host and device tell each other of rows, up to crossing_bytes.
  void take_inputs(std::size_t kv_table_bytes) {
    BlockConfig const& from_outside = config_.block;
    l_.tokens = take(block_, sizeof(std::int32_t));
    l_.position_rows = config_.n_position_rows();
    l_.positions = take(std::size_t(l_.position_rows) * block_, sizeof(std::int32_t));
    l_.kv_rows = take(block_, sizeof(KvRow));
    l_.outputs = take(block_, sizeof(std::int32_t));
    l_.seen = take(std::size_t(from_outside.n_ranges) * block_, sizeof(Range));
    l_.inputs = l_.tokens;
    l_.inputs_bytes = l_.total_bytes - l_.inputs;
    l_.logits = take(std::size_t(std::min(limits_.block, max_outputs_per_run)) * std::size_t(config_.vocab_size), sizeof(float));
    l_.kv_tables = take(kv_table_bytes, 1);
    l_.expert_tables = take(config_.layers.size() * std::size_t(n_experts_), sizeof(ExpertGroup));  // [n_layers, n_experts]
    for (std::size_t const bytes : from_outside.input_bytes)
      l_.row_inputs_bytes += VramAccount::round_up(std::size_t(limits_.chunk) * bytes);
    l_.row_inputs = take(std::size_t(l_.n_halves) * l_.row_inputs_bytes, 1);
    l_.row_outputs_bytes = VramAccount::round_up(std::size_t(limits_.chunk / from_outside.rows_per_output) * from_outside.output_bytes);
    l_.row_outputs = take(std::size_t(l_.n_halves) * l_.row_outputs_bytes, 1);
    l_.crossing_bytes = l_.total_bytes;
  }

  void take_hidden() {
    if (limits_.rows_on_host) {
      l_.hidden_halves = take(std::size_t(l_.n_halves) * std::size_t(limits_.chunk) * dim_, sizeof(float));
    } else {
      l_.hidden = take(block_ * dim_, sizeof(float));
    }
  }

  /// Rows of experts, lists of their slots, and the workspace.
  void take_experts() {
    std::size_t const rows = std::size_t(l_.expert_rows), slots = rows * std::size_t(n_used_), ids = block_ * std::size_t(n_used_);
    l_.expert_x = take(block_ * dim_ * is_moe_, sizeof(float));  // [block, dim]
    l_.expert_ids = take(ids, sizeof(std::int32_t));             // [block, n_used]
    l_.expert_weights = take(ids, sizeof(float));                // [block, n_used]
    l_.expert_sum = take(rows * dim_ * is_moe_, sizeof(float));  // [expert_rows, dim]
    l_.slots_per_launch = (in_windows_ ? std::min(limits_.chunk, l_.expert_rows) : std::max(limits_.chunk, 1)) * n_used_;
    // A launch takes at least one slot of each of its groups: both lists are bounded by the slots, once per launch of the layer.
    l_.expert_groups = take((slots + std::size_t(n_experts_) * 2) * is_moe_, sizeof(ExpertGroup));
    l_.expert_ranks = l_.expert_groups;
    l_.expert_slots = take(ids, sizeof(std::int32_t));
    l_.expert_counts = take(std::size_t(n_experts_ + 1) * is_moe_, sizeof(std::int32_t));  // [n_experts + 1]
    std::size_t const places_bytes = VramAccount::round_up(ids * sizeof(std::int32_t)),
                      x_rows_bytes = VramAccount::round_up(n_used_ == 0 ? 0 : expert_rows_bytes(limits_.block, config_.dim));
    if (in_windows_) {
      l_.expert_places = take(places_bytes, 1);
      l_.expert_x_rows = take(x_rows_bytes, 1);
    }
    l_.expert_y = take(slots * dim_, sizeof(float));  // [expert_rows * n_used, dim]
    std::size_t const workspace_bytes =
        VramAccount::round_up(n_used_ == 0 ? 0 : experts_workspace_bytes(l_.expert_rows, l_.slots_per_launch, config_.dim, hidden_dim_));
    l_.expert_workspace = take(workspace_bytes, 1);
    l_.windows_end = l_.expert_workspace + workspace_bytes;
    if (in_windows_) {
      l_.window_slots = window_slots_in(workspace_bytes, config_.dim, hidden_dim_);
      l_.summed_slots = window_slots_in(workspace_bytes + (l_.expert_workspace - l_.expert_y), config_.dim, hidden_dim_);
    } else if (n_used_ > 0) {  // both at the workspace's end: it has room for other forms of x than windows need
      l_.expert_x_rows = l_.expert_workspace + workspace_bytes - x_rows_bytes;
      l_.windows_end = l_.expert_places = l_.expert_x_rows - places_bytes;
      l_.window_slots = window_slots_in(workspace_bytes - std::min(workspace_bytes, x_rows_bytes + places_bytes), config_.dim, hidden_dim_);
    }
  }

  /// Of FewRouted and HelpedAttention.
  void take_help() {
    std::size_t const n_layers = config_.layers.size(), n_experts = std::size_t(n_experts_);
    l_.few_lists = take(n_used_ == 0 ? 0 : few_list_bytes(std::min(limits_.block, attention_few_rows) * n_used_), 1);
    l_.few_tables = take(n_layers * n_experts, sizeof(ExpertGroup));
    l_.help = take(is_moe_, std::max(sizeof(HelpMail), sizeof(HelpState)));
    l_.help_zeros = take(dim_ * is_moe_, sizeof(float));
    l_.help_log = take((n_layers + 1) * is_moe_, sizeof(HelpLog));
    l_.help_sum = take(dim_ * is_moe_, sizeof(float));
    l_.help_guesses = take(n_layers * std::size_t(GuessArgs::max_layers) * n_experts, sizeof(ExpertGuess));
    l_.help_entries = take(is_moe_ * std::size_t(ahead_entries), sizeof(ExpertGroup));
    l_.help_seen = take(n_experts, sizeof(ExpertGroup));
    l_.help_row = take(dim_ * is_moe_, sizeof(float));
    l_.help_kv = take(sizeof(AttentionMail) + n_layers * sizeof(AttentionHelpLog), 1);
  }

  void take_step(std::size_t step_bytes, KvStream const& kv_stream) {
    l_.step_bytes = step_bytes;
    l_.step = take(step_bytes, 1);
    l_.kv_stream = kv_stream;
    l_.kv_stream_at = take(kv_stream.bytes(), 1);
  }

  /// Keys and values of a block, and behind all what only the host has.
  ActivationLayout finish() {
    std::size_t page_bytes = 0;
    if (config_.block.n_ranges > 0) {
      bool const by_pages = limits_.kv_on_host;
      l_.block_kv_tokens = by_pages ? limits_.chunk : (limits_.block + attention_span - 1) / attention_span * attention_span;
      l_.block_kv_pages = by_pages ? (limits_.block + limits_.chunk - 1) / limits_.chunk : 1;
      page_bytes = block_kv_page_bytes(config_, l_.block_kv_tokens);
      l_.block_kv = l_.host_block_kv = take(2 * page_bytes * (by_pages ? 2 : 1), 1);
    }
    l_.host_bytes = l_.total_bytes;
    auto const take_on_host = [&](std::size_t bytes) { return std::exchange(l_.host_bytes, l_.host_bytes + VramAccount::round_up(bytes)); };
    if (limits_.rows_on_host) l_.hidden = take_on_host(block_ * dim_ * sizeof(float));
    if (limits_.kv_on_host) l_.host_block_kv = take_on_host(2 * page_bytes * std::size_t(l_.block_kv_pages));
    return l_;
  }

 private:
  std::size_t take(std::size_t n, std::size_t elem_bytes) {
    return std::exchange(l_.total_bytes, l_.total_bytes + VramAccount::round_up(n * elem_bytes));
  }

  ModelConfig const& config_;
  RowLimits limits_;
  ActivationLayout l_{};
  std::size_t block_, dim_, is_moe_ = 0;
  std::int32_t n_used_ = 0, n_experts_ = 0, hidden_dim_ = 0;
  bool in_windows_ = false;
};

}  // namespace detail

/// `step_bytes`: what ScratchMeter says for limits.chunk rows; `kv_table_bytes`: page lists of the layers whose KV is there.
inline ActivationLayout make_activation_layout(ModelConfig const& config, RowLimits limits, std::size_t step_bytes,
                                               std::size_t kv_table_bytes, KvStream const& kv_stream = {}) {
  detail::ActivationTaker taker(config, limits);
  taker.take_inputs(kv_table_bytes);
  taker.take_hidden();
  taker.take_experts();
  taker.take_help();
  taker.take_step(step_bytes, kv_stream);
  return taker.finish();
}

}  // namespace tiered
