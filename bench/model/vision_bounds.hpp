/// What a machine's rates allow at best for an image and a text behind it: seconds to the first token.
///
/// The encoder's weights and the decoder's share the budget, and each of them is needed once: what VRAM cannot hold of both comes over the
/// link, whoever computes. Reading the file is not in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bounds.hpp"
#include "tiered/vision/patch_grid.hpp"
#include "tiered/vision/vision_model.hpp"

namespace bench {

inline double encoder_bytes(tiered::VisionModel const& model) {
  double bytes = 0;
  for (tiered::Shard const& s : model.table().shards) bytes += double(s.bytes);
  return bytes;
}

/// Pairs of patches that attend to each other: in the whole frame, and within windows.
struct AttentionPairs {
  double full = 0, windows = 0;
};
inline AttentionPairs attention_pairs(tiered::VisionConfig const& config, tiered::PatchGrid const& grid) {
  double const frame = double(grid.frame_patches());
  AttentionPairs pairs{double(grid.t) * frame * frame, 0};
  for (tiered::PatchWindow const& w : tiered::patch_windows(grid, config.merge_size, config.window_tokens())) {
    double const n = double(w.rows.size()) * double(w.cols.size());
    pairs.windows += n * n;
  }
  return pairs;
}

/// Operations of encoding one image: every patch goes through all layers, every token through the mergers.
inline double encoder_flops(tiered::VisionModel const& model, tiered::PatchGrid const& grid) {
  tiered::VisionConfig const& config = model.vision();
  tiered::ShardTable const table = model.table();
  double const per_token = double(config.merge_size) * config.merge_size, n = double(grid.n_patches());
  double macs = 0;
  for (tiered::Shard const& s : table.shards) macs += s.macs_per_token * n;
  auto const merges = [&](tiered::ShardId id) { macs -= table.shard(id).macs_per_token * n * (1 - 1 / per_token); };
  merges(model.weights().merger.shard);
  for (tiered::VisionMergerWeights const& m : model.weights().deepstack) merges(m.shard);
  AttentionPairs const pairs = attention_pairs(config, grid);
  for (std::int32_t l = 0; l < config.n_layers; ++l) {
    bool const full = config.layers[std::size_t(l)].full_attention;
    macs += model.attention(l).macs_per_position * (full ? pairs.full : pairs.windows);
  }
  return 2 * macs;
}

struct ImageBound {
  double bytes = 0;  ///< of encoder and decoder, that VRAM cannot hold
  double flops = 0;  ///< of both
  double link_s = 0, arithmetic_s = 0;
  double seconds() const { return std::max(link_s, arithmetic_s); }
};

/// `flops`: encoder_flops() and prompt_flops(). Without a device nothing is streamed.
inline ImageBound image_bound(ModelBytes const& decoder, double encoder_bytes, double flops, double budget, MachineRates const& rates) {
  ImageBound out;
  out.flops = flops;
  if (rates.device > 0 && budget > 0) {
    double const room = std::max(0.0, budget - rates.context_bytes - prompt_scratch_bytes);
    out.bytes = std::max(0.0, decoder.weights() + encoder_bytes - room);
    out.link_s = out.bytes / rates.link;
  }
  if (rates.flops > 0) out.arithmetic_s = flops / rates.flops;
  return out;
}

/// "max(8.03 GB / 54.1 GB/s = 0.148 s, 44.1 TFLOP / 380 TFLOP/s = 0.116 s)"
inline std::string bound_text(double bytes, double flops, MachineRates const& rates) {
  std::string const link = bytes > 0 && rates.link > 0
                               ? fmt::format("{:.3g} GB / {:.3g} GB/s = {:.3g} s", bytes / 1e9, rates.link / 1e9, bytes / rates.link)
                               : std::string("nothing is streamed");
  if (rates.flops <= 0) return link;
  return fmt::format("max({}, {:.3g} TFLOP / {:.3g} TFLOP/s = {:.3g} s)", link, flops / 1e12, rates.flops / 1e12, flops / rates.flops);
}

}  // namespace bench
