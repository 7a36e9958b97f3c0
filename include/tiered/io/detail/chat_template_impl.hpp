/// Defines ChatTemplate: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/detail/builtin_chat_templates.hpp"
#include "tiered/io/detail/jinja_interpreter.hpp"
#include "tiered/io/detail/jinja_json.hpp"
#include "tiered/io/detail/jinja_parser.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/gguf.hpp"

namespace tiered {

namespace detail::jinja {

struct Template {
  std::string source;
  std::vector<Statement> statements;
};

inline std::string builtin_names() {
  std::string names;
  for (std::string_view const name : builtin_chat_templates()) names += concat(names.empty() ? "" : ", ", name);
  return names;
}
[[noreturn]] inline void refuse(std::string_view why) {
  throw Error(Errc::unsupported,
              concat("the chat template cannot be used: ", why, ". A template of your own can, or one of ", builtin_names()));
}

inline Value read_json(Runtime& rt, std::string_view json, std::string_view what) {
  try {
    return JsonReader::read(rt, json);
  } catch (Error const& e) {
    throw Error(e.code(), concat(what, ": ", e.what()));
  }
}

inline Value part_value(ChatPart const& part) {
  std::vector<std::pair<Value, Value>> items;
  char const* const kind = part.kind == ChatPart::Kind::image ? "image" : part.kind == ChatPart::Kind::video ? "video" : "text";
  items.emplace_back(text("type"), text(kind));
  if (part.kind == ChatPart::Kind::text) items.emplace_back(text("text"), text(part.text));
  return dict(std::move(items));
}
inline Value content_value(ChatMessage const& message) {
  if (message.parts.empty()) return text(message.content);
  std::vector<Value> parts;
  for (ChatPart const& part : message.parts) parts.push_back(part_value(part));
  return list(std::move(parts));
}

/// A message as templates see it: transformers gives what was thought under two names.
inline Value message_value(Runtime& rt, ChatMessage const& message) {
  std::vector<std::pair<Value, Value>> items;
  auto const add = [&](char const* key, Value value) { items.emplace_back(text(key), std::move(value)); };
  if (!message.reasoning_content.empty()) add("thinking", text(message.reasoning_content));
  add("role", text(message.role));
  add("content", content_value(message));
  if (!message.reasoning_content.empty()) add("reasoning_content", text(message.reasoning_content));
  if (!message.tool_calls.empty()) add("tool_calls", read_json(rt, message.tool_calls, "tool_calls of a message"));
  if (!message.tool_call_id.empty()) add("tool_call_id", text(message.tool_call_id));
  if (!message.name.empty()) add("name", text(message.name));
  return dict(std::move(items));
}

inline std::tm local_time() {
  std::time_t const now = std::time(nullptr);
  std::tm broken_down{};
  localtime_r(&now, &broken_down);
  return broken_down;
}

/// More text may take more steps.
inline Limits limits_for(std::span<ChatMessage const> messages) {
  Limits limits;
  for (ChatMessage const& m : messages) {
    std::size_t n = m.content.size() + m.reasoning_content.size() + m.tool_calls.size();
    for (ChatPart const& part : m.parts) n += part.text.size() + 64;
    limits.work += std::int64_t(std::min<std::size_t>(n, limits.output_bytes)) * 64;
  }
  return limits;
}

inline ChatTokens tokens_of(GgufFile const& file) {
  auto const text_of = [&](char const* key) -> std::string {
    auto const id = file.get<std::uint32_t>(key);
    GgufValue const* const tokens = file.find("tokenizer.ggml.tokens");
    if (!id || tokens == nullptr) return {};
    auto const texts = file.require<std::vector<std::string_view>>("tokenizer.ggml.tokens");
    return *id < texts.size() ? std::string(texts[*id]) : std::string();
  };
  return {text_of("tokenizer.ggml.bos_token_id"), text_of("tokenizer.ggml.eos_token_id")};
}

}  // namespace detail::jinja

ChatTemplate::ChatTemplate(std::string_view source, ChatTokens tokens) : tokens_(std::move(tokens)) {
  namespace jinja = detail::jinja;
  try {
    template_ = std::make_shared<jinja::Template const>(
        jinja::Template{std::string(source), jinja::Parser::parse(source, jinja::knows_filter, jinja::knows_test)});
  } catch (Error const& e) {
    jinja::refuse(e.what());
  }
}

std::string_view ChatTemplate::source() const { return template_->source; }

std::string ChatTemplate::render(std::span<ChatMessage const> messages, bool add_generation_prompt, ChatOptions const& options) const {
  namespace jinja = detail::jinja;
  expects(!messages.empty(), "ChatTemplate::render: a conversation has at least one message");
  jinja::Runtime runtime(jinja::limits_for(messages));
  jinja::Interpreter interpreter(runtime, options.now ? *options.now : jinja::local_time());
  std::vector<jinja::Value> list, tools;
  for (ChatMessage const& message : messages) list.push_back(jinja::message_value(runtime, message));
  for (std::string const& tool : options.tools) tools.push_back(jinja::read_json(runtime, tool, "a tool"));
  interpreter.define("messages", jinja::list(std::move(list)));
  interpreter.define("tools", tools.empty() ? jinja::none() : jinja::list(std::move(tools)));
  interpreter.define("documents", jinja::none());
  interpreter.define("add_generation_prompt", jinja::boolean(add_generation_prompt));
  interpreter.define("bos_token", jinja::text(tokens_.bos));
  interpreter.define("eos_token", jinja::text(tokens_.eos));
  for (auto const& [name, json] : options.variables) {
    interpreter.define(name, jinja::read_json(runtime, json, concat("the variable ", detail::printable(name))));
  }
  try {
    return interpreter.render(template_->statements);
  } catch (Error const& e) {
    std::string const where = concat("line ", interpreter.line());
    if (e.code() != Errc::precondition) jinja::refuse(concat(where, ": ", e.what()));
    throw Error(e.code(), concat("the chat template refuses this conversation (", where, "): ", detail::printable(e.what(), 400)));
  }
}

std::span<std::string_view const> builtin_chat_templates() {
  static constexpr auto names = [] {
    std::array<std::string_view, std::size(detail::builtin_chat_sources)> all;
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = detail::builtin_chat_sources[i].name;
    return all;
  }();
  return names;
}

std::string_view builtin_chat_template(std::string_view name) {
  for (detail::BuiltinChatTemplate const& each : detail::builtin_chat_sources) {
    if (each.name == name) return each.source;
  }
  throw Error(Errc::not_found,
              concat("there is no chat template ", detail::printable(name), "; there are ", detail::jinja::builtin_names()));
}

ChatTemplate chat_template_from_gguf(GgufFile const& file) {
  return ChatTemplate(file.require<std::string_view>("tokenizer.chat_template"), detail::jinja::tokens_of(file));
}

ChatTemplate chat_template_from_gguf(GgufFile const& file, std::string_view name_or_source) {
  bool const is_source = name_or_source.find("{{") != std::string_view::npos || name_or_source.find("{%") != std::string_view::npos;
  return ChatTemplate(is_source ? name_or_source : builtin_chat_template(name_or_source), detail::jinja::tokens_of(file));
}

}  // namespace tiered
