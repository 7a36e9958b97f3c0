/// What tiered-run says besides the text: what it is about to do, plans, and how it went. All in plain functions that make strings.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "options.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/model/config.hpp"
#include "tiered/plan/plan_io.hpp"

namespace app {

/// What the system could still give without paging, or nothing where it does not say.
inline std::optional<std::uint64_t> available_memory() {
  std::optional<std::uint64_t> bytes;
  std::FILE* const meminfo = std::fopen("/proc/meminfo", "r");
  char line[256];
  unsigned long long kib = 0;
  while (!bytes && meminfo != nullptr && std::fgets(line, sizeof line, meminfo) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %llu", &kib) == 1) bytes = kib * 1024;
  }
  if (meminfo != nullptr) std::fclose(meminfo);
  return bytes;
}

/// "12.3", with `digits` behind the point.
inline std::string fixed(double value, int digits) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed, digits).ptr);
}

/// "SmolLM2 135M (llama), 30 layers, 92.6 MiB, trained for 8192 tokens"
inline std::string describe(tiered::GgufFile const& gguf, tiered::ModelConfig const& config) {
  std::string const& name = config.name.empty() ? gguf.path() : config.name;
  return tiered::concat(name, " (", config.architecture, "), ", config.n_layers, " layers, ", tiered::format_bytes(gguf.total_bytes()),
                        ", trained for ", config.max_seq_len, " tokens");
}

inline std::string describe_device(Options const& o, std::size_t planned_bytes) {
  if (!o.vram_bytes) return "no device: everything on the CPU (--vram SIZE simulates one)";
  std::string const budget = tiered::concat("simulated device, budget ", tiered::format_bytes(*o.vram_bytes), ": ");
  if (planned_bytes == 0) return budget + "nothing useful fits, everything on the CPU";
  return tiered::concat(budget, tiered::format_bytes(planned_bytes),
                        " planned (its memory is this machine's; it computes with the CPU and is no faster)");
}

/// The map of one token tier, with its legend. The widest part of the status: only where there is a device.
inline std::string describe_plan(tiered::TierPlan const& decode, tiered::ShardTable const& table) {
  return tiered::concat("plan for each next token, layer by layer (R resident in VRAM, S streamed to it for each use, . on the CPU",
                        tiered::ExpertLayers(table.shards).layers.empty() ? "" : ", C or c cached experts", "; kv: V in VRAM):\n",
                        tiered::layer_map(decode.plan, table));
}

/// Everything of --plan. Without --vram there is nothing to plan, and estimates for a made-up machine would mislead.
inline std::string plan_report(tiered::EnginePlans const& plans, tiered::ShardTable const& table, Options const& o) {
  if (!o.vram_bytes) return "";
  std::string out = tiered::concat("placement ", o.placement, "; seconds are estimates for this made-up machine, not for yours:\n",
                                   tiered::to_text(tiered::HardwareProfile::simulated()));
  if (plans.vram_bytes > 0) {
    out +=
        "R resident in VRAM, S streamed to it for each use, . on the CPU; kv: V in VRAM; experts: C all cached, c some, r some resident, "
        "m both\n";
  }
  out += '\n';
  for (tiered::TierPlan const& tier : plans.tiers) {
    out += tiered::to_text(tier, table);
    if (&tier != &plans.tiers.back()) out += '\n';
  }
  return out;
}

struct RunStats {
  double load_s = 0, prefill_s = 0, decode_s = 0, first_token_s = 0;
  std::size_t n_prompt = 0, n_generated = 0, n_decoded = 0;
  std::string stopped;  ///< why
  std::optional<std::size_t> vram_budget_bytes;
  std::size_t vram_peak_bytes = 0, host_kv_bytes = 0;
  std::uint64_t copied_bytes = 0, prefill_copied_bytes = 0,
                first_decode_copied_bytes = 0;  ///< to the device: in all, with the prompt, by the step after it
  tiered::ExpertCache::Counters experts;
};

/// Without a device's lines where there is none.
inline std::string device_text(RunStats const& s) {
  using tiered::format_bytes;
  if (!s.vram_budget_bytes) return "";
  std::uint64_t const after_prompt = s.copied_bytes - s.prefill_copied_bytes;
  std::string out = tiered::concat("peak VRAM            ", format_bytes(s.vram_peak_bytes), " of a budget of ",
                                   format_bytes(*s.vram_budget_bytes), "\ncopied to VRAM       ", format_bytes(s.prefill_copied_bytes),
                                   " with the prompt, ", format_bytes(after_prompt), " after it");
  // The first step after a prompt also brings what the plan for single tokens keeps there.
  if (s.n_decoded > 1)
    out += tiered::concat(", ", format_bytes((after_prompt - s.first_decode_copied_bytes) / (s.n_decoded - 1)), " a token");
  if (std::uint64_t const used = s.experts.hits + s.experts.misses; used > 0) {
    out += tiered::concat("\nexpert cache         ", fixed(100 * double(s.experts.hits) / double(used), 1), " % of ", used, " uses hit");
  }
  return out + '\n';
}

inline std::string to_text(RunStats const& s) {
  auto const rate = [](std::size_t n, double seconds) { return seconds > 0 ? fixed(double(n) / seconds, 1) : std::string("-"); };
  std::string out = tiered::concat("\nstopped              ", s.stopped, "\nload                 ", fixed(s.load_s, 2), " s\n");
  if (s.prefill_s > 0) {
    out += tiered::concat("prompt               ", s.n_prompt, " tokens in ", fixed(s.prefill_s, 2), " s, ", rate(s.n_prompt, s.prefill_s),
                          " tokens/s\n");
  }
  if (s.n_generated > 0) out += tiered::concat("time to first token  ", fixed(s.first_token_s, 3), " s after loading\n");
  out += tiered::concat("text                 ", s.n_generated, s.n_generated == 1 ? " token" : " tokens");
  out += s.n_decoded > 0 ? tiered::concat(", ", rate(s.n_decoded, s.decode_s), " tokens/s\n") : "\n";
  out += device_text(s);
  if (s.host_kv_bytes > 0) out += tiered::concat("KV cache on the CPU  ", tiered::format_bytes(s.host_kv_bytes), '\n');
  return out;
}

}  // namespace app
