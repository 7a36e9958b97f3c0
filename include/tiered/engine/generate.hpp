/// From a prompt to text: the loop of every program that writes, with all that ends it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/conversation.hpp"
#include "tiered/engine/sampler.hpp"
#include "tiered/engine/stop.hpp"
#include "tiered/io/tokenizer.hpp"

namespace tiered {

enum class EndReason : std::uint8_t {
  none,          ///< it goes on
  eos,           ///< the model ended its text
  length,        ///< max_tokens
  stop_string,   ///< one of GenerationOptions::stop
  context_full,  ///< the next token has no position
  cancelled,     ///< the engine's CancelToken
};
/// "length"
char const* name(EndReason reason);

enum class ContextFull : std::uint8_t {
  stop,   ///< end, and say so
  shift,  ///< drop the oldest half of the tokens behind the first n_keep, and all up to the last image or video among them, process the
          ///< rest again, and say so
};

struct GenerationOptions {
  SamplerOptions sampler{};
  std::int32_t max_tokens = -1;            ///< -1: until something else ends it
  std::vector<std::string> stop{};         ///< texts that end it, and are not shown
  std::vector<std::int32_t> end_tokens{};  ///< tokens that end it besides the vocabulary's own
  bool ignore_eos = false;                 ///< tokens that end a text are never drawn
  std::int32_t n_logprobs = -1;            ///< -1: no probabilities; 0: of each token drawn; n: also of the n most likely
  ContextFull context_full = ContextFull::stop;
  std::int32_t n_keep = 0;  ///< first tokens that a shift does not drop; -1: the prompt
  DecodeOptions decode{};
};

/// One token, or the end.
struct GenerationEvent {
  std::int32_t token = -1;                   ///< drawn; at the end the one that ended the text, or -1
  std::string text;                          ///< to be shown now: whole characters, maybe none yet; at the end whatever was kept
  std::optional<TokenLogprob> logprob{};     ///< of the token, if asked for
  std::vector<TokenLogprob> top_logprobs{};  ///< the most likely instead of it, best first
  std::int32_t n_dropped = 0;                ///< tokens that a context shift forgot just before this token
  EndReason end = EndReason::none;           ///< other than none: nothing follows
  std::string stop_string{};                 ///< the one that ended it

  bool is_end() const { return end != EndReason::none; }
};

namespace detail {

/// What a Generation does whatever its engine is. Logits are used up before another step can overwrite them.
class GenerationCore {
 public:
  /// Processes tokens behind a conversation; logits after the last.
  using Extend = FunctionRef<std::span<float const>(std::span<std::int32_t const>)>;

  GenerationCore(Tokenizer tokenizer, GenerationOptions options, std::int32_t vocab_size, std::int32_t max_context);

  GenerationOptions const& options() const { return options_; }
  void set_options(GenerationOptions options);
  void begin(std::span<std::int32_t const> prompt);
  /// Logits after everything drawn so far: draws the next token.
  void choose(std::span<float const> logits);
  /// The step that should have come was cancelled.
  void cancel();
  /// The event of the token drawn last, or the end.
  GenerationEvent take();
  /// The token that must be processed before the next can be drawn, if any.
  std::optional<std::int32_t> unprocessed() const;
  /// Puts `token` behind the conversation, with a context shift where there is no room.
  void advance(Conversation& conversation, std::int32_t token, Extend extend);

 private:
  struct Drawn {
    std::int32_t token = -1;
    std::optional<TokenLogprob> logprob{};
    std::vector<TokenLogprob> top{};
  };
  void make_mask();
  bool ends_text(std::int32_t token) const;
  bool shift(Conversation& conversation, std::int32_t token, Extend extend);

  Tokenizer tokenizer_;
  GenerationOptions options_;
  std::int32_t vocab_size_, max_context_;
  Sampler sampler_;
  StreamDecoder decoder_;
  StopStrings stop_;
  std::vector<std::uint8_t> allowed_;  // empty: all
  std::int32_t n_prompt_ = 0, n_tokens_ = 0, n_dropped_ = 0;
  std::optional<Drawn> drawn_;         // not yet taken
  std::optional<std::int32_t> taken_;  // the last one taken: not yet processed
  EndReason end_ = EndReason::none;
  std::int32_t end_token_ = -1;
  bool started_ = false;  // there is a token or an end to tell
};

}  // namespace detail

/// A prompt goes in, events come out; then the next prompt, of which only the tokens behind the common prefix are processed.
///
/// `E` is an Engine, or what has its max_context(), new_sequence(), prefill() and model().config().vocab_size. Several over one
/// engine may take turns. Same thread as the engine, which must outlive it. The sequence never holds the last token drawn.
/// ```
/// Generation generation(engine, tokenizer, {.sampler = {.temperature = 0.8f}, .stop = {"\n\n"}});
/// generation.start(tokenizer.encode("Once"));
/// for (GenerationEvent e;;) {
///   e = generation.next();
///   write(e.text);
///   if (e.is_end()) break;
/// }
/// ```
template <class E>
class Generation {
 public:
  /// Errors  Errc::precondition for options that mean nothing, or where the engine has no free sequence.
  Generation(E& engine, Tokenizer tokenizer, GenerationOptions options = {})
      : Generation(engine, std::move(tokenizer), std::move(options), Conversation(engine.new_sequence())) {}
  /// Goes on with what a conversation holds: one of load_session().
  Generation(E& engine, Tokenizer tokenizer, GenerationOptions options, Conversation conversation)
      : engine_(&engine),
        conversation_(std::move(conversation)),
        core_(std::move(tokenizer), std::move(options), engine.model().config().vocab_size, engine.max_context()) {}

  GenerationOptions const& options() const { return core_.options(); }
  /// For the next prompt. Draws begin anew; without this they go on.
  void set_options(GenerationOptions options) { core_.set_options(std::move(options)); }
  Conversation& conversation() { return conversation_; }
  Conversation const& conversation() const { return conversation_; }

  /// Processes the tokens of a whole prompt, what was said so far included, and draws the first token. Logits in the result are
  /// empty: they are used up. Where it is cancelled, next() says so, and what was done is kept.
  /// Errors  of Conversation::prompt and Sampler::sample; nothing follows then, until another start().
  PromptUse start(std::span<std::int32_t const> prompt) {
    return begin_with(prompt, [&] { return conversation_.prompt(*engine_, prompt); });
  }
  /// The same with images and videos: a prompt of MediaInput, and it.
  PromptUse start(MediaPrompt const& prompt, EmbedMedia embed) {
    return begin_with(prompt.tokens, [&] { return conversation_.prompt(*engine_, prompt, embed); });
  }

  /// The next token, or the end, which is told again if asked again.
  /// Errors  of Engine::step and Sampler::sample; nothing follows then.
  GenerationEvent next() {
    if (std::optional<std::int32_t> const token = core_.unprocessed()) {
      guarded([&] {
        core_.advance(conversation_, *token, [this](std::span<std::int32_t const> t) { return conversation_.extend(*engine_, t); });
      });
    }
    return core_.take();
  }

 private:
  template <class Process>
  PromptUse begin_with(std::span<std::int32_t const> tokens, Process&& process) {
    core_.begin(tokens);
    PromptUse use{std::int32_t(tokens.size()), 0, {}};
    guarded([&] {
      use = process();
      core_.choose(std::exchange(use.logits, {}));
    });
    return use;
  }
  template <class Action>
  void guarded(Action&& action) {
    try {
      action();
    } catch (Error const& error) {
      if (error.code() != Errc::cancelled) throw;
      core_.cancel();
    }
  }

  E* engine_;
  Conversation conversation_;
  detail::GenerationCore core_;
};

}  // namespace tiered
