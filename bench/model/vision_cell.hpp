/// What a bench of images measures: one image of one size inside one budget.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bounds.hpp"

namespace bench {

/// `error` says why there are no figures.
struct VisionCell {
  std::string model, projector, image, image_format, kv_type, device, machine, kernels, error;
  std::uint64_t file_bytes = 0, projector_bytes = 0, vram_bytes = 0;
  std::int64_t width = 0, height = 0;
  int text_tokens = 0, decoded = 0, threads = 0;
  double held_link_bytes_per_s = 0;  ///< what copies were held to; 0: nothing

  std::uint64_t image_bytes = 0;  ///< of its file
  int vision_tokens = 0, patches = 0;
  double load_s = 0;   ///< until engine and encoder are made
  double ready_s = 0;  ///< from the start of the process
  /// Of the best run, but for the first one: together ttft_s.
  double read_s = 0;        ///< of reading and decoding the file
  double preprocess_s = 0;  ///< of resizing and hashing it, and of laying out the prompt
  double encode_s = 0;
  double prefill_s = 0;  ///< of the image's tokens and the text's
  double ttft_first_s = 0;
  double ttft_s = 0;
  double decode_per_s = 0;
  double end_to_end_s = 0;

  std::uint64_t vram_peak_bytes = 0;    ///< of the process, from its start until this image was answered
  std::uint64_t vram_encode_bytes = 0;  ///< the most while this image was encoded
  std::string vram_source;              ///< whose figures these are
  double streamed_encode_bytes = 0, streamed_prefill_bytes = 0;
  bool counted = false;                    ///< streamed bytes were counted; else they are those of the plans
  std::string encoder_plan, decoder_plan;  ///< in words
  std::uint64_t encoder_vram_bytes = 0;    ///< that the encoder's plan for this image takes
  bool all_resident = false;               ///< all weights of both stay in VRAM, so that nothing is streamed

  double bound_bytes = 0, bound_flops = 0;  ///< that the bound of the first token counts
  double ttft_bound_s = 0, decode_practical_s = 0;
  MachineRates rates;

  std::int64_t n_pixels() const { return width * height; }
  int prompt() const { return vision_tokens + text_tokens; }
  std::int64_t over_budget_bytes() const { return std::int64_t(vram_peak_bytes) - std::int64_t(vram_bytes); }
  double share_of_ttft_bound() const { return ttft_s > 0 ? ttft_bound_s / ttft_s : 0; }
  double share_of_decode_bound() const { return decode_per_s * decode_practical_s; }
  /// Whether this is the same question but for the budget; nothing that was measured counts.
  bool is_alike(VisionCell const& c) const {
    return model == c.model && projector == c.projector && image_format == c.image_format && kv_type == c.kv_type && device == c.device &&
           file_bytes == c.file_bytes && projector_bytes == c.projector_bytes && width == c.width && height == c.height &&
           text_tokens == c.text_tokens && decoded == c.decoded && threads == c.threads && held_link_bytes_per_s == c.held_link_bytes_per_s;
  }
  bool is_same(VisionCell const& c) const { return is_alike(c) && vram_bytes == c.vram_bytes; }
};

template <class C, class Visit>
requires requires(C& c) { c.vision_tokens; }
void each_field(C& c, Visit visit) {
  visit("model", c.model);
  visit("projector", c.projector);
  visit("image", c.image);
  visit("image_format", c.image_format);
  visit("kv_type", c.kv_type);
  visit("device", c.device);
  visit("machine", c.machine);
  visit("kernels", c.kernels);
  visit("error", c.error);
  visit("file_bytes", c.file_bytes);
  visit("projector_bytes", c.projector_bytes);
  visit("vram_bytes", c.vram_bytes);
  visit("width", c.width);
  visit("height", c.height);
  visit("text_tokens", c.text_tokens);
  visit("decoded", c.decoded);
  visit("threads", c.threads);
  visit("held_link_bytes_per_s", c.held_link_bytes_per_s);
  visit("image_bytes", c.image_bytes);
  visit("vision_tokens", c.vision_tokens);
  visit("patches", c.patches);
  visit("load_s", c.load_s);
  visit("ready_s", c.ready_s);
  visit("read_s", c.read_s);
  visit("preprocess_s", c.preprocess_s);
  visit("encode_s", c.encode_s);
  visit("prefill_s", c.prefill_s);
  visit("ttft_first_s", c.ttft_first_s);
  visit("ttft_s", c.ttft_s);
  visit("decode_tokens_per_s", c.decode_per_s);
  visit("end_to_end_s", c.end_to_end_s);
  visit("vram_peak_bytes", c.vram_peak_bytes);
  visit("vram_encode_bytes", c.vram_encode_bytes);
  visit("vram_source", c.vram_source);
  visit("streamed_encode_bytes", c.streamed_encode_bytes);
  visit("streamed_prefill_bytes", c.streamed_prefill_bytes);
  visit("streamed_bytes_counted", c.counted);
  visit("encoder_plan", c.encoder_plan);
  visit("decoder_plan", c.decoder_plan);
  visit("encoder_vram_bytes", c.encoder_vram_bytes);
  visit("all_resident", c.all_resident);
  visit("bound_bytes", c.bound_bytes);
  visit("bound_flop", c.bound_flops);
  visit("ttft_bound_s", c.ttft_bound_s);
  visit("decode_practical_s", c.decode_practical_s);
}

/// The answer to the same question with all weights in VRAM, the one of most VRAM; null where there is none.
inline VisionCell const* resident_run(std::vector<VisionCell> const& cells, VisionCell const& c) {
  VisionCell const* found = nullptr;
  for (VisionCell const& other : cells) {
    if (!other.error.empty() || !other.all_resident || !other.is_alike(c)) continue;
    if (found == nullptr || other.vram_bytes > found->vram_bytes) found = &other;
  }
  return found;
}
/// How many times as long its first token takes as that of resident_run(); 0 where there is none.
inline double times_resident(std::vector<VisionCell> const& cells, VisionCell const& c) {
  VisionCell const* const resident = resident_run(cells, c);
  return resident != nullptr && resident->ttft_s > 0 ? c.ttft_s / resident->ttft_s : 0;
}

}  // namespace bench
