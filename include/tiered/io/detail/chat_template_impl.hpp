/// Defines ChatTemplate: for one source file of a program.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/detail/jinja_outline.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/gguf.hpp"

namespace tiered {

namespace detail {

/// Shapes are outlines in which `$` stands for one fixed text, which is captured, and `*` for anything.
inline bool matches_shape(std::string_view outline, std::string_view shape, std::string& captured) {
  captured.clear();
  std::size_t const first = shape.find_first_of("$*");
  if (first == std::string_view::npos) return outline == shape;
  if (!outline.starts_with(shape.substr(0, first))) return false;
  outline.remove_prefix(first);
  shape.remove_prefix(first);
  while (!shape.empty()) {
    char const wildcard = shape.front();
    shape.remove_prefix(1);
    std::string_view const fixed = shape.substr(0, shape.find_first_of("$*"));
    shape.remove_prefix(fixed.size());
    // The last fixed part is the end of the outline.
    std::size_t at = outline.find(fixed);
    if (shape.empty()) at = outline.ends_with(fixed) ? outline.size() - fixed.size() : std::string_view::npos;
    if (at == std::string_view::npos) return false;
    if (wildcard == '$') {
      captured = outline.substr(0, at);
      if (captured.find("{%") != std::string::npos || captured.find("{{") != std::string::npos) return false;
    }
    outline.remove_prefix(at + fixed.size());
  }
  return true;
}

struct ChatShape {
  std::string_view outline;
  bool plain_roles_only;
};
inline constexpr std::array<ChatShape, 3> chatml_shapes{{
    {"{%for message in messages%}<|im_start|>{{message.role}}\n{{message.content}}<|im_end|>\n{%endfor%}"
     "{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}",
     false},
    // SmolLM2, Qwen2
    {"{%for message in messages%}{%if loop.first and messages[0].role != 'system'%}<|im_start|>system\n$<|im_end|>\n{%endif%}"
     "<|im_start|>{{message.role}}\n{{message.content}}<|im_end|>\n{%endfor%}{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}",
     false},
    // Qwen2.5: without tools, all that is left for the three plain roles
    {"{%if tools%}*{%else%}{%if messages[0].role == 'system'%}<|im_start|>system\n{{messages[0].content}}<|im_end|>\n{%else%}"
     "<|im_start|>system\n$<|im_end|>\n{%endif%}{%endif%}{%for message in messages%}{%if ( message.role == 'user' ) or "
     "( message.role == 'system' and not loop.first ) or ( message.role == 'assistant' and not message.tool_calls )%}"
     "<|im_start|>{{message.role}}\n{{message.content}}<|im_end|>\n{%elif *"
     "{%endfor%}{%if add_generation_prompt%}<|im_start|>assistant\n{%endif%}",
     true},
}};

/// What a template that is refused looks like, by the markers that tell the families apart.
inline std::string_view chat_family(std::string_view source) {
  struct Family {
    std::string_view marker, name;
  };
  static constexpr Family families[] = {
      {"<|im_sep|>", "phi-4"},
      {"<|im_start|>", "chatml with rules of its own"},
      {"<<SYS>>", "llama-2"},
      {"[INST]", "mistral"},
      {"<|start_header_id|>", "llama-3"},
      {"<|header_start|>", "llama-4"},
      {"<start_of_turn>", "gemma"},
      {"<|turn>", "gemma-4"},
      {"<｜User｜>", "deepseek"},
      {"<|channel|>", "gpt-oss"},
      {"<|START_OF_TURN_TOKEN|>", "command-r"},
      {"<|start_of_role|>", "granite"},
      {"[gMASK]", "glm"},
      {"<|end|>", "phi-3"},
      {"<|user|>", "zephyr"},
      {"### Instruction:", "alpaca"},
      {"ASSISTANT:", "vicuna"},
  };
  for (Family const& family : families)
    if (source.find(family.marker) != std::string_view::npos) return family.name;
  return "unknown";
}

}  // namespace detail

ChatTemplate::ChatTemplate(std::string_view jinja_source) {
  static constexpr std::string_view default_of_flag =
      "{%if not add_generation_prompt is defined%}{%set add_generation_prompt = false%}{%endif%}";
  std::string const whole = detail::JinjaOutline::of(jinja_source);
  std::string_view outline = whole;
  if (outline.starts_with(default_of_flag)) outline.remove_prefix(default_of_flag.size());
  for (detail::ChatShape const& shape : detail::chatml_shapes) {
    std::string system;
    if (!detail::matches_shape(outline, shape.outline, system)) continue;
    if (shape.outline.find('$') != std::string_view::npos) default_system_ = std::move(system);
    plain_roles_only_ = shape.plain_roles_only;
    return;
  }
  std::string_view const family = detail::chat_family(jinja_source);
  bool const known = family != "unknown";
  throw Error(Errc::unsupported, concat("the chat template ", known ? "looks like " : "is of no family that is known here", known ? family : "",
                                        "; only plain chatml is supported: ", detail::printable(jinja_source)));
}

std::string ChatTemplate::render(std::span<ChatMessage const> messages, bool add_generation_prompt) const {
  expects(!messages.empty(), "ChatTemplate::render: a conversation has at least one message");
  std::string text;
  auto const add = [&](std::string_view role, std::string_view content) {
    text += concat("<|im_start|>", role, '\n', content, "<|im_end|>\n");
  };
  if (default_system_ && messages[0].role != "system") add("system", *default_system_);
  for (ChatMessage const& message : messages) {
    bool const plain = message.role == "system" || message.role == "user" || message.role == "assistant";
    if (plain_roles_only_ && !plain) {
      throw Error(Errc::unsupported, concat("the chat template has rules of its own for the role ", detail::printable(message.role)));
    }
    add(message.role, message.content);
  }
  if (add_generation_prompt) text += "<|im_start|>assistant\n";
  return text;
}

ChatTemplate chat_template_from_gguf(GgufFile const& file) {
  return ChatTemplate(file.require<std::string_view>("tokenizer.chat_template"));
}

}  // namespace tiered
