#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "chat.hpp"
#include "prompt.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/utf8.hpp"

namespace app {

using tiered::concat;

void save_messages(std::vector<tiered::ChatMessage> const& messages, std::string const& file) {
  nlohmann::json list = nlohmann::json::array();
  for (tiered::ChatMessage const& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
    if (tiered::valid_utf8_bytes(message.content, 0) < message.content.size())  // JSON cannot hold it
      list.back()["bytes"] = std::vector<std::uint8_t>(message.content.begin(), message.content.end());
  }
  std::string const text =
      nlohmann::json{{"messages", std::move(list)}}.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  std::string path = file + ".XXXXXX";
  int const descriptor = ::mkstemp(path.data());  // 0600
  auto const fail = [&](int reason) {
    if (descriptor >= 0) ::unlink(path.c_str());
    throw tiered::Error(tiered::Errc::io, concat(file, ": cannot be written: ", std::strerror(reason)));
  };
  if (descriptor < 0) fail(errno);
  std::FILE* const out = ::fdopen(descriptor, "w");
  if (out == nullptr) {
    int const reason = errno;
    ::close(descriptor);
    fail(reason);
  }
  // On the disk before it takes the place of the old one.
  bool const written = std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0 && ::fsync(descriptor) == 0;
  int const reason = errno;
  if (std::fclose(out) != 0 || !written) fail(written ? errno : reason);
  if (std::rename(path.c_str(), file.c_str()) != 0) fail(errno);
}

std::vector<tiered::ChatMessage> load_messages(std::string const& file) {
  std::string const text = read_text(file, "messages of a conversation");
  try {
    std::vector<tiered::ChatMessage> messages;
    nlohmann::json const json = nlohmann::json::parse(text);
    for (auto const& m : json.at("messages")) {
      messages.push_back({m.at("role").get<std::string>(), m.at("content").get<std::string>()});
      if (auto const bytes = m.find("bytes"); bytes != m.end()) {
        auto const values = bytes->get<std::vector<std::uint8_t>>();
        messages.back().content.assign(values.begin(), values.end());
      }
    }
    return messages;
  } catch (nlohmann::json::exception const& error) {
    throw tiered::Error(tiered::Errc::bad_file, concat(file, ": no messages of a conversation: ", error.what()));
  }
}

}  // namespace app
