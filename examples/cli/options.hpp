/// What tiered-run was asked to do: its command line, its help, its exit codes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"

namespace app {

/// Part of the interface: scripts rely on them. The text of --help lists them.
enum ExitCode : int { ok = 0, failed = 1, usage = 2, file_error = 3, unsupported = 4, does_not_fit = 5, interrupted = 130 };

constexpr ExitCode exit_code(tiered::Errc code) {
  switch (code) {
    case tiered::Errc::bad_file:
    case tiered::Errc::not_found:
    case tiered::Errc::io: return file_error;
    case tiered::Errc::unsupported: return unsupported;
    case tiered::Errc::out_of_memory:
    case tiered::Errc::over_budget: return does_not_fit;
    case tiered::Errc::cancelled: return interrupted;
    case tiered::Errc::device:
    case tiered::Errc::precondition: return failed;
  }
  return failed;
}

/// raw: a text and its continuation; question: one message and its answer; conversation: until the user ends it.
enum class Mode { automatic, raw, question, conversation };

/// llama.cpp's names and defaults.
struct SamplingOptions {
  float temperature = 0.8f, top_p = 0.95f, min_p = 0.05f, typical = 1;
  std::int32_t top_k = 40;
  float repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::int32_t repeat_last_n = 64;
  std::vector<std::pair<std::int32_t, float>> logit_bias;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
};

struct ChatOptions {
  Mode mode = Mode::automatic;
  bool single_turn = false;
  std::optional<std::string> system_prompt, system_file;
  std::optional<std::string> template_name, template_file;  ///< neither: the model's own
  std::string in_prefix, in_suffix;                         ///< either: around what the user types, instead of a template
  bool multiline = false, simple_io = false;
  std::optional<bool> color;  ///< nothing: where it is a terminal
};

/// automatic: a CUDA device where there is one; else the simulated one where --vram asks for a device.
enum class DeviceKind { automatic, none, simulated, cuda };

/// Where the state of a text is kept between runs.
struct SessionOptions {
  std::string file;  ///< empty: nowhere
  bool read_only = false;
  bool with_text = false;  ///< what was generated too, not the prompt alone
  bool goes_on = false;    ///< a prompt is put behind the text; else what both begin with is used, the rest replaced
};

/// Images and videos of the prompt.
struct PictureOptions {
  std::string projector;  ///< empty: none, and no media
  std::vector<std::string> images, videos;
  double video_fps = 2;
  std::optional<std::int64_t> video_frames;
  std::int64_t min_tokens = 0, max_tokens = 0;  ///< of an image, or of a step of a video; 0: as the projector's file says
};

struct Options {
  std::string model;
  PictureOptions pictures;
  std::optional<std::string> prompt, prompt_file, binary_file;  ///< none: standard input
  bool escapes = true, display_prompt = true;
  ChatOptions chat;
  SessionOptions session;

  DeviceKind device = DeviceKind::automatic;  ///< settled by settle_device()
  std::string device_name;                    ///< of the CUDA device
  std::optional<std::size_t> vram_bytes;      ///< nothing: no device, or what a CUDA device has free
  bool vram_excludes_context = false;
  double link_bytes_per_s = 0;
  std::string placement = "seconds_per_byte";
  std::string eviction = "prior_frequency";
  std::optional<bool> expert_prior;  ///< nothing: see EngineOptions
  bool plan_only = false;
  std::int32_t context = 0;
  int n_threads = 0, batch_threads = 0;  ///< of the second only is said that they change nothing
  bool f32_activations = false;
  bool deterministic = false;
  tiered::DType kv_type = tiered::DType::f16;
  bool mmap = true, mlock = false;

  std::int32_t n_predict = -1;
  SamplingOptions sampling;
  std::vector<std::string> stops;            ///< end the text, and are no part of it
  std::vector<std::string> reverse_prompts;  ///< end the text, and are the last of it
  bool context_shift = false;
  std::int32_t keep = 0;  ///< -1: all of the prompt

  bool stats = false, verbose = false, quiet = false, json = false;
  std::int32_t logprobs = 0;
  std::string trace_file;

  std::vector<std::string> given;  ///< on the command line: long names, as "--vram"; of a pair with --no- the first

  bool has_prompt() const { return prompt || prompt_file || binary_file; }
  bool was_given(std::string_view option) const { return std::find(given.begin(), given.end(), option) != given.end(); }
};

/// All that was asked for is this text, as by --help.
struct Answer {
  std::string text;
};

/// A mistake in the command line, found after it was parsed.
struct UsageError {
  std::string message;
};

/// Throws Answer (help, version) or UsageError.
Options parse_options(int argc, char const* const* argv);

/// Whether --json is among the arguments, for errors in the others.
bool asks_for_json(int argc, char const* const* argv);

/// \n \r \t \' \" \\ \x41 ; any other backslash stays, as llama.cpp has it.
std::string without_escapes(std::string_view text);

}  // namespace app
