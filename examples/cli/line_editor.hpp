/// Lines that a person types at a terminal: with editing and a history where libedit was there when this was built.
#pragma once

#include <memory>
#include <string>

namespace app {

struct Line {
  enum class Kind { text, end, interrupted };  ///< Ctrl-D or the end of a pipe; a signal
  Kind kind = Kind::end;
  std::string value{};    ///< without the end of the line; what was pasted may have ends of lines inside
  bool had_text = false;  ///< when it was interrupted
};

/// One for standard input, from one thread. Signals: see Interrupt::install_for_conversation().
class LineEditor {
 public:
  struct Options {
    bool editing = true;       ///< else lines as they come, as from a pipe
    bool color = false;        ///< of the prompt
    std::string history_file;  ///< read at the beginning, each line is put behind it; empty: none
  };
  explicit LineEditor(Options options);
  ~LineEditor();
  LineEditor(LineEditor const&) = delete;
  LineEditor& operator=(LineEditor const&) = delete;

  /// Errors  Errc::io where standard input cannot be read; UsageError for a line that is longer than any prompt may be.
  Line read(std::string const& prompt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// "libedit", or that there is none.
std::string line_editor_name();

/// ${XDG_STATE_HOME:-~/.local/state}/tiered/history, whose folder is made, for the user alone; empty where there is no home.
std::string history_path();

}  // namespace app
