/// What a bench of images prints: a line for each cell, how its bound comes about, and what is said of all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "results.hpp"
#include "sweep_report.hpp"
#include "vision_bounds.hpp"

namespace bench {

/// The first token of an image may take so many times as long as with all weights in VRAM, from that size on.
inline constexpr double most_times_resident = 1.5;
inline constexpr std::int64_t full_hd_pixels = std::int64_t{1920} * 1080;

inline std::string vision_header(std::string const& model, std::string const& projector, std::string_view format, int text_tokens,
                                 int decoded) {
  return fmt::format(
      "\n{} with {}, {} images and {} tokens of text, then {} tokens; seconds\n"
      "{:>9} {:>10} {:>6} {:>7} {:>7} {:>8} {:>8} {:>17} {:>8} {:>5} {:>7} {:>8} {:>8} {:>5} {:>8} {:>15} {:>17}  {}\n",
      model, projector, format, text_tokens, decoded, "VRAM", "image", "tokens", "read", "prepare", "encode", "prefill",
      "(first) 1st token", "bound", "share", "x res.", "t/s", "bound", "share", "to end", "over budget", "MB streamed", "encoder; decoder");
}

/// `times`: times_resident(); 0: not known.
inline std::string vision_row(VisionCell const& c, double times) {
  std::string row = fmt::format("{:>9} {:>10} ", budget_text(c.vram_bytes), c.image);
  if (!c.error.empty()) return row + fmt::format("failed: {}\n", c.error);
  row += fmt::format("{:>6} {:>7.3f} {:>7.3f} {:>8.3f} {:>8.3f} {:>17} ", c.vision_tokens, c.read_s, c.preprocess_s, c.encode_s,
                     c.prefill_s, fmt::format("({:.3f}) {:.3f}", c.ttft_first_s, c.ttft_s));
  row += fmt::format("{:>8.3f} {:>5} {:>7} ", c.ttft_bound_s, percent(c.share_of_ttft_bound()),
                     times > 0 ? fmt::format("{:.2f}", times) : std::string("-"));
  row += fmt::format("{:>8.2f} {:>8.2f} {:>5} {:>8.2f} ", c.decode_per_s, inverse(c.decode_practical_s), percent(c.share_of_decode_bound()),
                     c.end_to_end_s);
  return row +
         fmt::format("{:>15} {:>17}  {}; {}\n", c.vram_bytes > 0 ? fmt::format("{:+}", c.over_budget_bytes()) : std::string("-"),
                     fmt::format("{:.1f}+{:.1f}{}", c.streamed_encode_bytes / 1e6, c.streamed_prefill_bytes / 1e6, c.counted ? "" : "*"),
                     c.encoder_plan, c.decoder_plan);
}

/// "2.00 GiB, 1080p: max(...)".
inline std::string vision_bound_row(VisionCell const& c) {
  return fmt::format("  {}, {}: {}\n", budget_text(c.vram_bytes), c.image, bound_text(c.bound_bytes, c.bound_flops, c.rates));
}

inline std::string vision_summary(std::vector<VisionCell> const& cells, int n_failed) {
  int n = 0, n_over = 0, n_compared = 0, n_late = 0, n_below_decode = 0;
  bool counted = true;
  for (VisionCell const& c : cells) {
    if (!c.error.empty()) continue;
    ++n;
    counted = counted && c.counted;
    n_over += c.vram_bytes > 0 && c.over_budget_bytes() > 0;
    n_below_decode += c.decode_per_s > 0 && c.decode_practical_s > 0 && c.share_of_decode_bound() < 0.85;
    double const times = times_resident(cells, c);
    if (times <= 0 || c.all_resident || c.n_pixels() < full_hd_pixels) continue;
    ++n_compared;
    n_late += times > most_times_resident;
  }
  std::string out = fmt::format("\n{} cells, {} failed now. Above their budget: {}. Decode below 85 % of its bound: {}.\n", n, n_failed,
                                n_over, n_below_decode);
  out += n_compared > 0 ? fmt::format("From 1080p on, {} of {} first tokens are later than {} times those with all weights in VRAM.\n",
                                      n_late, n_compared, most_times_resident)
                        : std::string("No first token from 1080p on can be compared with one that has all weights in VRAM.\n");
  if (n > 0 && !counted) out += "(*: streamed bytes by plan, not counted)\n";
  return out;
}

}  // namespace bench
