/// Writes a conversation the way a model was trained to read it, by the template in its file.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/io/gguf.hpp"

namespace tiered {
namespace detail::jinja {
struct Template;
}

/// A part of a message that is more than text.
struct ChatPart {
  enum class Kind : std::uint8_t { text, image, video };
  Kind kind = Kind::text;
  std::string text{};  ///< of a text
};

/// What is empty, but for role and content, the template does not see.
struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", "tool"
  std::string content;
  std::string reasoning_content{};  ///< what the assistant thought; templates see it as `thinking` too
  std::string tool_calls{};         ///< of the assistant: JSON, [{"type": "function", "function": {"name": ..., "arguments": {...}}}]
  std::string tool_call_id{};       ///< of a tool's answer
  std::string name{};               ///< who speaks, or which tool
  /// Not empty: the content is this list instead, as {"type": "image"}, {"type": "text", "text": ...}; for templates that know such.
  std::vector<ChatPart> parts{};
};

/// The texts of two special tokens: bos_token and eos_token of a template. Empty where a vocabulary has none.
struct ChatTokens {
  std::string bos{}, eos{};
};

struct ChatOptions {
  /// Variables of the template by name, as JSON: {"enable_thinking", "false"}, {"reasoning_effort", "\"high\""}.
  std::vector<std::pair<std::string, std::string>> variables{};
  std::vector<std::string> tools{};  ///< each {"type": "function", "function": {"name", "description", "parameters"}}, as JSON
  std::optional<std::tm> now{};      ///< what strftime_now() tells; not given: the local time
};

/// A chat template, run by an interpreter of Jinja as Hugging Face transformers sets it up: what comes out is what its
/// apply_chat_template gives. Without effect on anything else, and bounded in time, memory and stack, whatever the template holds.
/// Immutable, so any thread may use it; copies share one state.
///
/// Of Jinja2 3.1 these are refused by name:
///   statements  inheritance, include, import, autoescape; do and trans, as transformers does
///   functions   cycler, joiner, lipsum; the tests filter and test
///   filters     filesizeformat, pprint, random, slice, striptags, truncate, urlencode, urlize, wordwrap, xmlattr; groupby with a
///               default, sort by several attributes, format with named values, round to less than no digits
///   methods     encode, expandtabs, format_map, isascii, isidentifier, isprintable, istitle, maketrans, swapcase and translate of
///               str; isalnum, isalpha, isdecimal, isdigit and isnumeric of text that is not ASCII; fromkeys of dict; all methods of
///               numbers; of a macro all attributes but name
///   formats     in str.format all but {}, {0} and {name}; after %, all but s, r, d, i, x, f, e and g, names, d, i and x of floats,
///               flags and width of s and r, # of floats, and more than 1000 characters; strftime_now with %c, %U, %Z and their like
///   numbers     integers of more than 64 bits, floats that overflow where they are written (1e400)
///   printing    of anything but texts, numbers, lists, tuples and dicts: a range, a generator, the items of a dict
/// What changes a list or a dict (append, pop) fails there as it does here. What differs: upper and lower case are of single letters
/// of Latin, Greek, Cyrillic and Armenian, but for the upper case of a sharp s; what would become several letters (U+0130, ligatures)
/// stays, a sigma that ends a word is like any other, and casefold is lower.
class ChatTemplate {
 public:
  /// Errors  unsupported, with the line and the construct, for source that is no template or needs what is not there.
  explicit ChatTemplate(std::string_view source, ChatTokens tokens = {});

  /// The text for the model, in UTF-8 where all that was given is. Encode it with
  ///   {.add_special = !chat.writes_bos(text), .parse_special = true}
  /// The markers are tokens; one in a content counts too, so check what strangers write.
  /// Errors  precondition where there are no messages, where the template refuses the conversation (with its reason), where JSON in
  ///         messages or options is broken; unsupported, with the line, where rendering fails or needs more than Limits has.
  std::string render(std::span<ChatMessage const> messages, bool add_generation_prompt = true, ChatOptions const& options = {}) const;

  /// Whether a rendered text begins with the bos token, as most templates write it: the tokeniser must not put another in front.
  /// Where it does not, a vocabulary that asks for bos still gets one. (Transformers adds none to a rendered chat in either case.)
  bool writes_bos(std::string_view text) const { return !tokens_.bos.empty() && text.starts_with(tokens_.bos); }

  std::string_view source() const;

 private:
  std::shared_ptr<detail::jinja::Template const> template_;
  ChatTokens tokens_;
};

/// Names of the templates that come with the library, for files without one: "chatml", "gemma", "llama2", "llama3", "mistral".
std::span<std::string_view const> builtin_chat_templates();
/// Errors  not_found, naming those that there are.
std::string_view builtin_chat_template(std::string_view name);

/// The file's template with the file's tokens.  Errors  not_found where it has none; as ChatTemplate's constructor.
ChatTemplate chat_template_from_gguf(GgufFile const& file);
/// Another template with the file's tokens: source where there is {{ or {% in it, else one of builtin_chat_templates().
ChatTemplate chat_template_from_gguf(GgufFile const& file, std::string_view name_or_source);

}  // namespace tiered
