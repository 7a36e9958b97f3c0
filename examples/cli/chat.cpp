#include "chat.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include <unistd.h>

#include "files.hpp"
#include "report.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace app {
namespace {

using tiered::concat;

constexpr char const* commands_help = R"(  /help         this
  /clear        begin a new conversation; what the system was told stays
  /regen        another answer to the last message
  /system TEXT  what the model is told before all else; begins a new conversation
  /stats        times, speed and memory of the last answer
  /save FILE    keep the conversation: its state in FILE, its messages in FILE.json
  /load FILE    go on with one that was kept
  /image FILE   an image that comes with the next message; so does a video with /video PATH
  /quit         end; so does Ctrl-D, or Ctrl-C where nothing is typed
  A line that ends with \ goes on in the next one; pasted lines belong together. Ctrl-C stops an answer, or the reading of a video.
  A message that begins with / is written with a blank before it.
)";

void tell(std::string const& text) { std::fputs(text.c_str(), stderr); }

LineEditor::Options editor_options(ChatOptions const& o) {
  bool const edits = !o.simple_io && isatty(STDIN_FILENO) != 0;
  return {edits, o.color.value_or(isatty(STDERR_FILENO) != 0), edits ? history_path() : std::string()};
}

}  // namespace

Chat::Chat(Parts parts) : parts_(std::move(parts)), editor_(editor_options(parts_.options->chat)), at_terminal_(isatty(STDIN_FILENO) != 0) {
  if (auto const& system = parts_.options->chat.system_prompt; system && !system->empty()) messages_.push_back({{"system", *system}});
}

/// Lines up to one that ends the message: see console.cpp of llama.cpp for what \ and / mean in either mode.
std::optional<std::string> Chat::read_message(Line::Kind& why_not) {
  bool const multiline = parts_.options->chat.multiline;
  std::string text;
  for (bool first = true;;) {
    Line line = editor_.read(first ? "> " : ". ");
    why_not = line.kind;
    if (line.kind == Line::Kind::end && !first) return text;
    if (line.kind == Line::Kind::interrupted && Interrupt::take() && (line.had_text || !first)) {  // what was typed is thrown away, no more
      text.clear();
      first = true;
      continue;
    }
    if (line.kind != Line::Kind::text) return std::nullopt;
    bool const is_marked = line.value.ends_with('\\');
    bool const is_last = multiline && line.value.ends_with('/') && !line.value.starts_with('/');
    if (is_marked || is_last) line.value.pop_back();
    text += line.value;
    check_prompt_size("the message", text.size());
    if (is_last || is_marked == multiline || (first && line.value.starts_with('/') && !is_marked)) return text;
    text += '\n';
    first = false;
  }
}

ExitCode Chat::run(std::optional<std::string> const& first) {
  if (at_terminal_ && !parts_.options->quiet) tell("/help lists commands; Ctrl-C stops an answer; Ctrl-D ends\n\n");
  if (first) {
    if (parts_.options->display_prompt) tell(concat("> ", *first, '\n'));
    if (say(*first) == Next::end) return code_of_turn();
  }
  while (!Interrupt::terminated()) {
    Line::Kind why_not = Line::Kind::text;
    std::optional<std::string> const message = read_message(why_not);
    if (!message && Interrupt::terminated()) break;
    if (!message) return why_not == Line::Kind::end ? ok : interrupted;
    if (message->find_first_not_of(" \t\r\n") == message->npos) continue;
    bool const is_command = message->starts_with('/');
    if ((is_command ? command(*message) : say(*message)) == Next::end) return is_command ? ok : code_of_turn();
  }
  return ExitCode(Interrupt::exit_code());
}

/// Where the conversation was one turn: what ended the turn ended the program. (A Ctrl-C is taken by then, a SIGTERM never is.)
ExitCode Chat::code_of_turn() const {
  if (Interrupt::terminated()) return ExitCode(Interrupt::exit_code());
  return turn_.end == tiered::EndReason::cancelled ? interrupted : ok;
}

Chat::Next Chat::say(std::string const& message) {
  std::vector<Message> before = messages_;
  std::size_t const n_media = attached_.size();
  messages_.push_back(user_message(message, std::exchange(attached_, {})));
  if (!answer(std::move(before))) {  // what came with it goes, too: it may be what could not be used
    std::string const more = n_media == 0   ? ""
                             : n_media == 1 ? ", and the image or video that came with it"
                                            : concat(", and the ", n_media, " images and videos that came with it");
    tell(concat("(the message is forgotten", more, ")\n"));
  }
  return parts_.options->chat.single_turn ? Next::end : Next::go_on;
}

/// Whether the last message got an answer, be it a part of one; it stands behind the message then. Else the conversation is `before` again,
/// whatever went wrong: what is kept of it must be of use to the next run. Errors are told at a terminal.
bool Chat::answer(std::vector<Message> before) {
  turn_ = {};
  has_turn_ = false;
  auto const settle = [&] {
    bool const answered = !turn_.tokens.empty() || turn_.end == tiered::EndReason::eos;
    if (answered)
      messages_.push_back({{"assistant", turn_.text}});
    else
      messages_ = std::move(before);
    return answered;
  };
  try {
    tiered::MediaPrompt prompt = prompt_of(messages_);
    fit(prompt);
    write_answer(prompt);
  } catch (OutputError const&) {
    settle();
    throw;
  } catch (tiered::Error const& error) {
    bool const answered = settle();
    if (!at_terminal_ || parts_.options->chat.single_turn) throw;
    tell(concat("tiered-run: error: ", error.what(), '\n'));
    return answered;
  } catch (...) {  // no memory, or a mistake that the last lines of main() tell
    settle();
    throw;
  }
  return settle();
}

/// Errors  Errc::over_budget where the conversation does not fit the context, and nothing may be forgotten.
void Chat::fit(tiered::MediaPrompt& prompt) {
  std::size_t const n = prompt.tokens.size();
  std::int32_t const context = parts_.runner->max_context();
  if (n + 1 <= std::size_t(context) || (parts_.options->context_shift && forget_oldest(prompt))) return;
  throw tiered::Error(tiered::Errc::over_budget,
                      concat("the conversation has ", n, " tokens", of_media(prompt), ", the context ", context,
                             ": nothing was cut; /clear begins a new one, -c ", n + 1, " or more would take it"));
}

tiered::MediaPrompt Chat::prompt_of(std::vector<Message> const& messages) const {
  std::vector<tiered::Media> media = media_of(messages);
  std::string const text = parts_.pictures->written(parts_.format->render(chat_of(messages)), media, true);
  return parts_.pictures->prompt(encode_text(*parts_.tokenizer, text), std::move(media));
}

/// Drops the oldest turns, an answer with its message, until the rest fits; the system message and the last message stay.
/// Returns  whether it does; else all is as it was. `prompt` is that of the conversation, before and after.
bool Chat::forget_oldest(tiered::MediaPrompt& prompt) {
  std::vector<Message> kept = messages_;
  std::size_t const begin = kept.front().chat.role == "system" ? 1 : 0;
  tiered::MediaPrompt fitting = prompt;
  while (fitting.tokens.size() + 1 > std::size_t(parts_.runner->max_context())) {
    std::size_t end = begin + 1;
    while (end < kept.size() && kept[end].chat.role != "user") ++end;
    if (end >= kept.size()) return false;
    kept.erase(kept.begin() + std::ptrdiff_t(begin), kept.begin() + std::ptrdiff_t(end));
    fitting = prompt_of(kept);
  }
  tell(concat("tiered-run: note: the context was full: the oldest ", messages_.size() - kept.size(),
              " messages were forgotten, as --context-shift says\n"));
  messages_ = std::move(kept);
  prompt = std::move(fitting);
  return true;
}

void Chat::write_answer(tiered::MediaPrompt const& prompt) {
  has_turn_ = true;
  struct EndOfLine {
    TextOutput& out;
    ~EndOfLine() {
      try {
        out.end_line();
      } catch (...) {  // what is wrong with stdout was said before, or will be
      }
    }
  };
  {
    EndOfLine const end{out_};
    generate(
        *parts_.runner, prompt, *parts_.options, turn_, [&](std::string_view text) { out_.write(text); }, parts_.after_prompt);
  }
  // A Ctrl-C that came as the answer ended was meant for the answer, too.
  if (Interrupt::take() && turn_.end == tiered::EndReason::cancelled)
    tell(turn_.tokens.empty() ? "(stopped before the answer began)\n" : "(stopped)\n");
  if (turn_.end == tiered::EndReason::context_full)
    tell(concat("tiered-run: stopped: ", why_it_ended(turn_, *parts_.options, parts_.runner->max_context()), '\n'));
  if (parts_.options->stats) tell(parts_.statistics(turn_));
}

Chat::Next Chat::command(std::string const& line) {
  std::size_t const end = line.find_first_of(" \t\n");
  std::string const name = line.substr(0, end);
  std::size_t const begin = end == line.npos ? line.npos : line.find_first_not_of(" \t\n", end);
  std::string const argument = begin == line.npos ? std::string() : line.substr(begin, line.find_last_not_of(" \t\n") + 1 - begin);
  bool const wants_file = name == "/save" || name == "/load" || name == "/image" || name == "/video";
  try {
    if (name == "/quit" || name == "/exit") return Next::end;
    if (wants_file && argument.empty())
      tell(concat(name, " needs a file\n"));
    else if (name == "/help")
      tell(commands_help);
    else if (name == "/clear")
      begin_anew();
    else if (name == "/regen")
      regenerate();
    else if (name == "/system")
      set_system(argument);
    else if (name == "/stats")
      tell(has_turn_ ? parts_.statistics(turn_) : "there was no answer yet\n");
    else if (name == "/image" || name == "/video")
      attach(argument, name == "/video");
    else if (name == "/save")
      save(argument);
    else if (name == "/load")
      load(argument);
    else
      tell(concat("there is no ", name, ": /help lists what there is; a message that begins with / is written with a blank before it\n"));
  } catch (OutputError const&) {
    throw;
  } catch (UsageError const& error) {
    if (!at_terminal_) throw;
    tell(concat("tiered-run: error: ", error.message, '\n'));
  } catch (tiered::Error const& error) {
    bool const stopped = error.code() == tiered::Errc::cancelled;
    if (!at_terminal_ && !stopped) throw;
    tell(stopped ? "(stopped)\n" : concat("tiered-run: error: ", error.what(), '\n'));
    if (stopped) Interrupt::take();
  }
  if (Interrupt::take()) tell("(that was done before it could be stopped)\n");  // a Ctrl-C that came meanwhile was not for the program
  return Next::go_on;
}

void Chat::begin_anew() {
  bool const has_system = !messages_.empty() && messages_.front().chat.role == "system";
  messages_.resize(has_system ? 1 : 0);
  attached_.clear();
  tell("a new conversation\n");
}

void Chat::regenerate() {
  if (messages_.empty() || messages_.back().chat.role != "assistant") return tell("there is no answer to replace\n");
  std::vector<Message> before = messages_;
  messages_.pop_back();
  answer(std::move(before));
}

void Chat::set_system(std::string const& text) {
  messages_.clear();
  attached_.clear();
  if (!text.empty()) messages_.push_back({{"system", text}});
  tell(text.empty() ? "a new conversation, without a system message\n" : "a new conversation\n");
}

void Chat::attach(std::string const& file, bool is_video) {
  Picture picture = is_video ? parts_.pictures->video(file) : parts_.pictures->image(file);
  if (Interrupt::requested()) throw tiered::Error(tiered::Errc::cancelled, "stopped");  // what does not look at the flag is short
  attached_.push_back(std::move(picture));
  tell(concat(attached_.size() == 1 ? "it comes" : concat(attached_.size(), " of them come"), " with the next message\n"));
}

void Chat::save(std::string const& file) {
  if (messages_.empty()) return tell("there is nothing to keep yet\n");
  std::string const state = checked_output(file, OutputKind::session);
  std::string const messages = checked_output(messages_file(file), OutputKind::messages);
  parts_.runner->save(state);
  save_messages(messages_, messages);
  tell(concat("kept in ", file, " and ", messages_file(file), '\n'));
}

void Chat::load(std::string const& file) {
  for (std::string const& part : {file, messages_file(file)}) check_regular(part);
  std::vector<Message> loaded = load_messages(messages_file(file), *parts_.pictures);
  parts_.runner->load(file);
  messages_ = std::move(loaded);
  tell(concat("going on with ", messages_.size(), " messages, ", parts_.runner->conversation().length(), " tokens\n"));
}

}  // namespace app
