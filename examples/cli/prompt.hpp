/// From what the user gave to the tokens that the model reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/tokenizer.hpp"

namespace app {

/// Far above any context; below what an endless file could do to the memory.
inline constexpr std::size_t max_prompt_bytes = 64 * tiered::MiB;

/// For what is read piece by piece, so that there may be more of it than is known.
/// Errors  UsageError for more than max_prompt_bytes.
void check_prompt_size(std::string_view what, std::size_t bytes);

/// All of the file, less one line end at the end: editors and echo put it there. "-": standard input.
/// Errors  of the system, as Errc::io or not_found, with its reason; UsageError for more than any context could hold.
std::string read_text(std::string const& path, std::string_view what, bool keep_line_end = false);

/// -p, -f, -bf, or standard input.
std::string read_prompt(Options const& o);

/// Tokens of a text in which markers such as <|im_end|> are tokens, as with llama.cpp, but for what as_words() made words. One bos in front
/// where the vocabulary wants one, whether the text writes it or not; never an eos behind.
std::vector<std::int32_t> encode_text(tiered::Tokenizer const& tokenizer, std::string_view text);

/// What stands for an image or a video in a text.
std::string mark_of(bool video);
/// The marks that a message contains as words, for encode_text(): who writes <|image_pad|> to a model gives it no image.
std::string as_words(std::string text);

inline constexpr char const* template_knows_no_images = ". It may be one that knows no images; --chat-template chatml does";

/// How messages become a text: the model's template, another one, or --in-prefix and --in-suffix.
class ChatFormat {
 public:
  /// Errors  Errc::unsupported with the way around it where there is no template, or none that can be followed; UsageError for a name
  ///         that no built-in template has.
  ChatFormat(tiered::GgufFile const& gguf, ChatOptions const& options);

  /// The text for the model, up to where its answer begins. Marks of images and videos stand where messages have them as parts; those in
  /// their words are as_words(). Errors  of ChatTemplate::render.
  std::string render(std::span<tiered::ChatMessage const> messages) const;

 private:
  std::string render_by_template(std::span<tiered::ChatMessage const> messages) const;

  std::optional<tiered::ChatTemplate> template_;
  std::string in_prefix_, in_suffix_;
};

/// Whether the file has a template at all, followed or not.
bool has_chat_template(tiered::GgufFile const& gguf);

}  // namespace app
