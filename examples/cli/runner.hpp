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

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/engine.hpp"
#include "tiered/engine/generate.hpp"
#include "tiered/engine/session.hpp"
#include "tiered/engine/trace_json.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "weights.hpp"

namespace app {

/// Errors are those of the functions of tiered::Generation and tiered::Engine that have these names.
class Runner {
 public:
  virtual ~Runner() = default;

  virtual void set_options(tiered::GenerationOptions options) = 0;
  virtual tiered::PromptUse start(std::span<std::int32_t const> prompt) = 0;
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

  std::int32_t max_context() const { return plans().max_context; }
};

template <class P>
class EngineRunner final : public Runner {
 public:
  EngineRunner(std::shared_ptr<tiered::Transformer const> model, tiered::EngineOptions const& options, tiered::PolicyValues<P> values,
               tiered::Tokenizer const& tokenizer, std::shared_ptr<WeightSpans const> weights)
      : weights_(std::move(weights)), engine_(std::move(model), options, std::move(values)), generation_(engine_, tokenizer) {}

  void set_options(tiered::GenerationOptions options) override { generation_.set_options(std::move(options)); }
  tiered::PromptUse start(std::span<std::int32_t const> prompt) override { return generation_.start(prompt); }
  tiered::GenerationEvent next() override { return generation_.next(); }
  tiered::Conversation& conversation() override { return generation_.conversation(); }
  void process(std::int32_t token) override { conversation().extend(engine_, {&token, 1}); }
  void save(std::string const& file) override { tiered::save_session(engine_, conversation(), file); }
  void load(std::string const& file) override { tiered::load_session(engine_, file, conversation()); }

  tiered::EnginePlans const& plans() const override { return engine_.plans(); }
  tiered::ProfileResult const& profile() const override { return engine_.profile(); }
  tiered::ExpertPrior const& expert_prior() const override { return engine_.expert_prior(); }
  tiered::ShardTable table() const override { return engine_.model().table(); }
  tiered::ModelConfig const& config() const override { return engine_.model().config(); }
  tiered::EngineStats stats() const override { return engine_.stats(); }
  std::uint64_t copied_bytes() const override {
    if constexpr (requires { engine_.machine().copy->bytes_to_device(); }) return engine_.machine().copy->bytes_to_device();
    return 0;
  }
  std::string slow_copies() const override {
    if constexpr (requires { engine_.machine().sources->first_error(); })
      return engine_.machine().sources != nullptr ? engine_.machine().sources->first_error() : std::string();
    return {};
  }
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
};

}  // namespace app
