// TIERED_RUN_LIBEDIT: CMake found libedit.
#include "line_editor.hpp"

#include <atomic>
#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef TIERED_RUN_LIBEDIT
#include <histedit.h>
#endif

#include "prompt.hpp"
#include "terminal.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/utf8.hpp"

namespace app {
namespace {

using tiered::concat;

/// Lines as a pipe or a terminal without editing gives them.
class PlainReader {
 public:
  Line read(std::string const& prompt, bool show_prompt) {
    if (show_prompt) std::fputs(prompt.c_str(), stderr);
    for (;;) {
      if (std::size_t const end = left_.find('\n', n_searched_); end != left_.npos) {
        Line line{Line::Kind::text, left_.substr(0, end), false};
        left_.erase(0, end + 1);
        n_searched_ = 0;
        if (line.value.ends_with('\r')) line.value.pop_back();
        return line;
      }
      n_searched_ = left_.size();
      check_prompt_size("a line of standard input", left_.size());
      while (!Interrupt::wait_for_input(STDIN_FILENO)) {
        if (Interrupt::requested()) return {Line::Kind::interrupted, {}, !left_.empty()};
      }
      char piece[4096];
      ssize_t const n = ::read(STDIN_FILENO, piece, sizeof piece);
      if (n < 0 && retry(STDIN_FILENO, POLLIN)) continue;
      if (n < 0) throw tiered::Error(tiered::Errc::io, concat("standard input: cannot be read: ", std::strerror(errno)));
      if (n == 0 && left_.empty()) return {};
      if (n == 0) return n_searched_ = 0, Line{Line::Kind::text, std::exchange(left_, {}), false};
      left_.append(piece, std::size_t(n));
    }
  }

 private:
  std::string left_;
  std::size_t n_searched_ = 0;  ///< bytes of it that are known to hold no end of a line
};

#ifdef TIERED_RUN_LIBEDIT

/// Set by SIGCONT and SIGWINCH: what is on the screen is not what libedit thinks.
std::atomic<bool> screen_changed{false};

/// The history that may be read and written: none where it is no regular file, or another program's, which stays as it is.
std::string usable_history(std::string const& file) {
  static constexpr std::string_view mark = "_HiStOrY_V2_";
  auto const unused = [&](std::string_view why) {
    std::fputs(concat("tiered-run: note: the history ", file, ' ', why, ": it is not used\n").c_str(), stderr);
    return std::string();
  };
  struct stat status {};
  if (file.empty()) return file;
  if (::stat(file.c_str(), &status) != 0) return ::lstat(file.c_str(), &status) == 0 ? unused("is a link to nothing") : file;
  if (!S_ISREG(status.st_mode)) return unused("is no file");
  int const descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return unused("cannot be read");
  char begin[mark.size()];
  ssize_t const n = ::read(descriptor, begin, sizeof begin);
  ::close(descriptor);
  return n == 0 || (n > 0 && std::string_view(begin, std::size_t(n)) == mark) ? file : unused("is another program's");
}

/// libedit with a way of reading of its own: signals end it, and what is pasted between the terminal's marks is text, its line ends
/// included.
class EditedReader {
 public:
  EditedReader(bool color, std::string history_file) : color_(color), history_file_(usable_history(history_file)) {
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor_ = el_init("tiered-run", stdin, isatty(STDERR_FILENO) != 0 ? stderr : stdout, stderr);
    history_ = history_init();
    if (editor_ == nullptr || history_ == nullptr) throw tiered::Error(tiered::Errc::out_of_memory, "no memory for the line editor");
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 0);
    el_set(editor_, EL_PROMPT_ESC, &EditedReader::prompt_of, '\1');
    el_set(editor_, EL_GETCFN, &EditedReader::next_of);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(editor_, EL_HIST, ::history, history_);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());
    struct stat status {};
    bool const is_long = !history_file_.empty() && ::stat(history_file_.c_str(), &status) == 0 && status.st_size > (1 << 20);
    if (is_long) history(history_, &event, H_SAVE, history_file_.c_str());  // without what is older than was loaded
    struct sigaction action {};
    action.sa_handler = [](int) { screen_changed = true; };
    sigaction(SIGCONT, &action, nullptr);
    sigaction(SIGWINCH, &action, nullptr);
  }
  ~EditedReader() {
    history_end(history_);
    el_end(editor_);
  }
  EditedReader(EditedReader const&) = delete;
  EditedReader& operator=(EditedReader const&) = delete;

  Line read(std::string const& prompt) {
    prompt_ = color_ ? concat("\1\033[1;32m\1", prompt.substr(0, 1), "\1\033[0m\1", prompt.substr(1))
                     : prompt;  // libedit drops a sequence at the end
    interrupted_ = had_text_ = ended_ = false;
    to_terminal("\033[?2004h");
    el_set(editor_, EL_PREP_TERM, 1);  // before the prompt, which invites to type
    int n = 0;
    char const* const text = el_gets(editor_, &n);
    to_terminal("\033[?2004l");
    if (interrupted_) return to_terminal("^C\n"), Line{Line::Kind::interrupted, {}, had_text_};
    if (text == nullptr || n <= 0) return to_terminal("\n"), Line{};
    Line line{Line::Kind::text, std::string(text, std::size_t(n)), false};
    if (line.value.ends_with('\n')) line.value.pop_back();
    if (!line.value.empty()) remember(line.value);
    return line;
  }

 private:
  static EditedReader& self(EditLine* editor) {
    void* data = nullptr;
    el_get(editor, EL_CLIENTDATA, &data);
    return *static_cast<EditedReader*>(data);
  }
  static char* prompt_of(EditLine* editor) { return self(editor).prompt_.data(); }
  static int next_of(EditLine* editor, wchar_t* out) { return self(editor).next(out); }

  static void to_terminal(char const* text) {
    std::FILE* const out = isatty(STDERR_FILENO) != 0 ? stderr : stdout;
    std::fputs(text, out);
    std::fflush(out);
  }

  /// Another instance may write to the same file: a line is put behind what is there.
  void remember(std::string const& text) {
    if (text == last_) return;
    last_ = text;
    HistEvent event;
    history(history_, &event, H_ENTER, text.c_str());
    if (history_file_.empty()) return;
#ifdef H_NSAVE_FP
    int const descriptor = ::open(history_file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    struct stat status {};
    bool const is_file = descriptor >= 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
    std::FILE* const file = is_file ? ::fdopen(descriptor, "a") : nullptr;
    if (file == nullptr) {
      if (descriptor >= 0) ::close(descriptor);
      return;
    }
    // libedit writes its mark where a file begins, and (that of 2022) one line more than it is asked for: the second history has one.
    std::fseek(file, 0, SEEK_END);
    History* const line = history_init();
    if (line != nullptr) {
      history(line, &event, H_SETSIZE, 1);
      history(line, &event, H_ENTER, text.c_str());
      history(line, &event, H_NSAVE_FP, std::size_t(1), file);
      history_end(line);
    }
    std::fclose(file);
#else
    history(history_, &event, H_SAVE, history_file_.c_str());
#endif
  }

  /// 1 and a character, 0 at the end, -1 after a signal.
  int next(wchar_t* out) {
    while (ready_.empty()) {
      if (ended_) return 0;
      if (!wait()) {
        LineInfo const* const line = el_line(editor_);
        interrupted_ = true;
        had_text_ = line->lastchar != line->buffer;
        return -1;
      }
      char piece[1024];
      ssize_t const n = ::read(STDIN_FILENO, piece, sizeof piece);
      if (n < 0 && retry(STDIN_FILENO, POLLIN)) continue;
      ended_ = n <= 0;
      if (n > 0) bytes_.append(piece, std::size_t(n));
      take_characters();
    }
    *out = ready_.front();
    ready_.pop_front();
    return 1;
  }

  bool wait() {
    for (;;) {
      if (screen_changed.exchange(false)) {
        el_resize(editor_);
        el_set(editor_, EL_PREP_TERM, 0);  // another program had the terminal
        el_set(editor_, EL_PREP_TERM, 1);
        el_set(editor_, EL_REFRESH);
      }
      if (Interrupt::wait_for_input(STDIN_FILENO)) return true;
      if (Interrupt::requested()) return false;
    }
  }

  static bool has_input() {
    pollfd wanted{STDIN_FILENO, POLLIN, 0};
    return ::poll(&wanted, 1, 0) > 0;
  }

  void take_characters() {
    static constexpr std::string_view paste_begin = "\033[200~", paste_end = "\033[201~";
    static constexpr wchar_t quote = 22;  // ^V: what follows is text, whatever else it may mean
    while (!bytes_.empty()) {
      std::string_view const mark = pasting_ ? paste_end : paste_begin;
      if (bytes_.starts_with(mark)) {
        pasting_ = !pasting_;
        bytes_.erase(0, mark.size());
        continue;
      }
      if (!ended_ && mark.starts_with(bytes_) && (pasting_ || bytes_.size() > 2 || has_input())) return;  // the rest comes
      std::optional<wchar_t> const c = take_character();
      if (!c) return;
      if (!pasting_) {
        ready_.push_back(*c == 0 ? wchar_t(4) : *c);  // a Ctrl-D that was typed while there was no prompt
        continue;
      }
      if (*c < 32 || *c == 127) ready_.push_back(quote);
      ready_.push_back(*c == L'\r' ? L'\n' : *c);
    }
  }

  /// Nothing where the rest of a character is still to come.
  std::optional<wchar_t> take_character() {
    if (!ended_ && bytes_.size() < 4 && tiered::unfinished_utf8_bytes(bytes_) == bytes_.size()) return std::nullopt;
    tiered::Utf8Char const c = tiered::read_utf8(bytes_, 0);
    bytes_.erase(0, c.length);
    return wchar_t(c.code_point);
  }

  EditLine* editor_ = nullptr;
  History* history_ = nullptr;
  bool color_;
  std::string history_file_, prompt_, bytes_, last_;
  std::deque<wchar_t> ready_;
  bool interrupted_ = false, had_text_ = false, ended_ = false, pasting_ = false;
};

#endif

}  // namespace

struct LineEditor::State {
  PlainReader plain;
#ifdef TIERED_RUN_LIBEDIT
  std::unique_ptr<EditedReader> edited;
#endif
};

LineEditor::LineEditor([[maybe_unused]] Options options) : state_(std::make_unique<State>()) {
#ifdef TIERED_RUN_LIBEDIT
  char const* const terminal = std::getenv("TERM");
  bool const can_edit = terminal != nullptr && std::string_view(terminal) != "dumb" && *terminal != '\0';
  if (options.editing && can_edit && isatty(STDIN_FILENO) != 0 && (isatty(STDERR_FILENO) != 0 || isatty(STDOUT_FILENO) != 0))
    state_->edited = std::make_unique<EditedReader>(options.color, std::move(options.history_file));
#endif
}

LineEditor::~LineEditor() = default;

Line LineEditor::read(std::string const& prompt) {
#ifdef TIERED_RUN_LIBEDIT
  if (state_->edited) return state_->edited->read(prompt);
#endif
  bool const at_terminal = isatty(STDIN_FILENO) != 0;
  Line line = state_->plain.read(prompt, at_terminal);
  if (at_terminal && line.kind != Line::Kind::text) std::fputs("\n", stderr);
  return line;
}

std::string line_editor_name() {
#ifdef TIERED_RUN_LIBEDIT
  return "libedit";
#else
  return "a plain reader: there was no libedit when this was built";
#endif
}

std::string history_path() {
  char const* const state = std::getenv("XDG_STATE_HOME");
  char const* const home = std::getenv("HOME");
  bool const has_state = state != nullptr && *state == '/';  // a relative path is to be ignored, says the XDG specification
  if (!has_state && (home == nullptr || *home == '\0')) return "";
  std::string const folder = concat(has_state ? std::string(state) : concat(home, "/.local/state"), "/tiered");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  return error ? "" : folder + "/history";
}

}  // namespace app
