#include "tiered/io/chat_template.hpp"

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "chat_fixture.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {

constexpr char const* plain =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::vector<ChatMessage> const hi{{"user", "Hi"}};

std::string rendered(std::string_view source, ChatOptions const& options = {}) {
  return ChatTemplate(source, {"<s>", "</s>"}).render(hi, true, options);
}

}  // namespace

TEST_CASE("ChatTemplate writes what Jinja2 writes, and refuses what Jinja2 refuses") {
  auto const fixture =
      tiered_test::ChatFixtureReader::read(std::filesystem::path(TIERED_TEST_DATA) / "chat_template" / "chat_template.bin");
  REQUIRE(fixture.templates.size() >= 140);
  REQUIRE(fixture.conversations.size() >= 19);
  for (auto const& each : fixture.templates) check_renderings(fixture, each);
}

TEST_CASE("ChatTemplate names what is wrong, its line, and the way out") {
  auto const refusal = [](std::string const& source) {
    auto const thrown = error_of([&] { rendered(source); });
    CHECK(thrown.code == Errc::unsupported);
    CHECK(thrown.says("or one of chatml, gemma, llama2, llama3, mistral"));
    return thrown.message;
  };
  auto const says = [](std::string const& text, std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(says(refusal("a\n\n{% include 'x' %}"), "line 3: the statement {% \"include\" %} is not supported"));
  CHECK(says(refusal("a\n{{ 1 | pprint }}"), "line 2: the filter \"pprint\" is not known"));
  CHECK(says(refusal("{{ 1 is prime }}"), "line 1: the test \"prime\" is not known"));
  CHECK(says(refusal("{{ 'a'\n.encode() }}"), "line 2: the method encode() of str is not supported"));
  CHECK(says(refusal("{{ joiner(',') }}"), "the function joiner() is not supported"));
  CHECK(says(refusal("{{ {}.fromkeys([1]) }}"), "fromkeys() of dict is not supported"));
  CHECK(says(refusal("{% macro f(a) %}{% endmacro %}{{ f.arguments }}"), "the attribute arguments of a macro is not supported"));
  CHECK(says(refusal("{{ '%5s' % 'a' }}"), "the format \"%5s\" for str"));
  CHECK(says(refusal("{{ '%d' % 1.5 }}"), "the format \"%d\" for float"));
  CHECK(says(refusal("\n{{ tools[0].name }}\n{{ nothing.name }}"), "line 2"));
  CHECK(says(refusal("{{ nothing\n.name }}"), "line 1: 'nothing' is undefined"));
  CHECK(says(refusal("{{ messages[0].tool.name }}"), "has no attribute \"tool\""));
  CHECK(says(refusal("{{ 9223372036854775807 + 1 }}"), "an integer of more than 64 bits"));
  CHECK(says(refusal("{% if true %}\n"), "without {% endif %}"));
  CHECK(says(refusal("{% set l = [1] %}{{ l.append(2) }}"), "may not call append of a list"));
  CHECK(says(refusal("{{ strftime_now('%Q') }}"), "strftime_now of \"%Q\""));
}

TEST_CASE("ChatTemplate refuses all that its documentation lists, and writes none of it in part") {
  for (char const* const source : {"{% extends 'a' %}",
                                   "{% import 'a' as b %}",
                                   "{% autoescape true %}{% endautoescape %}",
                                   "{% do 1 %}",
                                   "{% trans %}a{% endtrans %}",
                                   "{{ cycler('a') }}",
                                   "{{ lipsum() }}",
                                   "{{ 'upper' is filter }}",
                                   "{{ 'odd' is test }}",
                                   "{{ 'a' | urlize }}",
                                   "{{ [{'a': 1}] | groupby('a', default=1) }}",
                                   "{{ [{'a': 1}] | sort(attribute='a,b') }}",
                                   "{{ '%(a)s' | format(a=1) }}",
                                   "{{ 7.5 | round(-1) }}",
                                   "{{ 'a'.expandtabs(4) }}",
                                   "{{ 'a'.format_map({}) }}",
                                   "{{ 'a'.isascii() }}",
                                   "{{ 'a'.isidentifier() }}",
                                   "{{ 'a'.isprintable() }}",
                                   "{{ 'a'.istitle() }}",
                                   "{{ 'a'.maketrans('a', 'b') }}",
                                   "{{ 'a'.swapcase() }}",
                                   "{{ 'a'.translate({}) }}",
                                   "{{ 'é'.isalpha() }}",
                                   "{{ 'é'.isalnum() }}",
                                   "{{ '²'.isdigit() }}",
                                   "{{ '²'.isdecimal() }}",
                                   "{{ '²'.isnumeric() }}",
                                   "{{ (1).bit_length() }}",
                                   "{{ '{:>5}'.format('a') }}",
                                   "{{ '{!r}'.format('a') }}",
                                   "{{ '{a.b}'.format(a={'b': 1}) }}",
                                   "{{ '%c' % 65 }}",
                                   "{{ '%o' % 8 }}",
                                   "{{ '%X' % 15 }}",
                                   "{{ '%i' % 1.5 }}",
                                   "{{ '%#.1f' % 1.5 }}",
                                   "{{ '%(a)s' % {'a': 1} }}",
                                   "{{ '%1001d' % 1 }}",
                                   "{{ strftime_now('%Z') }}",
                                   "{{ 2 ** 63 }}",
                                   "{{ 1e400 }}",
                                   "{{ range(3) }}",
                                   "{{ [1] | map('string') }}",
                                   "{{ {'a': 1}.items() }}"}) {
    INFO(source);
    CHECK(error_of([&] { rendered(source); }).code == Errc::unsupported);
  }
  CHECK(rendered("{{ '%05.1f' % 3.14159 }} {{ 2.675 | round(2) }} {{ 'İﬁΑΣ' | lower }}") == "003.1 2.67 İﬁασ");
}

TEST_CASE("a refusal by the template is the caller's error, with the template's reason") {
  auto const thrown = error_of([] { rendered("a\n{{ raise_exception('Roles must \x1b[31malternate') }}"); });
  CHECK(thrown.code == Errc::precondition);
  CHECK(thrown.says("line 2", "Roles must \\x1b[31malternate"));
  CHECK(error_of([] { ChatTemplate(plain).render({}); }).code == Errc::precondition);
}

TEST_CASE("what is empty in a message the template does not see") {
  char const* const source = "{{ messages[0] }}";
  CHECK(rendered(source) == "{'role': 'user', 'content': 'Hi'}");
  ChatMessage full{"assistant", "c"};
  full.reasoning_content = "r";
  full.tool_calls = R"([{"function": {"name": "f", "arguments": {"x": 1}}}])";
  full.tool_call_id = "1";
  full.name = "n";
  CHECK(ChatTemplate(source).render(std::vector{full}) ==
        "{'thinking': 'r', 'role': 'assistant', 'content': 'c', 'reasoning_content': 'r', 'tool_calls': [{'function': {'name': 'f', "
        "'arguments': {'x': 1}}}], 'tool_call_id': '1', 'name': 'n'}");
}

TEST_CASE("a message of parts has a list for its content") {
  ChatMessage m{"user", "not seen"};
  m.parts = {{ChatPart::Kind::image, {}}, {ChatPart::Kind::text, "Hi \"you\""}, {ChatPart::Kind::video, {}}};
  std::vector const messages{m};
  CHECK(ChatTemplate("{{ messages[0] }}").render(messages) ==
        "{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'Hi \"you\"'}, {'type': 'video'}]}");
  CHECK(ChatTemplate(builtin_chat_template("chatml")).render(messages) ==
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Hi \"you\"<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
        "<|im_start|>assistant\n");
  CHECK(error_of([&] { ChatTemplate(plain).render(messages); }).code == Errc::unsupported);
}

TEST_CASE("options become variables, tools and the time") {
  CHECK(rendered("{{ enable_thinking is false }} {{ effort }} {{ missing is defined }} {{ tools }} {{ documents }}",
                 {{{"enable_thinking", "false"}, {"effort", "\"high\""}}, {}, {}}) == "True high False None None");
  CHECK(rendered("{{ tools | length }}{{ tools[1].name }}", {{}, {"{\"name\": \"a\"}", "{\"name\": \"b\"}"}, {}}) == "2b");
  ChatOptions at;
  at.now = tiered_test::chat_fixture_now();
  CHECK(rendered("{{ strftime_now('%d %b %Y') }}", at) == "05 Mar 2026");
  CHECK(rendered("{{ strftime_now('%Y') | int > 2000 }}") == "True");
  CHECK(rendered("{{ bos_token }}{{ eos_token }}") == "<s></s>");
  CHECK(ChatTemplate("{{ bos_token + eos_token }}").render(hi).empty());
}

TEST_CASE("broken JSON is the caller's error, with its place") {
  auto const variable = error_of([] { rendered("x", {{{"v", "[1, }"}}, {}, {}}); });
  CHECK(variable.code == Errc::precondition);
  CHECK(variable.says("the variable \"v\"", "byte 4"));
  CHECK(error_of([] { rendered("x", {{}, {"{"}, {}}); }).says("a tool"));
  ChatMessage call{"assistant", ""};
  call.tool_calls = "nothing";
  CHECK(error_of([&] { ChatTemplate("x").render(std::vector{call}); }).says("tool_calls of a message"));
}

TEST_CASE("a template that never ends, or grows without end, is stopped") {
  for (char const* const source :
       {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for a in range(999) %}{% set ns.s = [ns.s] %}{% endfor %}", "{{ 'x' * 99999999999 }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}{% endfor %}"}) {
    INFO(source);
    CHECK(error_of([&] { rendered(source); }).code == Errc::unsupported);
  }
  std::string const deep = "{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}";
  CHECK(error_of([&] { ChatTemplate chat(deep); }).says("nested more than"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  CHECK(error_of([&] { ChatTemplate chat(sum + " }}"); }).says("an expression of more than"));
  CHECK(error_of([&] { ChatTemplate chat(std::string((1 << 20) + 1, 'x')); }).says("bytes"));
}

TEST_CASE("a long conversation is no endless template") {
  std::vector<ChatMessage> messages;
  for (int i = 0; i < 2000; ++i) messages.push_back({i % 2 == 0 ? "user" : "assistant", std::string(2000, 'x')});
  std::string const text = ChatTemplate(
                               "{% for m in messages %}{{ (m.content | trim).split('</think>')[-1] + '\\n' }}{% for c in messages[:9] "
                               "%}{% endfor %}{% endfor %}")
                               .render(messages);
  CHECK(text.size() == 2000 * 2001);
}

TEST_CASE("bytes that are no UTF-8 pass through") {
  std::vector<ChatMessage> const broken{{"user", "a\xff\xc3 b\xe4\xb8"}};
  CHECK(ChatTemplate("{{ messages[0].content | trim }}{{ messages[0].content | length }}").render(broken) ==
        "a\xff\xc3 b\xe4\xb8"
        "7");
}

TEST_CASE("one template serves several threads") {
  ChatTemplate const chat(plain);
  std::string const expected = chat.render(hi);
  std::vector<std::string> results(4);
  std::vector<std::thread> threads;
  for (std::string& result : results) {
    threads.emplace_back([&chat, &result] {
      for (int i = 0; i < 50; ++i) result = chat.render(hi);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::string const& result : results) CHECK(result == expected);
}

TEST_CASE("the built-in templates write their formats") {
  std::vector<ChatMessage> const talk{{"system", "S"}, {"user", "U"}, {"assistant", "A"}, {"user", "V"}};
  auto const with = [&](char const* name) { return ChatTemplate(builtin_chat_template(name), {"<s>", "</s>"}).render(talk); };
  CHECK(
      with("chatml") ==
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n"
      "<|im_start|>assistant\n");
  CHECK(with("gemma") ==
        "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n"
        "<start_of_turn>model\n");
  CHECK(with("llama2") == "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]");
  CHECK(with("llama3") ==
        "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n");
  CHECK(with("mistral") == "<s>[INST] S\n\nU[/INST] A</s>[INST] V[/INST]");
  CHECK(builtin_chat_templates().size() == 5);
  for (std::string_view const name : builtin_chat_templates()) {
    ChatTemplate const chat(builtin_chat_template(name), {"<s>", "</s>"});
    CHECK(chat.writes_bos(chat.render(hi)) == (name != "chatml"));
    CHECK(chat.source() == builtin_chat_template(name));
  }
  auto const thrown = error_of([] { builtin_chat_template("vicuna"); });
  CHECK(thrown.code == Errc::not_found);
  CHECK(thrown.says("\"vicuna\"", "chatml, gemma, llama2, llama3, mistral"));
}

TEST_CASE("writes_bos tells whether the tokeniser must not add one") {
  ChatTemplate const chat(plain, {"<s>", "</s>"});
  CHECK(chat.writes_bos("<s>[INST]"));
  CHECK(!chat.writes_bos("[INST]<s>"));
  CHECK(!ChatTemplate(plain).writes_bos("<s>"));
}

TEST_CASE("the chat template comes out of the file, with its tokens") {
  auto writer = tiered_test::small_writer();
  auto const without = writer.to_bytes();
  CHECK(error_of([&] { chat_template_from_gguf(GgufFile::parse(without)); }).code == Errc::not_found);
  CHECK(chat_template_from_gguf(GgufFile::parse(without), "chatml").render(hi) == ChatTemplate(plain).render(hi));
  CHECK(chat_template_from_gguf(GgufFile::parse(without), "{{ messages[0].content }}!").render(hi) == "Hi!");
  CHECK(error_of([&] { chat_template_from_gguf(GgufFile::parse(without), "nosuch"); }).code == Errc::not_found);
  writer.set("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
  auto const tokenless = writer.to_bytes();
  CHECK(chat_template_from_gguf(GgufFile::parse(tokenless)).render(hi) == "Hi");
  writer.set("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<bos>", "<eos>"});
  writer.set("tokenizer.ggml.bos_token_id", std::uint32_t{1});
  writer.set("tokenizer.ggml.eos_token_id", std::uint32_t{7});
  auto const with = writer.to_bytes();
  ChatTemplate const chat = chat_template_from_gguf(GgufFile::parse(with));
  CHECK(chat.render(hi) == "<bos>Hi");
  CHECK(chat.writes_bos(chat.render(hi)));
}
