/// An engine of any policies and what it writes, behind virtual functions: all else of this program is compiled once.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/engine.hpp"
#include "tiered/engine/generate.hpp"
#include "tiered/engine/session.hpp"
#include "tiered/engine/trace_json.hpp"
#include "tiered/engine/vision_encoder.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/vision/media_vectors.hpp"
#include "tiered/vision/vision_model.hpp"
#include "weights.hpp"

namespace app {

double now_s();

/// Adds what passes until it ends to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), begin_(now_s()) {}
  Stopwatch(Stopwatch const&) = delete;
  Stopwatch& operator=(Stopwatch const&) = delete;
  ~Stopwatch() { seconds_ += now_s() - begin_; }

 private:
  double& seconds_;
  double begin_;
};

/// Errors are those of the functions of tiered::Generation and tiered::Engine that have these names.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual void set_options(tiered::GenerationOptions options) = 0;
  /// `encode_s`, `media`: what encoding the prompt's media took, and how much it was; up to an error, too.
  virtual tiered::PromptUse start(tiered::MediaPrompt const& prompt, double& encode_s, tiered::MediaUse& media) = 0;
  virtual tiered::GenerationEvent next() = 0;
  virtual tiered::Conversation& conversation() = 0;
  /// Puts the token that was drawn last behind the conversation, which never has it.
  virtual void process(std::int32_t token) = 0;
  virtual void save(std::string const& file) = 0;
  virtual void load(std::string const& file) = 0;

  virtual tiered::EnginePlans const& plans() const = 0;
  virtual tiered::ProfileResult const& profile() const = 0;  ///< that they were estimated with
  virtual tiered::ExpertPrior const& expert_prior() const = 0;
  virtual tiered::ShardTable table() const = 0;
  virtual tiered::ShardTable encoder_table() const = 0;  ///< empty without an encoder
  virtual tiered::ModelConfig const& config() const = 0;
  virtual tiered::EngineStats stats() const = 0;
  virtual std::uint64_t copied_bytes() const = 0;  ///< to the device
  virtual std::string slow_copies() const = 0;     ///< why weights are copied to the device slowly; empty where they are not
  /// Whether all weights are in memory, or are on the way there, to stay: then nobody needs to read them ahead.
  virtual bool locks_weights() const = 0;
  virtual tiered::CancelToken& cancel_token() = 0;
  virtual tiered::Team& team() = 0;
  virtual std::string_view kernels_name() const = 0;
  virtual tiered::BoundedTrace* trace() = 0;  ///< null unless it keeps one

  virtual WeightSpans const& weights() const = 0;
  virtual std::string encoder_text() const = 0;  ///< how images are encoded; empty: not at all

  std::int32_t max_context() const { return plans().max_context; }
};

template <class P>
class EngineRunner final : public Runner {
 public:
  EngineRunner(std::shared_ptr<tiered::Transformer const> model, tiered::EngineOptions const& options, tiered::PolicyValues<P> values,
               tiered::Tokenizer const& tokenizer, std::shared_ptr<WeightSpans const> weights)
      : weights_(std::move(weights)), engine_(std::move(model), options, std::move(values)), generation_(engine_, tokenizer) {}

  void set_options(tiered::GenerationOptions options) override { generation_.set_options(std::move(options)); }
  tiered::PromptUse start(tiered::MediaPrompt const& prompt, double& encode_s, tiered::MediaUse& media) override {
    if (prompt.spans.empty()) return generation_.start(prompt.tokens);
    return generation_.start(prompt, [&](tiered::MediaPrompt const& p, std::int32_t from) {
      if (!encoder_) throw tiered::Error(tiered::Errc::precondition, "the prompt has images to be encoded, and there is no --mmproj");
      if (trace() != nullptr) trace()->begin_step("images and videos", tiered::TraceStepKind::media);
      tiered::MediaEmbeddings vectors = [&] {
        Stopwatch const watch(encode_s);
        return tiered::media_vectors(*encoder_, encodings_, p, from, &media);
      }();
      if (trace() != nullptr) trace()->begin_step(tiered::concat("prompt, ", p.n_tokens(), " tokens"));
      return vectors;
    });
  }
  /// Once, before the first prompt with images.
  void see(std::shared_ptr<tiered::VisionModel const> model, tiered::VisionOptions const& options, tiered::PolicyValues<P> values) {
    encoder_.emplace(engine_, std::move(model), options, std::move(values));
  }
  std::string encoder_text() const override {
    if (!encoder_) return {};
    tiered::EnginePlans const& plans = encoder_->plans();
    std::string const where = plans.vram_bytes == 0 ? "on the CPU"
                              : encoder_->borrows_vram()
                                  ? "in the model's device memory between its steps"
                                  : tiered::concat("in ", tiered::format_bytes(plans.vram_bytes), " beside the model");
    return tiered::concat(encoder_->config().name, " (", encoder_->config().projector, "), ",
                          tiered::format_bytes(encoder_->model().file().total_bytes()), ", images are encoded ", where);
  }
  tiered::GenerationEvent next() override { return generation_.next(); }
  tiered::Conversation& conversation() override { return generation_.conversation(); }
  void process(std::int32_t token) override { conversation().extend(engine_, {&token, 1}); }
  void save(std::string const& file) override { tiered::save_session(engine_, conversation(), file); }
  void load(std::string const& file) override { tiered::load_session(engine_, file, conversation()); }

  tiered::EnginePlans const& plans() const override { return engine_.plans(); }
  tiered::ProfileResult const& profile() const override { return engine_.profile(); }
  tiered::ExpertPrior const& expert_prior() const override { return engine_.expert_prior(); }
  tiered::ShardTable table() const override { return engine_.model().table(); }
  tiered::ShardTable encoder_table() const override { return encoder_ ? encoder_->model().table() : tiered::ShardTable(); }
  tiered::ModelConfig const& config() const override { return engine_.model().config(); }
  tiered::EngineStats stats() const override { return engine_.stats(); }
  std::uint64_t copied_bytes() const override {
    if constexpr (requires { engine_.machine().copy->bytes_to_device(); }) return engine_.machine().copy->bytes_to_device();
    return 0;
  }
  std::string slow_copies() const override { return engine_.stats().pageable_weights; }
  bool locks_weights() const override {
    if constexpr (requires { engine_.machine().sources->failed(); })
      return engine_.machine().sources != nullptr && !engine_.machine().sources->failed();
    return false;
  }
  tiered::CancelToken& cancel_token() override { return engine_.cancel_token(); }
  tiered::Team& team() override { return engine_.machine().host->team(); }
  std::string_view kernels_name() const override { return engine_.machine().host->kernels().name; }
  tiered::BoundedTrace* trace() override {
    if constexpr (std::same_as<typename P::Trace, tiered::BoundedTrace>) return &engine_.trace();
    return nullptr;
  }

  WeightSpans const& weights() const override { return *weights_; }

 private:
  std::shared_ptr<WeightSpans const> weights_;
  mutable tiered::Engine<P> engine_;  // machine() is not const
  tiered::Generation<tiered::Engine<P>> generation_;
  std::optional<tiered::VisionEncoder<P>> encoder_;
  tiered::EncodingCache encodings_;
};

}  // namespace app
