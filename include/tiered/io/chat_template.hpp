/// Writes a conversation the way a model was trained to read it, by the template in its file.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tiered/io/gguf.hpp"

namespace tiered {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant"
  std::string content;
};

/// A chat template that this library can follow. So far the ChatML family, in whatever way the Jinja source is written:
/// every message between <|im_start|>role and <|im_end|>, with or without a system message that stands in where none is given.
class ChatTemplate {
 public:
  /// Errors  unsupported, saying what the template looks like, for any template whose text could come out differently.
  explicit ChatTemplate(std::string_view jinja_source);

  /// The text for the model; equal to what Jinja2 makes of the template (transformers' apply_chat_template). Encode it with
  /// parse_special: the markers are tokens. A marker in a content counts too, so check what strangers write.
  /// Errors  precondition where there are no messages; unsupported for roles that the template treats in a way of its own.
  std::string render(std::span<ChatMessage const> messages, bool add_generation_prompt = true) const;

  /// What stands in for a missing system message; nullopt: nothing does.
  std::optional<std::string> const& default_system() const { return default_system_; }

 private:
  std::optional<std::string> default_system_;
  bool plain_roles_only_ = false;
};

/// Errors  not_found where the file has no template; as ChatTemplate's constructor.
ChatTemplate chat_template_from_gguf(GgufFile const& file);

}  // namespace tiered
