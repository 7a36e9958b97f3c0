/// From what the user gave to the tokens that the model reads.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "options.hpp"
#include "terminal.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/tokenizer.hpp"

namespace app {

struct Prompt {
  std::string shown;                 ///< what goes to stdout before the text
  std::vector<std::int32_t> tokens;  ///< at least one
};

namespace detail {

/// Far above any context; below what an endless file could do to the memory.
inline constexpr std::size_t max_prompt_bytes = 64 * tiered::MiB;

/// All bytes, less one line end at the end: editors and echo put it there.
/// Errors  Errc::io with the system's reason; UsageError above max_prompt_bytes.
inline std::string read_all(int descriptor, std::string_view name) {
  std::string text;
  char piece[1 << 16];
  for (;;) {
    ssize_t const n = ::read(descriptor, piece, sizeof piece);
    if (n < 0 && retry(descriptor, POLLIN)) continue;
    if (n < 0) throw tiered::Error(tiered::Errc::io, tiered::concat(name, ": cannot be read: ", std::strerror(errno)));
    if (n == 0) break;
    text.append(piece, std::size_t(n));
    if (text.size() > max_prompt_bytes) {
      struct stat status {};
      bool const known = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
      std::uint64_t const size = std::max(std::uint64_t(text.size()), known ? std::uint64_t(status.st_size) : 0);
      throw UsageError{tiered::concat(name, " has ", size, known ? " bytes" : " bytes or more", "; a prompt may have ", max_prompt_bytes)};
    }
  }
  if (text.ends_with("\r\n")) text.pop_back();
  if (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

inline std::string read_file(std::string const& path) {
  int const descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    int const reason = errno;
    throw tiered::Error(reason == ENOENT ? tiered::Errc::not_found : tiered::Errc::io,
                        tiered::concat("prompt file ", path, ": ", std::strerror(reason)));
  }
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } const closer{descriptor};
  return read_all(descriptor, tiered::concat("prompt file ", path));
}

/// \n \r \t \' \" \\ ; any other backslash stays, as llama.cpp has it.
inline std::string without_escapes(std::string_view text) {
  static constexpr std::string_view names = "nrt'\"\\", values = "\n\r\t'\"\\";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t const known = text[i] == '\\' && i + 1 < text.size() ? names.find(text[i + 1]) : names.npos;
    out += known == names.npos ? text[i] : values[known];
    i += known != names.npos;
  }
  return out;
}

inline std::string read_prompt(Options const& o) {
  if (o.prompt) return o.escapes ? without_escapes(*o.prompt) : *o.prompt;
  if (o.prompt_file && *o.prompt_file != "-") return read_file(*o.prompt_file);
  if (isatty(STDIN_FILENO) != 0) std::fputs("Type the prompt; end it with Ctrl-D on a line of its own.\n", stderr);
  return read_all(STDIN_FILENO, "standard input");
}

/// Errors  Errc::unsupported or not_found from the template, with the way around it.
inline std::string in_template(tiered::GgufFile const& gguf, Options const& o, std::string const& question) {
  std::vector<tiered::ChatMessage> messages;
  if (o.system_prompt) messages.push_back({"system", o.escapes ? without_escapes(*o.system_prompt) : *o.system_prompt});
  messages.push_back({"user", question});
  try {
    return tiered::chat_template_from_gguf(gguf).render(messages);
  } catch (tiered::Error const& e) {
    if (e.code() == tiered::Errc::not_found) {
      throw tiered::Error(tiered::Errc::unsupported,
                          "--chat: this model has no chat template. Without --chat the prompt is taken as it is");
    }
    throw tiered::Error(
        e.code(),
        tiered::concat("--chat: ", e.what(),
                       ". Without --chat the prompt is taken as it is, so you can write the markers of this family into it yourself"));
  }
}

}  // namespace detail

/// Reads the prompt and makes tokens of it. Markers such as <|im_end|> in it are tokens, as with llama.cpp.
/// Errors  of reading, of the template; UsageError for an empty prompt.
inline Prompt make_prompt(tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, Options const& o) {
  std::string const text = detail::read_prompt(o);
  Prompt prompt;
  if (text.empty())
    throw UsageError{o.chat ? "the question is empty" : "the prompt is empty: give one with -p, with -f or on standard input"};
  if (o.chat) {
    prompt.tokens = tokenizer.encode(detail::in_template(gguf, o, text), {.parse_special = true});
    return prompt;
  }
  prompt.tokens = tokenizer.encode(text, {.parse_special = true});
  if (prompt.tokens.empty() && tokenizer.bos() >= 0) prompt.tokens.push_back(tokenizer.bos());
  if (prompt.tokens.empty()) throw UsageError{"this model has no token for any byte of the prompt"};
  if (o.display_prompt) prompt.shown = text;
  return prompt;
}

}  // namespace app
