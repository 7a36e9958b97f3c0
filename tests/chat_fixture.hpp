/// Chat templates rendered by Jinja2, as tests/data/chat_template/make_chat_template.py writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/io/chat_template.hpp"

namespace tiered_test {

struct Conversation {
  std::vector<tiered::ChatMessage> messages;
  tiered::ChatOptions options;
};
struct Rendering {
  enum Outcome : std::uint32_t { text, refused, failed };
  std::uint32_t conversation, add_generation_prompt, outcome;
  std::string result;
};
struct RenderedTemplate {
  std::string name, source;
  std::vector<Rendering> renderings;
};
struct ChatFixture {
  std::vector<Conversation> conversations;
  std::vector<RenderedTemplate> templates;
};

/// The moment and the tokens that the script uses: 2026-03-05 14:07:09, a Thursday.
inline std::tm chat_fixture_now() {
  std::tm now{};
  now.tm_year = 126, now.tm_mon = 2, now.tm_mday = 5, now.tm_hour = 14, now.tm_min = 7, now.tm_sec = 9, now.tm_wday = 4, now.tm_yday = 63;
  return now;
}
inline tiered::ChatTokens chat_fixture_tokens() { return {"<s>", "</s>"}; }

class ChatFixtureReader {
 public:
  static ChatFixture read(std::filesystem::path const& path) {
    std::ifstream stream(path, std::ios::binary);
    REQUIRE(stream);
    ChatFixtureReader reader;
    reader.bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    ChatFixture fixture;
    reader.each(fixture.conversations, [&](Conversation& c) { reader.conversation(c); });
    reader.each(fixture.templates, [&](RenderedTemplate& t) {
      t.name = reader.text();
      t.source = reader.text();
      reader.each(t.renderings, [&](Rendering& r) {
        r.conversation = reader.number();
        r.add_generation_prompt = reader.number();
        r.outcome = reader.number();
        r.result = reader.text();
      });
    });
    return fixture;
  }

 private:
  void conversation(Conversation& c) {
    each(c.messages, [&](tiered::ChatMessage& m) {
      for (std::string* const field : {&m.role, &m.content, &m.reasoning_content, &m.tool_calls, &m.tool_call_id, &m.name}) *field = text();
    });
    each(c.options.tools, [&](std::string& tool) { tool = text(); });
    each(c.options.variables, [&](auto& variable) {
      variable.first = text();
      variable.second = text();
    });
    c.options.now = chat_fixture_now();
  }
  template <class T, class Read>
  void each(std::vector<T>& all, Read const& read_one) {
    all.resize(number());
    for (T& one : all) read_one(one);
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    REQUIRE(bytes_.size() - at_ >= sizeof value);
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    std::uint32_t const n = number();
    REQUIRE(bytes_.size() - at_ >= n);
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  std::string bytes_;
  std::size_t at_ = 0;
};

/// Checks every rendering: the same text, or the same refusal.
inline void check_renderings(ChatFixture const& fixture, RenderedTemplate const& t) {
  INFO(t.name);
  for (Rendering const& r : t.renderings) {
    Conversation const& c = fixture.conversations.at(r.conversation);
    INFO("conversation " << r.conversation << (r.add_generation_prompt != 0 ? ", with" : ", without") << " generation prompt");
    std::string text;
    Thrown const thrown = error_of(
        [&] { text = tiered::ChatTemplate(t.source, chat_fixture_tokens()).render(c.messages, r.add_generation_prompt != 0, c.options); });
    INFO("Jinja2: " << r.result);
    INFO("thrown: " << thrown.message);
    if (r.outcome == Rendering::text) {
      CHECK(!thrown.code.has_value());
      CHECK(text == r.result);
    } else if (r.outcome == Rendering::refused) {
      CHECK(thrown.code == tiered::Errc::precondition);
      CHECK(thrown.says(r.result.substr(0, r.result.find_first_of("\"\\\n"))));  // what printable() leaves as it is
    } else {
      CHECK(thrown.code == tiered::Errc::unsupported);
    }
  }
}

}  // namespace tiered_test
