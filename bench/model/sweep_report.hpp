/// What a sweep prints: a line for each cell, for each peer with ratios, and what is said of all of them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "machine_rates.hpp"
#include "results.hpp"
#include "tiered/core/units.hpp"

namespace bench {

inline std::string budget_text(std::uint64_t bytes) { return bytes == 0 ? std::string("no VRAM") : tiered::format_bytes(bytes); }

/// "tool --n-cpu-moe 30" of "/path/to/tool --n-cpu-moe 30".
inline std::string peer_name(std::string const& command) {
  std::size_t const end = command.find(' '), slash = command.rfind('/', end);
  return slash == command.npos ? command : command.substr(slash + 1);
}

inline void print_rates(MeasuredMachine const& m) {
  MachineRates const& r = m.rates;
  fmt::print("{}\n  GB/s: CPU reads {:.1f} ({:.1f} while the link copies), link {:.1f} ({:.1f} while the CPU reads), device {:.0f}; ",
             m.name, r.cpu / 1e9, r.cpu_beside_link / 1e9, r.link / 1e9, r.link_beside_cpu / 1e9, r.device / 1e9);
  fmt::print("prompts are thought to reach {:.1f} TFLOP/s; the context takes {}\n", r.flops / 1e12,
             tiered::format_bytes(std::uint64_t(r.context_bytes)));
}

inline void print_header(std::string const& model) {
  fmt::print("\n{}\n{:>9} {:>7} {:>17} {:>8} {:>6} {:>9} {:>9} {:>8} {:>6} {:>7} {:>15} {:>18} {:>15}\n", model, "budget", "prompt",
             "first token, s", "bound", "share", "prompt/s", "tokens/s", "bound", "share", "ready s", "peak - budget", "MB/token link+CPU",
             "predicted off");
  fmt::print("{:>9} {:>7} {:>17}\n", "", "", "(first) warm");
  std::fflush(stdout);
}

inline std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }
inline double inverse(double s) { return s > 0 ? 1 / s : 0; }

inline void print_cell(Cell const& c) {
  fmt::print("{:>9} {:>7} ", budget_text(c.vram_bytes), c.prompt);
  if (!c.error.empty()) {
    fmt::print("failed: {}\n", c.error);
  } else {
    fmt::print("{:>17} {:>8.3f} {:>6} {:>9.1f} ", fmt::format("({:.3f}) {:.3f}", c.ttft_first_s, c.ttft_s), c.ttft_bound_s,
               percent(c.share_of_ttft_bound()), c.prefill_per_s());
    fmt::print("{:>9.2f} {:>8.2f} {:>6} {:>7.2f} {:>15} ", c.decode_per_s, inverse(c.decode_practical_s),
               percent(c.share_of_decode_bound()), c.ready_s, c.vram_bytes > 0 ? fmt::format("{:+}", c.over_budget_bytes()) : "-");
    fmt::print("{:>18} {:>15}\n",
               fmt::format("{:.1f}+{:.1f}{}", c.streamed_bytes_per_token / 1e6, c.host_bytes_per_token / 1e6, c.counted ? "" : "*"),
               fmt::format("{} {}", percent(relative_error(c.ttft_predicted_s, c.ttft_s)),
                           c.decode_per_s > 0 ? percent(relative_error(c.decode_predicted_s, 1 / c.decode_per_s)) : std::string("-")));
  }
  std::fflush(stdout);
}

/// Ratios to each of our budgets: how many times faster we are to the first token, and behind it.
inline void print_peer(PeerCell const& p, std::vector<Cell> const& cells) {
  fmt::print("{}, {} of VRAM, prompt of {}: ", peer_name(p.command), p.vram_peak_bytes > 0 ? tiered::format_bytes(p.vram_peak_bytes) : "?",
             p.prompt);
  if (!p.error.empty()) {
    fmt::print("failed: {}\n", p.error);
    return;
  }
  fmt::print("first token {:.3f} s, {:.2f} tokens/s; tiered is", p.ttft_s(), p.decode_per_s);
  for (Cell const& c : cells) {
    if (!c.error.empty() || c.model != p.model || c.prompt != p.prompt || c.kv_type != p.kv_type) continue;
    fmt::print("  {:.2f}x {:.2f}x ({})", p.ttft_s() / c.ttft_s, p.decode_per_s > 0 ? c.decode_per_s / p.decode_per_s : 0,
               budget_text(c.vram_bytes));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

inline void print_summary(Results const& results, int n_failed) {
  int n_over = 0, n_below_ttft = 0, n_below_decode = 0, n = 0;
  for (Cell const& c : results.cells()) {
    if (!c.error.empty()) continue;
    ++n;
    n_over += c.vram_bytes > 0 && c.over_budget_bytes() > 0;
    n_below_ttft += c.share_of_ttft_bound() < 1 / 1.15;
    n_below_decode += c.share_of_decode_bound() < 0.85;
  }
  PredictionErrors const errors = prediction_errors(results.cells());
  fmt::print(
      "\n{} cells, {} failed now. Above their budget: {}. First token later than 1.15 times its bound: {}; decode below 85 % of its: {}.\n",
      n, n_failed, n_over, n_below_ttft, n_below_decode);
  if (errors.n == 0) return;
  fmt::print("Median error of predictions: first token {:.1f} %, decode {:.1f} %. (*: streamed bytes by plan and misses, not counted)\n",
             100 * errors.ttft, 100 * errors.decode);
}

}  // namespace bench
