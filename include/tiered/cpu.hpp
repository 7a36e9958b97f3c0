/// All functions of the library and the CPU kernels, for programs that do not link tiered::cpu. Include it in one source file
/// of a program: it defines them, and takes a while to compile. Needs the headers of PCRE2 and of Eigen (-I /usr/include/eigen3); for
/// JPEG, PNG and WebP images those libraries and TIERED_HAS_JPEG=1, TIERED_HAS_PNG=1, TIERED_HAS_WEBP=1; for video files FFmpeg's headers
/// and TIERED_HAS_FFMPEG=1.
#pragma once

#include "tiered/engine/detail/conversation_impl.hpp"
#include "tiered/engine/detail/engine_impl.hpp"
#include "tiered/engine/detail/expert_prior_impl.hpp"
#include "tiered/engine/detail/generate_impl.hpp"
#include "tiered/engine/detail/media_input_impl.hpp"
#include "tiered/engine/detail/planning_impl.hpp"
#include "tiered/engine/detail/policies_impl.hpp"
#include "tiered/engine/detail/sampler_impl.hpp"
#include "tiered/engine/detail/sequence_state_impl.hpp"
#include "tiered/engine/detail/session_impl.hpp"
#include "tiered/engine/detail/sim_policies_impl.hpp"
#include "tiered/engine/detail/stop_impl.hpp"
#include "tiered/engine/detail/vision_encoder_impl.hpp"
#include "tiered/io/detail/chat_template_impl.hpp"
#include "tiered/io/detail/gguf_impl.hpp"
#include "tiered/io/detail/tokenizer_impl.hpp"
#include "tiered/io/detail/vocab_impl.hpp"
#include "tiered/kernels/cpu/detail/team_impl.hpp"
#include "tiered/kernels/cpu/instantiate.hpp"
#include "tiered/memory/detail/lane_impl.hpp"
#include "tiered/model/detail/kv_cache_impl.hpp"
#include "tiered/model/detail/transformer_impl.hpp"
#include "tiered/pipeline/detail/executor_attend_impl.hpp"
#include "tiered/pipeline/detail/executor_block_impl.hpp"
#include "tiered/pipeline/detail/executor_cross_impl.hpp"
#include "tiered/pipeline/detail/executor_helped_impl.hpp"
#include "tiered/pipeline/detail/executor_impl.hpp"
#include "tiered/pipeline/detail/executor_ops_impl.hpp"
#include "tiered/pipeline/detail/executor_stream_kv_impl.hpp"
#include "tiered/pipeline/detail/expert_cache_impl.hpp"
#include "tiered/pipeline/detail/expert_flow_impl.hpp"
#include "tiered/pipeline/detail/experts_ahead_impl.hpp"
#include "tiered/pipeline/detail/few_ahead_impl.hpp"
#include "tiered/pipeline/detail/few_helped_impl.hpp"
#include "tiered/pipeline/detail/few_read_impl.hpp"
#include "tiered/pipeline/detail/few_routed_impl.hpp"
#include "tiered/pipeline/detail/helped_attention_impl.hpp"
#include "tiered/pipeline/detail/routed_experts_impl.hpp"
#include "tiered/pipeline/detail/shared_flow_impl.hpp"
#include "tiered/plan/detail/account_impl.hpp"
#include "tiered/plan/detail/any_eviction_impl.hpp"
#include "tiered/plan/detail/any_policy_impl.hpp"
#include "tiered/plan/detail/cost_impl.hpp"
#include "tiered/plan/detail/estimate_impl.hpp"
#include "tiered/plan/detail/expert_share_impl.hpp"
#include "tiered/plan/detail/experts_impl.hpp"
#include "tiered/plan/detail/hardware_impl.hpp"
#include "tiered/plan/detail/helped_layer_impl.hpp"
#include "tiered/plan/detail/plan_io_impl.hpp"
#include "tiered/plan/detail/plan_tiers_impl.hpp"
#include "tiered/plan/detail/planner_impl.hpp"
#include "tiered/plan/detail/ring_prefetch_impl.hpp"
#include "tiered/plan/detail/verify_schedule_impl.hpp"
#include "tiered/plan/placements/detail/all_vram_impl.hpp"
#include "tiered/plan/placements/detail/attention_first_impl.hpp"
#include "tiered/plan/placements/detail/seconds_per_byte_impl.hpp"
#include "tiered/plan/placements/detail/stream_all_impl.hpp"
#include "tiered/profile/detail/expert_uses_impl.hpp"
#include "tiered/profile/detail/hardware_profile_impl.hpp"
#include "tiered/profile/detail/measure_impl.hpp"
#include "tiered/profile/detail/profile_text_impl.hpp"
#include "tiered/profile/detail/read_rate_impl.hpp"
#include "tiered/vision/detail/bmp_impl.hpp"
#include "tiered/vision/detail/ffmpeg_impl.hpp"
#include "tiered/vision/detail/gif_impl.hpp"
#include "tiered/vision/detail/image_file_impl.hpp"
#include "tiered/vision/detail/jpeg_impl.hpp"
#include "tiered/vision/detail/media_hash_impl.hpp"
#include "tiered/vision/detail/media_impl.hpp"
#include "tiered/vision/detail/media_prompt_impl.hpp"
#include "tiered/vision/detail/media_vectors_impl.hpp"
#include "tiered/vision/detail/png_impl.hpp"
#include "tiered/vision/detail/positions_impl.hpp"
#include "tiered/vision/detail/preprocess_impl.hpp"
#include "tiered/vision/detail/video_impl.hpp"
#include "tiered/vision/detail/vision_config_impl.hpp"
#include "tiered/vision/detail/vision_model_impl.hpp"
#include "tiered/vision/detail/vision_weights_impl.hpp"
#include "tiered/vision/detail/webp_impl.hpp"

namespace tiered::cpu {
namespace baseline {
KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }
}  // namespace avx2
namespace avx512 {
KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }
}  // namespace avx512
namespace amx {
KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }
}  // namespace amx
#endif
}  // namespace tiered::cpu
