/// Defines MediaText: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/detail/check_same_model.hpp"
#include "tiered/engine/media_input.hpp"

namespace tiered {

MediaText::MediaText(VisionConfig const& encoder, ModelConfig const& decoder, Tokenizer tokenizer)
    : tokenizer_(std::move(tokenizer)), positions_(mrope_config(encoder)) {
  detail::check_same_model(encoder, decoder);
  constexpr MediaMarks marks;
  ids_ = {tokenizer_.vocab().find(marks.image), tokenizer_.vocab().find(marks.video)};
  if (ids_.image < 0) throw Error(Errc::unsupported, concat("the vocabulary has no token ", marks.image, " for images"));
}

MediaPrompt MediaText::prompt(std::string_view text, std::vector<Media> media, EncodeOptions options, std::int32_t start) const {
  std::vector<std::int32_t> const tokens = tokenizer_.encode(with_frame_times(text, media, positions_), options);
  return prompt(tokens, std::move(media), start);
}

MediaPrompt MediaText::prompt(std::span<std::int32_t const> tokens, std::vector<Media> media, std::int32_t start) const {
  bool const has_video = std::ranges::any_of(media, [](Media const& m) { return m.info().kind == PromptKind::video; });
  if (has_video && ids_.video < 0)
    throw Error(Errc::unsupported, concat("the vocabulary has no token ", MediaMarks{}.video, " for videos"));
  return media_prompt(tokens, std::move(media), ids_, positions_, start);
}

}  // namespace tiered
