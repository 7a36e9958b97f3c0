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
#include "tiered/engine/planning.hpp"
#include "tiered/model/kv_cache.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/residency.hpp"
#include "tiered/pipeline/step_context.hpp"

namespace tiered {

namespace detail {

inline std::size_t kv_table_bytes(ModelConfig const& config, std::int32_t max_context, std::int32_t n_sequences) {
  std::size_t const n_pages = std::size_t((max_context + kv_page_tokens - 1) / kv_page_tokens);
  return config.layers.size() * std::size_t(n_sequences) * (sizeof(KvTable) + 2 * n_pages * sizeof(std::byte*));
}

/// Every matrix of the model has a kernel: asked here, never during a step.
inline void check_capabilities(ShardTable const& table, KernelTable const& kernels) {
  for (Weight const& w : table.weights) {
    ShardKind const kind = table.shard(w.shard).kind;
    bool const ok = kind == ShardKind::embedding ? kernels.embed[std::uint32_t(w.dtype)] != nullptr : kernels.supports(w.dtype);
    DType const takes = kernels.activation[std::uint32_t(w.dtype)];
    if (ok && takes != DType::f32 && kernels.convert[activation_form(takes)] == nullptr) {
      throw Error(Errc::unsupported,
                  concat("the ", kernels.name, " kernels take activations in ", name(takes), ", which they cannot make"));
    }
    if (!ok)
      throw Error(Errc::unsupported, concat("the ", kernels.name, " kernels have no ", kind == ShardKind::embedding ? "look-up" : "product",
                                            " for type ", name(w.dtype)));
  }
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

Capabilities capabilities_of(KernelTable const& host, KernelTable const& device, DType kv_type) {
  Capabilities c;
  c.host_matmul = c.gpu_matmul = 0;
  for (std::uint32_t type = 0; type < n_file_dtypes; ++type) {
    if (host.supports(DType(type))) c.host_matmul |= dtype_bit(DType(type));
    if (device.supports(DType(type))) c.gpu_matmul |= dtype_bit(DType(type));
  }
  std::uint32_t const kv = std::uint32_t(kv_type);
  c.host_attention = host.attention[kv] != nullptr && host.kv_write[kv] != nullptr;
  c.gpu_attention = device.attention[kv] != nullptr && device.kv_write[kv] != nullptr;
  return c;
}

/// Positions of all sequences together; refused beyond what positions are counted in.
inline std::int32_t checked_kv_tokens(std::int64_t max_context, std::int64_t n_sequences) {
  std::int64_t const tokens = (max_context + kv_page_tokens - 1) / kv_page_tokens * kv_page_tokens;
  if (tokens > std::numeric_limits<std::int32_t>::max() / n_sequences) {
    throw Error(Errc::over_budget, concat(n_sequences, " sequences of ", max_context, " tokens are more positions than ",
                                          std::numeric_limits<std::int32_t>::max()));
  }
  return std::int32_t(tokens);
}

EnginePlans make_plans(ShardTable table, ModelConfig const& config, EngineOptions const& options, KernelTable const& host,
                       KernelTable const& device,
                       FunctionRef<std::size_t(ScratchMeter& meter, std::int32_t n_rows, std::int32_t n_outputs)> measure,
                       FunctionRef<std::vector<TierPlan>(ShardTable const&, PlannerInput const&)> plan) {
  std::vector<LayerState> const states_as_kept = states_in(options.kv_type, table, config, host);
  table.states = states_as_kept;
  expects(options.max_context >= 0 && options.n_sequences >= 1, "max_context >= 0, n_sequences >= 1");
  check_capabilities(table, host);
  EnginePlans out;
  out.max_context = options.max_context > 0 ? options.max_context : std::min(config.max_seq_len, 32768);
  std::int32_t const kv_tokens = checked_kv_tokens(out.max_context, options.n_sequences);
  std::size_t const table_bytes = kv_table_bytes(config, out.max_context, options.n_sequences);
  ScratchMeter on_host(table, host, kv_tokens), on_device(table, device, kv_tokens);
  auto const layout_for = [&](std::int32_t chunk, std::int32_t block) {
    std::int32_t const n_outputs = std::min(chunk, max_outputs_per_run);
    std::size_t const step = std::max(measure(on_host, chunk, n_outputs), measure(on_device, chunk, n_outputs));
    return make_activation_layout(config, {chunk, block}, step, table_bytes);
  };
  auto const scratch = [&](std::int32_t chunk, std::int32_t block) { return layout_for(chunk, block).total_bytes; };
  PlannerInput input{options.budget(), {1, kv_tokens * options.n_sequences, options.n_sequences}, scratch};
  input.cost_context = std::min(kv_tokens, typical_context);
  out.tiers = plan(table, input);
  std::vector<ShardPlan const*> plans;
  for (TierPlan const& t : out.tiers) plans.push_back(&t.plan);
  std::vector<VramLayout> layouts = lay_out(plans, table.shards);
  for (std::size_t i = 0; i < out.tiers.size(); ++i) {
    ShardPlan const& p = out.tiers[i].plan;
    PlanImage image{
        p, out.tiers[i].schedule, {p.chunk_tokens, p.block_tokens}, std::move(layouts[i]), layout_for(p.chunk_tokens, p.block_tokens)};
    image.uses_device = p.vram_bytes > 0;
    image.output_by_rows = splits(image.schedule, table, ShardKind::output);
    out.vram_bytes = std::max(out.vram_bytes, image.vram.total_bytes);
    out.images.push_back(std::move(image));
  }
  return out;
}

}  // namespace detail

}  // namespace tiered
