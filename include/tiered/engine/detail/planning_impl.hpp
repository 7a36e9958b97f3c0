/// Defines make_plans: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/detail/check_capabilities.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/model/kv_cache.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/residency.hpp"
#include "tiered/pipeline/step_context.hpp"

namespace tiered {

namespace detail {

inline std::size_t kv_table_bytes(ModelConfig const& config, std::size_t n_pages, std::int32_t n_sequences) {
  return config.layers.size() * std::size_t(n_sequences) * (sizeof(KvTable) + 2 * n_pages * sizeof(std::byte*));
}

/// The model's states, one per layer, with the bytes that they have in `kv_type`.
inline std::vector<LayerState> states_in(DType kv_type, ShardTable const& table, ModelConfig const& config, KernelTable const& kernels) {
  std::uint32_t const type = std::uint32_t(kv_type);
  if (type >= n_file_dtypes || kernels.attention[type] == nullptr || kernels.kv_write[type] == nullptr) {
    char const* const known = name(kv_type);
    throw Error(Errc::unsupported, concat("the ", kernels.name, " kernels have no attention over keys and values of type ",
                                          known != nullptr ? known : "number ", known != nullptr ? "" : concat(type)));
  }
  std::vector<LayerState> states(table.states.begin(), table.states.end());
  for (std::size_t l = 0; l < states.size(); ++l) {
    if (states[l].elems_per_token == 0) continue;
    states[l].bytes_per_token = 2 * KvCache::page_bytes(config.layers.at(l).attention, kv_type) / kv_page_tokens;
  }
  return states;
}

inline bool splits(Schedule const& schedule, ShardTable const& table, ShardKind kind) {
  return std::ranges::any_of(schedule, [&](Action const& a) {
    Shard const& s = table.shard(a.shard);
    return a.kind == ActionKind::copy && s.kind == kind && a.rows != Range{} && a.rows != Range{0, s.n_rows};
  });
}

void check_device_memory(std::size_t budget_bytes, std::size_t capacity_bytes) {
  if (budget_bytes <= capacity_bytes) return;
  throw Error(Errc::out_of_memory,
              capacity_bytes == 0 ? concat("a budget of ", format_bytes(budget_bytes), " for a policy bundle that has no device")
                                  : concat("a budget of ", format_bytes(budget_bytes), ", the device has ", format_bytes(capacity_bytes)));
}

/// Keys and values of the type are written and attended to, with heads of every layer's size.
inline bool attends(KernelTable const& kernels, DType kv_type, ModelConfig const& config) {
  std::uint32_t const type = std::uint32_t(kv_type);
  return kernels.attention[type] != nullptr && kernels.kv_write[type] != nullptr &&
         (kernels.largest_head == 0 ||
          std::ranges::all_of(config.layers, [&](LayerConfig const& l) { return l.attention.head_dim <= kernels.largest_head; }));
}

Capabilities capabilities_of(KernelTable const& host, KernelTable const& device, DType kv_type, ModelConfig const& config) {
  Capabilities c;
  c.host_matmul = c.gpu_matmul = 0;
  for (std::uint32_t type = 0; type < n_file_dtypes; ++type) {
    if (host.supports(DType(type))) c.host_matmul |= dtype_bit(DType(type));
    if (device.supports(DType(type))) c.gpu_matmul |= dtype_bit(DType(type));
  }
  c.host_attention = attends(host, kv_type, config);
  c.gpu_attention = attends(device, kv_type, config);
  return c;
}

/// Positions of a sequence in whole pages; refused where those of all are more than positions are counted in.
inline std::int32_t checked_kv_tokens(std::int64_t max_context, std::int64_t n_sequences, std::int64_t page_tokens) {
  expects(page_tokens > 0 && (page_tokens % attention_span == 0 || attention_span % page_tokens == 0),
          "kv_page_tokens is a multiple or a divisor of attention_span");
  std::int64_t const tokens = (max_context + page_tokens - 1) / page_tokens * page_tokens;
  if (tokens > std::numeric_limits<std::int32_t>::max() / n_sequences) {
    throw Error(Errc::over_budget, concat(n_sequences, " sequences of ", max_context, " tokens are more positions than ",
                                          std::numeric_limits<std::int32_t>::max()));
  }
  return std::int32_t(tokens);
}

/// What prompts may take of the budget to attend to keys and values in host memory by way of the device: some where not all of those
/// may fit, and where that leaves the budget to better uses. 4096 positions at once, so that sums of parts cost little. Little where they
/// would all fit: decode may have other uses for that room still, and a prompt's attention takes the host long.
inline KvStream kv_stream_for(ModelConfig const& config, EngineOptions const& options, std::span<LayerState const> states,
                              std::int32_t kv_tokens) {
  constexpr std::int32_t most_tokens = 4096;
  constexpr std::size_t part_of_budget = 32, small_part = 256, all_states_part = 4, most_bytes = 64 * MiB;
  std::size_t state_bytes = 0;
  KvStream stream;
  for (std::size_t l = 0; l < states.size(); ++l) {
    if (states[l].bytes_per_token == 0) continue;
    state_bytes += states[l].bytes_per_token * std::size_t(kv_tokens) * std::size_t(options.n_sequences);
    std::size_t const page_bytes = KvCache::page_bytes(config.layers[l].attention, options.kv_type, options.kv_page_tokens);
    stream.page_bytes = std::max(stream.page_bytes, page_bytes);
  }
  if (stream.page_bytes == 0) return {};
  std::size_t const part = state_bytes < options.vram_bytes / all_states_part ? small_part : part_of_budget;
  std::size_t const page_pairs = std::min(most_bytes, options.vram_bytes / part) / (2 * stream.page_bytes);
  std::int32_t const n_pages = kv_tokens / options.kv_page_tokens;
  std::int32_t const wanted = std::min(n_pages, std::max(most_tokens / options.kv_page_tokens, 1));
  stream.half_pages = std::min(wanted, std::int32_t(std::min<std::size_t>(page_pairs / 2, std::size_t(wanted))));
  return stream;
}

EnginePlans make_plans(ShardTable table, ModelConfig const& config, EngineOptions const& options, KernelTable const& host,
                       KernelTable const& device,
                       FunctionRef<std::size_t(ScratchMeter& meter, std::int32_t n_rows, std::int32_t n_outputs)> measure,
                       FunctionRef<std::vector<TierPlan>(ShardTable const&, PlannerInput const&)> plan, bool reads_host) {
  std::vector<LayerState> const states_as_kept = states_in(options.kv_type, table, config, host);
  table.states = states_as_kept;
  expects(options.max_context >= 0 && options.n_sequences >= 1, "max_context >= 0, n_sequences >= 1");
  check_capabilities(table, host);
  EnginePlans out;
  out.max_context = options.max_context > 0 ? options.max_context : std::min(config.max_seq_len, 32768);
  std::int32_t const kv_tokens = checked_kv_tokens(out.max_context, options.n_sequences, options.kv_page_tokens);
  std::int32_t const n_pages = kv_tokens / options.kv_page_tokens;
  std::size_t const table_bytes = kv_table_bytes(config, std::size_t(n_pages), options.n_sequences);
  KvStream const stream = kv_stream_for(config, options, table.states, kv_tokens);
  ScratchMeter on_host(table, host, kv_tokens), on_device(table, device, kv_tokens);
  auto const layout_for = [&](RowLimits limits) {
    std::int32_t const n_outputs = std::min(limits.chunk, max_outputs_per_run);
    std::size_t const step = std::max(measure(on_host, limits.chunk, n_outputs), measure(on_device, limits.chunk, n_outputs));
    return make_activation_layout(config, limits, step, table_bytes, limits.chunk > attention_few_rows ? stream : KvStream{});
  };
  auto const scratch = [&](std::int32_t chunk, std::int32_t block) { return layout_for({chunk, block}).total_bytes; };
  auto const in_windows = [&](std::int32_t chunk, std::int32_t block) { return layout_for({chunk, block, chunk}).total_bytes; };
  PlannerInput input{options.budget(), {1, kv_tokens * options.n_sequences, options.n_sequences}, scratch};
  input.cost_context = std::min(kv_tokens, typical_context);
  input.state_pages = n_pages;
  input.deterministic = options.deterministic;
  input.streams_states = stream.half_pages > 0;
  // As the executor asks: else its steps of one row wait for the host, layer by layer, and bring nothing ahead.
  input.launches_attention = reads_host && device.attention_ask != nullptr && attends(host, options.kv_type, config);
  input.looks_ahead = out.looks_ahead =
      reads_host && device.help != nullptr && device.router_ahead != nullptr && options.look_ahead != LookAhead::never;
  input.reads_ahead = out.reads_ahead = input.looks_ahead && options.read_ahead && host.read_ahead != nullptr;
  if (device.expert_window != nullptr) input.scratch_in_windows = ScratchBytes(in_windows);
  input.shares_windows = device.expert_window != nullptr && device.transfer != nullptr && host.expert_window != nullptr;
  out.tiers = plan(table, input);
  std::vector<ShardPlan const*> plans;
  for (TierPlan const& t : out.tiers) plans.push_back(&t.plan);
  std::vector<VramLayout> layouts = lay_out(plans, table.shards);
  for (std::size_t i = 0; i < out.tiers.size(); ++i) {
    ShardPlan const& p = out.tiers[i].plan;
    RowLimits const limits{p.chunk_tokens, p.block_tokens, p.expert_tokens};
    PlanImage image{p, out.tiers[i].schedule, limits, std::move(layouts[i]), layout_for(limits)};
    image.uses_device = p.vram_bytes > 0;
    image.output_by_rows = splits(image.schedule, table, ShardKind::output);
    out.vram_bytes = std::max(out.vram_bytes, image.vram.total_bytes);
    out.images.push_back(std::move(image));
  }
  return out;
}

}  // namespace detail

}  // namespace tiered
