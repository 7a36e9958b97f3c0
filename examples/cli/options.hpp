/// What tiered-run was asked to do: its command line, its help, its exit codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

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

struct Options {
  std::string model;
  std::optional<std::string> prompt, prompt_file;  ///< neither: standard input
  bool chat = false, escapes = true, display_prompt = true;
  std::optional<std::string> system_prompt;

  std::optional<std::size_t> vram_bytes;  ///< nothing: no device
  std::string placement = "seconds_per_byte";
  bool plan_only = false;
  std::int32_t context = 0;
  int n_threads = 0;
  bool f32_activations = false;

  std::int32_t n_predict = -1;
  float temperature = 0.8f, top_p = 0.95f;
  std::int32_t top_k = 40;
  std::uint64_t seed = 0;
  bool ignore_eos = false;
  bool stats = false;
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

}  // namespace app
