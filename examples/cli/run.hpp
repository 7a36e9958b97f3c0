/// What is done with a runner: one text, or a conversation; and what is told and kept at the end, be it a bad one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "chat.hpp"
#include "options.hpp"
#include "pictures.hpp"
#include "prompt.hpp"
#include "report.hpp"
#include "runner.hpp"
#include "terminal.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/tokenizer.hpp"

namespace app {

/// Prints to stderr.
void say(std::string const& text);

class Run {
 public:
  /// `so_far`: of --json, what is known when the run ends, however it does.
  Run(Options const& o, tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, Pictures& pictures, Runner& runner, double load_s,
      nlohmann::json& so_far)
      : o_(o), gguf_(gguf), tokenizer_(tokenizer), pictures_(pictures), runner_(runner), load_s_(load_s), so_far_(so_far) {}

  /// Goes on from the session file, if there is one.
  void load();
  /// `shown` goes to stdout before the text. An empty prompt goes on with the session's text. `media`: one for each mark in the prompt.
  /// Errors  of generate(), Errc::cancelled after a signal, each after all was told and kept that can be.
  void text(std::string shown, std::vector<std::int32_t> prompt, std::vector<tiered::Media> media, Progress& progress);
  /// `pictures` come with the first message.
  ExitCode conversation(ChatFormat const& format, std::optional<std::string> const& first, std::vector<Picture> pictures);

 private:
  Report report(Turn const& turn);
  void tell(Turn const& turn);
  void write_trace() const;
  bool keeps_text() const { return !o_.session.file.empty() && !o_.session.read_only && o_.session.with_text; }
  tiered::MediaPrompt stored_prompt() const;
  tiered::MediaPrompt whole_prompt(std::string& shown, std::vector<std::int32_t> prompt, std::vector<tiered::Media> media) const;
  void save_state() const;
  void keep_prompt() const;
  void keep_text(Turn const& turn) const;

  Options const& o_;
  tiered::GgufFile const& gguf_;
  tiered::Tokenizer const& tokenizer_;
  Pictures& pictures_;
  Runner& runner_;
  double load_s_;
  nlohmann::json& so_far_;
};

}  // namespace app
