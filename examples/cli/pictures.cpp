#include "pictures.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "prompt.hpp"
#include "terminal.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/vision_encoder.hpp"
#include "tiered/kernels/cpu/topology.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/vision/video.hpp"
#include "turn.hpp"

namespace app {

using tiered::concat;

namespace {

constexpr std::int64_t enough_for_boxes = 1024;  // tokens: what the models' makers advise

bool is_video(tiered::Media const& medium) { return medium.info().kind == tiered::PromptKind::video; }

tiered::VideoSampling sampling_of(HowRead const& how) { return {how.video_fps, how.video_frames}; }

tiered::Media read_video(tiered::MediaReader const& reader, std::string const& file, HowRead const& how) {
  std::error_code ignored;
  std::shared_ptr<tiered::VideoSource> source;
  if (std::filesystem::is_directory(file, ignored))
    source = tiered::open_frames(file, how.video_fps, {}, &Interrupt::flag());
  else
    source = tiered::open_video(file, {}, &Interrupt::flag());
  return reader.video(std::move(source), sampling_of(how));
}

tiered::MediaOptions media_options(HowRead const& how, tiered::Team* team = nullptr) {
  tiered::MediaOptions options;
  options.min_tokens = how.min_tokens;
  options.max_tokens = how.max_tokens;
  options.cancelled = &Interrupt::flag();
  options.team = team;
  return options;
}

/// "1024 x 768 pixels"
std::string size_text(tiered::PatchGrid const& grid, tiered::VisionConfig const& config) {
  return concat(grid.w * config.patch_size, " x ", grid.h * config.patch_size, " pixels");
}

std::string absolute(std::string const& file) {
  std::error_code error;
  std::string const path = std::filesystem::absolute(file, error).string();
  return error ? file : path;
}

}  // namespace

/// Of a conversation that goes on: the files are read again where an encoder must see them again.
class Pictures::LaterPixels final : public tiered::MediaPixels {
 public:
  /// `room`: patches that this run's encoder takes at once.
  LaterPixels(std::shared_ptr<tiered::VisionModel const> model, std::string file, tiered::MediaInfo info, HowRead how, std::int64_t room)
      : model_(std::move(model)), file_(std::move(file)), info_(std::move(info)), how_(how), room_(room) {}

  tiered::Patches patches(tiered::Range steps) override {
    if (!medium_) medium_.emplace(read());
    return medium_->patches(steps);
  }

 private:
  tiered::Media read() const {
    tiered::VisionConfig const& config = model_->vision();
    if (info_.grid.frame_patches() > room_) {
      std::int64_t const per_token = std::int64_t{config.merge_size} * config.merge_size;
      std::string const way =
          how_.max_tokens > 0 ? concat("--image-max-tokens ", how_.max_tokens, " gives more") : "without --image-max-tokens there is more";
      throw tiered::Error(tiered::Errc::over_budget, concat(file_, ": the conversation has it in ", size_text(info_.grid, config), ", ",
                                                            info_.grid.frame_patches() / per_token,
                                                            " tokens at once, and there is room for ", room_ / per_token, ": ", way));
    }
    tiered::MediaReader const reader(config, media_options(how_));
    tiered::Media medium = info_.kind == tiered::PromptKind::video ? read_video(reader, file_, how_) : reader.image(file_);
    if (medium.info().hashes == info_.hashes) return medium;
    std::string const sizes = medium.info().grid == info_.grid
                                  ? ""
                                  : concat(" (of ", size_text(info_.grid, config), ", now ", size_text(medium.info().grid, config), ")");
    throw tiered::Error(tiered::Errc::bad_file,
                        concat(file_, ": is not what it was when the conversation was kept", sizes, ", or the projector is another one"));
  }

  std::shared_ptr<tiered::VisionModel const> model_;
  std::string file_;
  tiered::MediaInfo info_;
  HowRead how_;
  std::int64_t room_;
  std::optional<tiered::Media> medium_;
};

Message user_message(std::string text, std::vector<Picture> pictures) {
  Message m{{"user", {}}, std::move(pictures)};
  if (m.pictures.empty()) {
    m.chat.content = std::move(text);
    return m;
  }
  for (Picture const& picture : m.pictures)
    m.chat.parts.push_back({is_video(picture.medium) ? tiered::ChatPart::Kind::video : tiered::ChatPart::Kind::image, {}});
  if (!text.empty()) m.chat.parts.push_back({tiered::ChatPart::Kind::text, std::move(text)});
  return m;
}

std::vector<tiered::ChatMessage> chat_of(std::span<Message const> messages) {
  std::vector<tiered::ChatMessage> out;
  for (Message const& m : messages) out.push_back(m.chat);
  return out;
}

std::vector<tiered::Media> media_of(std::span<Picture const> pictures) {
  std::vector<tiered::Media> out;
  for (Picture const& picture : pictures) out.push_back(picture.medium);
  return out;
}

std::vector<tiered::Media> media_of(std::span<Message const> messages) {
  std::vector<tiered::Media> out;
  for (Message const& m : messages) {
    for (Picture const& picture : m.pictures) out.push_back(picture.medium);
  }
  return out;
}

Pictures::Pictures(Options const& o, tiered::ModelConfig const& decoder, tiered::Tokenizer const& tokenizer) : o_(o) {
  PictureOptions const& p = o.pictures;
  if (p.projector.empty()) return;
  model_ = tiered::make_vision_model(tiered::GgufFile::open(p.projector));
  text_.emplace(model_->vision(), decoder, tokenizer);
  if (!p.images.empty() || !p.videos.empty())
    own_team_ = std::make_unique<tiered::Team>(o.n_threads > 0 ? o.n_threads : tiered::default_thread_count());
  reader_ = make_reader(own_team_.get());
}

std::shared_ptr<tiered::MediaReader const> Pictures::make_reader(tiered::Team* team) const {
  return std::make_shared<tiered::MediaReader const>(model_->vision(), media_options(how(), team));
}

void Pictures::use_team(tiered::Team& team) {
  if (can_see()) reader_ = make_reader(&team);
}

HowRead Pictures::how() const {
  PictureOptions const& p = o_.pictures;
  return {p.video_fps, p.video_frames, p.min_tokens, p.max_tokens};
}

void Pictures::expect_sight(std::string const& what) const {
  if (!can_see()) throw UsageError{concat(what, ": images and videos need the model's projector, --mmproj FILE")};
}

Picture Pictures::tell(tiered::Media medium) {
  if (std::int64_t const n = medium.info().grid.frame_patches(); n > tiered::most_rows) {
    throw tiered::Error(tiered::Errc::over_budget, concat(medium.name(), ": ", n, " patches at once; ", tiered::most_rows,
                                                          " can be encoded: --image-max-tokens makes them fewer"));
  }
  if (!o_.quiet) std::fputs(concat(describe(medium, model_->vision()), '\n').c_str(), stderr);
  bool const is_small = medium.step_tokens(model_->vision().merge_size) < enough_for_boxes && o_.pictures.min_tokens == 0 &&
                        o_.pictures.max_tokens == 0 && !is_video(medium);
  if (is_small && !o_.quiet && !std::exchange(told_small_, true)) {
    std::fputs(concat("tiered-run: note: where boxes or small print matter, --image-min-tokens ", enough_for_boxes,
                      " shows images larger: these models find places badly below that\n")
                   .c_str(),
               stderr);
  }
  return {std::move(medium), how()};
}

Picture Pictures::image(std::string const& file) {
  expect_sight(file);
  double const begin = now_s();
  tiered::Media medium = reader_->image(file);
  seconds_ += now_s() - begin;
  ++n_read_;
  return tell(std::move(medium));
}

Picture Pictures::video(std::string const& file) {
  expect_sight(file);
  double const begin = now_s();
  tiered::Media medium = read_video(*reader_, file, how());
  seconds_ += now_s() - begin;
  ++n_read_;
  return tell(std::move(medium));
}

std::vector<Picture> Pictures::given() {
  std::vector<Picture> out;
  for (std::string const& file : o_.pictures.images) out.push_back(image(file));
  for (std::string const& file : o_.pictures.videos) out.push_back(video(file));
  return out;
}

tiered::MediaPrompt Pictures::prompt(std::vector<std::int32_t> tokens, std::vector<tiered::Media> media, std::int32_t start) const {
  if (!media.empty()) expect_sight(media.front().name());
  tiered::MediaPrompt out;
  if (media.empty())
    out.tokens = std::move(tokens);
  else
    out = text_->prompt(tokens, std::move(media), start);
  return out;
}

std::string Pictures::written(std::string text, std::span<tiered::Media const> media, bool rendered) const {
  constexpr tiered::MediaMarks marks;
  for (bool const video : {false, true}) {
    if (media.empty()) break;  // a mark is a token as any other then
    std::string_view const mark = video ? marks.video : marks.image;
    std::int64_t const n_media = std::ranges::count_if(media, [&](tiered::Media const& m) { return is_video(m) == video; });
    std::int64_t n_marks = 0;
    for (std::size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + mark.size())) ++n_marks;
    if (n_marks == n_media) continue;
    std::string const what = concat(" has ", mark, " ", n_marks, n_marks == 1 ? " time" : " times", " for ", n_media,
                                    video ? " video" : " image", n_media == 1 ? "" : "s");
    if (rendered)
      throw tiered::Error(tiered::Errc::unsupported, concat("what the template makes of the messages", what, template_knows_no_images));
    throw UsageError{concat("the prompt", what, ": one stands for each, or none is in it and they come before it")};
  }
  return media.empty() ? text : tiered::with_frame_times(text, media, text_->positions());
}

nlohmann::json Pictures::to_json(Picture const& picture) {
  tiered::MediaInfo const& info = picture.medium.info();
  nlohmann::json out = {{"type", is_video(picture.medium) ? "video" : "image"},
                        {"file", absolute(picture.medium.name())},
                        {"grid", {info.grid.t, info.grid.h, info.grid.w}},
                        {"min_tokens", picture.how.min_tokens},
                        {"max_tokens", picture.how.max_tokens},
                        {"hashes", nlohmann::json::array()}};
  for (tiered::MediaHash const& hash : info.hashes) out["hashes"].push_back(tiered::to_text(hash));
  if (!is_video(picture.medium)) return out;
  out["seconds"] = info.seconds;
  out["seconds_per_patch"] = info.seconds_per_patch;
  out["frames_per_second"] = picture.how.video_fps;
  if (picture.how.video_frames) out["frames"] = *picture.how.video_frames;
  return out;
}

Picture Pictures::from_json(nlohmann::json const& json) const {
  std::string const file = json.at("file").get<std::string>();
  expect_sight(file);
  tiered::MediaInfo info;
  bool const video = json.at("type").get<std::string>() == "video";
  info.kind = video ? tiered::PromptKind::video : tiered::PromptKind::image;
  auto const grid = json.at("grid").get<std::vector<std::int64_t>>();
  if (grid.size() == 3) info.grid = {grid[0], grid[1], grid[2]};
  for (auto const& text : json.at("hashes")) {
    auto const hash = tiered::parse_media_hash(text.get<std::string>());
    if (!hash)
      throw tiered::Error(tiered::Errc::bad_file, concat(file, ": ", tiered::detail::printable(text.get<std::string>()), " is no hash"));
    info.hashes.push_back(*hash);
  }
  HowRead how = this->how();  // where an older file does not say
  how.min_tokens = json.value("min_tokens", how.min_tokens);
  how.max_tokens = json.value("max_tokens", how.max_tokens);
  if (video) {
    info.seconds = json.at("seconds").get<std::vector<double>>();
    info.seconds_per_patch = json.at("seconds_per_patch").get<double>();
    how.video_fps = json.at("frames_per_second").get<double>();
    how.video_frames.reset();
    if (json.contains("frames")) how.video_frames = json.at("frames").get<std::int64_t>();
  }
  tiered::check_grid(info.grid, model_->vision().merge_size);
  std::int64_t const room = tiered::detail::vision_bounds(model_->vision(), max_patches()).back();
  auto pixels = std::make_unique<LaterPixels>(model_, file, info, how, room);
  return {tiered::Media(file, std::move(info), std::move(pixels)), how};
}

std::string of_media(tiered::MediaPrompt const& prompt) {
  std::int64_t n = 0;
  for (tiered::MediaSpan const& span : prompt.spans) n += span.n_tokens;
  return n > 0 ? concat(", ", n, " of them of images or videos") : std::string();
}

std::string describe(tiered::Media const& medium, tiered::VisionConfig const& config) {
  tiered::PatchGrid const grid = medium.info().grid;
  std::string out = concat(medium.name(), ": ");
  if (is_video(medium)) out += concat(grid.t, " steps of ", config.temporal_size, " frames, each ");
  return out + concat(size_text(grid, config), " as the model sees it, ", grid.n_tokens(config.merge_size), " tokens");
}

}  // namespace app
