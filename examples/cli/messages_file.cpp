#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "chat.hpp"
#include "prompt.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/new_file.hpp"
#include "tiered/io/utf8.hpp"

namespace app {

using tiered::concat;

namespace {

/// Words under "content" or "text", and as "bytes" too where they are no UTF-8, which JSON cannot hold.
void put_words(nlohmann::json& to, char const* key, std::string const& words) {
  to[key] = words;
  if (tiered::valid_utf8_bytes(words, 0) < words.size()) to["bytes"] = std::vector<std::uint8_t>(words.begin(), words.end());
}
std::string words_of(nlohmann::json const& from, char const* key) {
  auto const bytes = from.find("bytes");
  if (bytes == from.end()) return from.at(key).get<std::string>();
  auto const values = bytes->get<std::vector<std::uint8_t>>();
  return {values.begin(), values.end()};
}

nlohmann::json to_json(Message const& message) {
  nlohmann::json out = {{"role", message.chat.role}};
  if (message.chat.parts.empty()) {
    put_words(out, "content", message.chat.content);
    return out;
  }
  auto picture = message.pictures.begin();
  for (tiered::ChatPart const& part : message.chat.parts) {
    nlohmann::json one = {{"type", "text"}};
    if (part.kind == tiered::ChatPart::Kind::text)
      put_words(one, "text", part.text);
    else
      one = Pictures::to_json(*picture++);
    out["content"].push_back(std::move(one));
  }
  return out;
}

Message from_json(nlohmann::json const& json, Pictures const& pictures) {
  Message out{{json.at("role").get<std::string>(), {}}};
  nlohmann::json const& content = json.at("content");
  if (!content.is_array()) {
    out.chat.content = words_of(json, "content");
    return out;
  }
  for (nlohmann::json const& one : content) {
    std::string const type = one.at("type").get<std::string>();
    if (type == "text") {
      out.chat.parts.push_back({tiered::ChatPart::Kind::text, words_of(one, "text")});
      continue;
    }
    out.pictures.push_back(pictures.from_json(one));
    out.chat.parts.push_back({type == "video" ? tiered::ChatPart::Kind::video : tiered::ChatPart::Kind::image, {}});
  }
  return out;
}

}  // namespace

void save_messages(std::vector<Message> const& messages, std::string const& file) {
  nlohmann::json list = nlohmann::json::array();
  for (Message const& message : messages) list.push_back(to_json(message));
  std::string const text =
      nlohmann::json{{"messages", std::move(list)}}.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  tiered::detail::NewFile out(file);
  out.write(std::as_bytes(std::span(text)));
  out.publish();
}

std::vector<Message> load_messages(std::string const& file, Pictures const& pictures) {
  std::string const text = read_text(file, "messages of a conversation");
  try {
    std::vector<Message> messages;
    nlohmann::json const json = nlohmann::json::parse(text);
    for (auto const& m : json.at("messages")) messages.push_back(from_json(m, pictures));
    return messages;
  } catch (tiered::Error const& error) {  // numbers of a medium that cannot be
    throw tiered::Error(tiered::Errc::bad_file, concat(file, ": no messages of a conversation: ", error.what()));
  } catch (nlohmann::json::exception const& error) {
    throw tiered::Error(tiered::Errc::bad_file, concat(file, ": no messages of a conversation: ", error.what()));
  }
}

}  // namespace app
