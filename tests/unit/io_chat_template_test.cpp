#include "tiered/io/chat_template.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {

constexpr char const* plain =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Reads tests/data/chat_template/chat_template.bin; the layout is in the script beside it.
class Reader {
 public:
  Reader() {
    std::ifstream stream(std::filesystem::path(TIERED_TEST_DATA) / "chat_template" / "chat_template.bin", std::ios::binary);
    REQUIRE(stream);
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
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

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

}  // namespace

TEST_CASE("ChatTemplate writes what Jinja2 writes") {
  Reader reader;
  std::uint32_t const n_templates = reader.number();
  REQUIRE(n_templates >= 7);
  for (std::uint32_t t = 0; t < n_templates; ++t) {
    INFO(reader.text());
    ChatTemplate const chat(reader.text());
    for (std::uint32_t n = reader.number(); n > 0; --n) {
      std::vector<ChatMessage> messages(reader.number());
      for (ChatMessage& message : messages) {
        message.role = reader.text();
        message.content = reader.text();
      }
      bool const add_generation_prompt = reader.number() != 0;
      CHECK(chat.render(messages, add_generation_prompt) == reader.text());
    }
  }
}

TEST_CASE("ChatTemplate finds the system message that stands in") {
  std::string const with_default =
      "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}"
      "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
  CHECK(ChatTemplate(with_default).default_system() == std::optional<std::string>("Be kind."));
  CHECK(ChatTemplate(plain).default_system() == std::nullopt);
  std::vector<ChatMessage> const messages{{"user", "Hi"}};
  CHECK(ChatTemplate(with_default).render(messages) ==
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  CHECK(ChatTemplate(plain).render(messages, false) == "<|im_start|>user\nHi<|im_end|>\n");
}

TEST_CASE("ChatTemplate refuses what it cannot follow exactly, by name") {
  auto const refusal = [](std::string const& source) {
    auto const thrown = error_of([&] { ChatTemplate chat(source); });
    CHECK(thrown.code == Errc::unsupported);
    return thrown.message;
  };
  auto const contains = [](std::string const& text, std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(contains(refusal("{{ '[INST] <<SYS>>\\n' + m + '\\n<</SYS>>' }}"), "looks like llama-2;"));
  CHECK(contains(refusal("{{ bos_token + '[INST] ' + m + ' [/INST]' }}"), "looks like mistral;"));
  CHECK(contains(refusal("{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' }}"), "looks like llama-3;"));
  CHECK(contains(refusal("<start_of_turn>{{ m }}<end_of_turn>"), "looks like gemma;"));
  CHECK(contains(refusal("<|user|>\n{{ m }}<|end|>\n<|assistant|>"), "looks like phi-3;"));
  CHECK(contains(refusal("<｜User｜>{{ m }}<｜Assistant｜>"), "looks like deepseek;"));
  CHECK(contains(refusal("{{ m }}"), "is of no family that is known here;"));
  CHECK(contains(refusal(""), "is of no family that is known here;"));

  // One rule more or less, and the text would be another.
  std::string const source = plain;
  auto const changed = [&](std::string_view from, std::string_view to) {
    std::string result = source;
    std::size_t const at = result.find(from);
    REQUIRE(at != std::string::npos);
    return result.replace(at, from.size(), to);
  };
  for (std::string const& other :
       {changed("message['content']", "message['content'] | trim"), changed("message['role']", "'user'"),
        changed("<|im_end|>", "<|im_end|> "), changed("{% endfor %}", "x{% endfor %}"), changed("assistant\\n", "assistant\\n<think>\\n"),
        "{{ bos_token }}" + source, source + "{{ eos_token }}", source.substr(0, source.size() - 3), changed("messages", "messages[1:]")}) {
    INFO(other);
    CHECK(contains(refusal(other), "looks like chatml with rules of its own;"));
  }
}

TEST_CASE("ChatTemplate::render refuses what has no text") {
  ChatTemplate const chat(plain);
  CHECK(error_of([&] { chat.render({}); }).code == Errc::precondition);
  std::vector<ChatMessage> const tool{{"tool", "42"}};
  CHECK(chat.render(tool, false) == "<|im_start|>tool\n42<|im_end|>\n");
  ChatTemplate const with_tools(
      "{% if tools %}x{% else %}{% if messages[0].role == 'system' %}{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% "
      "else %}"
      "{{ '<|im_start|>system\nS<|im_end|>\n' }}{% endif %}{% endif %}{% for message in messages %}{% if (message.role == 'user') or "
      "(message.role == 'system' and not loop.first) or (message.role == 'assistant' and not message.tool_calls) %}"
      "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% elif message.role == 'tool' %}y{% endif %}{% endfor "
      "%}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
  auto const thrown = error_of([&] { with_tools.render(tool); });
  CHECK(thrown.code == Errc::unsupported);
  CHECK(thrown.says("\"tool\""));
}

TEST_CASE("JinjaOutline survives broken templates") {
  for (char const* const source : {"{", "{{", "{%", "{#", "{{-", "{{ '", "{{ 'a\\", "{% if '%}", "{{ a[", "{{ a['b", "{{ a[0", "}}", "%}",
                                   "{{ + }}", "{# '", "{{}}", "{%%}"}) {
    INFO(source);
    CHECK(error_of([&] { ChatTemplate chat(source); }).code == Errc::unsupported);
  }
}

TEST_CASE("the chat template comes out of the file") {
  auto writer = tiered_test::small_writer();
  auto const without = writer.to_bytes();
  CHECK(error_of([&] { chat_template_from_gguf(GgufFile::parse(without)); }).code == Errc::not_found);
  writer.set("tokenizer.chat_template", plain);
  auto const with = writer.to_bytes();
  CHECK(chat_template_from_gguf(GgufFile::parse(with)).default_system() == std::nullopt);
}
