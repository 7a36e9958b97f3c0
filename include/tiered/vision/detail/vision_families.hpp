/// Projector type in a file -> what its files hold. The one place where projectors are listed.
///
/// Facts of the files: llama.cpp's converter (conversion/qwenvl.py, qwen3vl.py, base.py), how tools/mtmd/clip.cpp reads what it and its
/// forerunners wrote, the names in the package gguf (constants.py). Of the computation: transformers (models/qwen2_vl, qwen2_5_vl,
/// qwen3_vl, vision_utils.py); numbers: the models' config.json and preprocessor_config.json.
///
/// | key (short: clip.vision.*)   | Qwen2-VL       | Qwen2.5-VL       | Qwen3-VL       | meaning                                         |
/// |------------------------------|----------------|------------------|----------------|-------------------------------------------------|
/// | general.architecture         | clip           | clip             | clip           |                                                 |
/// | clip.projector_type          | qwen2vl_merger | qwen2.5vl_merger | qwen3vl_merger | clip.vision.projector_type if audio is in, too  |
/// | patch_size                   | 14             | 14               | 16             | pixels a side                                   |
/// | embedding_length             | 1280           | 1280             | 1024, 1152     | dim                                             |
/// | feed_forward_length          | the decoder's  | 3420, 3456       | 4096, 4304     | hence from ffn_up; older Qwen2-VL files: 0      |
/// | block_count                  | 32             | 32               | 24, 27         |                                                 |
/// | attention.head_count         | 16             | 16               | 16             | of 80, 80, 64 or 72 elements                    |
/// | attention.layer_norm_epsilon | 1e-6           | 1e-6             | 1e-6           | of all norms, the mergers' too                  |
/// | projection_dim               | the decoder's  | the decoder's    | the decoder's  | width of a token                                |
/// | image_mean, image_std        | those of CLIP  | those of CLIP    | 0.5, 0.5       | three numbers each                              |
/// | image_size                   | 560            | 560              | 768            | not used: any size goes                         |
/// | image_min_pixels, _max_      | -              | -                | -              | else those of the processor, below              |
/// | spatial_merge_size           | -, so 2        | -, so 2          | 2              | patches a side of a token                       |
/// | n_wa_pattern                 | -              | 8                | -              | layer l sees all if (l + 1) % 8 == 0; 0: all do |
/// | window_size                  | -              | -, so 112        | -              | pixels a side                                   |
/// | is_deepstack_layers          | -              | -                | a bool a layer | 5, 11, 17 of 24 or 8, 16, 24 of 27, or none     |
/// | clip.use_gelu, clip.use_silu | - or false     | silu             | gelu           | gelu: tanh form; neither: x * sigmoid(1.702 x)  |
///
/// | tensor                                     | sizes, outermost first | 2   | 2.5 | 3   | meaning                                  |
/// |--------------------------------------------|------------------------|-----|-----|-----|------------------------------------------|
/// | v.patch_embd.weight, v.patch_embd.weight.1 | [dim, 3, p, p]         | yes | yes | yes | first, second frame; F32, F16 or BF16    |
/// | v.patch_embd.bias                          | [dim]                  |     |     | yes |                                          |
/// | v.position_embd.weight                     | [side * side, dim]     |     |     | yes | bilinear, corners on corners             |
/// | v.blk.N.ln1, ln2                           | [dim]                  | yes | rms | yes | .bias but for rms                        |
/// | v.blk.N.attn_q, attn_k, attn_v             | [dim, dim]             | yes | yes |     | .weight, .bias, as all below             |
/// | v.blk.N.attn_qkv                           | [3 dim, dim]           |     |     | yes | q, k, v one after another                |
/// | v.blk.N.attn_out                           | [dim, dim]             | yes | yes | yes |                                          |
/// | v.blk.N.ffn_gate                           | [hidden, dim]          |     | yes |     |                                          |
/// | v.blk.N.ffn_up                             | [hidden, dim]          | yes | yes | yes | older Qwen2-VL files: up is called down, |
/// | v.blk.N.ffn_down                           | [dim, hidden]          | yes | yes | yes | and down is called up                    |
/// | v.post_ln                                  | [dim]                  | yes | rms | yes | of each patch, then four side by side    |
/// | mm.0                                       | [4 dim, 4 dim]         | yes | yes | yes | then GELU (erf; llama.cpp: tanh form)    |
/// | mm.2                                       | [output, 4 dim]        | yes | yes | yes |                                          |
/// | v.deepstack.N.norm, .fc1, .fc2             | as mm.0, mm.2          |     |     | yes | behind layer N; normed side by side      |
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered::detail {

struct VisionFamily {
  std::string_view projector;
  VisionNorm norm = VisionNorm::layer;
  bool windows = false;                         ///< reads n_wa_pattern and window_size
  bool gated = false;                           ///< needs ffn_gate
  bool fused_qkv = false;                       ///< attn_qkv, else attn_q, attn_k and attn_v
  bool positions = false;                       ///< needs patch_embd.bias and position_embd, may have deepstack mergers
  std::int64_t min_pixels = 0, max_pixels = 0;  ///< of the models' own preprocessor_config.json
  bool frames_apart = false;                    ///< of a video: a picture for each frame pair, behind its time in words
  double tokens_per_second = 0;                 ///< of a video: as MropeConfig's; the models' config.json
  /// Of a frame of a video: what the processor's class has; with frames_apart of all frames, by video_preprocessor_config.json.
  std::int64_t min_video_pixels = 0, max_video_pixels = 0;
};

inline constexpr std::array vision_families{
    VisionFamily{"qwen2vl_merger", VisionNorm::layer, false, false, false, false, 4 * 28 * 28, 16384 * 28 * 28,  //
                 false, 0, 128 * 28 * 28, 768 * 28 * 28},
    VisionFamily{"qwen2.5vl_merger", VisionNorm::rms, true, true, false, false, 4 * 28 * 28, 16384 * 28 * 28,  //
                 false, 2, 128 * 28 * 28, 768 * 28 * 28},
    VisionFamily{"qwen3vl_merger", VisionNorm::layer, false, false, true, true, 64 * 32 * 32, 16384 * 32 * 32,  //
                 true, 0, 4096, 24 << 20},
};

/// Errors  Errc::unsupported naming the projector and those there are.
inline VisionFamily const& vision_family(std::string_view projector, std::string_view where) {
  std::string known;
  for (VisionFamily const& f : vision_families) {
    if (f.projector == projector) return f;
    known += concat(known.empty() ? "" : ", ", f.projector);
  }
  throw Error(Errc::unsupported, concat(where, "projector type ", printable(projector), " is not supported; supported: ", known));
}

/// Errors  Errc::unsupported naming the file's projector and those there are.
inline VisionFamily const& find_vision_family(GgufFile const& file) {
  if (auto const arch = file.require<std::string>("general.architecture"); arch != "clip") {
    throw Error(Errc::unsupported, concat(file.path(), ": architecture ", printable(arch), " is no projector of images (clip)"));
  }
  if (!file.get_or<bool>("clip.has_vision_encoder", true)) {
    throw Error(Errc::unsupported, concat(file.path(), ": has no vision encoder"));
  }
  char const* const own = "clip.projector_type";
  auto const wanted = file.require<std::string>(
      file.find(own) != nullptr || file.find("clip.vision.projector_type") == nullptr ? own : "clip.vision.projector_type");
  return vision_family(wanted, concat(file.path(), ": "));
}

}  // namespace tiered::detail
