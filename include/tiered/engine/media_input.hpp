/// Images and videos for a decoder: reads them, puts them into prompts, and makes vectors of them. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/units.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/model/config.hpp"
#include "tiered/vision/media.hpp"
#include "tiered/vision/media_prompt.hpp"
#include "tiered/vision/media_vectors.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {

/// The part that does not depend on an encoder.
class MediaText {
 public:
  /// Errors  Errc::unsupported, with both numbers or the token that is missing, where encoder, decoder and vocabulary are not of one
  ///         model: another width, other DeepStack layers, a decoder of text alone.
  MediaText(VisionConfig const& encoder, ModelConfig const& decoder, Tokenizer tokenizer);

  /// `text`: as of a chat template that was given the media, or with MediaMarks between your own words. `start`: where rotary positions go
  /// on, Sequence::rope_position().
  /// Errors  of with_frame_times() and media_prompt(); unsupported for a video where the vocabulary has no token for one.
  MediaPrompt prompt(std::string_view text, std::vector<Media> media, EncodeOptions options = {.add_special = false, .parse_special = true},
                     std::int32_t start = 0) const;
  /// The same of tokens: of such a text, with_frame_times() applied.
  MediaPrompt prompt(std::span<std::int32_t const> tokens, std::vector<Media> media, std::int32_t start = 0) const;
  MropeConfig const& positions() const { return positions_; }

 private:
  Tokenizer tokenizer_;
  MropeConfig positions_;
  MediaTokens ids_;
};

/// Everything that a program needs besides its engine, its tokeniser and an encoder (see vision/media_vectors.hpp), which is borrowed:
/// ```
/// MediaInput vision(encoder, engine.model().config(), tokenizer);
/// Media const photo = vision.reader().image("photo.jpg");
/// ChatMessage const question{.role = "user", .parts = {{ChatPart::Kind::image}, {ChatPart::Kind::text, "What is this?"}}};
/// generation.start(vision.prompt(chat.render({&question, 1}), {photo}), vision);
/// ```
/// Same thread as the engine.
template <class Encoder>
class MediaInput {
 public:
  /// Errors  of MediaText and MediaReader.
  MediaInput(Encoder& encoder, ModelConfig const& decoder, Tokenizer tokenizer, MediaOptions options = {}, std::size_t cache_bytes = GiB)
      : encoder_(&encoder),
        text_(encoder.config(), decoder, std::move(tokenizer)),
        reader_(encoder.config(), std::move(options)),
        cache_(cache_bytes) {}

  MediaReader const& reader() const { return reader_; }
  MediaText const& text() const { return text_; }
  EncodingCache const& cache() const { return cache_; }
  MediaPrompt prompt(std::string_view text, std::vector<Media> media, EncodeOptions options = {.add_special = false, .parse_special = true},
                     std::int32_t start = 0) const {
    return text_.prompt(text, std::move(media), options, start);
  }

  /// An EmbedMedia. What was encoded once is not encoded again, while the cache has it.
  /// Errors  of media_vectors().
  MediaEmbeddings operator()(MediaPrompt const& prompt, std::int32_t from) {
    return media_vectors(*encoder_, cache_, prompt, from, &last_use_);
  }
  /// What the last call did.
  MediaUse const& last_use() const { return last_use_; }

 private:
  Encoder* encoder_;
  MediaText text_;
  MediaReader reader_;
  EncodingCache cache_;
  MediaUse last_use_;
};

}  // namespace tiered
