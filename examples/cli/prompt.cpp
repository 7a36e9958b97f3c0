#include "prompt.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "terminal.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/media_prompt.hpp"

namespace app {
namespace {

using tiered::concat;

std::string read_all(int descriptor, std::string_view name) {
  std::string text;
  char piece[1 << 16];
  for (;;) {
    ssize_t const n = ::read(descriptor, piece, sizeof piece);
    if (n < 0 && retry(descriptor, POLLIN)) continue;
    if (n < 0) throw tiered::Error(tiered::Errc::io, concat(name, ": cannot be read: ", std::strerror(errno)));
    if (n == 0) return text;
    text.append(piece, std::size_t(n));
    if (text.size() > max_prompt_bytes) {
      struct stat status {};
      bool const known = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
      std::uint64_t const size = std::max(std::uint64_t(text.size()), known ? std::uint64_t(status.st_size) : 0);
      throw UsageError{concat(name, " has ", size, known ? " bytes" : " bytes or more", "; a prompt may have ", max_prompt_bytes)};
    }
  }
}

std::string without_line_end(std::string text) {
  if (text.ends_with("\r\n")) text.pop_back();
  if (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

constexpr tiered::MediaMarks marks;
/// Behind the first letter of a mark that is meant as words: no text has it there.
constexpr char word_sign = '\1';

std::string hidden(std::string_view mark) { return concat(mark.substr(0, 1), word_sign, mark.substr(1)); }

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  for (std::size_t at = text.find(what); at != text.npos; at = text.find(what)) {
    out += concat(text.substr(0, at), by);
    text.remove_prefix(at + what.size());
  }
  return out += text;
}

/// A content as text, with a mark for each medium.
std::string written_out(tiered::ChatMessage const& message) {
  if (message.parts.empty()) return message.content;
  std::string text;
  for (tiered::ChatPart const& part : message.parts)
    text += part.kind == tiered::ChatPart::Kind::text ? part.text : mark_of(part.kind == tiered::ChatPart::Kind::video);
  return text;
}

tiered::ChatTemplate open_template(tiered::GgufFile const& gguf, ChatOptions const& o) {
  if (o.template_file) return tiered::chat_template_from_gguf(gguf, read_text(*o.template_file, "template file"));
  if (o.template_name) return tiered::chat_template_from_gguf(gguf, *o.template_name);
  return tiered::chat_template_from_gguf(gguf);
}

}  // namespace

std::string mark_of(bool video) { return concat(marks.begin, video ? marks.video : marks.image, marks.end); }

std::string as_words(std::string text) {
  for (std::string_view const mark : {marks.image, marks.video}) text = replaced(text, mark, hidden(mark));
  return text;
}

void check_prompt_size(std::string_view what, std::size_t bytes) {
  if (bytes > max_prompt_bytes) throw UsageError{concat(what, " has ", bytes, " bytes or more; a prompt may have ", max_prompt_bytes)};
}

std::string read_text(std::string const& path, std::string_view what, bool keep_line_end) {
  if (path == "-") return without_line_end(read_all(STDIN_FILENO, "standard input"));
  std::string const name = concat(what, ' ', path);
  int const descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    int const reason = errno;
    throw tiered::Error(reason == ENOENT || reason == ENOTDIR ? tiered::Errc::not_found : tiered::Errc::io,
                        concat(name, ": ", std::strerror(reason)));
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } const closer{descriptor};
  std::string text = read_all(descriptor, name);
  return keep_line_end ? text : without_line_end(std::move(text));
}

std::string read_prompt(Options const& o) {
  if (o.prompt) return o.escapes ? without_escapes(*o.prompt) : *o.prompt;
  if (o.binary_file) return read_text(*o.binary_file, "prompt file", true);
  if (o.prompt_file && *o.prompt_file != "-") return read_text(*o.prompt_file, "prompt file");
  if (isatty(STDIN_FILENO) != 0) std::fputs("Type the prompt; end it with Ctrl-D on a line of its own.\n", stderr);
  return read_text("-", "");
}

std::vector<std::int32_t> encode_text(tiered::Tokenizer const& tokenizer, std::string_view text) {
  std::vector<std::int32_t> tokens;
  auto const add = [&](std::string_view part, bool with_markers) {
    std::vector<std::int32_t> const more = tokenizer.encode(part, {.add_special = false, .parse_special = with_markers});
    tokens.insert(tokens.end(), more.begin(), more.end());
  };
  std::string whole(text);
  std::vector<std::string_view> words;
  for (std::string_view const mark : {marks.image, marks.video}) {
    if (tokenizer.vocab().find(mark) >= 0)
      words.push_back(mark);
    else
      whole = replaced(whole, hidden(mark), mark);  // to this model they are words anyway
  }
  // What the text is cut at, and by itself, so that nothing beside it makes a marker of it.
  std::string_view rest = whole;
  for (std::size_t at = rest.find(word_sign); at != rest.npos; at = rest.find(word_sign, at)) {
    auto const mark = std::ranges::find_if(words, [&](std::string_view m) { return at > 0 && rest.substr(at - 1).starts_with(hidden(m)); });
    ++at;
    if (mark == words.end()) continue;
    add(rest.substr(0, at - 2), true);
    add(*mark, false);
    rest.remove_prefix(at - 2 + mark->size() + 1);
    at = 0;
  }
  add(rest, true);
  std::int32_t const bos = tokenizer.bos();
  bool const wanted = tokenizer.vocab().add_bos() || tokens.empty();
  if (bos >= 0 && wanted && (tokens.empty() || tokens.front() != bos)) tokens.insert(tokens.begin(), bos);
  return tokens;
}

bool has_chat_template(tiered::GgufFile const& gguf) { return gguf.find("tokenizer.chat_template") != nullptr; }

ChatFormat::ChatFormat(tiered::GgufFile const& gguf, ChatOptions const& options)
    : in_prefix_(options.in_prefix), in_suffix_(options.in_suffix) {
  if (!in_prefix_.empty() || !in_suffix_.empty()) return;
  static constexpr char const* way_on =
      ". Without --chat and -cnv (at a terminal: with -no-cnv) the prompt is taken as it is, so you can write the markers of this family "
      "into it yourself; --chat-template chatml takes another template";
  try {
    template_ = open_template(gguf, options);
  } catch (tiered::Error const& e) {
    if (options.template_file) throw tiered::Error(e.code(), concat("--chat-template-file: ", e.what()));
    if (options.template_name && e.code() == tiered::Errc::not_found) throw UsageError{concat("--chat-template: ", e.what())};
    if (options.template_name) throw tiered::Error(e.code(), concat("--chat-template: ", e.what()));
    if (e.code() == tiered::Errc::not_found)
      throw tiered::Error(tiered::Errc::unsupported, concat("--chat: this model has no chat template", way_on));
    throw tiered::Error(e.code(), concat("--chat: ", e.what(), way_on));
  }
}

std::string ChatFormat::render(std::span<tiered::ChatMessage const> given) const {
  std::vector<tiered::ChatMessage> messages(given.begin(), given.end());
  for (tiered::ChatMessage& message : messages) {
    message.content = as_words(std::move(message.content));
    for (tiered::ChatPart& part : message.parts) part.text = as_words(std::move(part.text));
  }
  if (template_) return render_by_template(messages);
  std::string text;
  for (tiered::ChatMessage const& message : messages) {
    std::string const content = written_out(message);
    text += message.role == "user" ? concat(in_prefix_, content, in_suffix_) : content;
  }
  return text;
}

std::string ChatFormat::render_by_template(std::span<tiered::ChatMessage const> messages) const {
  try {
    return template_->render(messages);
  } catch (tiered::Error const& e) {
    bool const has_media = std::ranges::any_of(messages, [](tiered::ChatMessage const& m) { return !m.parts.empty(); });
    if (!has_media || e.code() == tiered::Errc::precondition) throw;
    throw tiered::Error(e.code(), concat(e.what(), template_knows_no_images));
  }
}

}  // namespace app
