/// A conversation at a terminal, or line by line from a pipe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "line_editor.hpp"
#include "options.hpp"
#include "pictures.hpp"
#include "prompt.hpp"
#include "runner.hpp"
#include "terminal.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/tokenizer.hpp"
#include "turn.hpp"

namespace app {

/// Messages as a file: JSON, readable by its owner alone, replaced at once.
/// Media by the names of their files.
/// Errors  of the system, Errc::io or not_found with its reason; bad_file for what save_messages() did not write; UsageError for media
///         without --mmproj.
void save_messages(std::vector<Message> const& messages, std::string const& file);
std::vector<Message> load_messages(std::string const& file, Pictures const& pictures);
/// Where the messages of a session file are: beside it.
inline std::string messages_file(std::string const& session) { return session + ".json"; }

/// Answers are written to stdout, all else to stderr.
class Chat {
 public:
  struct Parts {
    Runner* runner = nullptr;
    tiered::Tokenizer const* tokenizer = nullptr;
    ChatFormat const* format = nullptr;
    Pictures* pictures = nullptr;
    Options const* options = nullptr;
    std::function<std::string(Turn const&)> statistics;  ///< of the last turn
    std::function<void()> after_prompt;                  ///< see generate()
  };
  explicit Chat(Parts parts);

  /// From `first`, or from what is typed first, to the end of the conversation.
  /// Errors  OutputError; where nobody sits at a terminal, those of a turn, too.
  ExitCode run(std::optional<std::string> const& first);

  std::vector<Message>& messages() { return messages_; }
  /// They come with the next message.
  void attach(std::vector<Picture> pictures) { attached_ = std::move(pictures); }

 private:
  enum class Next { go_on, end };

  std::optional<std::string> read_message(Line::Kind& why_not);
  Next say(std::string const& message);
  Next command(std::string const& line);
  void begin_anew();
  void regenerate();
  void save(std::string const& file);
  void load(std::string const& file);
  void set_system(std::string const& text);
  void attach(std::string const& file, bool is_video);
  tiered::MediaPrompt prompt_of(std::vector<Message> const& messages) const;
  bool answer(std::vector<Message> before);
  void fit(tiered::MediaPrompt& prompt);
  bool forget_oldest(tiered::MediaPrompt& prompt);
  ExitCode code_of_turn() const;
  void write_answer(tiered::MediaPrompt const& prompt);

  Parts parts_;
  LineEditor editor_;
  TextOutput out_;
  std::vector<Message> messages_;
  std::vector<Picture> attached_;  // to what is said next
  Turn turn_;
  bool has_turn_ = false, at_terminal_ = false;
};

}  // namespace app
