/// One prompt and the text behind it, with everything that is to be told of it later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"
#include "runner.hpp"
#include "tiered/core/function_ref.hpp"
#include "tiered/engine/generate.hpp"
#include "tiered/vision/media_vectors.hpp"

namespace app {

/// True at any moment, whatever happens meanwhile.
struct Turn {
  struct Token {
    std::int32_t id = -1;
    std::string text;
    double logprob = 0;
    std::vector<tiered::TokenLogprob> top;
  };
  std::int32_t n_prompt = 0, n_reused = 0;  ///< tokens; those that were not processed again
  std::size_t n_decoded = 0;                ///< steps behind the prompt's
  std::size_t n_dropped = 0;                ///< tokens that were forgotten by context shifts
  double prefill_s = 0, first_token_s = 0, decode_s = 0;
  double encode_s = 0;     ///< of images and videos, a part of neither but of first_token_s
  tiered::MediaUse media;  ///< likewise: what became of them
  std::uint64_t copied_bytes = 0, prefill_copied_bytes = 0,
                first_decode_copied_bytes = 0;  ///< to the device: in all, with the prompt, by the step after it
  std::string text;
  std::vector<Token> tokens;  ///< drawn, without the one that ended the text
  tiered::EndReason end = tiered::EndReason::none;
  std::string stop_string;
};

/// Options of a Generation out of those of the command line.
tiered::GenerationOptions generation_options(Options const& o);

/// Processes the prompt and generates until something ends it; a signal (EndReason::cancelled) is no error.
/// `write`        gets the text in pieces of whole characters, a reverse prompt that ended it included
/// `after_prompt` called once the sequence holds the prompt and nothing else
/// Errors  of Runner and of the functions; `turn` has what was done.
void generate(Runner& runner, tiered::MediaPrompt const& prompt, Options const& o, Turn& turn,
              tiered::FunctionRef<void(std::string_view)> write, tiered::FunctionRef<void()> after_prompt);

/// "after 20 tokens, as -n says"
std::string why_it_ended(Turn const& turn, Options const& o, std::int32_t max_context);

}  // namespace app
