/// Images and videos of prompts: read, told about, and kept between runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "options.hpp"
#include "tiered/engine/media_input.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/model/config.hpp"
#include "tiered/vision/vision_model.hpp"

namespace app {

/// What it takes, besides its file, to read a medium again as it was.
struct HowRead {
  double video_fps = 2;
  std::optional<std::int64_t> video_frames{};
  std::int64_t min_tokens = 0, max_tokens = 0;
};

struct Picture {
  tiered::Media medium;
  HowRead how{};
};

/// A message of a conversation with its media, in the order of its parts.
struct Message {
  tiered::ChatMessage chat;
  std::vector<Picture> pictures{};
};

/// A user's message: the media, then the words.
Message user_message(std::string text, std::vector<Picture> pictures);
std::vector<tiered::ChatMessage> chat_of(std::span<Message const> messages);
std::vector<tiered::Media> media_of(std::span<Picture const> pictures);
std::vector<tiered::Media> media_of(std::span<Message const> messages);

/// What the program can see with: of --mmproj, or nothing.
class Pictures {
 public:
  /// Errors  of the projector's file; Errc::unsupported where it is not this model's.
  Pictures(Options const& o, tiered::ModelConfig const& decoder, tiered::Tokenizer const& tokenizer);

  bool can_see() const { return model_ != nullptr; }
  /// Null without --mmproj.
  std::shared_ptr<tiered::VisionModel const> const& model() const { return model_; }
  /// What is read from now on is resized by `team`, which outlives it: the engine's, once there is one. Until then by threads of its own.
  void use_team(tiered::Team& team);
  /// Of one image or frame: patches that the encoder must have room for.
  std::int64_t max_patches() const { return reader_->max_patches(); }

  /// Errors  UsageError without --mmproj; those of MediaReader and VideoSource.
  Picture image(std::string const& file);
  /// A folder of frames, or a video file.
  Picture video(std::string const& file);
  /// Of --image and --video.
  std::vector<Picture> given();
  /// Seconds of decoding and resizing since the last call, and how many media those were.
  double take_seconds() { return std::exchange(seconds_, 0); }
  int take_number() { return std::exchange(n_read_, 0); }

  /// Errors  of MediaText::prompt(); UsageError for media without --mmproj.
  tiered::MediaPrompt prompt(std::vector<std::int32_t> tokens, std::vector<tiered::Media> media, std::int32_t start = 0) const;
  /// The text as it is tokenised; `rendered`: by a template.
  /// Errors  where it has not a mark for each medium: UsageError for words of the user's own, Errc::unsupported for a template's.
  std::string written(std::string text, std::span<tiered::Media const> media, bool rendered) const;

  /// What a file of messages has of a medium; and the reverse, whose pixels are read when they are needed, as they were read before and not
  /// as this run's options say, and must be the same then.
  static nlohmann::json to_json(Picture const& picture);
  /// Errors  UsageError without --mmproj; nlohmann's for what to_json() did not make.
  Picture from_json(nlohmann::json const& json) const;

 private:
  class LaterPixels;

  std::shared_ptr<tiered::MediaReader const> make_reader(tiered::Team* team) const;
  void expect_sight(std::string const& what) const;
  HowRead how() const;
  Picture tell(tiered::Media medium);

  Options const& o_;
  std::unique_ptr<tiered::Team> own_team_;  // videos go on with the one that they were opened with
  std::shared_ptr<tiered::VisionModel const> model_;
  std::shared_ptr<tiered::MediaReader const> reader_;
  std::optional<tiered::MediaText> text_;
  double seconds_ = 0;
  int n_read_ = 0;
  bool told_small_ = false;
};

/// ", 782 of them of images or videos"; nothing where there are none.
std::string of_media(tiered::MediaPrompt const& prompt);

/// "photo.jpg: 1024 x 768 pixels in 782 tokens"
std::string describe(tiered::Media const& medium, tiered::VisionConfig const& config);

}  // namespace app
